"""The Jupyter lane: what a client that runs cells gets to see."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable

import pytest
from jupyter_clients import Client, Message, attached, contents, kinds, text

from kernelbox import Box, KernelRecord

pytestmark = pytest.mark.jupyter


# -- running cells ------------------------------------------------------------------------------


def test_both_lanes_share_the_variables(
    shared_box: Box, kernel: KernelRecord, client: Client
) -> None:
    shared_box.execute(kernel, "x = 41")
    assert client.value("x + 1") == "42"
    client.run("y = 'from jupyter'")
    assert shared_box.execute(kernel, "y").return_value == "'from jupyter'"


def test_a_cell_is_told_from_busy_to_idle_in_order(client: Client) -> None:
    msg_id = client.raw.execute("print('out'); 6 * 7")
    published = client.published_until(msg_id)
    assert kinds(published) == [
        "status",
        "execute_input",
        "stream",
        "execute_result",
        "status",
    ]
    assert contents(published, "status") == [
        {"execution_state": "busy"},
        {"execution_state": "idle"},
    ]
    (shown,) = contents(published, "execute_input")
    assert shown == {"code": "print('out'); 6 * 7", "execution_count": 1}
    assert text(published) == "out\n"
    (result,) = contents(published, "execute_result")
    assert result["data"] == {"text/plain": "42"}
    assert result["execution_count"] == 1
    reply = client.reply_to(msg_id)
    assert reply["msg_type"] == "execute_reply"
    assert reply["content"] == {
        "status": "ok",
        "execution_count": 1,
        "user_expressions": {},
        "payload": [],
    }
    assert reply["metadata"]["kernelbox"]["state"] == "kept"
    assert reply["parent_header"]["msg_id"] == msg_id


def test_cells_are_counted_across_lanes(
    shared_box: Box, kernel: KernelRecord, client: Client
) -> None:
    shared_box.execute(kernel, "1")
    shared_box.execute(kernel, "2")
    reply, published = client.run("3")
    assert reply["execution_count"] == 3
    assert contents(published, "execute_input")[0]["execution_count"] == 3
    reply, published = client.run("4", store_history=False)
    assert reply["execution_count"] == 4
    reply, published = client.run("5")
    assert contents(published, "execute_input")[0]["execution_count"] == 4


def test_the_first_cell_in_a_branch_continues_the_count(
    shared_box: Box, kernel: KernelRecord
) -> None:
    for _ in range(3):
        shared_box.execute(kernel, "a = 1")
    branch = shared_box.branch(kernel, f"{kernel.name}-branch")
    try:
        with attached(branch) as client:
            _, published = client.run("a")
            assert contents(published, "execute_input")[0]["execution_count"] == 4
    finally:
        shared_box.destroy(branch)


def test_stdout_and_stderr_of_subprocesses_arrive_too(client: Client) -> None:
    _, published = client.run("!echo one; echo two >&2")
    assert text(published) == "one\n"
    assert text(published, "stderr") == "two\n"


def test_an_error_is_published_and_replied(client: Client) -> None:
    reply, published = client.run("def f():\n    return 1 / 0\nf()")
    (error,) = contents(published, "error")
    assert error["ename"] == reply["ename"] == "ZeroDivisionError"
    assert error["evalue"] == reply["evalue"] == "division by zero"
    assert error["traceback"] == reply["traceback"]
    assert any("\x1b[" in line for line in error["traceback"]), "notebooks show colours"
    assert reply["status"] == "error"
    assert reply["execution_count"] == 1


def test_a_syntax_error_is_an_error_like_any_other(client: Client) -> None:
    reply, published = client.run("this is no python")
    assert reply["ename"] == "SyntaxError"
    assert len(contents(published, "error")) == 1


def test_a_silent_cell_is_not_shown_and_not_counted(client: Client) -> None:
    reply, published = client.run("silently = 1", silent=True)
    assert reply["status"] == "ok"
    assert kinds(published) == ["status", "status"]
    assert client.value("silently") == "1"
    assert client.run("2")[0]["execution_count"] == 2


def test_user_expressions_are_evaluated_after_the_cell(client: Client) -> None:
    reply, _ = client.run("z = 5", user_expressions={"double": "z * 2", "bad": "nope"})
    assert reply["user_expressions"]["double"]["data"]["text/plain"] == "10"
    assert reply["user_expressions"]["bad"]["ename"] == "NameError"


def test_help_is_paged_and_the_next_input_can_be_set(client: Client) -> None:
    reply, _ = client.run("print?")
    (page,) = reply["payload"]
    assert page["source"] == "page"
    assert "text/plain" in page["data"]
    reply, _ = client.run("get_ipython().set_next_input('1 + 1')")
    (payload,) = reply["payload"]
    assert payload == {"source": "set_next_input", "text": "1 + 1", "replace": False}


def test_displays_can_be_updated_and_cleared(client: Client) -> None:
    code = """
