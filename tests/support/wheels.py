"""Wheels made by hand, and an index of them in a folder: what an index may hold, and PyPI does not."""

from __future__ import annotations

import stat
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


class Shop:
    """An index of packages, as a folder that uv can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"file://{folder}/simple"
        (folder / "simple").mkdir(parents=True)
        (folder / "simple" / "index.html").write_text("")

    def offer(
        self,
        name: str,
        version: str = "1.0",
        files: Mapping[str, str] | None = None,
        *,
        requires: Sequence[str] = (),
        links: Mapping[str, str] | None = None,
        tag: str = "py3-none-any",
        modes: Mapping[str, int] | None = None,
    ) -> None:
        """``links`` are symbolic links in the archive: a path in it, and where that leads."""
        module = name.replace("-", "_")
        files = {f"{module}/__init__.py": f"version = {version!r}\n"} if files is None else files
        filename = f"{module}-{version}-{tag}.whl"
        info = f"{module}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
        whole = {
            **files,
            f"{info}/METADATA": metadata,
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        }
        record = "".join(f"{path},,\n" for path in [*whole, *(links or {}), f"{info}/RECORD"])
        with zipfile.ZipFile(self._shelf(name) / filename, "w") as archive:
            for path, text in {**whole, f"{info}/RECORD": record}.items():
                entry = zipfile.ZipInfo(path, (2024, 1, 1, 0, 0, 0))
                mode = (modes or {}).get(path, 0o644)
                entry.external_attr = (stat.S_IFREG | mode) << 16
                archive.writestr(entry, text)
            for path, target in (links or {}).items():
                entry = zipfile.ZipInfo(path)
                entry.create_system = 3
                entry.external_attr = (stat.S_IFLNK | 0o777) << 16
                archive.writestr(entry, target)
        self._list(name)

    def offer_source(self, name: str, version: str = "1.0") -> None:
        """Something that would have to be built, and leaves a trace when it is."""
        import io
        import tarfile

        base = f"{name}-{version}"
        setup = (
            f"open({str(self.folder / 'BUILT')!r}, 'w').close()\n"
            f"from setuptools import setup\nsetup(name={name!r}, version={version!r})\n"
        )
        with tarfile.open(self._shelf(name) / f"{base}.tar.gz", "w:gz") as archive:
            for path, text in {
                f"{base}/setup.py": setup,
                f"{base}/PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            }.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        self._list(name)

    def _shelf(self, name: str) -> Path:
        shelf = self.folder / "simple" / name
        shelf.mkdir(exist_ok=True)
        return shelf

    def _list(self, name: str) -> None:
        shelf = self._shelf(name)
        files = sorted(path.name for path in shelf.iterdir() if path.suffix != ".html")
        lines = "".join(f'<a href="{file}">{file}</a><br>\n' for file in files)
        (shelf / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{lines}</body></html>\n")


def other_python() -> str:
    """The tag of a Python that this one is not."""
    return f"cp3{sys.version_info.minor + 1}-cp3{sys.version_info.minor + 1}-manylinux1_x86_64"
