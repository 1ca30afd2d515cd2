"""What a cell prints, however it prints it, arrives: in order, as it happens, and whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from kernelbox import Box, ExecutionResult, KernelRecord, OutputItem

Run = Callable[..., ExecutionResult]

LIBC = "import ctypes, os; libc = ctypes.CDLL(None)\n"


def kinds(result: ExecutionResult) -> list[tuple[str | None, str | None]]:
    """The outputs as (stream name or kind, text)."""
    return [(item.name or item.kind, item.text) for item in result.outputs]


# -- as it happens ------------------------------------------------------------------------------


def wait_for_file(path: object) -> str:
    """Code that ends a cell when the test says so."""
    return (
        "import os, time\n"
        "deadline = time.monotonic() + 10\n"
        f"while not os.path.exists({str(path)!r}):\n"
        "    assert time.monotonic() < deadline\n"
        "    time.sleep(0.002)\n"
    )


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_arrives_while_the_cell_still_runs(
    shared_box: Box, kernel: KernelRecord, tmp_path, name: str
) -> None:
    go_on = tmp_path / "go-on"
    code = f"import sys; print('first', file=sys.{name})\n{wait_for_file(go_on)}print('last')"
    items = shared_box.stream(kernel, code, timeout=15)
    first = next(items)
    assert isinstance(first, OutputItem)
    assert first.name == name
    assert (first.text or "").rstrip("\n") == "first"  # print() writes the newline by itself
    go_on.touch()
    *rest, result = items
    assert isinstance(result, ExecutionResult)
    assert result.ok
    assert "".join(item.text or "" for item in [first, *rest]) == "first\nlast\n"


def test_half_a_line_arrives_while_the_cell_still_runs(
    shared_box: Box, kernel: KernelRecord, tmp_path
) -> None:
    go_on = tmp_path / "go-on"
    code = f"print('half', end='')\n{wait_for_file(go_on)}print(' whole')"
    items = shared_box.stream(kernel, code, timeout=15)
    first = next(items)
    assert isinstance(first, OutputItem)
    assert first.text == "half"
    go_on.touch()
    *_, result = items
    assert isinstance(result, ExecutionResult)
    assert result.output == "half whole\n"


def test_displays_and_commands_stream_too(shared_box: Box, kernel: KernelRecord, tmp_path) -> None:
    go_on = tmp_path / "go-on"
    code = (
        "from IPython.display import display; import subprocess, sys\n"
        "display('shown')\n"
        "subprocess.run(['echo', 'from a command'])\n"
        f"{wait_for_file(go_on)}"
    )
    items = shared_box.stream(kernel, code, timeout=15)
    # Between a display and what others write to fd 1 no order is promised.
    shown = {(getattr(i, "kind", ""), getattr(i, "text", "")) for i in itertools.islice(items, 2)}
    assert shown == {("display_data", "'shown'"), ("stream", "from a command\n")}
    go_on.touch()
    *_, result = items
    assert isinstance(result, ExecutionResult)
    assert result.ok


# -- in order -----------------------------------------------------------------------------------


def test_python_streams_keep_their_order(ran: Run) -> None:
    result = ran(
        "import sys\nfor i in range(50):\n    print(i, file=sys.stdout if i % 2 else sys.stderr)\n"
    )
    expected = [("stdout" if i % 2 else "stderr", f"{i}\n") for i in range(50)]
    assert kinds(result) == expected


def test_displays_and_results_keep_their_order(ran: Run) -> None:
    result = ran(
        "import sys\nfrom IPython.display import display\n"
        "print('a'); display('b'); print('c', file=sys.stderr); display('d'); print('e')\n'f'"
    )
    assert kinds(result) == [
        ("stdout", "a\n"),
        ("display_data", "'b'"),
        ("stderr", "c\n"),
        ("display_data", "'d'"),
        ("stdout", "e\n"),
        ("execute_result", "'f'"),
    ]


def test_prints_and_subprocesses_take_turns_without_a_flush(ran: Run) -> None:
    result = ran(
        "import os\nfor i in range(200):\n    print(f'py {i}')\n    os.system(f'echo sh {i}')\n",
        timeout=40,
    )
    assert result.output == "".join(f"py {i}\nsh {i}\n" for i in range(200))


def test_every_python_way_of_writing_keeps_its_place(ran: Run) -> None:
    result = ran(
        "import os, sys\nfrom IPython.display import display\n"
        "for i in range(200):\n"
        "    print('p', i); print('e', i, file=sys.stderr); display(i)\n"
        "    sys.stdout.buffer.write(b'b %d\\n' % i); os.write(1, b'w %d\\n' % i)\n"
    )
    expected: list[tuple[str, str]] = [("stdout", "p 0\n")]
    for i in range(200):
        # The next round's first print joins what this one wrote last to the same stream.
        after = f"p {i + 1}\n" if i < 199 else ""
        expected += [("stderr", f"e {i}\n"), ("display_data", str(i))]
        expected += [("stdout", f"b {i}\nw {i}\n{after}")]
    assert kinds(result) == expected


def test_an_error_comes_after_what_was_printed_before_it(ran: Run, run: Run) -> None:
    result = run("import sys\nprint('out'); print('err', file=sys.stderr)\n1/0")
    assert [item.name or item.kind for item in result.outputs] == ["stdout", "stderr", "error"]
    assert result.error is not None
    assert result.error.ename == "ZeroDivisionError"


# -- whoever writes -----------------------------------------------------------------------------


def test_c_code_is_heard(ran: Run) -> None:
    result = ran(
        LIBC + "libc.puts(b'puts')\nlibc.printf(b'printf %d\\n', 42)\n"
        "libc.write(1, b'write\\n', 6)\nlibc.write(2, b'errors\\n', 7)\n"
    )
    # libc may hold puts and printf back until the end of the cell; write(2) waits for nobody.
    assert sorted(result.output.splitlines()) == ["printf 42", "puts", "write"]
    assert result.stderr == "errors\n"


def test_subprocesses_are_heard(ran: Run) -> None:
    result = ran(
        "import subprocess, sys\n"
        "subprocess.run(['sh', '-c', 'echo out; echo err >&2'])\n"
        "subprocess.run([sys.executable, '-c', 'print(42)'], stdout=sys.stdout)\n"
        "subprocess.run(['sh', '-c', 'echo to stderr'], stdout=sys.stderr)\n"
    )
    assert result.output == "out\n42\n"
    assert result.stderr == "err\nto stderr\n"


def test_threads_that_print_at_once_lose_nothing(ran: Run) -> None:
    result = ran(
        "import threading, sys\n"
        "def work(n):\n"
        "    for i in range(100):\n"
        "        sys.stdout.write(f'{n}:{i}\\n')\n"
        "        if i % 10 == 0: sys.stderr.write(f'{n}:{i}\\n')\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; None\n",
    )
    for text, step in ((result.output, 1), (result.stderr, 10)):
        lines = text.splitlines()
        assert len(lines) == 8 * 100 / step
        for n in range(8):
            mine = [line for line in lines if line.startswith(f"{n}:")]
            assert mine == [f"{n}:{i}" for i in range(0, 100, step)]


def test_a_megabyte_under_the_gil_does_not_block(ran: Run) -> None:
    """200 kB is more than a pipe holds: whoever waits for the GIL to read it waits for ever."""
    result = ran(
        "import ctypes\n"
        "libc = ctypes.PyDLL(None)\n"  # PyDLL keeps the GIL
        "line = b'x' * 999 + b'\\n'\n"
        "for _ in range(200):\n"
        "    assert libc.write(1, line, 1000) == 1000\n"
        "big = b'y' * 200_000\n"
        "assert libc.write(1, big, 200_000) == 200_000\n"
    )
    assert result.truncated
    assert result.output.startswith("xxx")
    assert result.output.endswith("yyy")
    assert "of 400,000 characters left out" in result.output


# -- between cells ------------------------------------------------------------------------------


def test_what_a_thread_prints_between_cells_comes_with_the_next_result(
    shared_box: Box, kernel: KernelRecord, ran: Run, tmp_path, waiting: Callable[..., None]
) -> None:
    done = tmp_path / "done"
    ran(
        "import threading, time, pathlib\n"
        "def later():\n"
        "    time.sleep(0.1)\n"
        "    for i in range(100): print('later', i)\n"
        f"    pathlib.Path({str(done)!r}).touch()\n"
        "threading.Thread(target=later, daemon=True).start()\n"
    )
    waiting(done.exists, what="the thread")
    result = ran("print('mine')")
    background = [item for item in result.outputs if item.metadata.get("background")]
    assert "".join(item.text or "" for item in background) == "".join(
        f"later {i}\n" for i in range(100)
    )
    own = [item.text for item in result.outputs if not item.metadata.get("background")]
    assert own == ["mine\n"]
    assert result.output == "mine\n"


def test_what_a_process_prints_between_cells_comes_with_the_next_result(
    ran: Run, tmp_path, waiting: Callable[..., None]
) -> None:
    done = tmp_path / "done"
    ran(
        "import subprocess\n"
        "left = subprocess.Popen(['sh', '-c', "
        f"'sleep 0.1; echo left behind; echo oops >&2; touch {done}'])\n"
    )
    waiting(done.exists, what="the process")
    result = ran("left.wait()")
    background = {i.name: i.text for i in result.outputs if i.metadata.get("background")}
    assert background == {"stdout": "left behind\n", "stderr": "oops\n"}


# -- rough treatment ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("import os; os.close(1); os.close(2)", id="close fds"),
        pytest.param("import sys; sys.stdout.close(); sys.stderr.close()", id="close streams"),
        pytest.param("import os; os.closerange(3, 256)", id="closerange"),
        pytest.param("import sys; sys.stdout.buffer.close()", id="close buffer"),
        pytest.param("import sys; sys.__stdout__.close()", id="close original"),
        pytest.param(
            "import os; n = os.open('/dev/null', os.O_WRONLY); s = os.dup(1)\n"
            "os.dup2(n, 1); print('to null?'); os.dup2(s, 1); os.close(s); os.close(n)",
            id="dup2 there and back",
        ),
        pytest.param(
            "import io\nwith io.open(1, 'w') as f: f.write('closes fd 1')", id="open fd 1"
        ),
    ],
)
def test_output_survives(ran: Run, damage: str) -> None:
    ran(damage)
    result = ran(
        "import os, sys\nprint('still'); print('here', file=sys.stderr); os.system('echo and there')"
    )
    assert result.output == "still\nand there\n"
    assert result.stderr == "here\n"


def test_a_redirection_with_dup2_catches_what_c_code_writes(ran: Run, tmp_path) -> None:
    """What test suites do to capture a library's output; print is ours, and goes its own way."""
    file = tmp_path / "captured"
    ran(
        f"import os; saved = os.dup(1); f = os.open({str(file)!r}, os.O_WRONLY | os.O_CREAT)\n"
        "os.dup2(f, 1); os.system('echo captured'); os.dup2(saved, 1)\n"
        "print('back'); os.system('echo back')"
    )
    assert file.read_text() == "captured\n"


