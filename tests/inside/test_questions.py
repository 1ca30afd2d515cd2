"""What a client may ask between cells: completion, inspection, is-it-complete, comms."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kernelbox import Box, ExecutionResult, KernelRecord

Run = Callable[..., ExecutionResult]
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(shared_box: Box, kernel: KernelRecord) -> Ask:
    def put(what: str, **fields: Any) -> dict[str, Any]:
        return shared_box._driver.run(
            shared_box._calls.kernel(kernel, {"op": "ask", "what": what, "fields": fields})
        )

    return put


def test_names_attributes_keys_and_magics_are_completed(
    shared_box: Box, kernel: KernelRecord, ran: Run
) -> None:
    ran("import os; long_name_of_mine = {'the key': 1}")
    complete = shared_box.complete
    assert complete(kernel, "long_n") == ["long_name_of_mine"]
    assert "os" in complete(kernel, "import o")
    assert "%timeit" in complete(kernel, "%timei")
    assert any("getcwd" in match for match in complete(kernel, "os.getc"))
    assert any("the key" in match for match in complete(kernel, "long_name_of_mine['th"))
    assert complete(kernel, "no_such_thing_at_a") == []


def test_completion_knows_where_the_cursor_is(
    shared_box: Box, kernel: KernelRecord, ran: Run
) -> None:
    ran("first_one = second_one = 1")
    assert shared_box.complete(kernel, "first_ + second_", cursor=6) == ["first_one"]


def test_a_completion_that_fails_is_no_error_of_the_kernel(
    shared_box: Box, kernel: KernelRecord, ran: Run
) -> None:
    ran("class Bad:\n    def __dir__(self): raise ValueError('no dir')\nbad = Bad()")
    assert shared_box.complete(kernel, "bad.") == []
    assert ran("1 + 1").return_value == "2"


def test_inspection_finds_signature_and_words(ask: Ask, ran: Run) -> None:
    ran('def area(r):\n    """Of a circle."""\n    return 3 * r * r')
    reply = ask("inspect", code="area", cursor_pos=4)
    assert reply["found"]
    assert "Of a circle." in reply["data"]["text/plain"]
    assert "return 3" not in reply["data"]["text/plain"]
    deep = ask("inspect", code="area", cursor_pos=4, detail_level=1)["data"]["text/plain"]
    assert "return 3 * r * r" in re.sub(r"\x1b\[[0-9;]*m", "", deep)  # coloured, for Jupyter
    assert not ask("inspect", code="nowhere", cursor_pos=3)["found"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("1 + 1", "complete"),
        ("for i in x:", "incomplete"),
        ("f(", "incomplete"),
        ("'''abc", "incomplete"),
        ("1 +", "invalid"),
        ("a b", "invalid"),
        ("%time 1", "complete"),
        ("await f()", "complete"),
        ("", "complete"),
    ],
    ids=["done", "for", "call", "string", "operator", "words", "magic", "await", "empty"],
)
def test_is_complete(ask: Ask, code: str, status: str) -> None:
    reply = ask("is_complete", code=code)
    assert reply["status"] == status
    if code.startswith("for"):
        assert reply["indent"] == "    "


def test_comms_open_send_and_close(ask: Ask, ran: Run) -> None:
    ran(
        "from comm import get_comm_manager\nheard = []\n"
        "def opened(comm, message):\n"
        "    heard.append(message['content']['data'])\n"
        "    comm.on_msg(lambda m: heard.append(m['content']['data']))\n"
        "    comm.on_close(lambda m: heard.append('closed'))\n"
        "get_comm_manager().register_target('test', opened)"
    )

    def message(**content: Any) -> dict[str, Any]:
        return {"content": {"comm_id": "c1", **content}, "metadata": {}, "buffers": []}

    assert ask("comm_open", message=message(target_name="test", data={"n": 1}))["status"] == "ok"
    assert ask("comm_info", target_name="test")["comms"] == {"c1": {"target_name": "test"}}
    ask("comm_msg", message=message(data={"n": 2}))
    ask("comm_close", message=message(data={}))
    assert ran("heard").return_value == "[{'n': 1}, {'n': 2}, 'closed']"
    assert ask("comm_info")["comms"] == {}


def test_a_comm_can_be_opened_from_a_cell(ran: Run, ask: Ask) -> None:
    ran(
        "import comm; mine = comm.create_comm(target_name='mine', data={'a': 1}); mine.send({'b': 2})"
    )
    assert list(ask("comm_info")["comms"].values()) == [{"target_name": "mine"}]
    ran("mine.close()")
    assert ask("comm_info")["comms"] == {}


def test_an_unknown_question_is_answered_too(ask: Ask) -> None:
    assert ask("meaning_of_life")["status"] == "error"
    assert ask("complete")["status"] == "error"  # without the code to complete


def test_a_question_waits_for_the_cell_and_its_interrupt_spares_the_next_one(
    shared_box: Box, kernel: KernelRecord, ran: Run, ask: Ask, waiting: Callable[..., None]
) -> None:
    ran("import time; mine_alone = 1")
    results: list[ExecutionResult] = []
    thread = threading.Thread(
        target=lambda: results.append(shared_box.execute(kernel, "time.sleep(0.3); 'slept'"))
    )
    thread.start()
    waiting(lambda: shared_box.status(kernel)["running"], what="the cell to start")
    assert shared_box.complete(kernel, "mine_al") == ["mine_alone"]
    thread.join()
    assert results[0].return_value == "'slept'"


def test_a_slow_question_can_be_interrupted(
    shared_box: Box,
    kernel: KernelRecord,
    ran: Run,
    ask: Ask,
    waiting: Callable[..., None],
    tmp_path,
) -> None:
    started = tmp_path / "started"
    ran(
        "import pathlib, time\n"
        "class Slow:\n"
        "    def __dir__(self):\n"
        f"        pathlib.Path({str(started)!r}).touch(); time.sleep(30)\n"
        "slow = Slow(); x = 5"
    )
    answers: list[object] = []
    thread = threading.Thread(
        target=lambda: answers.append(ask("complete", code="slow.", cursor_pos=5))
    )
    thread.start()
    waiting(started.exists, what="the question to be asked")
    assert shared_box.interrupt(kernel)
    thread.join(10)
    assert answers
    assert ran("x").return_value == "5"


def test_libraries_find_a_kernel_behind_the_shell(ran: Run) -> None:
    assert ran(
        "ip = get_ipython(); ip.kernel is not None, ip.kernel.get_parent(), ip.has_trait('kernel')"
    ).return_value.startswith("(True, {}")  # type: ignore[union-attr]
