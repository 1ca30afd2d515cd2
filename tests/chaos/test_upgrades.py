"""Code that changes under running kernels: ours, and the packages under the root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from kernelbox.keeper.launch import package_parent

SAY = """
import json
from kernelbox import Box
from kernelbox.client.blocking import BlockingDriver
box = Box()
{code}
greeting = box._driver.run(box._calls.keeper({{"op": "hello"}}))
print(json.dumps({{"said": said, "keeper": greeting["pid"], "build": greeting["build"]}}))
"""


@pytest.fixture
def copy(tmp_path: Path):
    """Make a copy of our sources, older than what a test will do to it."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        source = Path(package_parent(), "kernelbox")
        shutil.copytree(source, folder / "kernelbox", ignore=shutil.ignore_patterns("__pycache__"))
        for path in folder.rglob("*.py"):
            os.utime(path, (1_600_000_000, 1_600_000_000))
        return folder

    return make


@pytest.fixture
def ask(client):
    """Run code in a client that imports kernelbox from that folder; ``said`` is its answer."""

    def run(source: Path, code: str) -> dict:
        process = client(SAY.format(code=code), source=str(source))
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0, out
        return dict(json.loads(out.splitlines()[-1]))

    return run


def set_version(folder: Path, version: str) -> None:
    init = folder / "kernelbox" / "__init__.py"
    lines = init.read_text().splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("__version__")]
    lines[at] = f'__version__ = "{version}"'
    init.write_text("\n".join(lines) + "\n")
    os.utime(init, (1_600_000_000, 1_600_000_000))


def test_an_edited_source_takes_over_without_losing_a_kernel(stage, copy, ask) -> None:
    source = copy("editable")
    first = ask(
        source,
        "k = box.get_or_create('a'); box.execute(k, 'x = 42'); box.branch('a', 'b')\n"
        "said = k.kernel_id",
    )
    again = ask(source, "said = box.get_or_create('a').kernel_id")
    assert (again["said"], again["keeper"]) == (first["said"], first["keeper"])
    os.utime(source / "kernelbox" / "wire.py")
    look = (
        "said = [box.get_or_create('a').kernel_id, box.execute('a', 'x').return_value,"
        " box.execute('b', 'x').return_value]"
    )
    newer = ask(source, look)
    assert newer["said"] == [first["said"], "42", "42"]
    assert newer["keeper"] != first["keeper"]
    assert newer["build"] > first["build"]
    stage.gone(first["keeper"])
    assert len(stage.keepers()) == 1
    made = ask(source, "said = box.execute(box.get_or_create('c'), '1+1').return_value")
    assert (made["said"], made["keeper"]) == ("2", newer["keeper"])


def test_a_newer_version_takes_over_and_an_older_one_does_not(stage, copy, ask) -> None:
    old, new = copy("old"), copy("new")
    set_version(old, "0.0.1")
    set_version(new, "99.0.0")
    code = "k = box.get_or_create('a'); said = [k.kernel_id, box.execute(k, '1+1').return_value]"
    first = ask(old, code)
    second = ask(new, code)
    third = ask(old, code)
    assert first["said"] == second["said"] == third["said"]
    assert first["keeper"] != second["keeper"]
    assert second["keeper"] == third["keeper"], "an older client is served by the newer keeper"
    # Each client's kernels run on the code that the client has.
    where = "said = box.execute(box.get_or_create({!r}), 'import kernelbox; kernelbox.__file__')"
    assert "/old/" in ask(old, where.format("b") + ".return_value")["said"]
    assert "/new/" in ask(new, where.format("c") + ".return_value")["said"]


