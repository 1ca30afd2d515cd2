"""Where the kernelspec goes, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelbox.errors import BadInput
from kernelbox.kernelspec import install, system_data_dir, user_data_dir


def test_the_kernelspec_starts_our_launcher_with_this_python(tmp_path: Path) -> None:
    folder = install(prefix=str(tmp_path))
    assert folder == str(tmp_path / "share" / "jupyter" / "kernels" / "kernelbox")
    spec = json.loads((Path(folder) / "kernel.json").read_text())
    assert spec["argv"][0] == sys.executable
    assert spec["argv"][-4:] == ["-m", "kernelbox.launcher", "-f", "{connection_file}"]
    assert spec["language"] == "python"
    assert spec["interrupt_mode"] == "message"
    assert sorted(path.name for path in Path(folder).iterdir()) == ["kernel.json"]


def test_installing_again_replaces_it(tmp_path: Path) -> None:
    folder = Path(install(prefix=str(tmp_path)))
    (folder / "kernel.json").write_text("broken")
    install(prefix=str(tmp_path))
    assert json.loads((folder / "kernel.json").read_text())["language"] == "python"


def test_a_users_kernelspec_goes_where_jupyter_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_core.paths import jupyter_data_dir

    monkeypatch.delenv("JUPYTER_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert user_data_dir() == jupyter_data_dir() == str(tmp_path / "data" / "jupyter")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "chosen"))
    assert user_data_dir() == jupyter_data_dir() == str(tmp_path / "chosen")
    folder = install(user=True, name="mine")
    assert folder == str(tmp_path / "chosen" / "kernels" / "mine")


def test_other_platforms_have_their_own_folders() -> None:
    assert user_data_dir({}, platform="darwin").endswith("Library/Jupyter")
    assert user_data_dir({"APPDATA": "A"}, platform="win32").startswith("A")
    assert system_data_dir({"PROGRAMDATA": "P"}, platform="win32").startswith("P")
    assert system_data_dir({}, platform="linux") == "/usr/local/share/jupyter"


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "ü", "../../x"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="name"):
        install(prefix=str(tmp_path), name=name)
    assert list(tmp_path.iterdir()) == []


def test_user_and_prefix_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not both"):
        install(user=True, prefix=str(tmp_path))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match=r"file.*--user"):
        install(prefix=str(tmp_path / "file"))


def test_it_installs_from_the_command_line(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kernelbox.kernelspec", "install", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = run("--prefix", str(tmp_path), "--name", "mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "share" / "jupyter" / "kernels" / "mine")
    refused = run("--prefix", str(tmp_path), "--name", "a b")
    assert refused.returncode == 1
    assert "name" in refused.stderr
