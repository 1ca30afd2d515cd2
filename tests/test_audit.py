"""What happens to kernels is written down, by whoever sees it, and nothing of it gets lost."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

from kernelbox import Box, Settings
from kernelbox.audit import AuditLog, read
from kernelbox.errors import BoxError
from kernelbox.walls import entry
from kernelbox.walls.profiles import PROFILES

# -- the file ---------------------------------------------------------------------------------


def log_at(path: Path, max_bytes: int = 1 << 20, keep: int = 3) -> AuditLog:
    return AuditLog(str(path), max_bytes=max_bytes, keep=keep)


def test_each_event_is_a_line_that_only_the_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "new" / "audit.log"
    log = log_at(path)
    assert log.write("a.b", {"n": 1, "text": "one\ntwo ü"})
    assert log.write("a.c", {"n": 2})
    log.close()
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["event"], first["text"], second["n"]) == ("a.b", "one\ntwo ü", 2)
    assert first["time"].endswith("+00:00")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_full_files_are_kept_up_to_a_number(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = log_at(path, max_bytes=4096, keep=2)
    for number in range(200):
        assert log.write("x", {"n": number, "fill": "." * 100})
    log.close()
    assert sorted(os.listdir(tmp_path)) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all((tmp_path / name).stat().st_size <= 4096 for name in os.listdir(tmp_path))
    numbers = [event["n"] for event in read(str(path))]
    assert numbers == list(range(numbers[0], 200))


def test_an_event_larger_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    log = log_at(tmp_path / "audit.log", max_bytes=4096)
    for number in range(3):
        assert log.write("x", {"n": number, "fill": "." * 10_000})
    log.close()
    assert [event["n"] for event in read(str(tmp_path / "audit.log"))] == [0, 1, 2]


WRITER = """
import sys
from kernelbox.audit import AuditLog
log = AuditLog(sys.argv[1], max_bytes=20_000, keep=500)
for number in range(400):
    assert log.write("x", {"who": sys.argv[2], "n": number, "fill": "." * 80}), log.failure
