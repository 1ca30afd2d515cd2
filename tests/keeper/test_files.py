"""The files of a home: where they are, who may read them, and what happens to broken ones."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kernelbox import BadInput, Box, KernelRecord, Settings
from kernelbox.keeper.home import locate, prepare

Waiting = Callable[..., None]
Find = Callable[[Box], list[psutil.Process]]


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    """Keeps the module's keeper (and its warm root) from leaving between two tests."""
    shared_box.get_or_create("anchor")


def mode(path: Path | str) -> str:
    return oct(stat.S_IMODE(os.stat(path).st_mode))


def registered(home: Path) -> list[dict]:
    """The kernels that the registry names. It is written right after the answer."""
    path = home / "registry.json"
    kernels: list[dict] = json.loads(path.read_text())["kernels"] if path.exists() else []
    return kernels


@pytest.fixture
def home(shared_box: Box) -> Path:
    """The folder of the module's home."""
    return Path(shared_box.settings.registry_path).parent


def test_folders_are_private_and_files_too(
    shared_box: Box, home: Path, kernel: KernelRecord
) -> None:
    result = shared_box.execute(kernel, "print('x' * 1_000_000)")
    shared_box.output(kernel, result.execution_id)
    folders = [home, home / "runtime", Path(locate(shared_box.settings).rundir)]
    for folder in folders:
        assert mode(folder) == "0o700", folder
    found = 0
    for folder in folders:
        for path in folder.rglob("*"):
            if "ipython" in path.parts:
                continue  # IPython makes folders of its own in there, behind a private one
            found += 1
            if path.is_dir():
                assert mode(path) == "0o700", path
            elif not path.is_symlink():
                assert mode(path) in ("0o600", "0o700" if path.is_socket() else "0o600"), path
    assert found >= 6


def test_the_registry_says_what_there_is(shared_box: Box, home: Path, waiting: Waiting) -> None:
    record = shared_box.get_or_create("k", session_name="s", tags={"a": 1})

    def entries() -> list[dict]:
        return [entry for entry in registered(home) if entry["name"] == "k"]

    waiting(entries, what="the registry to be written")
    (entry,) = entries()
    for field in ("kernel_id", "connection_file", "name", "created_at", "last_used_at", "status",
                  "session_name", "attempt_count", "tags"):  # fmt: skip
        assert field in entry
    assert (entry["name"], entry["session_name"], entry["tags"]) == ("k", "s", {"a": 1})
    assert entry["connection_file"] == record.connection_file
    shared_box.destroy("k")
    waiting(lambda: not entries(), what="the registry to be written")


def test_no_file_holds_a_secret_of_the_caller(
    shared_box: Box, home: Path, monkeypatch: pytest.MonkeyPatch, waiting: Waiting
) -> None:
    monkeypatch.setenv("API_TOKEN", "very-secret-value")
    record = shared_box.get_or_create("with a secret")
    assert shared_box.execute(record, "import os; os.environ['API_TOKEN']").ok
    waiting(lambda: record.kernel_id in str(registered(home)), what="the registry to be written")
    for path in [*home.rglob("*"), *Path(locate(shared_box.settings).rundir).rglob("*")]:
        if path.is_file():
            assert b"very-secret-value" not in path.read_bytes(), path
    shared_box.destroy(record)


def test_the_connection_file_is_jupyters(home: Path, kernel: KernelRecord) -> None:
    path = Path(kernel.connection_file)
    assert path.parent == home / "runtime"
    assert mode(path) == "0o600"
    info = json.loads(path.read_text())
    assert info["transport"] == "tcp"
    assert info["ip"] == "127.0.0.1"
    assert info["signature_scheme"] == "hmac-sha256"
    assert len(info["key"]) >= 32
    ports = {info[f"{name}_port"] for name in ("shell", "iopub", "stdin", "control", "hb")}
    assert len(ports) == 5


