"""The private folder of sockets: stale ones are cleared away, a stranger's is refused in words."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernelbox import Box, KeeperUnavailable, KernelLost
from kernelbox.keeper.home import Home, prepare
from kernelbox.keeper.launch import package_parent

USE = """
import json, os
from kernelbox import Box, BoxError
from kernelbox.keeper.home import locate
try:
    with Box() as box:
        place = locate(box.settings)
        {before}
        box.get_or_create("a")
        said = box.execute("a", "1+1").return_value
        base = os.stat(os.path.dirname(place.rundir))
        said = [said, oct(base.st_mode & 0o777)]
        box.wipe()
except BoxError as error:
    said = [type(error).__name__, str(error)]
print(json.dumps(said))
"""


@pytest.fixture
def in_a_base_with(stage):
    """Run a client that finds another file system where the base of all socket folders is."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("only root may put another folder in the place of the socket folders' base")
    base = os.path.dirname(stage.home.rundir)

    def run(options: str, *, before: str = "pass") -> list[str]:
        os.makedirs(base, mode=0o700, exist_ok=True)
        script = 'mount -t tmpfs -o "$1" tmpfs "$2" || exit 99; exec "$3" -c "$4"'
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
        ended = subprocess.run(
            [*command, options, base, sys.executable, USE.format(before=before)],
            env={**os.environ, "PYTHONPATH": package_parent()},
            capture_output=True,
            text=True,
            timeout=30,
        )
        if ended.returncode == 99:
            pytest.skip("this machine does not let us mount a file system")
        assert ended.returncode == 0, ended.stderr
        return list(json.loads(ended.stdout))

    return run


def test_a_base_folder_of_somebody_else_is_refused(in_a_base_with) -> None:
    name, words = in_a_base_with("mode=0700,uid=65534")
    assert name == "KeeperUnavailable"
    assert "not a folder of yours" in words
    assert "Remove it" in words


def test_a_base_folder_that_others_could_read_is_made_private_first(in_a_base_with) -> None:
    assert in_a_base_with("mode=0777") == ["2", "0o700"]


def test_a_base_folder_without_room_is_refused(in_a_base_with) -> None:
    name, words = in_a_base_with("mode=0700,nr_inodes=1")
    assert name == "KeeperUnavailable"
    assert "No space left" in words


def test_nothing_is_told_to_a_listener_of_another_user(in_a_base_with) -> None:
    """A request holds the caller's environment, secrets and all."""
    plant = (
        "import socket; os.makedirs(place.rundir, 0o700); spy = socket.socket(socket.AF_UNIX);"
        "spy.bind(place.keeper_address); os.seteuid(65534); spy.listen(); os.seteuid(0)"
    )
    name, words = in_a_base_with("mode=0700", before=plant)
    assert name == "KeeperUnavailable"
    assert "belongs to another user (uid 65534)" in words


def put_stale_socket(path: str) -> None:
    """What a killed process leaves: the file of a socket that nobody listens to."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)


def test_stale_sockets_and_files_of_killed_kernels_are_cleared_away(stage) -> None:
    box, rundir = stage.box, Path(stage.home.rundir)
    record = box.get_or_create("a")
    live = box.get_or_create("b")
    box.execute("a", "print('x' * 1_000_000)")
    wardens = stage.pid("a", "warden"), stage.pid("a", "stub"), stage.pid("a", "interpreter")
    stage.kill(stage.keeper())
    stage.kill(wardens[0])
    stage.gone(*wardens)
    runtime = Path(stage.home.runtime_dir)
    assert (rundir / f"{record.kernel_id}.sock").exists()
    assert (runtime / f"spool-{record.kernel_id}").exists()
    # Its record is lost too: the socket alone tells that there was such a kernel.
    Path(stage.home.registry_path).unlink()
    put_stale_socket(str(rundir / "01234567-89ab-cdef-0123-456789abcdef.sock"))
    assert [kernel.name for kernel in box.list_kernels()] == ["b"]
    assert {path.name for path in rundir.glob("*.sock")} == {
        "keeper.sock",
        f"{live.kernel_id}.sock",
    }
    assert {path.name for path in runtime.iterdir()} == {
        f"kernel-{live.kernel_id}.json",
        f"spool-{live.kernel_id}",
    }


@pytest.mark.parametrize("leave", [put_stale_socket, lambda path: Path(path).write_text("x")])
def test_a_stale_keeper_socket_is_replaced(stage, leave) -> None:
    prepare(stage.home)
    leave(stage.home.keeper_address)
    stage.box.get_or_create("a")
    assert stage.box.execute("a", "1+1").return_value == "2"
    assert len(stage.keepers()) == 1


def test_a_stale_lock_file_does_not_matter(stage) -> None:
    prepare(stage.home)
    Path(stage.home.lock_path).write_text("stale")
    stage.box.get_or_create("a")
    assert stage.box.execute("a", "1+1").return_value == "2"


def test_a_lock_that_is_held_is_waited_for(stage) -> None:
    prepare(stage.home)
    with open(stage.home.lock_path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(0.5, fcntl.flock, (lock.fileno(), fcntl.LOCK_UN)).start()
        stage.box.get_or_create("a")
        assert stage.box.execute("a", "1+1").return_value == "2"


def test_a_lock_that_is_never_released_is_given_up_in_words(stage, monkeypatch) -> None:
    monkeypatch.setattr("kernelbox.keeper.launch._START_PATIENCE", 0.3)
    prepare(stage.home)
    with open(stage.home.lock_path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(KeeperUnavailable, match=r"holds .* locked"):
            stage.box.get_or_create("a")


def test_a_keeper_that_has_nothing_to_keep_takes_its_folder_along(stage, waiting) -> None:
    for _ in range(2):
        stage.box.get_or_create("a")
        assert os.path.isdir(stage.home.rundir)
        stage.box.destroy("a")
        waiting(lambda: not os.path.exists(stage.home.rundir), what="the folder to go")


def test_a_removed_run_folder_ends_in_clear_errors_and_a_new_start(stage, stopwatch) -> None:
    """Nobody can be found any more; who notices that ends what it kept, and itself."""
    box: Box = stage.box
    record = box.get_or_create("a")
    warden, keeper = stage.pid("a", "warden"), stage.keeper()
    place: Home = stage.home
    stage.wait_until_written(record)
    shutil.rmtree(place.rundir)
    box.close()
    watch = stopwatch()
    with pytest.raises(KernelLost):
        box.execute(record, "1")
    again = box.get_or_create("a")
    assert again.kernel_id != record.kernel_id
    assert box.execute(again, "1+1").return_value == "2"
    watch.within(15)
    stage.gone(keeper, warden, seconds=15)