"""


def test_many_processes_write_and_rotate_and_no_line_is_lost_or_torn(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(who)]) for who in range(6)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 6
    events = list(read(str(path)))
    assert not [event for event in events if "damaged" in event]
    for who in range(6):
        mine = [event["n"] for event in events if event["who"] == str(who)]
        assert sorted(mine) == list(range(400)), who
    assert len(os.listdir(tmp_path)) > 3


def test_a_log_that_somebody_took_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = log_at(path)
    log.write("first", {})
    path.unlink()
    assert log.write("second", {})
    path.rename(tmp_path / "moved")
    assert log.write("third", {})
    log.close()
    assert [event["event"] for event in read(str(path))] == ["third"]


@pytest.mark.parametrize("what", ["folder", "pipe", "link", "device"])
def test_what_is_no_file_is_refused_at_once_and_told(tmp_path: Path, what: str) -> None:
    path = tmp_path / "audit.log"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path = Path("/dev/full")
    log = log_at(path)
    assert not log.write("x", {})
    assert "cannot be written" in log.failure
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_told_and_the_next_line_is_whole(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a disk of one's own needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)])
    if mounted.returncode:
        pytest.skip("no disk of our own can be had here")
    try:
        log = log_at(folder / "audit.log")
        while log.write("x", {"fill": "." * 1500}):
            pass
        assert "No space left" in log.failure
        lost = log.lost
        os.truncate(folder / "audit.log", os.path.getsize(folder / "audit.log") - 9000)
        assert log.write("after", {})
        log.close()
        events = list(read(str(folder / "audit.log")))
        assert events[-1]["event"] == "after"
        assert events[-1]["lost"] == lost >= 1
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_damage_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(
        b'{"event": "a"}\nhalf of a li{"event": "b"}\n[1]\n\n\xff\xfe\n{"event": "c"}\n'
    )
    events = list(read(str(path)))
    assert [event.get("event") for event in events] == ["a", None, None, None, "c"]


# -- kernels ----------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "audit.log"


@pytest.fixture
def box(tmp_path: Path, path: Path) -> Iterator[Box]:
    settings = Settings(home=str(tmp_path / "home"), audit_log=str(path), keeper_linger=0.1)
    with Box(settings) as made:
        yield made
        made.wipe()


def events_of(path: Path, name: str = "k") -> list[dict[str, Any]]:
    return [event for event in read(str(path)) if event.get("kernel") == name]


def kinds(path: Path, name: str = "k") -> list[str]:
    return [event["event"] for event in events_of(path, name)]


def test_the_life_of_a_kernel_is_written_down(box: Box, path: Path) -> None:
    record = box.get_or_create("k")
    code = "secret_looking = 'do not write this down'"
    result = box.execute("k", code)
    box.execute("k", "1/0")
    box.execute("k", "echo hello", language="bash")
    point = box.checkpoint("k", label="here")
    box.rewind("k", "here")
    box.branch("k", "copy")
    box.restart("k")
    box.destroy("k")
    wait_until(lambda: kinds(path)[-1] == "kernel.ended", what="the last line")
    told = events_of(path)
    assert kinds(path) == [
        "kernel.created",
        *["execution.started", "execution.finished"] * 3,
        "kernel.checkpoint",
        "kernel.rewound",
        "kernel.restarted",
        "kernel.ended",
    ]
    assert {event["kernel_id"] for event in told} == {record.kernel_id}
    started, finished = told[1:3]
    assert started["sha256"] == hashlib.sha256(code.encode()).hexdigest()
    assert (started["characters"], started["language"]) == (len(code), "python")
    assert started["execution_id"] == finished["execution_id"] == result.execution_id
    assert (finished["status"], finished["state"]) == ("success", "kept")
    assert finished["seconds"] >= 0
    assert (told[4]["status"], told[4]["error"]) == ("error", "ZeroDivisionError")
    assert told[5]["language"] == "bash"
    assert told[7]["checkpoint_id"] == point
    assert told[-1]["cause"] == "destroyed"
    copy = events_of(path, "copy")[0]
    assert (copy["event"], copy["parent"]) == ("kernel.branched", record.kernel_id)
    assert "do not write this down" not in path.read_text()


def test_code_is_written_down_only_where_that_is_wanted(tmp_path: Path, path: Path) -> None:
    settings = Settings(
        home=str(tmp_path / "home"), audit_log=str(path), audit_code="whole", keeper_linger=0.1
    )
    with Box(settings) as box:
        box.get_or_create("k")
        box.execute("k", "x = 'written down'")
        box.wipe()
    assert events_of(path)[1]["code"] == "x = 'written down'"


def test_an_interpreter_that_dies_is_written_down(box: Box, path: Path) -> None:
    box.get_or_create("k")
    box.execute("k", "import os; os.kill(os.getpid(), 9)")
    # The caller is answered first.
    wait_until(lambda: kinds(path)[-1] == "execution.finished", what="the line of its end")
    assert kinds(path)[:3] == ["kernel.created", "execution.started", "kernel.lost"]
    assert events_of(path)[3]["state"] == "lost"


def test_a_warden_that_was_killed_is_written_down_by_the_keeper(box: Box, path: Path) -> None:
    box.get_or_create("k")
    box.execute("k", "1")
    processes = box.status("k")["processes"]
    warden = next(process["pid"] for process in processes if process["role"] == "warden")
    os.kill(warden, signal.SIGKILL)
    wait_until(lambda: kinds(path)[-1] == "kernel.ended", what="the keeper's line")
    last = events_of(path)[-1]
    assert "keeper" in last
    assert last["cause"]


def test_without_the_setting_nothing_is_written_nor_imported(tmp_path: Path) -> None:
    with Box(Settings(home=str(tmp_path / "home"), keeper_linger=0.1)) as box:
        box.get_or_create("k")
        seen = box.execute("k", "import sys; sorted(m for m in sys.modules if 'audit' in m)")
        assert seen.return_value == "[]"
        box.wipe()


def test_a_log_that_cannot_be_written_breaks_nothing_and_is_told_once(
    tmp_path: Path, path: Path
) -> None:
    path.mkdir(parents=True)  # a folder where the file should be
    with Box(Settings(home=str(tmp_path / "home"), audit_log=str(path), keeper_linger=0.1)) as box:
        record = box.get_or_create("k")
        results = [box.execute("k", "1+1") for _ in range(3)]
        assert [result.return_value for result in results] == ["2"] * 3
        notes = [*record.notes, *(note for result in results for note in result.notes)]
        notes += box.status("k")["kernel"]["notes"]
        assert {note for note in notes if "audit log" in note} == {
            f"the audit log {str(path)!r} cannot be written: Is a directory"
        }
        assert sum("audit log" in note for result in results for note in result.notes) <= 1
        box.wipe()


def test_denials_of_a_sandbox_are_written_down(box: Box, path: Path) -> None:
    if words := entry.obstacle():
        pytest.skip(f"no walls here: {words}")
    profile = PROFILES["restrictive"].but(network="on", allow=("pypi.org",))
    box.get_or_create("k", profile=profile)
    box.execute(
        "k",
        "import urllib.request\ntry: urllib.request.urlopen('http://not-allowed.example/')\n"
        "except OSError: pass",
    )
    wait_until(lambda: "denial" in kinds(path), what="the denial")
    denial = next(event for event in events_of(path) if event["event"] == "denial")
    assert (denial["host"], denial["port"]) == ("not-allowed.example", 80)
    assert denial["reason"] == "domain-not-allowed"
    assert denial["execution_id"] in {e.get("execution_id") for e in events_of(path)[1:2]}
    assert events_of(path)[0]["profile"] == profile.name


def test_a_sandbox_that_could_write_to_the_log_is_refused(tmp_path: Path) -> None:
    if words := entry.obstacle():
        pytest.skip(f"no walls here: {words}")
    project = tmp_path / "project"
    project.mkdir()
    settings = Settings(
        home=str(tmp_path / "home"), audit_log=str(project / "logs" / "a.log"), keeper_linger=0.1
    )
    with Box(settings) as box:
        with pytest.raises(BoxError, match="may write to"):
            box.get_or_create("k", cwd=str(project), profile="permissive")
        assert box.list_kernels() == []


def test_the_command_line_reads_it(box: Box, path: Path) -> None:
    box.get_or_create("k")
    box.get_or_create("other")
    box.execute("k", "1")

    def audit(*words: str, log: Path = path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kernelbox", "audit", *words],
            env={**os.environ, "KERNELBOX_AUDIT_LOG": str(log)},
            capture_output=True,
            text=True,
            timeout=30,
        )

    deadline = time.monotonic() + 10
    while len(json.loads(audit().stdout)["events"]) < 4:
        assert time.monotonic() < deadline
    told = json.loads(audit("--name", "k", "--event", "execution", "--lines", "1").stdout)
    assert [event["event"] for event in told["events"]] == ["execution.finished"]
    told = json.loads(audit("--event", "kernel.created").stdout)
    assert [event["kernel"] for event in told["events"]] == ["k", "other"]
    lines = audit("--human", "--name", "k").stdout.splitlines()
    assert "kernel.created  k" in lines[0]
    assert audit("--human", log=path.with_name("none")).stdout == "nothing was found\n"
