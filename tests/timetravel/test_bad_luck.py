"""What a hostile reviewer found out about going back, each as a test."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import alive, below, wait_until

from kernelbox import (
    BadInput,
    Box,
    BoxError,
    CheckpointNotFound,
    KernelRecord,
    Settings,
    StartupFailed,
    Unsupported,
)

Waiting = Callable[..., None]


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    shared_box.get_or_create("anchor")


@pytest.fixture(autouse=True)
def tidy(shared_box: Box) -> Iterator[None]:
    yield
    for record in shared_box.list_kernels():
        if record.made_by != "start":
            shared_box.destroy(record)


@pytest.fixture
def hasty(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Box]:
    """A box of its own, with settings."""

    def make(**given: object) -> Box:
        return Box(Settings.from_environment(**given))

    return make


def value(box: Box, kernel: KernelRecord | str, code: str, **options: object) -> str | None:
    result = box.execute(kernel, code, timeout=20, **options)  # type: ignore[arg-type]
    assert result.ok, result.error
    return result.output if options.get("language") == "bash" else result.return_value


def pid_of(box: Box, kernel: KernelRecord, role: str) -> int:
    def find() -> list[int]:
        facts = box.status(kernel)["processes"]
        return [int(fact["pid"]) for fact in facts if fact["role"] == role]

    found: list[int] = []
    wait_until(lambda: found.extend(find()) or found, what=f"the {role}")
    return found[0]


# -- sessions as bytes ------------------------------------------------------------------------

BAD = (
    "class Bad:\n    def __setstate__(self, state): raise ValueError('no')\n"
    "weights = [1, 2, 3]; inside = ['of bad']\n"
    "bad = Bad(); bad.w = weights; bad.i = inside; bad.only_here = object()\n"
    "other = [7, 8]; alias = weights; model = {'w': weights}; both = [bad, 1]; last = [other, model]"
)


@pytest.mark.parametrize("way", ["save", "copy"])
def test_what_cannot_be_read_costs_only_what_refers_to_it(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path, way: str
) -> None:
    value(shared_box, kernel, BAD)
    if way == "save":
        shared_box.save(kernel, str(tmp_path / "s"))
        copy = shared_box.load("copy", str(tmp_path / "s"))
    else:
        copy = shared_box.branch(kernel, "copy", method="copy")
    look = "alias is weights, weights, other, model, last[0] is other, inside, 'bad' in dir()"
    assert value(shared_box, copy, look) == (
        "(True, [1, 2, 3], [7, 8], {'w': [1, 2, 3]}, True, ['of bad'], False)"
    )
    missing = {note.split()[2] for note in copy.notes if note.startswith("not ")}
    assert missing == {"bad", "both"}


def test_shared_closures_caches_and_odd_names_are_carried(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    value(
        shared_box,
        kernel,
        "import functools, enum, dataclasses, typing\n"
        "def pair():\n    k = 0\n    def inc():\n        nonlocal k\n        k += 1\n        return k\n"
        "    def get(): return k\n    return inc, get\ninc, get = pair(); inc()\n"
        "@functools.lru_cache(maxsize=5)\ndef fib(n): return n if n < 2 else fib(n-1) + fib(n-2)\n"
        "def outer():\n    def inner(n): return 1 if n < 2 else n * inner(n - 1)\n    return inner\n"
        "fact = outer()\nclass E(enum.Enum):\n    A = 1\ne = E.A\n"
        "@dataclasses.dataclass\nclass D:\n    x: int = 1\nd = D()\n"
        "class N(typing.NamedTuple):\n    a: int\nn = N(1)\nloop = []; loop.append(loop)\n"
        "exit = 5\nx: int = 3\nopen('f', 'w')",
    )
    report = shared_box.save(kernel, str(tmp_path / "s"))
    assert list(report.failures) == ["Out[1]"]  # a file that is open
    copy = shared_box.load("copy", str(tmp_path / "s"))
    assert value(shared_box, copy, "inc(), get(), fib(10), fib.cache_info().maxsize, fact(5)") == (
        "(2, 2, 55, 5, 120)"
    )
    look = "e is E.A, d == D(), n.a, loop[0] is loop, exit, __annotations__['x']"
    assert value(shared_box, copy, look) == "(True, True, 1, True, 5, int)"


def test_a_branch_by_copy_has_the_environment_and_the_random_numbers(
    shared_box: Box, kernel: KernelRecord
) -> None:
    code = "import os, random, numpy as np; os.environ['MADE'] = 'here'; random.seed(3); np.random.seed(3)"
    value(shared_box, kernel, code)
    copy = shared_box.branch(kernel, "copy", method="copy")
    look = "random.random(), float(np.random.random()), os.environ['MADE']"
    assert value(shared_box, copy, look) == value(shared_box, kernel, look)


def test_three_who_load_under_one_name_are_one(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    value(shared_box, kernel, "x = 1")
    shared_box.save(kernel, str(tmp_path / "s"))

    def load(_: int) -> object:
        try:
            return shared_box.load("same", str(tmp_path / "s"))
        except BadInput as error:
            return error

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(load, range(3)))
    assert sum(isinstance(answer, KernelRecord) for answer in answers) == 1
    assert value(shared_box, "same", "x") == "1"


@pytest.mark.parametrize("content", [b"", b"short"])
def test_a_damaged_key_is_never_used(
    hasty: Callable[..., Box], environment: Path, tmp_path: Path, content: bytes
) -> None:
    with hasty() as box:
        kernel = box.get_or_create("k")
        box.save(kernel, str(tmp_path / "s"))
        (environment / "session.key").write_bytes(content)
        for call in (lambda: box.save(kernel, str(tmp_path / "t")), lambda: box.load("l", str(tmp_path / "s"))):  # fmt: skip
            with pytest.raises(BadInput, match="damaged; remove it"):
                call()


def test_a_copy_of_a_busy_kernel_is_given_up_in_time(hasty: Callable[..., Box]) -> None:
    with hasty(fork_timeout=1) as box:
        kernel = box.get_or_create("k")
        busy = threading.Thread(target=box.execute, args=(kernel, "import time; time.sleep(4)"))
        busy.start()
        wait_until(lambda: box.status(kernel)["running"], what="it to be busy")
        with pytest.raises(StartupFailed, match="did not end within 1 s"):
            box.branch(kernel, "b", method="copy")
        busy.join()
        assert [record.name for record in box.list_kernels()] == ["k"]


def test_a_kernel_whose_start_failed_can_go_back(hasty: Callable[..., Box], tmp_path: Path) -> None:
    """It waited until the kernel was ready, and nobody was about to make it so."""
    code = "import os\nif os.path.exists('bad'): os._exit(3)"
    with hasty(startup_code=code) as box, ThreadPoolExecutor(1) as pool:
        kernel = box.get_or_create("k", cwd=str(tmp_path))
        value(box, kernel, "x = 1")
        box.checkpoint(kernel, "good")
        (tmp_path / "bad").touch()
        with pytest.raises(StartupFailed, match="exit code 3"):
            box.restart(kernel)
        assert pool.submit(box.rewind, kernel, "good").result(30).status == "idle"
        assert value(box, kernel, "x") == "1"


# -- files of its own -------------------------------------------------------------------------


def test_a_branch_with_files_of_its_own_never_touches_the_originals(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("original")
    value(shared_box, kernel, "v=1", language="bash")
    copy = shared_box.branch(kernel, "copy", files="copy")
    value(shared_box, copy, "echo changed > data; echo $v", language="bash")
    shared_box.restart(copy)
    value(shared_box, copy, "open('data', 'a').write('again')")
    shared_box.execute(copy, "import os; os._exit(1)")
    value(shared_box, copy, "open('data', 'a').write('again')")
    assert (tmp_path / "data").read_text() == "original"


def test_a_branch_of_such_a_branch_keeps_the_folder(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path, waiting: Waiting
) -> None:
    (tmp_path / "data").write_text("1")
    middle = shared_box.branch(kernel, "middle", files="copy")
    last = shared_box.branch(middle, "last")
    shared_box.destroy(middle)
    assert value(shared_box, last, "open('data').read()") == "'1'"
    folder = Path(eval(value(shared_box, last, "import os; os.getcwd()") or ""))
    shared_box.destroy(last)
    waiting(lambda: not folder.exists(), what="the folder to go with the last")


# -- undo -------------------------------------------------------------------------------------


def test_cells_without_undo_are_not_undone_by_mistake(hasty: Callable[..., Box]) -> None:
    with hasty(undo=5) as box, hasty() as other:
        kernel = box.get_or_create("k")
        value(box, kernel, "x = 1")
        value(box, kernel, "x = 2")
        value(other, kernel, "x = 3")
        with pytest.raises(CheckpointNotFound, match=r"the last cell cannot be undone"):
            box.undo(kernel)
        box.undo(kernel, 2)
        assert value(box, kernel, "x") == "1"


def test_undo_knows_nothing_of_abandoned_timelines(hasty: Callable[..., Box]) -> None:
    with hasty(undo=9) as box:
        kernel = box.get_or_create("k")
        value(box, kernel, "x = 1")
        box.checkpoint(kernel, "one")
        value(box, kernel, "x = 2")
        box.checkpoint(kernel, "two")
        box.rewind(kernel, "one")
        value(box, kernel, "x = 3")
        box.undo(kernel)
        assert value(box, kernel, "x") == "1"
        value(box, kernel, "x = 4")
        box.rewind(kernel, "two")
        with pytest.raises(CheckpointNotFound, match="the last cell cannot be undone"):
            box.undo(kernel)  # what was before x = 2 is gone, and before x = 4 is not meant
        box.restart(kernel)
        with pytest.raises(CheckpointNotFound):
            box.undo(kernel)


def test_a_cell_that_was_refused_is_not_one_that_undo_counts(hasty: Callable[..., Box]) -> None:
    with hasty(undo=5) as box:
        kernel = box.get_or_create("k")
        value(box, kernel, "x = 1")
        value(box, kernel, "import threading, time\nx = 2\n"
              "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()")  # fmt: skip
        with pytest.raises(Unsupported, match="it cannot be atomic"):
            box.execute(kernel, "x = 3", atomic=True)
        box.undo(kernel)
        assert value(box, kernel, "x") == "1"


def test_output_from_between_cells_is_not_lost_with_a_cell_that_was_refused(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    value(
        shared_box,
        kernel,
        "import pathlib, threading, time\ndef talk():\n    time.sleep(0.2)\n"
        f"    print(('y' * 69 + chr(10)) * 1000, flush=True); pathlib.Path({str(said)!r}).touch(); time.sleep(60)\n"
        "threading.Thread(target=talk, daemon=True).start()",
    )
    wait_until(said.exists, what="the thread to have talked")
    for _ in range(3):
        with pytest.raises(Unsupported, match="it cannot be atomic"):
            shared_box.execute(kernel, "x = 3", atomic=True)
    folder = f"/proc/{pid_of(shared_box, kernel, 'warden')}/fd"
    links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    assert not [link for link in links if "/spool-" in link], "spools that are still open"
    result = shared_box.execute(kernel, "None")
    assert "yyy" in "".join(item.text for item in result.outputs)


def test_undo_leaves_the_shell_alone(hasty: Callable[..., Box]) -> None:
    with hasty(undo=3) as box:
        kernel = box.get_or_create("k")
        value(box, kernel, "v=1", language="bash")
        value(box, kernel, "x = 1")
        box.undo(kernel)
        assert value(box, kernel, "echo $v", language="bash") == "1\n"


def test_undo_ends_the_command_that_runs_and_no_cell_in_its_place(
    hasty: Callable[..., Box],
) -> None:
    """The shell went on with it, and told of its end when a cell ran: that was the cell's end."""
    with hasty(undo=3) as box, ThreadPoolExecutor(1) as pool:
        kernel = box.get_or_create("k")
        value(box, kernel, "import time; x = 1")
        value(box, kernel, "x = 2")
        running = pool.submit(
            box.execute, kernel, "sleep 1 & sleep 1; echo late", language="bash", timeout=20
        )
        wait_until(lambda: box.status(kernel)["running"], what="the command to run")
        box.undo(kernel)
        result = running.result(10)
        assert (result.status, result.state, result.output) == ("error", "rewound", "")
        assert any("the bash session was ended" in note for note in result.notes)
        assert value(box, kernel, "time.sleep(1.5); x") == "1"
        assert value(box, kernel, "echo whole", language="bash") == "whole\n"


