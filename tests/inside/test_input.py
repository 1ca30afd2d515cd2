"""``input()``: answered when the client wants to, refused at once when it does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from kernelbox import Box, ExecutionResult, KernelRecord

Run = Callable[..., ExecutionResult]


@pytest.mark.parametrize(
    "call", ["input('name? ')", "import getpass; getpass.getpass()"], ids=["input", "getpass"]
)
def test_without_an_answerer_the_error_says_what_to_do(ran: Run, run: Run, call: str) -> None:
    result = run(call, timeout=5)
    assert result.status == "error"
    assert result.error is not None
    assert result.error.ename == "StdinNotImplementedError"
    assert "on_input" in result.error.evalue
    assert ran("1 + 1").return_value == "2"


def test_stdin_itself_is_empty(ran: Run) -> None:
    assert ran("import sys; sys.stdin.read(), sys.stdin.readline()").return_value == "('', '')"
    assert ran("import os; os.read(0, 10)").return_value == "b''"


def test_questions_are_answered_in_turn(shared_box: Box, kernel: KernelRecord) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return f"answer {len(asked)} ü"

    code = "import getpass\na = input('first? ')\nb = getpass.getpass('secret? ')\nc = input()\na, b, c"
    result = shared_box.execute(kernel, code, on_input=answer, timeout=10)
    assert asked == ["first? ", "secret? ", ""]
    assert result.return_value == "('answer 1 ü', 'answer 2 ü', 'answer 3 ü')"


def test_what_was_printed_before_a_question_is_seen_before_it(
    shared_box: Box, kernel: KernelRecord
) -> None:
    seen: list[str | None] = []

    def answer(prompt: str) -> str:
        seen.append(prompt)
        return "x"

    code = "print('look')\ninput('well? ')"
    for item in shared_box.stream(kernel, code, on_input=answer, timeout=10):
        shown = getattr(item, "text", None)
        seen.append(shown)
    asked = seen.index("well? ")
    assert "".join(text or "" for text in seen[:asked]) == "look\n", "in one piece or in two"


def test_no_answer_is_the_end_of_the_input(ran: Run, shared_box: Box, kernel: KernelRecord) -> None:
    result = shared_box.execute(kernel, "input('?')", on_input=lambda _: None, timeout=10)
    assert result.error is not None
    assert result.error.ename == "EOFError"
    assert ran("1 + 1").return_value == "2"


def test_an_answerer_that_fails_is_the_callers_error_and_the_kernel_lives(
    ran: Run, shared_box: Box, kernel: KernelRecord
) -> None:
    def fail(prompt: str) -> str:
        raise RuntimeError("the user left")

    with pytest.raises(RuntimeError, match="the user left"):
        shared_box.execute(kernel, "x = 5\ninput('?')", on_input=fail, timeout=10)
    assert ran("x").return_value == "5"


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
def test_a_question_that_waits_can_be_stopped(
    ran: Run, shared_box: Box, kernel: KernelRecord, how: str
) -> None:
    given_up = threading.Event()

    def hesitate(prompt: str) -> str:
        if how == "interrupt":
            shared_box.interrupt(kernel)
        given_up.wait(1.0)
        return "too late"

    began = time.monotonic()
    timeout = 10.0 if how == "interrupt" else 0.2
    result = shared_box.execute(kernel, "x = 5\ninput('?')", on_input=hesitate, timeout=timeout)
    assert time.monotonic() - began < 4
    assert result.state == "kept"
    assert result.status == ("error" if how == "interrupt" else "timeout")
    assert ran("x").return_value == "5"
    # The late answer is nobody's: the next question gets its own.
    fresh = shared_box.execute(kernel, "input('?')", on_input=lambda _: "fresh", timeout=10)
    assert fresh.return_value == "'fresh'"


def test_a_late_answer_is_not_taken_for_that_to_the_next_question(
    shared_box: Box, kernel: KernelRecord
) -> None:
    """The cell survives the interrupt of its first question, and asks another."""

    def answer(prompt: str) -> str:
        if prompt == "first? ":
            shared_box.interrupt(kernel)
            time.sleep(0.3)  # by now the cell has asked the second one
        return f"answer to {prompt}"

    code = """
try:
    input('first? ')
except KeyboardInterrupt:
    pass
input('second? '), input('third? ')
"""
    result = shared_box.execute(kernel, code, on_input=answer, timeout=20)
    assert result.return_value == "('answer to second? ', 'answer to third? ')"


def test_a_thread_does_not_take_the_next_cell_for_its_answer(
    shared_box: Box, kernel: KernelRecord
) -> None:
    code = """
import threading
said = []
def ask():
    try:
        input('q')
    except Exception as error:
        said.append(str(error))
thread = threading.Thread(target=ask, daemon=True)
thread.start()
x = 5
"""
    assert shared_box.execute(kernel, code, on_input=lambda _: "a", timeout=20).ok
    result = shared_box.execute(kernel, "thread.join(10); x, said", timeout=20)
    assert (result.status, result.state) == ("success", "kept")
    assert "called in a thread" in str(result.return_value)


def test_a_thread_and_a_child_are_refused_like_anybody(ran: Run) -> None:
    ask = "try: input()\n    except Exception as e: {}"
    assert (
        ran(
            "import threading; said = []\ndef f():\n    "
            + ask.format("said.append(type(e).__name__)")
            + "\nt = threading.Thread(target=f); t.start(); t.join(); said"
        ).return_value
        == "['StdinNotImplementedError']"
    )
    assert (
        ran(
            "import os\npid = os.fork()\nif pid == 0:\n    "
            + ask.format("print(type(e).__name__)")
            + "\nelse: os.waitpid(pid, 0)"
        ).output
        == "StdinNotImplementedError\n"
    )