def test_redirect_stdout_and_rebinding_work(ran: Run) -> None:
    assert (
        ran(
            "import contextlib, io\n"
            "with contextlib.redirect_stdout(io.StringIO()) as held: print('held')\n"
            "held.getvalue()"
        ).return_value
        == "'held\\n'"
    )
    ran("import sys; kept = sys.stdout; sys.stdout = io.StringIO(); print('gone')")
    assert ran("print('gone too')").output == ""
    assert ran("sys.stdout = kept; print('back')").output == "back\n"
    wrapped = ran(
        "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8', line_buffering=True)\n"
        "print('wrapped ü'); sys.stdout = kept; import gc; gc.collect(); print('after')"
    )
    assert wrapped.output == "wrapped ü\nafter\n"
    assert ran("def print(*a): pass\nprint('quiet')").output == ""
    assert ran("del print; print('loud')").output == "loud\n"


def test_binary_garbage_is_shown_and_harms_nothing(ran: Run) -> None:
    result = ran("import os; os.write(1, bytes(range(128, 256))); os.write(1, b'\\nfine\\n'); None")
    assert result.output.endswith("\nfine\n")
    assert "�" in result.output
    assert ran("print('ünïcödé')").output == "ünïcödé\n"


def test_a_character_split_between_two_writes_arrives_whole(ran: Run) -> None:
    result = ran(
        "import os, time\nfor byte in 'ünï 🎉 €'.encode():\n"
        "    os.write(1, bytes([byte])); time.sleep(0.004)\n"
    )
    assert result.output == "ünï 🎉 €"


