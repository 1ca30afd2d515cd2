"""At a real terminal: the prompt, the live table, progress, and answers to input()."""

from __future__ import annotations

import re
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from processes import wait_until

from kernelbox import Box

PATIENCE = 60
Opened = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def terminal(shell: Any) -> Iterator[Opened]:
    """Opens a terminal in which a command runs."""
    opened = []

    def spawn(*words: str, **environ: str) -> pexpect.spawn[str]:
        program, *rest = shell.program
        child = pexpect.spawn(
            program,
            [*rest, *words],
            # A terminal that answers no questions: prompt_toolkit must not wait for any.
            env={
                **shell.environ,
                "TERM": "xterm-256color",
                "PROMPT_TOOLKIT_NO_CPR": "1",
                **environ,
            },
            cwd=str(shell.folder),
            encoding="utf-8",
            timeout=PATIENCE,
            dimensions=(40, 120),
            # Whoever runs the tests in the background has us ignore Ctrl-C; a terminal would not.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        opened.append(child)
        return child

    yield spawn
    for child in opened:
        child.close(force=True)


@pytest.fixture
def name(request: pytest.FixtureRequest, kernels: Box) -> Iterator[str]:
    """A short one: the prompt and what is typed fit in a line."""
    name = f"k{zlib.crc32(request.node.name.encode()):08x}"
    yield name
    for suffix in ("", "-b"):
        kernels.destroy(name + suffix)


def ended(child: pexpect.spawn[str]) -> int | None:
    child.expect(pexpect.EOF)
    child.close()
    status: int | None = child.exitstatus
    return status


class Prompt:
    """A REPL that is typed into."""

    def __init__(self, child: pexpect.spawn[str], name: str) -> None:
        self.child = child
        self.mark = f"{name}>"
        child.expect_exact(self.mark)

    def type(self, line: str, said: str) -> None:
        """Type a line, and wait for what it says and the next prompt."""
        self.child.send(line)
        self.child.send("\r")
        self.child.expect(said)
        self.child.expect_exact(self.mark)


def test_a_session_at_the_prompt(terminal: Opened, kernels: Box, name: str) -> None:
    child = terminal("repl", "--name", name)
    prompt = Prompt(child, name)
    prompt.type("x = 20 + 1; x * 2", r"\D42\r\n")
    prompt.type("print('word' * 2)", "wordword")
    prompt.type("1 / 0", "ZeroDivisionError.*division by zero")
    prompt.type(":bash echo $((6 * 7))", r"\D42\r\n")
    prompt.type(":nonsense", "no command :nonsense")
    prompt.type(":help", ":checkpoint")
    child.sendeof()
    assert ended(child) == 0
    assert kernels.execute(name, "x").return_value == "21", "the kernel stays"


def test_the_prompt_goes_on_until_the_code_is_whole(terminal: Opened, name: str) -> None:
    child = terminal("repl", "--name", name)
    prompt = Prompt(child, name)
    child.send("def double(n):\r")
    child.expect_exact("·")
    child.send("return n + n\r")  # the indent is there already
    child.send("\r")
    child.expect_exact(prompt.mark)
    prompt.type("double('ab')", "'abab'")


def test_tab_completes_what_the_kernel_knows(terminal: Opened, kernels: Box, name: str) -> None:
    kernels.get_or_create(name)
    kernels.execute(name, "uncommon_word = 'known'")
    child = terminal("repl", "--name", name)
    prompt = Prompt(child, name)
    child.send("uncommon_w\t")
    child.expect("uncommon_word|ord")
    prompt.type(".upper()", "'KNOWN'")


def test_ctrl_c_interrupts_the_cell_and_the_session_goes_on(
    terminal: Opened, kernels: Box, name: str
) -> None:
    child = terminal("repl", "--name", name)
    prompt = Prompt(child, name)
    child.send("x = 'kept'; print('be' + 'gun'); import time; time.sleep(600)\r")
    child.expect_exact("begun")
    child.sendintr()
    child.expect("KeyboardInterrupt")
    child.expect_exact(prompt.mark)
    prompt.type("x + '!'", "'kept!'")
    child.send("half a line")
    child.sendintr()
    child.expect_exact(prompt.mark)
    prompt.type("1 + 1", r"\D2\r\n")


def test_input_is_answered_at_the_prompt(terminal: Opened, name: str) -> None:
    child = terminal("repl", "--name", name)
    prompt = Prompt(child, name)
    child.send("len(input('what' + '? '))\r")
    child.expect_exact("what? ")
    prompt.type("12345", r"\D5\r\n")
    child.send("input('and' + '? ')\r")
    child.expect_exact("and? ")
    child.sendintr()
    child.expect("KeyboardInterrupt|Error")
    child.expect_exact(prompt.mark)
    prompt.type("1 + 1", r"\D2\r\n")


def test_going_back_at_the_prompt(terminal: Opened, kernels: Box, name: str) -> None:
    child = terminal("repl", "--name", name, KERNELBOX_UNDO="5")
    prompt = Prompt(child, name)
    prompt.type("x = 1", "")
    prompt.type(":checkpoint one", "checkpoint [0-9a-f]+")
    prompt.type("x = 2", "")
    prompt.type(":undo", "went back")
    prompt.type("x, 'undone'", r"\(1, 'undone'\)")
    prompt.type("x = 3", "")
    prompt.type(":checkpoints", "one")
    prompt.type(":rewind one", "went back")
    prompt.type("x, 'rewound'", r"\(1, 'rewound'\)")
    prompt.type(f":branch {name}-b", "was made")
    prompt.type(":rewind nowhere", "CheckpointNotFound")
    child.send(":quit\r")
    assert ended(child) == 0
    assert kernels.execute(f"{name}-b", "x").return_value == "1"


def test_a_kernel_that_ends_under_the_prompt_is_made_again(
    terminal: Opened, kernels: Box, name: str
) -> None:
    child = terminal("repl", "--name", name)
    prompt = Prompt(child, name)
    prompt.type("x = 1", "")
    kernels.destroy(name)
    prompt.type("x", "variables are gone")
    prompt.type("1 + 1", r"\D2\r\n")


def test_history_is_private_and_comes_back(terminal: Opened, shell: Any, name: str) -> None:
    prompt = Prompt(terminal("repl", "--name", name), name)
    prompt.type("'first' + ' time'", "'first time'")
    prompt.child.sendeof()
    assert ended(prompt.child) == 0
    history = Path(shell.environ["KERNELBOX_HOME"]) / "repl_history"
    assert history.stat().st_mode & 0o077 == 0
    prompt = Prompt(terminal("repl", "--name", name), name)
    prompt.type("\x1b[A", "'first time'")


def test_a_prompt_needs_a_terminal(shell: Any, name: str) -> None:
    done = shell("repl", "--name", name)
    assert (done.code, done.error["error"]) == (8, "Unsupported")
    assert "kernelbox exec" in done.error["hint"]


def test_a_terminated_prompt_leaves_without_a_traceback(terminal: Opened, name: str) -> None:
    child = terminal("repl", "--name", name)
    Prompt(child, name)
    child.kill(signal.SIGTERM)
    child.expect(pexpect.EOF)
    assert "Traceback" not in (child.before or "")
    child.close()
    assert child.exitstatus == 143


def test_top_shows_what_runs_and_q_leaves(
    terminal: Opened, shell: Any, kernels: Box, name: str
) -> None:
    code = "import time # uncommon\nwhile True: time.sleep(0.01)"
    with shell.started("exec", "--name", name, code) as process:
        wait_until(lambda: name in {r.name for r in kernels.list_kernels()}, what="the kernel")
        wait_until(lambda: kernels.status(name)["running"], what="the cell to run")
        child = terminal("top", "--interval", "0.1", COLUMNS="200")
        child.expect("busy · q leaves")
        child.expect("import time # uncommon")
        child.send("q")
        assert ended(child) == 0
        kernels.interrupt(name)
        process.communicate(timeout=60)


@pytest.mark.parametrize("way", ["ctrl-c", "term"])
def test_top_gives_the_terminal_back(terminal: Opened, way: str) -> None:
    child = terminal("top", "--interval", "0.1")
    child.expect("q leaves")
    if way == "ctrl-c":
        child.sendintr()
    else:
        child.kill(signal.SIGTERM)
    child.expect_exact("\x1b[?1049l")  # back from the other screen
    assert ended(child) == (0 if way == "ctrl-c" else 143)


def test_progress_is_shown_on_a_terminal_and_taken_away(
    terminal: Opened, name: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = (
        "import os, time; print('one step', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    )
    child = terminal("exec", "--name", name, code)
    child.expect(r"running in .* · \d+ s · one step")
    gate.touch()
    child.expect_exact('\x1b[K{"status": "success"')
    assert ended(child) == 0


def test_ctrl_c_at_the_terminal_interrupts_the_cell(terminal: Opened, name: str) -> None:
    code = "print('begun', flush=True); import time; time.sleep(600)"
    child = terminal("exec", "--name", name, code)
    child.expect("· begun")
    child.sendintr()
    child.expect_exact('"ename": "KeyboardInterrupt"')
    assert ended(child) == 130


def test_input_is_answered_at_the_terminal(terminal: Opened, name: str) -> None:
    child = terminal("exec", "--name", name, "--stream", "--human", "len(input('word? '))")
    child.expect_exact("word? ")
    child.sendline("four")
    child.expect(r"\n4\r\n")
    assert ended(child) == 0


def test_colours_are_for_terminals_that_want_them(terminal: Opened, name: str) -> None:
    for environ, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        child = terminal("exec", "--name", name, "--human", "1 / 0", **environ)
        child.expect(pexpect.EOF)
        red = re.search(r"\x1b\[1;31mZeroDivisionError", child.before or "")
        assert bool(red) is coloured
        child.close()


def test_a_picture_is_drawn_where_it_can_be(terminal: Opened, name: str) -> None:
    code = "from IPython.display import Image, display; display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + bytes(99)))"
    child = terminal("exec", "--name", name, "--human", code, TERM="xterm-kitty")
    child.expect_exact("\x1b_Ga=T,f=100,m=0;")
    assert ended(child) == 0