from IPython.display import HTML, clear_output, display
handle = display(HTML("<b>1</b>"), display_id="here")
handle.update(HTML("<b>2</b>"))
clear_output(wait=True)
"""
    _, published = client.run(code)
    (shown,) = contents(published, "display_data")
    assert shown["data"]["text/html"] == "<b>1</b>"
    assert shown["transient"] == {"display_id": "here"}
    (updated,) = contents(published, "update_display_data")
    assert updated["data"]["text/html"] == "<b>2</b>"
    assert updated["transient"] == {"display_id": "here"}
    assert contents(published, "clear_output") == [{"wait": True}]


def test_a_plot_arrives_as_a_picture(client: Client) -> None:
    pytest.importorskip("matplotlib")
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    reply, published = client.run(code)
    assert reply["status"] == "ok", reply
    (shown,) = contents(published, "display_data")
    assert b64decode(shown["data"]["image/png"]).startswith(b"\x89PNG")


def test_numbers_that_json_does_not_know_do_not_break_the_wire(client: Client) -> None:
    code = "display({'application/json': {'a': [float('nan'), float('inf'), 1.0]}}, raw=True)"
    msg_id = client.raw.execute(code)
    raw = []
    while not raw or b'"display_data"' not in raw[-1][3]:
        raw.append(client.raw.iopub_channel.socket.recv_multipart())
    content = json.loads(raw[-1][6], parse_constant=pytest.fail)
    assert content["data"]["application/json"] == {"a": [None, None, 1.0]}
    assert client.reply_to(msg_id)["content"]["status"] == "ok"


def test_half_a_surrogate_pair_in_the_output_does_not_break_the_wire(client: Client) -> None:
    reply, published = client.run("display({'text/plain': 'a\\ud800b'}, raw=True)")
    assert reply["status"] == "ok"
    assert contents(published, "display_data")[0]["data"]["text/plain"] == "a?b"


def test_a_large_cell_and_a_large_output_pass(client: Client) -> None:
    reply, _ = client.run("big = '" + "x" * 10_000_000 + "'")
    assert reply["status"] == "ok"
    _, published = client.run("print(big)")
    assert len(text(published)) == 10_000_001


def test_output_of_a_thread_between_cells_belongs_to_the_latest_cell(
    shared_box: Box, kernel: KernelRecord, client: Client
) -> None:
    code = """