def test_a_take_over_while_cells_run_and_kernels_are_made_loses_nothing(
    stage, copy, client
) -> None:
    source = copy("editable")
    worker = (
        "import sys, time\nfrom kernelbox import Box\nbox = Box()\n"
        "name = sys.argv[1]\n"
        "for n in range(12):\n"
        "    k = box.get_or_create(f'{name}-{n % 3}')\n"
        "    r = box.execute(k, f'import time; time.sleep(0.05); {n}*2')\n"
        "    assert r.return_value == str(n * 2), r\n"
        "    if n % 3 == 2: assert box.destroy(f'{name}-1')\n"
        "print('all well')"
    )
    workers = []
    for number in range(6):
        code = worker.replace("sys.argv[1]", repr(f"w{number}"))
        workers.append(client(code, source=str(source)))
        os.utime(source / "kernelbox" / "errors.py")  # each is newer than the one before
        time.sleep(0.3)
    for process in workers:
        out, _ = process.communicate(timeout=60)
        assert out.endswith("all well\n"), out
    assert len(stage.keepers()) == 1
    names = {record.name for record in stage.box.list_kernels()}
    assert names == {f"w{w}-{n}" for w in range(6) for n in (0, 2)}


def test_sources_that_vanish_under_a_running_kernel_do_not_disturb_it(stage, copy, ask) -> None:
    source = copy("doomed")
    first = ask(source, "k = box.get_or_create('a'); box.execute(k, 'x = 42'); said = k.kernel_id")
    shutil.rmtree(source / "kernelbox")
    box = stage.box
    assert box.execute("a", "x").return_value == "42"
    assert box.execute("a", "1/0").error.ename == "ZeroDivisionError"
    assert box.execute("a", "echo $((40 + 2))", language="bash").output == "42\n"
    assert box.execute("a", "import os; os._exit(1)").state == "lost"
    assert box.execute("a", "6*7").return_value == "42"
    assert box.branch("a", "b").parent == first["said"]
    assert box.execute("b", "6*7").return_value == "42"


@pytest.fixture
def python(tmp_path: Path) -> tuple[Path, Path]:
    """A Python with a site-packages of its own, where a package can be upgraded."""
    folder = tmp_path / "python"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True
    )
    (site,) = folder.glob("lib/python3*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site / "borrowed.pth").write_text(f"{ours}\n{package_parent()}\n")
    return folder / "bin" / "python", site


def install(site: Path, version: str) -> None:
    """As an installer does it: the new files, then the metadata under a new name."""
    package = site / "fakepackage"
    shutil.rmtree(package, ignore_errors=True)
    for old in site.glob("fakepackage-*.dist-info"):
        shutil.rmtree(old)
    package.mkdir()
    (package / "__init__.py").write_text(f"version = {version!r}\n")
    (site / f"fakepackage-{version}.dist-info").mkdir()


def test_a_package_upgraded_under_the_root_is_seen_by_the_next_kernel(
    stage, python: tuple[Path, Path], monkeypatch
) -> None:
    executable, site = python
    monkeypatch.setenv("KERNELBOX_PRELOAD", "fakepackage")
    monkeypatch.setenv("KERNELBOX_SPARES", "2")
    environ = {**os.environ, "PYTHONPATH": package_parent()}

    def version_in(name: str) -> str:
        code = (
            f"from kernelbox import Box\nbox = Box()\nk = box.get_or_create({name!r})\n"
            "r = box.execute(k, 'import fakepackage; fakepackage.version')\n"
            "print(r.return_value, r.error)"
        )
        return subprocess.run(
            [str(executable), "-c", code], env=environ, capture_output=True, text=True, timeout=30
        ).stdout.strip()

    install(site, "1.0")
    assert version_in("a") == "'1.0' None"
    install(site, "2.0")
    assert version_in("b") == "'2.0' None"
    assert version_in("a") == "'1.0' None", "a kernel that is there keeps what it has"
    install(site, "3.0")
    assert version_in("c") == "'3.0' None"
    monkeypatch.delenv("KERNELBOX_PRELOAD")
    monkeypatch.setenv("KERNELBOX_SPARES", "0")