def test_two_undos_at_once_are_both_answered(hasty: Callable[..., Box]) -> None:
    with hasty(undo=9) as box:
        kernel = box.get_or_create("k")
        for number in range(8):
            value(box, kernel, f"x = {number}")

        def undo(_: int) -> object:
            try:
                return box.undo(kernel)
            except BoxError as error:
                return error

        with ThreadPoolExecutor(4) as pool:
            assert len(list(pool.map(undo, range(4)))) == 4
        assert value(box, kernel, "1") == "1"


def test_the_counts_of_a_checkpoint_are_of_its_moment(hasty: Callable[..., Box]) -> None:
    with hasty(undo=5, max_checkpoints=2) as box:
        kernel = box.get_or_create("k")
        box.checkpoint(kernel, "empty")
        for number in range(3):
            value(box, kernel, f"x = {number}")
        box.rewind(kernel, "empty")
        box.checkpoint(kernel, "again")
        points = box.checkpoints(kernel)
        assert [(point.label, point.execution_count) for point in points] == [
            ("empty", 0),
            ("again", 0),
        ]
        value(box, kernel, "x = 1")
        assert len(box.checkpoints(kernel)) == 2  # two were asked for: there is room for no more


# -- the truth ----------------------------------------------------------------------------------


def test_a_loss_is_told_though_an_atomic_cell_was_undone(
    shared_box: Box, kernel: KernelRecord
) -> None:
    value(shared_box, kernel, "x = 1")
    before = pid_of(shared_box, kernel, "interpreter")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: pid_of(shared_box, kernel, "interpreter") != before, what="a new one")
    result = shared_box.execute(kernel, "x + 1", atomic=True)
    assert result.state == "lost"
    assert "SIGKILL" in (result.cause or "")
    assert "undone" in (result.cause or "")