import threading
go = threading.Event()
thread = threading.Thread(target=lambda: (go.wait(20), print("late", flush=True)), daemon=True)
thread.start()
threading.Timer(0.2, go.set).start()
"""
    msg_id = client.raw.execute(code)
    client.published_until(msg_id)
    shared_box.complete(kernel, "thr")  # somebody else's question changes nothing
    message = client.next_published("stream")
    assert message["content"]["text"].startswith("late")
    assert message["parent_header"]["msg_id"] == msg_id


# -- errors and the queue -----------------------------------------------------------------------

SLOW_ERROR = "import time; time.sleep(0.3); 1/0"


def test_cells_sent_after_one_that_fails_are_aborted(client: Client) -> None:
    first = client.raw.execute(SLOW_ERROR)
    second = client.raw.execute("ran = True")
    third = client.raw.execute("ran = True")
    assert client.reply_to(first)["content"]["status"] == "error"
    assert client.reply_to(second)["content"] == {"status": "aborted"}
    assert client.reply_to(third)["content"] == {"status": "aborted"}
    published = client.published_until(third)
    assert kinds(published) == ["status", "status"]
    assert client.value("'ran' in globals()") == "False"


def test_cells_run_on_if_the_client_wants_it(client: Client) -> None:
    first = client.raw.execute(SLOW_ERROR, stop_on_error=False)
    second = client.raw.execute("'went on'")
    assert client.reply_to(first)["content"]["status"] == "error"
    assert client.reply_to(second)["content"]["status"] == "ok"


def test_an_error_aborts_nobody_elses_cells(
    shared_box: Box, kernel: KernelRecord, client: Client
) -> None:
    with attached(kernel) as other:
        first = client.raw.execute(SLOW_ERROR)
        client.published_until(first, state="busy")
        second = other.raw.execute("1")
        result = shared_box.execute(kernel, "2")
        assert client.reply_to(first)["content"]["status"] == "error"
        assert other.reply_to(second)["content"]["status"] == "ok"
        assert result.ok


# -- what others do -----------------------------------------------------------------------------


def test_cells_of_our_own_lane_are_seen_as_those_of_another_client(
    shared_box: Box, kernel: KernelRecord, client: Client
) -> None:
    result = shared_box.execute(kernel, "print('hello'); 7")
    published = client.published_until(result.execution_id)
    assert kinds(published) == [
        "status",
        "execute_input",
        "stream",
        "execute_result",
        "status",
    ]
    assert contents(published, "execute_input")[0]["code"] == "print('hello'); 7"
    assert text(published) == "hello\n"
    parent = published[0]["parent_header"]
    assert parent["msg_type"] == "execute_request"
    assert parent["session"] != client.raw.session.session
    failed = shared_box.execute(kernel, "nope")
    published = client.published_until(failed.execution_id)
    assert contents(published, "error")[0]["ename"] == "NameError"


def test_bash_is_seen_as_bash(shared_box: Box, kernel: KernelRecord, client: Client) -> None:
    result = shared_box.execute(kernel, "echo hi", language="bash")
    published = client.published_until(result.execution_id)
    assert contents(published, "execute_input")[0]["code"] == "%%bash\necho hi"
    assert text(published) == "hi\n"


def test_clients_see_each_others_cells(kernel: KernelRecord, client: Client) -> None:
    with attached(kernel) as other:
        msg_id = other.raw.execute("print('for all')")
        assert text(client.published_until(msg_id)) == "for all\n"


# -- questions ----------------------------------------------------------------------------------


def test_a_kernel_says_what_it_is(client: Client) -> None:
    import platform

    info = client.ask("kernel_info_request")
    assert info["status"] == "ok"
    assert info["protocol_version"] == "5.4"
    assert info["implementation"] == "kernelbox"
    assert info["language_info"]["name"] == "python"
    assert info["language_info"]["version"] == platform.python_version()
    assert info["supported_features"] == []
    assert "KernelBox" in info["banner"]


def test_names_are_completed_and_inspected(client: Client) -> None:
    client.run("alphabet = 'abc'")
    found = client.ask("complete_request", code="alphab", cursor_pos=6)
    assert found["matches"] == ["alphabet"]
    assert (found["cursor_start"], found["cursor_end"]) == (0, 6)
    found = client.ask("inspect_request", code="alphabet", cursor_pos=3, detail_level=0)
    assert found["found"] is True
    assert "abc" in found["data"]["text/plain"]
    assert client.ask("inspect_request", code="nothing", cursor_pos=3)["found"] is False


@pytest.mark.parametrize(
    ("code", "status"),
    [("1 + 1", "complete"), ("for x in y:", "incomplete"), ("import = 7", "invalid")],
)
def test_incomplete_code_is_known(client: Client, code: str, status: str) -> None:
    assert client.ask("is_complete_request", code=code)["status"] == status


def test_history_remembers_both_lanes(
    shared_box: Box, kernel: KernelRecord, client: Client
) -> None:
    client.run("first = 1")
    shared_box.execute(kernel, "second = 2; second")
    client.run("third = 3", silent=True)

    def history(**request: object) -> list[list[object]]:
        found: list[list[object]] = client.ask("history_request", raw=True, **request)["history"]
        return found

    tail = history(hist_access_type="tail", n=10, output=False)
    assert tail == [[1, 1, "first = 1"], [1, 2, "second = 2; second"]]
    assert history(hist_access_type="tail", n=1, output=True) == [
        [1, 2, ["second = 2; second", "2"]]
    ]
    ranged = history(hist_access_type="range", session=0, start=1, stop=2, output=False)
    assert ranged == [[1, 1, "first = 1"]]
    assert history(hist_access_type="range", session=-1, start=1, stop=2, output=False) == []
    searched = history(hist_access_type="search", pattern="sec*", output=False)
    assert searched == [[1, 2, "second = 2; second"]]


def test_comms_carry_data_and_buffers_both_ways(client: Client) -> None:
    code = """
