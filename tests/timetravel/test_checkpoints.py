"""checkpoint and rewind: a session as it was, whatever was done to it since."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import alive, wait_until

from kernelbox import (
    BadInput,
    Box,
    BoxError,
    CheckpointNotFound,
    KernelLost,
    KernelRecord,
    Settings,
    Unsupported,
)

Waiting = Callable[..., None]
Run = Callable[..., str | None]


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    """Keeps the module's keeper (and its warm root) from leaving between two tests."""
    shared_box.get_or_create("anchor")


@pytest.fixture
def run(shared_box: Box, kernel: KernelRecord) -> Run:
    """Run code in this test's kernel; its value."""

    def run(code: str, **options: object) -> str | None:
        result = shared_box.execute(kernel, code, timeout=20, **options)  # type: ignore[arg-type]
        assert result.ok, result.error
        return result.output if options.get("language") == "bash" else result.return_value

    return run


def parked(box: Box, kernel: KernelRecord) -> list[int]:
    facts = box.status(kernel)["processes"]
    return [fact["pid"] for fact in facts if fact["role"] == "checkpoint"]


def arrived(box: Box, kernel: KernelRecord) -> int:
    """The process of a checkpoint that was just made; it takes a moment to settle."""
    wait_until(lambda: parked(box, kernel), what="the checkpoint to be parked")
    return parked(box, kernel)[0]


# -- what comes back --------------------------------------------------------------------------