def test_bash_that_kills_python_and_fails_does_not_hide_it(
    shared_box: Box, kernel: KernelRecord
) -> None:
    value(shared_box, kernel, "x = 1")
    pid = pid_of(shared_box, kernel, "interpreter")
    code = f"kill -9 {pid}; sleep 0.5; false"
    result = shared_box.execute(kernel, code, language="bash", atomic=True)
    assert result.state == "lost"
    assert shared_box.execute(kernel, "'x' in dir()").return_value == "False"


def test_background_jobs_outlive_an_atomic_command_that_fails(
    shared_box: Box, kernel: KernelRecord
) -> None:
    pid = int(value(shared_box, kernel, "sleep 300 & echo $!", language="bash") or 0)
    assert shared_box.execute(kernel, "false", language="bash", atomic=True).state == "rewound"
    assert value(shared_box, kernel, "echo ok", language="bash") == "ok\n"
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


KILL_THE_GUARD = (
    "import os, time, signal\n"
    "def guards():\n"
    "    for name in os.listdir('/proc'):\n"
    "        try:\n"
    "            comm = open(f'/proc/{name}/comm').read()\n"
    "            parent = int(open(f'/proc/{name}/stat').read().rpartition(')')[2].split()[1])\n"
    "        except (OSError, ValueError): continue\n"
    "        if comm == 'kb-checkpoint\\n' and parent == os.getppid(): yield int(name)\n"
    "while not (found := list(guards())): time.sleep(0.01)\n"
)


