"""Code that fails, exits, forks, or is hardly code at all: each ends in a clear result."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelbox import BadInput, Box, ExecutionResult, KernelRecord

Run = Callable[..., ExecutionResult]


def failure(result: ExecutionResult) -> tuple[str, str]:
    assert result.status == "error"
    assert result.error is not None
    assert result.state == "kept"
    assert all("\x1b" not in line for line in result.error.traceback)
    return result.error.ename, result.error.evalue


# -- errors -------------------------------------------------------------------------------------


def test_a_traceback_names_the_frames_without_colours(run: Run) -> None:
    result = run("def outer():\n    return inner()\ndef inner():\n    return 1 / 0\nouter()")
    assert failure(result) == ("ZeroDivisionError", "division by zero")
    assert result.error is not None
    text = "\n".join(result.error.traceback)
    assert "in outer()" in text
    assert "in inner()" in text
    assert "----> 4     return 1 / 0" in text
    assert text.rstrip().endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("code", "ename"),
    [
        ("def f(:\n", "SyntaxError"),
        ("  x = 1\n y = 2", "IndentationError"),
        ("a\0b", "SyntaxError"),
        ("x = '\ud800'", "UnicodeEncodeError"),
        ("print(1)\n# \udc80", "UnicodeEncodeError"),
        ("nowhere", "NameError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("[0] * 10**15", "MemoryError"),
        ("raise BaseException('b')", "BaseException"),
        ("assert 1 == 2, 'math'", "AssertionError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
    ids=[
        "syntax", "indentation", "nul", "surrogate", "surrogate comment", "name", "import",
        "recursion", "memory", "base", "assert", "interrupt",
    ],
)  # fmt: skip
def test_each_kind_of_error_has_its_name(run: Run, ran: Run, code: str, ename: str) -> None:
    result = run(code)
    assert failure(result)[0] == ename
    assert result.error is not None
    assert result.error.traceback
    assert result.output == ""
    assert ran("1 + 1").return_value == "2"


def test_an_exception_that_cannot_be_printed_is_still_named(run: Run) -> None:
    result = run(
        "class Shy(Exception):\n    def __str__(self): raise ValueError('no')\n"
        "    __repr__ = __str__\nraise Shy()"
    )
    assert failure(result) == ("Shy", "<unprintable exception>")


def test_causes_and_groups_are_in_the_traceback(run: Run) -> None:
    chained = run("try: 1/0\nexcept Exception as e: raise ValueError('second') from e")
    assert failure(chained) == ("ValueError", "second")
    assert chained.error is not None
    assert "ZeroDivisionError" in "\n".join(chained.error.traceback)
    group = run("raise ExceptionGroup('both', [ValueError('one'), TypeError('two')])")
    assert failure(group) == ("ExceptionGroup", "both (2 sub-exceptions)")
    assert group.error is not None
    text = "\n".join(group.error.traceback)
    assert "ValueError: one" in text
    assert "TypeError: two" in text
    assert group.stderr == ""


def test_what_ran_before_the_error_has_run(run: Run, ran: Run) -> None:
    run("x = 1\nprint('here')\n1/0\nx = 2")
    assert ran("x").return_value == "1"


def test_warnings_go_to_stderr(ran: Run) -> None:
    assert "UserWarning: careful" in ran("import warnings; warnings.warn('careful')").stderr


# -- exits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "raise SystemExit",
        "exit()",
        "quit()",
        "exit",
        "raise SystemExit('bye')",
    ],
)
def test_an_exit_ends_the_cell_not_the_kernel(run: Run, ran: Run, code: str) -> None:
    ran("x = 5")
    assert failure(run(code))[0] == "SystemExit"
    assert ran("x").return_value == "5"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os; os._exit(0)", "exit code 0"),
        ("import os; os._exit(7)", "exit code 7"),
        ("import os; os.abort()", "SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    ],
    ids=["exit 0", "exit 7", "abort", "segfault", "kill"],
)
def test_a_death_is_an_error_with_its_cause(run: Run, code: str, cause: str) -> None:
    result = run(f"x = 5; print('last words', flush=True)\n{code}")
    assert result.status == "error"
    assert result.error is not None
    assert result.error.ename == "KernelDied"
    assert result.cause is not None
    assert cause in result.cause
    assert result.state == "lost"
    assert result.output == "last words\n"
    again = run("'x' in globals()")
    assert (again.return_value, again.epoch) == ("False", result.epoch)


# -- forks and processes ------------------------------------------------------------------------


def test_a_forked_child_does_not_come_back_as_a_second_interpreter(ran: Run) -> None:
    result = ran(
        "import os\npid = os.fork()\n"
        "if pid == 0: print('child')\n"
        "else: print('parent', os.waitpid(pid, 0)[1])"
    )
    assert result.output == "child\nparent 0\n"
    assert ran("1 + 1").return_value == "2"


@pytest.mark.parametrize(
    ("code", "status"),
    [("pass", 0), ("raise ValueError('in the child')", 1), ("import sys; sys.exit(3)", 3),
     ("os._exit(5)", 5)],
    ids=["end", "error", "sys.exit", "os._exit"],
)  # fmt: skip
def test_a_forked_child_ends_as_a_program_would(ran: Run, code: str, status: int) -> None:
    result = ran(
        f"import os\npid = os.fork()\nif pid == 0:\n    {code}\n"
        "else:\n    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert ran("status").return_value == str(status)
    if status == 1:
        assert "in the child" in result.stderr


def test_a_forked_childs_display_is_printed(ran: Run) -> None:
    result = ran(
        "import os\nfrom IPython.display import display\npid = os.fork()\n"
        "if pid == 0: display('from the child')\nelse: os.waitpid(pid, 0); display('mine')"
    )
    assert result.output == "'from the child'\n"
    assert [i.text for i in result.outputs if i.kind == "display_data"] == ["'mine'"]


def test_multiprocessing_works_with_functions_of_cells(ran: Run) -> None:
    ran(
        "import multiprocessing\nfork = multiprocessing.get_context('fork')\n"
        "def square(x): return x * x\n"
        "def work(q): print('in the worker'); q.put(5)"
    )
    assert ran("with fork.Pool(2) as pool: print(pool.map(square, range(5)))").output == (
        "[0, 1, 4, 9, 16]\n"
    )
    result = ran("q = fork.Queue(); p = fork.Process(target=work, args=(q,)); p.start()\n"
                 "value = q.get(); p.join(); value, p.exitcode")  # fmt: skip
    assert (result.return_value, result.output) == ("(5, 0)", "in the worker\n")
    assert (
        ran(
            "from concurrent.futures import ProcessPoolExecutor\n"
            "with ProcessPoolExecutor(2, mp_context=fork) as pool: print(list(pool.map(square, [3])))"
        ).output
        == "[9]\n"
    )


def test_classes_of_cells_can_be_pickled(ran: Run) -> None:
    result = ran(
        "import pickle\nclass Thing:\n    def __init__(self): self.a = 1\n"
        "pickle.loads(pickle.dumps(Thing())).a, Thing.__module__, __name__"
    )
    assert result.return_value == "(1, '__main__', '__main__')"


def test_a_process_left_running_lives_on_and_ends_with_the_kernel(
    shared_box: Box, tmp_path, waiting: Callable[..., None]
) -> None:
    import psutil

    kernel = shared_box.get_or_create("leaves a process", cwd=str(tmp_path))
    pid = int(
        shared_box.execute(
            kernel, "import subprocess; p = subprocess.Popen(['sleep', '500']); p.pid"
        ).return_value
        or 0
    )
    assert shared_box.execute(kernel, "p.poll()").return_value is None
    assert psutil.pid_exists(pid)
    shared_box.destroy(kernel)
    waiting(lambda: not psutil.pid_exists(pid), what="the process to end")


# -- hardly code --------------------------------------------------------------------------------


def test_ten_megabytes_of_code_run(ran: Run) -> None:
    text = "x" * 10_000_000
    assert ran(f"text = '{text}'\nlen(text)", timeout=60).return_value == "10000000"


def test_what_is_not_text_is_refused_before_anything_runs(
    shared_box: Box, kernel: KernelRecord
) -> None:
    with pytest.raises(BadInput):
        shared_box.execute(kernel, b"1 + 1")  # type: ignore[arg-type]
    with pytest.raises(BadInput):
        shared_box.execute(kernel, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damage",
    [
        "del __builtins__",
        "import builtins; del builtins.input",
        "import sys; sys.path.clear()",
        "import os; os.environ.clear()",
        "import sys; sys.excepthook = sys.displayhook = None",
        "_ = __ = Out = In = exit = get_ipython = None",
        "import json; json.dumps = json.loads = None",
        "import socket, select; socket.socket = select.select = None",
        "import os; os.getpid = os.write = os.fork = None",
        "import time; time.sleep = time.monotonic = None",
        "import gc; gc.disable(); gc.set_threshold(1)",
        "import threading; threading.main_thread = threading.get_ident = None",
        "import sys; sys.setrecursionlimit(150)",
        "import signal\nfor n in (1, 2, 10, 12, 13, 15, 17): signal.signal(n, signal.SIG_IGN)",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))",
        "import locale, os; os.umask(0o777)",
    ],
    ids=lambda code: code.split("\n")[0].replace("/", " ")[:40],
)
def test_a_cell_that_saws_at_the_branch_it_sits_on(run: Run, damage: str) -> None:
    """Whatever a cell does to its own process, the next one is answered, and honestly."""
    first = run(damage)
    after = run("print('out'); 6 * 7")
    if after.state == "kept" and first.state == "kept":
        assert (after.output, after.return_value) == ("out\n", "42"), after.error
    else:
        assert "lost" in (first.state, after.state)
        assert first.cause or after.cause
    assert run("1 + 1").return_value == "2"