def test_lone_surrogates_are_printed_as_escapes(ran: Run) -> None:
    result = ran("print('a\\udc80b \\ud83d')")
    assert result.output == "a\\udc80b \\ud83d\n"


def test_nul_and_control_characters_pass(ran: Run) -> None:
    result = ran("print('a\\0b\\x1ec\\x1e\\x00d')")
    assert result.output == "a\0b\x1ec\x1e\x00d\n"


def test_stdout_behaves_like_a_file(ran: Run) -> None:
    result = ran(
        "import sys\n"
        "print('flushed', flush=True)\n"
        "sys.stdout.writelines(['a\\n', 'b\\n'])\n"
        "sys.stdout.buffer.write(b'bytes\\n'); sys.stdout.buffer.flush()\n"
        "sys.stdout.reconfigure(encoding='utf-8', line_buffering=True)\n"
        "(sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.isatty(), sys.stdout.encoding,\n"
        " sys.stdout.writable(), sys.stdout.readable(), sys.stdout.closed, sys.stdout.write('xy'))"
    )
    assert result.output == "flushed\na\nb\nbytes\nxy"
    assert result.return_value == "(1, 2, False, 'utf-8', True, False, False, 2)"


def test_stdout_refuses_what_is_not_text(run: Run) -> None:
    result = run("import sys; sys.stdout.write(b'bytes')")
    assert result.error is not None
    assert result.error.ename == "TypeError"


def test_a_non_blocking_stdout_loses_nothing(ran: Run) -> None:
    """node makes the pipe it shares with us non-blocking."""
    result = ran(
        "import os; os.set_blocking(1, False)\n"
        "for i in range(30_000): print(f'{i:09d}')\n"
        "os.set_blocking(1, True)"
    )
    assert "of 300,000 characters left out" in result.output
    assert result.output.endswith("000029999\n")


def test_last_words_before_a_crash_are_heard(run: Run) -> None:
    result = run("print('last words', end=''); import os; os._exit(3)")
    assert result.status == "error"
    assert result.state == "lost"
    assert result.output == "last words"
    again = run("1+1")
    assert (again.return_value, again.epoch) == ("2", result.epoch)