def test_what_waits_behind_a_cell_that_lost_everything_is_told(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    wait = "while not os.path.exists('go'): time.sleep(0.01)\n"
    code = f"{KILL_THE_GUARD}{wait}os.kill(found[0], 9); 1/0"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shared_box.execute, kernel, code, atomic=True)
        wait_until(lambda: shared_box.status(kernel)["running"], what="the cell")
        second = pool.submit(shared_box.execute, kernel, "1")
        wait_until(lambda: shared_box.status(kernel)["queued"], what="another to wait")
        (tmp_path / "go").touch()
        assert (first.result().state, second.result().state) == ("lost", "lost")


# -- hangs --------------------------------------------------------------------------------------


def test_a_stopped_checkpoint_is_woken(shared_box: Box, kernel: KernelRecord) -> None:
    code = f"{KILL_THE_GUARD}x = 2; os.kill(found[0], signal.SIGSTOP); 1/0"
    result = shared_box.execute(kernel, code, atomic=True, timeout=20)
    assert result.state == "rewound"
    shared_box.checkpoint(kernel, "c")
    os.kill(pid_of(shared_box, kernel, "checkpoint"), signal.SIGSTOP)
    shared_box.rewind(kernel, "c")
    os.kill(pid_of(shared_box, kernel, "checkpoint"), signal.SIGSTOP)
    shared_box.drop_checkpoint(kernel, "c")