import comm
seen = []
def opened(comm, message):
    seen.append(message["content"]["data"])
    @comm.on_msg
    def got(message):
        seen.append([bytes(part) for part in message["buffers"]])
        comm.send({"echo": message["content"]["data"]}, buffers=[b"\\x01\\x02"])
comm.get_comm_manager().register_target("echo", opened)
"""
    assert client.run(code)[0]["status"] == "ok"
    opened = {"comm_id": "c1", "target_name": "echo", "data": {"n": 1}}
    client.send("shell", "comm_open", opened)
    msg_id = client.send(
        "shell", "comm_msg", {"comm_id": "c1", "data": {"n": 2}}, buffers=[b"\xff\x00"]
    )
    published = client.published_until(msg_id)
    (echo,) = (m for m in published if m["msg_type"] == "comm_msg")
    assert echo["content"]["data"] == {"echo": {"n": 2}}
    assert [bytes(part) for part in echo["buffers"]] == [b"\x01\x02"]
    assert client.value("seen") == "[{'n': 1}, [b'\\xff\\x00']]"
    assert client.ask("comm_info_request")["comms"] == {"c1": {"target_name": "echo"}}
    client.send("shell", "comm_close", {"comm_id": "c1", "data": {}})
    assert client.ask("comm_info_request", target_name="echo")["comms"] == {}


# -- clients that are slower than the kernel ---------------------------------------------------------

MANY = 40_000
ALTERNATING = f"""
import sys
for n in range({MANY}):
    sys.stdout.write(f'o{{n}} ')
    sys.stderr.write(f'e{{n}} ')
