"""atomic=True: a cell that fails has never been."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import alive

from kernelbox import AsyncBox, Box, ExecutionResult, KernelRecord, OutputItem, Unsupported

Waiting = Callable[..., None]


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    shared_box.get_or_create("anchor")


FAILURES = {
    "an exception": ("x.append(2); 1/0", "error", "ZeroDivisionError"),
    "a syntax error": ("x.append(2)\nx.append(2))", "error", "SyntaxError"),
    "sys.exit": ("x.append(2)\nimport sys; sys.exit(3)", "error", "SystemExit"),
    "a timeout": ("x.append(2)\nimport time; time.sleep(60)", "timeout", "TimeoutError"),
    "a timeout that has to be killed": (
        "x.append(2)\nimport time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
        "timeout",
        "TimeoutError",
    ),
    "its own end": ("x.append(2)\nimport os; os._exit(7)", "error", "KernelDied"),
    "a crash": ("x.append(2)\nimport ctypes; ctypes.string_at(0)", "error", "KernelDied"),
    "a kill": ("x.append(2)\nimport os; os.kill(os.getpid(), 9)", "error", "KernelDied"),
}  # fmt: skip


@pytest.mark.parametrize("how", FAILURES)
def test_a_cell_that_fails_has_never_been(
    environment: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    code, status, ename = FAILURES[how]
    monkeypatch.setenv("KERNELBOX_INTERRUPT_GRACE", "0.2")
    monkeypatch.setenv("KERNELBOX_KILL_GRACE", "0.5")
    with Box() as box:
        kernel = box.get_or_create("k")
        box.execute(kernel, "x = [1]")
        result = box.execute(kernel, code, atomic=True, timeout=2)
        assert (result.status, result.state, result.epoch) == (status, "rewound", 2)
        assert result.error is not None
        assert result.error.ename == ename
        assert result.cause == "the cell failed, and was undone"
        after = box.execute(kernel, "x, len(In)")
        assert (after.return_value, after.state) == ("([1], 3)", "kept")
        assert after.execution_count == 2
        assert box.checkpoints(kernel) == []


def test_a_cell_that_succeeds_is_like_any_other(shared_box: Box, kernel: KernelRecord) -> None:
    result = shared_box.execute(kernel, "x = 1\nprint('hi')\nx", atomic=True)
    assert (result.status, result.state, result.epoch) == ("success", "kept", 1)
    assert (result.output, result.return_value) == ("hi\n", "1")
    assert [p["role"] for p in shared_box.status(kernel)["processes"]].count("checkpoint") == 0


def test_output_before_the_failure_is_in_the_result(shared_box: Box, kernel: KernelRecord) -> None:
    items = list(shared_box.stream(kernel, "print('before')\n1/0", atomic=True))
    texts = [item.text or "" for item in items if isinstance(item, OutputItem)]
    assert "".join(texts).startswith("before\n")
    result = items[-1]
    assert isinstance(result, ExecutionResult)
    assert (result.output, result.state) == ("before\n", "rewound")


def test_what_waits_behind_it_is_run_on_the_clean_state(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    shared_box.execute(kernel, "x = 1")
    results: dict[str, ExecutionResult] = {}

    def run(name: str, code: str, **options: bool) -> None:
        results[name] = shared_box.execute(kernel, code, **options)  # type: ignore[arg-type]

    first = threading.Thread(
        target=run,
        args=("failing", "x = 2; import time; time.sleep(0.5); 1/0"),
        kwargs={"atomic": True},
    )
    first.start()
    waiting(lambda: shared_box.status(kernel)["running"], what="the first to run")
    second = threading.Thread(target=run, args=("waiting", "x"))
    second.start()
    first.join(20)
    second.join(20)
    assert results["failing"].state == "rewound"
    assert (results["waiting"].return_value, results["waiting"].state) == ("1", "kept")


def test_files_are_not_undone_and_are_named(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    (tmp_path / "old").write_text("1")
    (tmp_path / "gone").write_text("1")
    (tmp_path / "same").write_text("1")
    time.sleep(0.05)  # files are stamped by a clock that ticks every few milliseconds
    code = (
        "import os; os.mkdir('sub'); open('sub/new', 'w').write('x'); open('old', 'w').write('22')\n"
        "os.remove('gone'); 1/0"
    )
    result = shared_box.execute(kernel, code, atomic=True)
    (note,) = result.notes
    assert note == "files are not undone; changed meanwhile: gone (deleted), old, sub/new (new)"
    assert (tmp_path / "old").read_text() == "22"


def test_a_cell_that_kills_its_own_checkpoint_gets_lost_and_not_a_lie(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, "x = 1")
    code = (
        "x = 2\nimport os, time\nkilled = None\n"
        "def kill(name):\n"
        "    stat = open(f'/proc/{name}/stat').read().rpartition(')')[2].split()\n"
        "    mine = int(stat[1]) == os.getppid()\n"
        "    if mine and open(f'/proc/{name}/comm').read() == 'kb-checkpoint\\n':\n"
        "        os.kill(int(name), 9)\n"
        "        return name\n"
        "while not killed:\n"
        "    time.sleep(0.01)\n"
        "    for name in filter(str.isdigit, os.listdir('/proc')):\n"
        "        try: killed = killed or kill(name)\n"
        "        except OSError: pass\n"
        "print(killed)\n1/0"
    )
    result = shared_box.execute(kernel, code, atomic=True)
    assert result.output.strip().isdigit(), result.error
    assert (result.status, result.state, result.epoch) == ("error", "lost", 2)
    assert "could not be undone" in (result.cause or "")
    assert result.error is not None
    assert result.error.ename == "ZeroDivisionError"
    after = shared_box.execute(kernel, "'x' in dir()")
    assert (after.return_value, after.state, after.epoch) == ("False", "kept", 2)


def test_a_session_that_cannot_be_copied_is_refused_and_nothing_is_run(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(
        kernel,
        "import threading\nstop = threading.Event()\n"
        "t = threading.Thread(target=stop.wait, name='poller'); t.start(); x = 1",
    )
    with pytest.raises(Unsupported, match=r"was not run.*poller"):
        shared_box.execute(kernel, "x = 2", atomic=True)
    with pytest.raises(Unsupported, match=r"was not run.*poller"):
        list(shared_box.stream(kernel, "x = 2", atomic=True))
    assert shared_box.execute(kernel, "x").return_value == "1"
    shared_box.execute(kernel, "stop.set(); t.join()")
    assert shared_box.execute(kernel, "x = 3", atomic=True).ok


def test_restart_and_interrupt_while_an_atomic_cell_runs(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    results: list[ExecutionResult] = []

    def run() -> None:
        results.append(
            shared_box.execute(kernel, "x = 2; import time; time.sleep(60)", atomic=True)
        )

    for act, state in ((shared_box.interrupt, "rewound"), (shared_box.restart, "lost")):
        thread = threading.Thread(target=run)
        thread.start()
        waiting(lambda: shared_box.status(kernel)["running"], what="the cell to run")
        act(kernel)
        thread.join(20)
        assert results[-1].state == state
        assert shared_box.execute(kernel, "'x' in dir()").return_value == "False"
    processes = shared_box.status(kernel)["processes"]
    assert [p for p in processes if p["role"] == "checkpoint"] == []


def test_every_attempt_starts_from_the_clean_state(shared_box: Box, kernel: KernelRecord) -> None:
    shared_box.execute(kernel, "rows = [3, 1, 2]; seen = 0")

    def repair(result: ExecutionResult, attempt: int) -> str:
        assert result.state == "rewound"
        return "seen += 1\nrows.sort()\nrows.append(9)\n" + ("1/0" if attempt < 3 else "rows, seen")

    result = shared_box.execute_with_retry(
        kernel, "seen += 1; rows.pop(); nonsense", repair, atomic=True
    )
    assert (result.status, result.return_value, len(result.attempts)) == (
        "success",
        "([1, 2, 3, 9], 1)",
        4,
    )


def test_a_bash_command_that_fails_leaves_the_shell_as_it_was(
    shared_box: Box, kernel: KernelRecord
) -> None:
    def bash(code: str, **options: bool) -> ExecutionResult:
        return shared_box.execute(kernel, code, language="bash", **options)  # type: ignore[arg-type]

    bash("mkdir -p d; export E=1; f() { echo one; }")
    shared_box.execute(kernel, "x = 1")
    for ending in ("false", "exit 3", "kill -9 $$"):
        result = bash(f"cd d; E=2; f() {{ echo two; }}; {ending}", atomic=True)
        assert (result.status, result.state) == ("error", "rewound"), ending
        look = bash("basename $PWD; env | grep ^E=; f")
        assert look.output.splitlines()[1:] == ["E=1", "one"], ending
        assert "d" not in look.output.splitlines()[0].split("/")[-1:]
    assert shared_box.execute(kernel, "x").return_value == "1"
    assert bash("cd d; E=5", atomic=True).state == "kept"
    assert bash("basename $PWD; echo $E").output == "d\n5\n"


async def _with_async_box(box: Box, kernel: KernelRecord) -> ExecutionResult:
    async with AsyncBox(box.settings) as other:
        await other.execute(kernel, "y = 1")
        point = await other.checkpoint(kernel, "async")
        await other.execute(kernel, "y = 2")
        assert [p.checkpoint_id for p in await other.checkpoints(kernel)] == [point]
        await other.rewind(kernel, "async")
        await other.drop_checkpoint(kernel, "async")
        return await other.execute(kernel, "y += 5; y, 1/0", atomic=True)


def test_the_same_awaited(shared_box: Box, kernel: KernelRecord) -> None:
    import asyncio

    assert asyncio.run(_with_async_box(shared_box, kernel)).state == "rewound"
    assert shared_box.execute(kernel, "y").return_value == "1"


def test_nothing_is_left_of_a_guard(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    (warden,) = (p["pid"] for p in shared_box.status(kernel)["processes"] if p["role"] == "warden")
    from processes import below

    shared_box.execute(kernel, "1/0", atomic=True)
    before = len(below(warden))
    for _ in range(20):
        shared_box.execute(kernel, "1/0", atomic=True)
        shared_box.execute(kernel, "1", atomic=True)
    waiting(lambda: len(below(warden)) <= before, what="every guard to end")
    assert alive(warden)


MEMORY = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small_memory() -> Iterator[Callable[[int], None]]:
    """Puts a process into a cgroup where it may have 200 MB."""
    group = MEMORY / f"kernelbox-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield lambda pid: (group / "cgroup.procs").write_text(str(pid)) and None
    for _ in range(100):
        for line in (group / "cgroup.procs").read_text().split():
            (MEMORY / "cgroup.procs").write_text(line)
        with contextlib.suppress(OSError):
            group.rmdir()
            break
        time.sleep(0.05)


def test_a_cell_that_runs_out_of_memory_has_never_been(
    shared_box: Box, kernel: KernelRecord, small_memory: Callable[[int], None]
) -> None:
    shared_box.execute(kernel, "x = [1]")
    (pid,) = (
        p["pid"] for p in shared_box.status(kernel)["processes"] if p["role"] == "interpreter"
    )
    small_memory(pid)
    code = "x.append(2); b = bytearray(400 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1"
    result = shared_box.execute(kernel, code, atomic=True, timeout=30)
    assert (result.status, result.state) == ("error", "rewound"), result
    assert result.error is not None
    assert result.error.ename in ("OutOfMemory", "KernelDied")
    assert shared_box.execute(kernel, "x").return_value == "[1]"