@pytest.mark.slow
def test_a_hook_that_hangs_in_the_copy_is_given_up_and_ended(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    value(shared_box, kernel, "x = 1; import os, time")
    interpreter = pid_of(shared_box, kernel, "interpreter")
    value(shared_box, kernel, "os.register_at_fork(after_in_child=lambda: time.sleep(1000))")
    with pytest.raises(BoxError, match="no checkpoint could be made"):
        shared_box.checkpoint(kernel)
    assert value(shared_box, kernel, "x") == "1"
    shared_box.restart(kernel)
    waiting(lambda: not alive(interpreter), what="the old interpreter to end")
    assert shared_box.execute(kernel, "1").ok
    family = below(pid_of(shared_box, kernel, "warden"))
    waiting(lambda: len([p for p in family if alive(p.pid)]) <= 3, what="what hung to end too")


def test_rewind_and_restart_one_after_the_other_are_answered(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.checkpoint(kernel, "c")
    for _ in range(15):
        with ThreadPoolExecutor(2) as pool:
            calls = [
                pool.submit(shared_box.restart, kernel),
                pool.submit(shared_box.rewind, kernel, "c"),
            ]
            for call in calls:
                call.result(30)
    assert value(shared_box, kernel, "1") == "1"


def test_a_copy_that_dies_before_its_first_word_is_not_waited_for(
    shared_box: Box, kernel: KernelRecord
) -> None:
    value(
        shared_box,
        kernel,
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))",
    )
    with pytest.raises(StartupFailed):
        shared_box.branch(kernel, "b")
    assert value(shared_box, kernel, "1") == "1"


def test_a_stopped_shell_is_ended_when_its_state_is_wanted(hasty: Callable[..., Box]) -> None:
    with hasty(fork_timeout=1) as box:
        kernel = box.get_or_create("k")
        value(box, kernel, "v=1", language="bash")
        os.kill(pid_of(box, kernel, "bash"), signal.SIGSTOP)
        with pytest.raises(BoxError, match="the shell did not answer"):
            box.checkpoint(kernel)
        assert value(box, kernel, "echo [$v]", language="bash") == "[]\n"


def test_forged_words_of_a_cell_hurt_only_itself(shared_box: Box, kernel: KernelRecord) -> None:
    code = (
        "import os, socket, json, struct\n"
        "from kernelbox.inside.shell import outbox\n"
        "for ok in (False, True):\n"
        "    outbox.lifeline.send({'op': 'done', 'ok': ok, 'execution_count': 1})\n"
        "import time; time.sleep(0.3)"
    )
    shared_box.execute(kernel, code, atomic=True, timeout=10)
    assert shared_box.execute(kernel, "import os; os._exit(1)", timeout=10).state == "lost"
    assert value(shared_box, kernel, "1") == "1"


# -- ends ---------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_made_while_its_kernel_ends_does_not_stay(
    shared_box: Box, waiting: Waiting
) -> None:
    first = shared_box.get_or_create("family")
    warden = pid_of(shared_box, first, "warden")
    for number in range(8):
        branch = shared_box.branch(first, f"b{number}")
        with ThreadPoolExecutor(2) as pool:
            call = pool.submit(shared_box.checkpoint, branch)
            shared_box.destroy(branch)
            assert isinstance(call.exception(), BoxError) or call.result()
    waiting(lambda: len(below(warden)) == 2, what="every checkpoint to end with its kernel")
    shared_box.destroy(first)