def test_by_default_all_is_in_the_working_folder_and_out_of_git(
    environment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keepers: Find,
    waiting: Waiting,
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    program = "import kernelbox; kernelbox.get_or_create('k'); kernelbox.destroy('k')"
    environ = {name: value for name, value in os.environ.items() if name != "KERNELBOX_HOME"}
    subprocess.run(
        [sys.executable, "-c", program], cwd=project, env=environ, timeout=60, check=True
    )
    inside = project / ".kernelbox"
    assert (inside / ".gitignore").read_text() == "*\n"
    assert (inside / "registry.json").exists()
    assert (inside / "runtime").is_dir()
    assert mode(inside) == "0o700"
    monkeypatch.chdir(project)
    with Box(Settings()) as box:
        waiting(lambda: not keepers(box), what="the keeper to leave")
    if shutil.which("git"):
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
        status = subprocess.run(
            ["git", "status", "--porcelain"], cwd=project, capture_output=True, check=True
        )
        assert status.stdout == b""


def test_explicit_paths_beat_the_home(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: Waiting
) -> None:
    monkeypatch.setenv("KERNELBOX_REGISTRY_PATH", str(tmp_path / "elsewhere" / "kernels.json"))
    with Box() as box:
        record = box.get_or_create("k")
        waiting((tmp_path / "elsewhere" / "kernels.json").exists, what="the registry")
        assert not (environment / "registry.json").exists()
        assert Path(record.connection_file).parent == environment / "runtime"
        box.wipe()
        assert locate(box.settings) != locate(Settings(home=str(environment)))


def test_one_home_by_many_names(box: Box, environment: Path, tmp_path: Path) -> None:
    record = box.get_or_create("k")
    (tmp_path / "link").symlink_to(environment)
    with Box(Settings(home=str(tmp_path / "link"), keeper_linger=0.1, spares=0)) as other:
        assert [r.kernel_id for r in other.list_kernels()] == [record.kernel_id]


@pytest.mark.parametrize("broken", ["{", '{"kernels": 7}'], ids=range(2))
def test_a_corrupted_registry_is_set_aside_and_kernels_are_found_again(
    box: Box, environment: Path, keepers: Find, waiting: Waiting, broken: str
) -> None:
    record = box.get_or_create("k")
    box.execute(record, "x = 'kept'")
    (keeper,) = keepers(box)
    keeper.kill()
    waiting(lambda: not keepers(box), what="the keeper to die")
    (environment / "registry.json").write_text(broken)
    with Box(box.settings) as fresh:
        assert [r.kernel_id for r in fresh.list_kernels()] == [record.kernel_id]
        assert fresh.execute("k", "x").return_value == "'kept'"
    waiting(lambda: registered(environment), what="a new registry")
    (aside,) = environment.glob("registry.json.corrupt-*")
    assert aside.read_text() == broken


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_home_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with Box(Settings(home=str(folder / "home"))) as box, pytest.raises(BadInput) as caught:
        box.get_or_create("k")
    assert "KERNELBOX_HOME" in str(caught.value)


@pytest.mark.parametrize("path", ["/proc/kernelbox", "/dev/null/home"])
def test_a_home_that_cannot_be_made_is_refused_in_words(path: str) -> None:
    with Box(Settings(home=path)) as box, pytest.raises(BadInput) as caught:
        box.get_or_create("k")
    assert path in str(caught.value)
    assert "KERNELBOX_HOME" in str(caught.value)


def test_a_home_path_of_two_hundred_characters_works(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / ("x" * 100) / ("y" * 100)
    monkeypatch.setenv("KERNELBOX_HOME", str(home))
    with Box() as box:
        assert len(box.settings.runtime_dir) > 200
        record = box.get_or_create("k")
        assert box.execute(record, "1").ok
        assert len(record.address) < 108
        box.wipe()


def test_two_homes_never_share_a_socket_folder(tmp_path: Path) -> None:
    places = {locate(Settings(home=str(tmp_path / str(n)))).rundir for n in range(50)}
    assert len(places) == 50
    same = {locate(Settings(home=str(tmp_path / "same"))).rundir for _ in range(5)}
    assert len(same) == 1


def test_preparing_a_home_twice_changes_nothing(tmp_path: Path) -> None:
    place = locate(Settings(home=str(tmp_path / "h")))
    prepare(place)
    before = os.stat(place.rundir).st_mtime_ns
    prepare(place)
    assert os.stat(place.rundir).st_mtime_ns == before
    shutil.rmtree(place.rundir)


def test_nothing_is_left_in_the_home_but_the_registry(
    box: Box, environment: Path, keepers: Find, waiting: Waiting
) -> None:
    for name in ("a", "b"):
        record = box.get_or_create(name)
        box.execute(record, "print('x' * 1_000_000)")
    box.wipe()
    waiting(lambda: not keepers(box), what="the keeper to leave")
    left = {str(path.relative_to(environment)) for path in environment.rglob("*")}
    assert left <= {"registry.json", "runtime", ".gitignore"}
