"""branch: the copy of a live session, separate from then on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelbox import BadInput, Box, KernelRecord, Settings, StartupFailed, Unsupported

Waiting = Callable[..., None]
Branch = Callable[[], KernelRecord]


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    """Keeps the module's keeper (and its warm root) from leaving between two tests."""
    shared_box.get_or_create("anchor")


@pytest.fixture
def branch(shared_box: Box, kernel: KernelRecord) -> Iterator[Branch]:
    """Makes branches of this test's kernel and ends them."""
    made: list[KernelRecord] = []

    def make() -> KernelRecord:
        made.append(shared_box.branch(kernel, f"{kernel.name[:90]} branch {len(made)}"))
        return made[-1]

    yield make
    for record in made:
        shared_box.destroy(record)


def value(box: Box, kernel: KernelRecord, code: str) -> str | None:
    result = box.execute(kernel, code, timeout=20)
    assert result.ok, result.error
    return result.return_value


def test_variables_are_copied_and_separate_afterwards(
    shared_box: Box, kernel: KernelRecord, branch: Branch
) -> None:
    code = (
        "import math\nx = [1]\ndef f(): return x\nclass C: pass\nc = C(); c.x = x; g = iter('ab')"
    )
    shared_box.execute(kernel, code + "\nnext(g)")
    copy = branch()
    assert value(shared_box, copy, "x.append('branch'); f(), c.x is x, math.pi > 3") == (
        "([1, 'branch'], True, True)"
    )
    assert value(shared_box, kernel, "x.append('parent'); f()") == "[1, 'parent']"
    assert value(shared_box, copy, "x, next(g)") == "([1, 'branch'], 'b')"
    assert value(shared_box, kernel, "next(g)") == "'b'"


def test_the_record_says_where_it_came_from(
    shared_box: Box, kernel: KernelRecord, branch: Branch
) -> None:
    shared_box.restart(kernel)
    copy = branch()
    assert copy.parent == kernel.kernel_id
    assert copy.kernel_id != kernel.kernel_id
    assert copy.connection_file != kernel.connection_file
    assert (copy.state, copy.cause, copy.epoch) == ("kept", None, 2)
    assert shared_box.execute(copy, "1", expect_epoch=2).ok
    listed = {record.kernel_id: record for record in shared_box.list_kernels()}
    assert listed[copy.kernel_id].parent == kernel.kernel_id
    assert listed[kernel.kernel_id].parent is None


def test_history_and_counter_go_on(shared_box: Box, kernel: KernelRecord, branch: Branch) -> None:
    shared_box.execute(kernel, "6 * 7")
    copy = branch()
    result = shared_box.execute(copy, "_ + len(In)")
    assert (result.return_value, result.execution_count) == ("45", 2)


def test_the_random_stream_is_the_same_in_the_branch(
    shared_box: Box, kernel: KernelRecord, branch: Branch
) -> None:
    shared_box.execute(kernel, "import random, numpy; rng = numpy.random.default_rng()")
    copy = branch()
    code = "random.random(), float(numpy.random.random()), float(rng.random())"
    assert value(shared_box, copy, code) == value(shared_box, kernel, code)