def test_handlers_and_waits_of_the_user_see_no_child_of_ours(
    shared_box: Box, kernel: KernelRecord
) -> None:
    value(
        shared_box,
        kernel,
        "import os, signal\nheard = []\n"
        "def handler(*_):\n    heard.append(os.wait())\nsignal.signal(signal.SIGCHLD, handler)",
    )
    shared_box.checkpoint(kernel)
    assert shared_box.execute(kernel, "1", atomic=True).ok
    shared_box.branch(kernel, "b")
    assert value(shared_box, kernel, "heard") == "[]"
    value(shared_box, kernel, "signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    shared_box.branch(kernel, "c")
    value(shared_box, kernel, "signal.signal(signal.SIGCHLD, signal.SIG_DFL)")
    code = (
        "def waits():\n"
        "    for wait in (os.wait, lambda: os.waitpid(-1, 0), lambda: os.waitid(os.P_ALL, 0, os.WEXITED)):\n"
        "        try: yield wait()\n"
        "        except ChildProcessError: yield None\n"
        "list(waits())"
    )
    assert value(shared_box, kernel, code, atomic=True) == "[None, None, None]"


def test_threads_are_seen_however_they_were_started(shared_box: Box, kernel: KernelRecord) -> None:
    value(
        shared_box,
        kernel,
        "import _thread, threading, time\nstop = threading.Event()\n"
        "_thread.start_new_thread(stop.wait, ())",
    )
    assert shared_box.branch(kernel, "one").made_by == "copy"
    value(
        shared_box,
        kernel,
        "stop.set()\nwhile _thread._count(): time.sleep(0.01)\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "e = ThreadPoolExecutor(4); list(e.map(abs, range(50))); go = threading.Event()\n"
        "f = e.submit(go.wait)",
    )
    assert shared_box.branch(kernel, "two").made_by == "copy"
    resting = "sys._current_frames()[t.ident].f_code.co_name == '_worker'"
    code = f"import sys; go.set(); f.result()\nwhile not all({resting} for t in e._threads): pass"
    value(shared_box, kernel, code)
    assert shared_box.branch(kernel, "three").made_by == "fork"


def test_an_odd_stdout_and_many_open_files_are_no_obstacle(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("0123456789")
    value(
        shared_box,
        kernel,
        "import sys\nclass Odd:\n    def write(self, text): return len(text)\nold = sys.stdout\n"
        "sys.stdout = Odd()\nfiles = [open('f', buffering=1) for _ in range(560)]",
    )
    shared_box.checkpoint(kernel, "c")
    value(shared_box, kernel, "for file in files: file.seek(5)")
    shared_box.rewind(kernel, "c")
    assert value(shared_box, kernel, "{file.read(1) for file in files}") == "{'0'}"


def test_our_own_files_are_not_taken_for_the_cells(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Box() as box:  # its home is in this folder
        kernel = box.get_or_create("k")
        box.get_or_create("another")
        assert box.execute(kernel, "open('mine', 'w'); 1/0", atomic=True).notes == [
            "files are not undone; changed meanwhile: mine (new)"
        ]
        box.execute(kernel, "import os; os.chdir('/')")
        notes = " ".join(box.execute(kernel, "1/0", atomic=True).notes)
        assert not [word for word in notes.split() if "kernelbox-" in word or "proc/" in word]


def test_numpy_generators_are_reseeded_too(shared_box: Box, kernel: KernelRecord) -> None:
    value(shared_box, kernel, "import numpy as np; rng = np.random.default_rng(1)")
    look = "float(rng.random())"
    for method in ("fork", "copy"):
        names = [f"{method} 1", f"{method} 2"]
        shared_box.branch(kernel, names=names, reseed=True, method=method)
        assert len({value(shared_box, name, look) for name in [*names, kernel.name]}) == 3


def test_a_failed_atomic_command_leaves_python_alone_and_says_what_it_left(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    value(shared_box, kernel, "sleep 300 &", language="bash")
    result = shared_box.execute(kernel, "touch new; false", language="bash", atomic=True)
    assert (result.state, result.epoch) == ("rewound", 1)
    assert any("background jobs run on" in note for note in result.notes)
    assert any("new (new)" in note for note in result.notes)
    result = shared_box.execute(
        kernel, "import subprocess; p = subprocess.Popen(['sleep', '300']); 1/0", atomic=True
    )
    assert any("run on: 1" in note for note in result.notes)
    value(shared_box, kernel, "pkill -P $PPID -x sleep; true", language="bash")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda box, k: box.execute(k, "1", atomic="no"), "atomic is True or False"),
        (lambda box, k: box.branch(k, "b", reseed="no"), "reseed is True or False"),
        (lambda box, k: box.load("l", "f", trust="no"), "trust is True or False"),
        (lambda box, k: box.branch(k, ["a", "b"]), r"names=\["),
        (lambda box, k: box.branch(k, names=[]), "names is empty"),
        (lambda box, k: box.branch(k, names=["a", "a"]), "twice among the names"),
        (lambda box, k: box.execute_many([(k, "1")]), "maps kernels to code"),
        (lambda box, k: box.checkpoint(k, box.checkpoint(k)), "already"),
    ],
    ids=["atomic", "reseed", "trust", "list", "empty", "twice", "cells", "label"],
)
def test_mistakes_are_told(
    shared_box: Box, kernel: KernelRecord, call: Callable[..., object], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        call(shared_box, kernel)


def test_a_guard_outlives_a_cell_that_ends_at_once(shared_box: Box, kernel: KernelRecord) -> None:
    """Its parent is gone before the process between is: the stub's child, and not yet the guard."""
    value(shared_box, kernel, "x = 1")
    for _ in range(25):
        result = shared_box.execute(kernel, "import os; os.kill(os.getpid(), 9)", atomic=True)
        assert result.state == "rewound", result.cause
    assert value(shared_box, kernel, "x") == "1"