"""
"""More messages than a socket queues, of both streams in turns, so that none can be joined."""


def words_of(published: list[Message], stream: str) -> list[str]:
    shown = (content for content in contents(published, "stream") if content["name"] == stream)
    return "".join(content["text"] for content in shown).split()


def test_a_client_that_reads_late_misses_nothing(client: Client) -> None:
    msg_id = client.raw.execute(ALTERNATING)
    assert client.reply_to(msg_id)["content"]["status"] == "ok"  # and iopub was not looked at
    published = client.published_until(msg_id)
    assert words_of(published, "stdout") == [f"o{n}" for n in range(MANY)]
    assert words_of(published, "stderr") == [f"e{n}" for n in range(MANY)]


# -- stdin --------------------------------------------------------------------------------------


def test_input_is_asked_of_the_client_whose_cell_it_is(
    kernel: KernelRecord, client: Client
) -> None:
    with attached(kernel) as other:
        msg_id = client.raw.execute("input('name? ')", allow_stdin=True)
        question = client.raw.get_stdin_msg(timeout=20)
        assert question["content"] == {"prompt": "name? ", "password": False}
        assert question["parent_header"]["msg_id"] == msg_id
        other.raw.input("not you")  # another client cannot answer for it
        client.raw.input("Ada")
        published = client.published_until(msg_id)
        assert contents(published, "execute_result")[0]["data"]["text/plain"] == "'Ada'"


def test_a_password_is_asked_for_as_one(client: Client) -> None:
    msg_id = client.raw.execute("import getpass; getpass.getpass('key: ')", allow_stdin=True)
    assert client.raw.get_stdin_msg(timeout=20)["content"] == {"prompt": "key: ", "password": True}
    client.raw.input("secret")
    assert client.reply_to(msg_id)["content"]["status"] == "ok"


def test_input_fails_clearly_where_the_client_does_not_answer(client: Client) -> None:
    reply, _ = client.run("input()")
    assert reply["ename"] == "StdinNotImplementedError"


def test_an_interrupt_ends_input_and_a_late_answer_does_no_harm(client: Client) -> None:
    msg_id = client.raw.execute("input()", allow_stdin=True)
    client.raw.get_stdin_msg(timeout=20)
    assert client.control("interrupt_request")["status"] == "ok"
    assert client.reply_to(msg_id)["content"]["ename"] == "KeyboardInterrupt"
    client.raw.input("too late")
    assert client.value("1 + 1") == "2"


def test_an_answer_that_names_another_question_is_not_taken(client: Client) -> None:
    code = "try: input('a')\nexcept KeyboardInterrupt: pass\ninput('b')"
    msg_id = client.raw.execute(code, allow_stdin=True)
    first = client.raw.get_stdin_msg(timeout=20)
    assert client.control("interrupt_request")["status"] == "ok"
    second = client.raw.get_stdin_msg(timeout=20)
    for question, value in ((first, "to a"), (second, "to b")):
        reply = client.raw.session.msg("input_reply", {"value": value}, parent=question["header"])
        client.raw.stdin_channel.send(reply)
    published = client.published_until(msg_id)
    assert contents(published, "execute_result")[0]["data"]["text/plain"] == "'to b'"


def test_a_client_that_leaves_while_asked_does_not_wedge_the_kernel(
    kernel: KernelRecord, client: Client
) -> None:
    with attached(kernel) as other:
        msg_id = other.raw.execute("input()", allow_stdin=True)
        other.raw.get_stdin_msg(timeout=20)
    published = client.published_until(msg_id)
    assert contents(published, "error")[0]["ename"] == "EOFError"
    assert client.value("1 + 1") == "2"


def test_a_client_without_a_stdin_connection_is_not_waited_for(
    kernel: KernelRecord, client: Client
) -> None:
    client.raw.stdin_channel.stop()
    msg_id = client.raw.execute("input()", allow_stdin=True)
    assert client.reply_to(msg_id)["content"]["ename"] == "EOFError"


# -- deaths -------------------------------------------------------------------------------------


def test_a_death_is_an_error_reply_and_the_client_goes_on(client: Client) -> None:
    client.run("x = 1")
    msg_id = client.raw.execute("import os; print('last words', flush=True); os._exit(3)")
    published = client.published_until(msg_id)
    assert text(published) == "last words\n"
    (error,) = contents(published, "error")
    assert error["ename"] == "KernelDied"
    assert "exit code 3" in error["evalue"]
    assert "lost" in error["evalue"]
    states = [content["execution_state"] for content in contents(published, "status")]
    assert states == ["busy", "restarting", "idle"]
    reply = client.reply_to(msg_id)
    assert reply["content"]["status"] == "error"
    assert reply["content"]["ename"] == "KernelDied"
    assert reply["metadata"]["kernelbox"]["state"] == "lost"
    reply_content, published = client.run("'x' in globals()")
    assert contents(published, "execute_result")[0]["data"]["text/plain"] == "False"
    assert reply_content["execution_count"] == 1
    assert contents(published, "execute_input")[0]["execution_count"] == 1


def test_cells_that_wait_when_the_kernel_dies_are_answered(client: Client) -> None:
    first = client.raw.execute("import os, time; time.sleep(0.3); os._exit(0)")
    second = client.raw.execute("1")
    third = client.send("shell", "complete_request", {"code": "pri", "cursor_pos": 3})
    assert client.reply_to(first)["content"]["ename"] == "KernelDied"
    assert client.reply_to(second)["content"]["status"] in ("aborted", "error")
    assert client.reply_to(third)["content"]["status"] == "error"
    assert client.value("2") == "2"


def test_a_death_between_cells_is_told_with_the_next_one(
    shared_box: Box, kernel: KernelRecord, client: Client, waiting: Callable[..., None]
) -> None:
    code = "import os, threading; threading.Timer(0.1, os._exit, (9,)).start()"
    client.run(code)
    waiting(lambda: shared_box.status(kernel)["kernel"]["epoch"] == 2, what="the death")
    _, published = client.run("1")
    assert "variables are gone" in text(published, "stderr")
    assert "exit code 9" in text(published, "stderr")
    _, published = client.run("1")
    assert text(published, "stderr") == ""


def test_a_restart_from_our_lane_answers_the_clients_cell(
    shared_box: Box, kernel: KernelRecord, client: Client
) -> None:
    msg_id = client.start("import time; time.sleep(60)")
    shared_box.restart(kernel)
    reply = client.reply_to(msg_id)["content"]
    assert reply["ename"] == "KernelRestarted"
    assert client.value("'time' in globals()") == "False"