THINGS = {
    "a variable": ("x = [1]", "x.append(2)", "x", "[1]"),
    "a deleted one": ("x = 1", "del x", "x", "1"),
    "an import": ("import math", "del math; import sys; del sys.modules['math']", "math.pi > 3", "True"),
    "a function and its globals": ("n = 1\ndef f(): return n", "n = 2", "f()", "1"),
    "a closure": (
        "def make(n=0):\n  def f():\n    nonlocal n\n    n += 1\n    return n\n  return f\nf = make(); f()",
        "f(); f()",
        "f()",
        "2",
    ),
    "a class of a cell": ("class C:\n    n = 1\nc = C()", "C.n = 2; c.m = 3", "c.n, hasattr(c, 'm')", "(1, False)"),
    "a generator": ("g = (n for n in range(9)); next(g)", "list(g)", "next(g)", "1"),
    "the last values": ("6 * 7", "1 + 1", "_", "42"),
    "Out": ("6 * 7", "Out.clear()", "Out[1]", "42"),
    "the folder": ("import os; os.mkdir('d'); os.chdir('d')", "os.chdir('/')", "os.path.basename(os.getcwd())", "'d'"),
    "the environment": ("import os; os.environ['A'] = '1'", "os.environ['A'] = '2'", "os.environ['A']", "'1'"),
    "random numbers": (
        "import random; random.seed(5); state = random.getstate()",
        "random.random()",
        "random.getstate() == state",
        "True",
    ),
    "numpy's random numbers": (
        "import numpy as np; np.random.seed(5); first = np.random.random()",
        "np.random.random()",
        "np.random.seed, np.random.random() == np.random.RandomState(5).random_sample(2)[1]",
        None,
    ),
    "an array": ("import numpy as np; a = np.arange(10)", "a[:] = 0", "int(a.sum())", "45"),
    "a data frame": (
        "import pandas as pd; d = pd.DataFrame({'a': [1], 'b': [2]})",
        "d.drop(columns='b', inplace=True)",
        "list(d.columns)",
        "['a', 'b']",
    ),
    "a database in memory": (
        "import sqlite3; c = sqlite3.connect(':memory:'); c.execute('create table t (x)')",
        "c.execute('drop table t')",
        "c.execute('select count(*) from t').fetchone()",
        "(0,)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", THINGS)
def test_it_comes_back(shared_box: Box, kernel: KernelRecord, run: Run, what: str) -> None:
    before, change, look, expected = THINGS[what]
    run(before)
    point = shared_box.checkpoint(kernel)
    if expected is None:
        expected = run(look)
        shared_box.rewind(kernel, point)
    for _ in range(2):  # it can be gone back to as often as one likes
        run(change)
        record = shared_box.rewind(kernel, point)
        assert run(look) == expected
    assert record.kernel_id == kernel.kernel_id
    assert record.connection_file == kernel.connection_file


def test_files_that_are_read_and_written_go_on_where_they_were(
    shared_box: Box, kernel: KernelRecord, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("one\ntwo\nthree\nfour\n")
    run("r = open('in'); w = open('out', 'w'); w.write('first\\n'); r.readline()")
    point = shared_box.checkpoint(kernel)
    run("r.readline(), w.write('wrong wrong wrong\\n'), w.flush()")
    shared_box.rewind(kernel, point)
    assert run("r.readline()") == "'two\\n'"
    run("w.write('second\\n'); w.close()")
    # Files are not rewound, but what is written goes where it would have gone.
    assert (tmp_path / "out").read_text().startswith("first\nsecond\n")


def test_a_program_with_a_pipe_is_shared_and_that_is_said(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    run("import subprocess; p = subprocess.Popen(['cat'], stdin=-1, stdout=-1)")
    shared_box.checkpoint(kernel, "with a pipe")
    (point,) = shared_box.checkpoints(kernel)
    assert any("pipe" in note for note in point.notes)
    shared_box.rewind(kernel, "with a pipe")
    assert run("p.stdin.write(b'x\\n'); p.stdin.flush(); p.stdout.readline()") == "b'x\\n'"
    run("p.kill()")


def test_a_database_on_disk_is_named_and_can_be_read_on(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    run(
        "import sqlite3; c = sqlite3.connect('db'); c.execute('create table t (x)')\n"
        "c.execute('insert into t values (1)'); c.commit()"
    )
    shared_box.checkpoint(kernel, "c")
    (point,) = shared_box.checkpoints(kernel)
    assert any("SQLite" in note for note in point.notes)
    shared_box.rewind(kernel, "c")
    assert run("c.execute('select x from t').fetchall()") == "[(1,)]"
    assert run("sqlite3.connect('db').execute('select x from t').fetchall()") == "[(1,)]"


def test_background_tasks_of_the_loop_go_on_after_a_rewind(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    run(
        "import asyncio\nn = 0\nasync def count():\n    global n\n    while True:\n"
        "        n += 1\n        await asyncio.sleep(0.01)\ntask = asyncio.create_task(count())"
    )
    run("await asyncio.sleep(0.05)")
    point = shared_box.checkpoint(kernel)
    shared_box.rewind(kernel, point)
    before = int(run("n") or 0)
    run("await asyncio.sleep(0.1)")
    assert int(run("n") or 0) > before


def test_the_shell_is_as_it_was(shared_box: Box, kernel: KernelRecord, run: Run) -> None:
    run("mkdir -p a b; cd a; export E=1; v='x y'; f() { echo f:$1; }", language="bash")
    point = shared_box.checkpoint(kernel)
    run("cd ../b; E=2; unset v; unset -f f", language="bash")
    shared_box.rewind(kernel, point)
    look = 'basename "$PWD"; env | grep ^E=; echo "$v"; f 1'
    assert run(look, language="bash") == "a\nE=1\nx y\nf:1\n"


def test_a_shell_that_was_not_there_is_not_there_again(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    point = shared_box.checkpoint(kernel)
    run("v=1", language="bash")
    shared_box.rewind(kernel, point)
    assert run("echo [$v]", language="bash") == "[]\n"


# -- what a rewind means to others ------------------------------------------------------------


def test_counter_and_history_go_back(shared_box: Box, kernel: KernelRecord, run: Run) -> None:
    run("1")
    point = shared_box.checkpoint(kernel, "one cell")
    run("2")
    run("3")
    shared_box.rewind(kernel, point)
    result = shared_box.execute(kernel, "len(In), In[1]")
    assert (result.execution_count, result.return_value) == (2, "(3, '1')")
    (listed,) = shared_box.checkpoints(kernel)
    assert (listed.label, listed.execution_count, listed.automatic) == ("one cell", 1, False)
    assert listed.private_kb > 0


def test_the_epoch_goes_up_and_who_expects_the_old_one_is_refused(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    point = shared_box.checkpoint(kernel)
    record = shared_box.rewind(kernel, point)
    assert (record.epoch, record.state) == (2, "kept")
    with pytest.raises(BoxError, match="epoch"):
        shared_box.execute(kernel, "1", expect_epoch=1)
    assert shared_box.execute(kernel, "1", expect_epoch=2).state == "kept"


def test_what_runs_and_what_waits_is_answered(
    shared_box: Box, kernel: KernelRecord, run: Run, waiting: Waiting
) -> None:
    run("x = 1")
    point = shared_box.checkpoint(kernel)
    results = []

    def execute(code: str) -> None:
        results.append(shared_box.execute(kernel, code))

    threads = [threading.Thread(target=execute, args=(f"x = {n}; import time; time.sleep(60)",)) for n in (2, 3)]  # fmt: skip
    for thread in threads:
        thread.start()
    waiting(lambda: shared_box.status(kernel)["queued"] == 1, what="one to run, one to wait")
    shared_box.rewind(kernel, point)
    for thread in threads:
        thread.join(20)
    assert [(r.status, r.state, r.error.ename, r.epoch) for r in results if r.error] == [
        ("error", "rewound", "Aborted", 2)
    ] * 2
    assert all("rewound to checkpoint" in (r.cause or "") for r in results)
    assert run("x") == "1"


def test_a_checkpoint_outlives_the_interpreter(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    run("x = 1")
    point = shared_box.checkpoint(kernel)
    assert shared_box.execute(kernel, "import os; os._exit(3)").state == "lost"
    shared_box.rewind(kernel, point)
    assert run("x") == "1"
    shared_box.restart(kernel)
    shared_box.rewind(kernel, point)
    assert run("x") == "1"


def test_a_checkpoint_of_a_rewound_session(shared_box: Box, kernel: KernelRecord, run: Run) -> None:
    points = []
    for number in range(5):
        run(f"x = {number}")
        points.append(shared_box.checkpoint(kernel))
        shared_box.rewind(kernel, points[number // 2])
    for number in reversed(range(5)):
        shared_box.rewind(kernel, points[number])
        assert run("x") == str(number)
        assert shared_box.branch(kernel, f"of {number}").epoch > 5
        assert shared_box.execute(f"of {number}", "x").return_value == str(number)
        shared_box.destroy(f"of {number}")


# -- finding, dropping, limits ----------------------------------------------------------------


def test_a_label_or_an_id_means_it_and_what_is_not_there_is_named(
    shared_box: Box, kernel: KernelRecord
) -> None:
    point = shared_box.checkpoint(kernel, "first")
    with pytest.raises(CheckpointNotFound, match=r"has no checkpoint 'second'.*'first'"):
        shared_box.rewind(kernel, "second")
    with pytest.raises(BadInput, match="already"):
        shared_box.checkpoint(kernel, "first")
    shared_box.rewind(kernel, shared_box.checkpoints(kernel)[0])
    shared_box.drop_checkpoint(kernel, point)
    with pytest.raises(CheckpointNotFound, match="It has none"):
        shared_box.drop_checkpoint(kernel, point)


@pytest.mark.parametrize(
    "label", ["", "  ", "a\nb", "x" * 200, 5], ids=["empty", "blank", "lines", "long", "number"]
)
def test_a_bad_label_is_refused(shared_box: Box, kernel: KernelRecord, label: object) -> None:
    with pytest.raises(BadInput, match="label"):
        shared_box.checkpoint(kernel, label)  # type: ignore[arg-type]


def test_there_are_no_more_than_the_limit_and_none_is_dropped_silently(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELBOX_MAX_CHECKPOINTS", "2")
    with Box() as box:
        kernel = box.get_or_create("k")
        first, _ = box.checkpoint(kernel), box.checkpoint(kernel)
        with pytest.raises(BadInput, match=r"2 checkpoints already.*drop_checkpoint"):
            box.checkpoint(kernel)
        box.drop_checkpoint(kernel, first)
        box.checkpoint(kernel)
        assert len(box.checkpoints(kernel)) == 2


def test_checkpoints_show_in_status_and_end_with_the_kernel(
    shared_box: Box, waiting: Waiting
) -> None:
    kernel = shared_box.get_or_create("to end")
    shared_box.execute(kernel, "import numpy; a = numpy.ones(4_000_000)")
    shared_box.checkpoint(kernel, "c")
    arrived(shared_box, kernel)
    shared_box.execute(kernel, "a += 1")
    (facts,) = (f for f in shared_box.status(kernel)["processes"] if f["role"] == "checkpoint")
    assert facts["label"] == "c"
    assert facts["private_kb"] > 30_000  # the kernel has changed all of the array
    shared_box.destroy(kernel)
    waiting(lambda: not alive(facts["pid"]), what="the checkpoint to end")


def test_a_dropped_checkpoint_ends_at_once(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    point = shared_box.checkpoint(kernel)
    pid = arrived(shared_box, kernel)
    shared_box.drop_checkpoint(kernel, point)
    waiting(lambda: not alive(pid), what="the checkpoint to end")
    assert parked(shared_box, kernel) == []


def test_a_checkpoint_that_was_killed_is_gone_and_nothing_else(
    shared_box: Box, kernel: KernelRecord, run: Run, waiting: Waiting
) -> None:
    run("x = 1")
    point = shared_box.checkpoint(kernel)
    pid = arrived(shared_box, kernel)
    os.kill(pid, signal.SIGKILL)
    waiting(lambda: not shared_box.checkpoints(kernel), what="it to be noticed")
    with pytest.raises(CheckpointNotFound):
        shared_box.rewind(kernel, point)
    assert run("x") == "1"


# -- undo ---------------------------------------------------------------------------------------


@pytest.fixture
def undoing(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setenv("KERNELBOX_UNDO", "3")
    return Box(Settings.from_environment())


def test_undo_goes_back_cell_by_cell(undoing: Box) -> None:
    with undoing as box:
        kernel = box.get_or_create("k")
        for number in range(6):
            box.execute(kernel, f"x = {number}")
        assert len(box.checkpoints(kernel)) == 3
        assert box.undo(kernel).epoch == 2
        assert [point.execution_count for point in box.checkpoints(kernel)] == [3, 4]
        box.undo(kernel, 2)
        result = box.execute(kernel, "x")
        assert (result.return_value, result.execution_count) == ("2", 4)
        with pytest.raises(CheckpointNotFound, match=r"last 2 cells cannot.*undo\(kernel, 1\) is"):
            box.undo(kernel, 2)


def test_a_cell_that_failed_can_be_undone_too(undoing: Box) -> None:
    with undoing as box:
        kernel = box.get_or_create("k")
        box.execute(kernel, "x = 1")
        box.execute(kernel, "x = 2; 1/0")
        box.undo(kernel)
        assert box.execute(kernel, "x").return_value == "1"
        box.execute(kernel, "x = 2; import os; os._exit(1)")
        box.undo(kernel)
        assert box.execute(kernel, "x").return_value == "1"


def test_without_the_setting_nothing_is_kept_and_undo_says_so(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, "x = 1")
    assert shared_box.checkpoints(kernel) == []
    with pytest.raises(CheckpointNotFound, match="KERNELBOX_UNDO"):
        shared_box.undo(kernel)


def test_automatic_ones_make_room_for_those_that_were_asked_for(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELBOX_UNDO", "5")
    monkeypatch.setenv("KERNELBOX_MAX_CHECKPOINTS", "3")
    with Box() as box:
        kernel = box.get_or_create("k")
        for number in range(3):
            box.execute(kernel, f"x = {number}")
        box.checkpoint(kernel, "asked for")
        points = box.checkpoints(kernel)
        assert [point.label for point in points] == [None, None, "asked for"]
        assert [point.execution_count for point in points] == [1, 2, 3]
        with pytest.raises(BadInput, match="whole number from 1"):
            box.undo(kernel, 0)


def test_sessions_that_are_too_large_switch_it_off_and_say_so(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELBOX_UNDO", "3")
    monkeypatch.setenv("KERNELBOX_UNDO_COST", "0.000001")
    with Box() as box:
        kernel = box.get_or_create("k")
        result = box.execute(kernel, "x = 1")
        (note,) = result.notes
        assert "undo is switched off" in note
        assert "KERNELBOX_UNDO_COST" in note
        assert box.checkpoints(kernel) == []
        assert box.execute(kernel, "x").notes == []  # said once
        with pytest.raises(CheckpointNotFound, match="too large"):
            box.undo(kernel)
        box.checkpoint(kernel)  # who asks for one gets it


def test_threads_that_cannot_be_copied_are_named(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    run(
        "import threading\nstop = threading.Event()\n"
        "t = threading.Thread(target=stop.wait, name='my worker'); t.start()"
    )
    with pytest.raises(Unsupported, match="my worker"):
        shared_box.checkpoint(kernel)
    run("stop.set(); t.join()")
    shared_box.checkpoint(kernel)


def test_checkpoints_go_with_a_kernel_that_is_ended_for_being_idle(
    environment: Path, monkeypatch: pytest.MonkeyPatch, waiting: Waiting
) -> None:
    monkeypatch.setenv("KERNELBOX_KERNEL_IDLE_TIMEOUT", "1")
    with Box() as box:
        kernel = box.get_or_create("k")
        box.checkpoint(kernel)
        pid = arrived(box, kernel)
        waiting(lambda: not alive(pid), what="the checkpoint to go with its kernel")
        with pytest.raises(KernelLost, match="idle"):
            box.checkpoint(kernel)


def test_figures_of_matplotlib_come_back_and_are_carried(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    run(
        "import matplotlib; matplotlib.use('agg')\nimport matplotlib.pyplot as plt\n"
        "plt.rcParams['lines.linewidth'] = 7; figure, axis = plt.subplots(); line = axis.plot([1, 2])"
    )
    shared_box.checkpoint(kernel, "drawn")
    run("axis.plot([3, 4]); plt.close('all'); plt.rcParams['lines.linewidth'] = 1")
    shared_box.rewind(kernel, "drawn")
    look = (
        "len(axis.lines), plt.get_fignums(), plt.gcf() is figure, plt.rcParams['lines.linewidth']"
    )
    assert run(look) == "(1, [1], True, 7.0)"
    shared_box.branch(kernel, "drawn too")
    assert shared_box.execute("drawn too", look).return_value == "(1, [1], True, 7.0)"
    shared_box.destroy("drawn too")