def test_offsets_of_open_files_are_independent(
    shared_box: Box, kernel: KernelRecord, branch: Branch, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("one\ntwo\nthree\n")
    shared_box.execute(kernel, "f = open('lines', 'rb', buffering=0); f.readline()")
    shared_box.execute(kernel, "log = open('log', 'a'); _ = log.write('parent\\n'); log.flush()")
    copy = branch()
    assert value(shared_box, copy, "f.readline(), f.readline()") == "(b'two\\n', b'three\\n')"
    assert value(shared_box, kernel, "f.readline()") == "b'two\\n'"
    shared_box.execute(copy, "log.write('branch\\n'); log.close()")
    shared_box.execute(kernel, "log.write('parent again\\n'); log.close()")
    assert (tmp_path / "log").read_text() == "parent\nbranch\nparent again\n"


def test_folder_and_environment_are_those_of_the_parent_now(
    shared_box: Box, kernel: KernelRecord, branch: Branch, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    shared_box.execute(kernel, "import os; os.chdir('sub'); os.environ['LATER'] = 'set'")
    copy = branch()
    result = shared_box.execute(copy, "print(os.getcwd(), os.environ['LATER'])")
    assert result.output == f"{tmp_path}/sub set\n"
    shared_box.execute(copy, "os.chdir('/')")
    assert shared_box.execute(kernel, "print(os.getcwd())").output == f"{tmp_path}/sub\n"


def test_output_of_each_goes_to_its_own_caller(
    shared_box: Box, kernel: KernelRecord, branch: Branch
) -> None:
    copy = branch()
    code = "import os\nfor n in range(20): print({0!r}, n); os.system('echo {0} sh')"
    texts: dict[str, str] = {}

    def run(which: KernelRecord, word: str) -> None:
        texts[word] = shared_box.execute(which, code.format(word)).output

    threads = [threading.Thread(target=run, args=a) for a in ((kernel, "parent"), (copy, "child"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert texts["parent"].count("parent") == texts["child"].count("child") == 40
    assert "child" not in texts["parent"]
    assert "parent" not in texts["child"]


def test_the_branch_lives_on_when_its_parent_is_destroyed(
    shared_box: Box, branch: Branch, kernel: KernelRecord, tmp_path: Path
) -> None:
    parent = shared_box.get_or_create("a parent", cwd=str(tmp_path))
    shared_box.execute(parent, "x = 'inherited'")
    copy = shared_box.branch(parent, "an orphan")
    try:
        assert shared_box.destroy(parent) is True
        assert value(shared_box, copy, "x") == "'inherited'"
        assert shared_box.execute(copy, "echo bash too", language="bash").output == "bash too\n"
        again = shared_box.branch(copy, "a grandchild")
        assert value(shared_box, again, "x") == "'inherited'"
        assert again.parent == copy.kernel_id
        shared_box.destroy(again)
        assert shared_box.restart(copy).epoch == copy.epoch + 1
        assert shared_box.execute(copy, "1").ok
    finally:
        shared_box.destroy(copy)


@pytest.mark.parametrize("who", ["parent", "branch"])
def test_a_death_of_one_does_not_touch_the_other(
    shared_box: Box, kernel: KernelRecord, branch: Branch, who: str
) -> None:
    shared_box.execute(kernel, "x = 1")
    copy = branch()
    dies, lives = (kernel, copy) if who == "parent" else (copy, kernel)
    died = shared_box.execute(dies, "import os; os.kill(os.getpid(), 9)")
    assert (died.state, died.epoch) == ("lost", 2)
    assert "SIGKILL" in (died.cause or "")
    assert value(shared_box, lives, "x") == "1"
    assert shared_box.execute(dies, "2").return_value == "2"


def test_interrupts_and_timeouts_reach_only_the_one_meant(
    shared_box: Box, kernel: KernelRecord, branch: Branch, waiting: Waiting
) -> None:
    copy = branch()
    results = {}

    def run(which: KernelRecord) -> None:
        results[which.kernel_id] = shared_box.execute(which, "import time; time.sleep(1)")

    threads = [threading.Thread(target=run, args=(which,)) for which in (kernel, copy)]
    for thread in threads:
        thread.start()
    waiting(lambda: shared_box.status(copy)["running"], what="the branch to run")
    assert shared_box.interrupt(copy)
    for thread in threads:
        thread.join(10)
    assert results[copy.kernel_id].status == "error"
    assert results[kernel.kernel_id].status == "success"


def test_a_branch_of_a_busy_kernel_waits_for_its_cell(
    shared_box: Box, kernel: KernelRecord, branch: Branch, waiting: Waiting, tmp_path: Path
) -> None:
    code = (
        "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\nx = 'done'"
    )
    cell = threading.Thread(target=lambda: shared_box.execute(kernel, code))
    cell.start()
    waiting(lambda: shared_box.status(kernel)["running"], what="the cell to run")
    copies: list[KernelRecord] = []
    brancher = threading.Thread(target=lambda: copies.append(branch()))
    brancher.start()
    waiting(lambda: shared_box.status(kernel)["queued"] == 1, what="the branch to queue")
    assert copies == []
    (tmp_path / "go").touch()
    brancher.join(20)
    cell.join(20)
    assert value(shared_box, copies[0], "x") == "'done'"


def test_a_branch_that_waits_too_long_gives_up_in_words(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    cell = threading.Thread(
        target=lambda: shared_box.execute(kernel, "x = 'kept'\nimport time; time.sleep(60)")
    )
    cell.start()
    waiting(lambda: shared_box.status(kernel)["running"], what="the cell to run")
    wire = {**shared_box.settings.to_wire(), "fork_timeout": 0.3}
    started = time.monotonic()
    with Box(Settings.from_wire(wire)) as hasty, pytest.raises(StartupFailed) as caught:
        hasty.branch(kernel, "never made")
    assert time.monotonic() - started < 5
    assert "did not end within 0.3 s" in str(caught.value)
    assert "'never made'" in str(caught.value)
    assert "never made" not in {record.name for record in shared_box.list_kernels()}
    shared_box.interrupt(kernel)
    cell.join(10)
    assert value(shared_box, kernel, "x") == "'kept'"
    later = shared_box.branch(kernel, "never made")  # the name is free
    assert value(shared_box, later, "x") == "'kept'"
    shared_box.destroy(later)


def test_a_name_that_is_taken_is_refused(
    shared_box: Box, kernel: KernelRecord, branch: Branch
) -> None:
    with pytest.raises(BadInput, match="already"):
        shared_box.branch(kernel, kernel.name)
    copy = branch()
    with pytest.raises(BadInput, match="already"):
        shared_box.branch(kernel, copy.name)


def test_the_id_of_another_kernel_is_no_name_for_a_branch(
    shared_box: Box, kernel: KernelRecord
) -> None:
    with pytest.raises(BadInput):
        shared_box.branch(kernel, kernel.kernel_id)


def test_background_tasks_go_on_in_both(
    shared_box: Box, kernel: KernelRecord, branch: Branch, waiting: Waiting
) -> None:
    code = (
        "import asyncio\nn = 0\nasync def count():\n    global n\n"
        "    while True:\n        n += 1\n        await asyncio.sleep(0.005)\n"
        "task = asyncio.create_task(count())\nawait asyncio.sleep(0.02)"
    )
    assert shared_box.execute(kernel, code).ok
    copy = branch()
    for which in (kernel, copy):
        before = int(value(shared_box, which, "n") or 0)
        waiting(
            lambda which=which, before=before: int(value(shared_box, which, "n") or 0) > before,
            what="the task to go on",
        )
        assert shared_box.execute(which, "task.cancel()").ok


def test_a_thread_that_is_not_carried_is_reported_or_the_branch_is_refused(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(
        kernel,
        "import threading, time\nt = threading.Thread(target=time.sleep, args=(60,), "
        "name='worker-of-mine', daemon=True); t.start()",
    )
    try:
        copy = shared_box.branch(kernel, "without its thread")
    except (StartupFailed, Unsupported) as error:
        words = str(error)
    else:
        words = str(copy.notes)
        shared_box.destroy(copy)
    assert "worker-of-mine" in words


def test_many_branches_of_one_parent(shared_box: Box, kernel: KernelRecord, branch: Branch) -> None:
    shared_box.execute(kernel, "x = list(range(1000))")
    copies = [branch() for _ in range(8)]
    for number, copy in enumerate(copies):
        shared_box.execute(copy, f"x.append({number})")
    assert [value(shared_box, copy, "x[-1]") for copy in copies] == [str(n) for n in range(8)]
    assert value(shared_box, kernel, "x[-1]") == "999"
