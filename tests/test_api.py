"""The Python API over real kernels: what each call gives back, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import kernelbox
from kernelbox import (
    BadInput,
    Box,
    ExecutionNotFound,
    ExecutionResult,
    KernelNotFound,
    KernelRecord,
    OutputItem,
    Settings,
    StartupFailed,
)

Waiting = Callable[..., None]


def variant(box: Box, **changes: object) -> Box:
    """Another Box on the same home, with other wishes."""
    return Box(Settings.from_wire({**box.settings.to_wire(), **changes}))


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    """Keeps the module's keeper (and its warm root) from leaving between two tests."""
    shared_box.get_or_create("anchor")


def run_in_thread(call: Callable[[], ExecutionResult]) -> tuple[threading.Thread, list]:
    results: list[ExecutionResult] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


# -- kernels and their names ----------------------------------------------------------------


def test_a_kernel_is_made_once_and_found_again(shared_box: Box, kernel: KernelRecord) -> None:
    again = shared_box.get_or_create(kernel.name)
    assert again.kernel_id == kernel.kernel_id
    assert again.created_at == kernel.created_at
    assert isinstance(again, KernelRecord)
    assert again.kernel_type == "python3"
    assert (again.state, again.cause, again.epoch) == ("kept", None, 1)


def test_name_id_and_record_are_accepted_everywhere(shared_box: Box, kernel: KernelRecord) -> None:
    for number, which in enumerate((kernel, kernel.name, kernel.kernel_id)):
        assert shared_box.execute(which, "x = 1").ok
        *_, last = shared_box.stream(which, "x")
        assert isinstance(last, ExecutionResult)
        assert last.return_value == "1"
        assert shared_box.execute_with_retry(which, "x", lambda r, n: None).ok
        assert shared_box.interrupt(which) is False
        assert shared_box.cancel(which, "nothing") is False
        assert shared_box.status(which)["kernel"]["kernel_id"] == kernel.kernel_id
        assert shared_box.output(which, last.execution_id).text == ""
        assert shared_box.search_output(which, last.execution_id, "x") == []
        assert any("real" in match for match in shared_box.complete(which, "x.re"))
        branch = shared_box.branch(which, f"branch {number} of {kernel.name}"[:128])
        assert shared_box.destroy(branch.kernel_id) is True
        assert shared_box.restart(which).kernel_id == kernel.kernel_id


def test_destroy_says_whether_there_was_one(shared_box: Box) -> None:
    assert shared_box.destroy("never was") is False
    for way in (lambda r: r, lambda r: r.name, lambda r: r.kernel_id):
        record = shared_box.get_or_create("short-lived")
        assert shared_box.destroy(way(record)) is True
        assert shared_box.destroy(way(record)) is False


def test_destroy_ends_every_process_of_the_kernel(shared_box: Box, waiting: Waiting) -> None:
    record = shared_box.get_or_create("to be destroyed")
    shared_box.execute(record, "import subprocess; p = subprocess.Popen(['sleep', '300'])")
    shared_box.execute(record, "sleep 300 &", language="bash")
    pids = {entry["pid"] for entry in shared_box.status(record)["processes"]}
    pids |= {child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True)}
    assert len(pids) >= 6
    assert shared_box.destroy(record)
    waiting(lambda: not any(map(psutil.pid_exists, pids)), what="every process to end")
    assert not Path(record.connection_file).exists()
    assert not Path(record.address).exists()


def test_a_busy_kernel_is_destroyed_at_once_and_its_caller_is_told(
    shared_box: Box, waiting: Waiting
) -> None:
    record = shared_box.get_or_create("busy and doomed")
    thread, results = run_in_thread(lambda: shared_box.execute(record, "while True: pass"))
    waiting(lambda: shared_box.status(record)["running"], what="the cell to run")
    started = time.monotonic()
    assert shared_box.destroy(record)
    thread.join(10)
    assert time.monotonic() - started < 5
    (result,) = results
    assert (result.status, result.state) == ("error", "lost")
    assert result.error is not None


def test_an_unknown_kernel_is_refused_and_what_exists_is_named(
    shared_box: Box, kernel: KernelRecord
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: shared_box.execute("no such", "1"),
        lambda: list(shared_box.stream("no such", "1")),
        lambda: shared_box.execute_with_retry("no such", "1", lambda r, n: None),
        lambda: shared_box.interrupt("no such"),
        lambda: shared_box.cancel("no such", "x"),
        lambda: shared_box.restart("no such"),
        lambda: shared_box.status("no such"),
        lambda: shared_box.branch("no such", "b"),
        lambda: shared_box.output("no such", "x"),
    ]
    for call in calls:
        with pytest.raises(KernelNotFound) as caught:
            call()
        assert "no kernel named 'no such'" in str(caught.value)
        assert repr(kernel.name) in str(caught.value)
        assert "get_or_create('no such')" in str(caught.value)


def test_a_record_of_a_destroyed_kernel_is_spoken_of_by_its_name(
    shared_box: Box, kernel: KernelRecord
) -> None:
    record = shared_box.get_or_create("shut down")
    shared_box.destroy(record)
    calls: list[Callable[[], object]] = [
        lambda: shared_box.execute(record, "1"),
        lambda: list(shared_box.stream(record, "1")),
        lambda: shared_box.status(record),
        lambda: shared_box.branch(record, "b"),
        lambda: shared_box.output(record, "x"),
    ]
    for call in calls:
        with pytest.raises(KernelNotFound, match="no kernel named 'shut down'") as caught:
            call()
        assert "get_or_create('shut down')" in str(caught.value)
        assert record.kernel_id not in str(caught.value)
    assert shared_box.destroy(record) is False


def test_a_near_miss_of_a_name_is_told(shared_box: Box) -> None:
    with pytest.raises(KernelNotFound, match="did you mean 'anchor'"):
        shared_box.execute("ancor", "1")


@pytest.mark.parametrize("name", ["", "../up", "a\nb", "x" * 500], ids=range(4))
def test_bad_names_make_nothing(shared_box: Box, kernel: KernelRecord, name: str) -> None:
    before = {record.name for record in shared_box.list_kernels()}
    with pytest.raises(BadInput):
        shared_box.get_or_create(name)
    with pytest.raises(BadInput):
        shared_box.branch(kernel, name)
    assert {record.name for record in shared_box.list_kernels()} == before


@pytest.mark.parametrize("kernel_like", ["", None, 7, b"demo", ["a"]])
def test_what_is_no_kernel_is_refused(shared_box: Box, kernel_like: object) -> None:
    with pytest.raises(BadInput, match="a kernel is"):
        shared_box.execute(kernel_like, "1")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="a kernel is"):
        shared_box.destroy(kernel_like)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"language": "ruby"}, {"timeout": 0}, {"timeout": -1}, {"timeout": "5"},
     {"timeout": float("nan")}, {"expect_epoch": "1"}, {"expect_epoch": True}],
)  # fmt: skip
def test_bad_options_run_nothing(
    shared_box: Box, kernel: KernelRecord, options: dict[str, object]
) -> None:
    with pytest.raises(BadInput):
        shared_box.execute(kernel, "ran = 1", **options)  # type: ignore[arg-type]
    assert not shared_box.execute(kernel, "ran").ok


def test_session_name_and_tags_are_kept(shared_box: Box) -> None:
    record = shared_box.get_or_create("tagged", session_name="s", tags={"owner": "me", "n": 1})
    try:
        assert (record.session_name, record.tags) == ("s", {"owner": "me", "n": 1})
        (listed,) = [r for r in shared_box.list_kernels() if r.name == "tagged"]
        assert listed.tags == {"owner": "me", "n": 1}
    finally:
        shared_box.destroy(record)
    record = shared_box.get_or_create("tagged", tags=["a", "b"])
    try:
        assert record.tags == ["a", "b"]
    finally:
        shared_box.destroy(record)


# -- results --------------------------------------------------------------------------------


def test_a_success_has_every_field(shared_box: Box, kernel: KernelRecord) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n{'a': 1}"
    result = shared_box.execute(kernel, code)
    assert (result.status, result.ok) == ("success", True)
    assert (result.output, result.stderr, result.return_value) == ("out\n", "err\n", "{'a': 1}")
    assert result.error is None
    assert result.execution_count == 1
    assert type(result.duration_ms) is int
    assert result.truncated is False
    assert result.attempts == []
    assert result.images == []
    assert [item.kind for item in result.outputs] == ["stream", "stream", "execute_result"]
    assert result.outputs[2].data == {"text/plain": "{'a': 1}"}
    assert (result.state, result.cause, result.epoch) == ("kept", None, 1)
    assert result.kernel_id == kernel.kernel_id
    assert result.execution_id
    assert result.exit_code is None
    assert shared_box.execute(kernel, "None").return_value is None
    assert shared_box.execute(kernel, "1;").return_value is None
    assert shared_box.execute(kernel, "").ok


def test_an_error_is_a_result_with_a_plain_traceback(shared_box: Box, kernel: KernelRecord) -> None:
    code = "def f():\n    raise ValueError('no\\nway')\nprint('before')\nf()"
    result = shared_box.execute(kernel, code)
    assert (result.status, result.ok, result.output) == ("error", False, "before\n")
    assert result.error is not None
    assert (result.error.ename, result.error.evalue) == ("ValueError", "no\nway")
    assert isinstance(result.error.traceback, list)
    assert all(type(line) is str for line in result.error.traceback)
    whole = "\n".join(result.error.traceback)
    assert "\x1b" not in whole
    assert "f()" in whole
    assert "raise ValueError" in whole
    assert result.state == "kept"


@pytest.mark.parametrize(
    ("code", "ename"),
    [("1 +", "SyntaxError"), ("import nonsense_xyz", "ModuleNotFoundError"),
     ("import sys; sys.exit(3)", "SystemExit"), ("raise KeyboardInterrupt", "KeyboardInterrupt"),
     ("class E(Exception):\n  def __str__(self): 1/0\nraise E", "E"), ("x = '\0'", "SyntaxError"),
     ("raise BaseException('b')", "BaseException"), ("%nonsense_magic", "UsageError"),
     ("exec('raise ExceptionGroup(\"g\", [ValueError(1)])')", "ExceptionGroup")],
    ids=range(9),
)  # fmt: skip
def test_every_kind_of_failure_has_an_error(
    shared_box: Box, kernel: KernelRecord, code: str, ename: str
) -> None:
    result = shared_box.execute(kernel, code)
    assert result.status == "error"
    assert result.error is not None
    assert result.error.ename == ename
    assert "\x1b" not in "\n".join(result.error.traceback)
    assert shared_box.execute(kernel, "1").return_value == "1"


def test_a_timeout_interrupts_and_keeps_the_variables(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, "x = 1")
    started = time.monotonic()
    result = shared_box.execute(
        kernel, "print('begun'); x = 2\nimport time; time.sleep(60)", timeout=0.3
    )
    assert time.monotonic() - started < 3
    assert (result.status, result.ok, result.output) == ("timeout", False, "begun\n")
    assert result.error is not None
    assert result.error.ename == "TimeoutError"
    assert "0.3 s" in result.error.evalue
    assert result.error.traceback
    assert result.steps == ["interrupted after 0.3 s"]
    assert (result.state, result.epoch) == ("kept", 1)
    assert shared_box.execute(kernel, "x").return_value == "2"


def test_a_cell_that_swallows_interrupts_is_killed_and_each_step_is_told(
    shared_box: Box, kernel: KernelRecord
) -> None:
    code = "import time\nwhile True:\n  try: time.sleep(60)\n  except BaseException: pass"
    with variant(shared_box, interrupt_grace=0.1, kill_grace=0.3) as hasty:
        result = hasty.execute(kernel, code, timeout=0.2)
    assert result.status == "timeout"
    assert result.error is not None
    assert [step.split(" ")[0] for step in result.steps] == ["interrupted", "interrupted", "killed"]
    assert (result.state, result.epoch) == ("lost", 2)
    assert result.cause is not None
    assert "did not stop" in result.cause
    assert shared_box.execute(kernel, "1").state == "kept"


@pytest.mark.parametrize(
    ("code", "words"),
    [("import os; os._exit(3)", "exit code 3"),
     ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
     ("import ctypes; ctypes.string_at(0)", "segmentation fault"),
     ("import os; os.abort()", "SIGABRT")],
)  # fmt: skip
def test_a_death_is_an_error_that_says_why_and_at_once(
    shared_box: Box, kernel: KernelRecord, code: str, words: str
) -> None:
    started = time.monotonic()
    result = shared_box.execute(kernel, f"print('last words'); {code}")
    assert time.monotonic() - started < 5
    assert (result.status, result.output) == ("error", "last words\n")
    assert result.error is not None
    assert result.error.ename == "KernelDied"
    assert words in result.error.evalue
    assert result.error.traceback
    assert (result.state, result.epoch) == ("lost", 2)
    assert result.cause is not None
    assert words in result.cause


def test_images_come_decoded(shared_box: Box, kernel: KernelRecord) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    result = shared_box.execute(kernel, code, timeout=60)
    (image,) = result.images
    assert image.mime == "image/png"
    assert image.data.startswith(b"\x89PNG")


def test_long_output_keeps_head_and_tail_and_says_so(shared_box: Box, kernel: KernelRecord) -> None:
    code = "import sys\nfor n in range(5000): print('line', n)\nprint('the end', file=sys.stderr)"
    result = shared_box.execute(kernel, code)
    limit = shared_box.settings.output_char_limit
    assert result.truncated
    assert limit - 10 <= len(result.output) <= limit
    assert result.output.startswith("line 0\nline 1\n")
    assert result.output.endswith("line 4998\nline 4999\n")
    marker = re.search(r"\[… ([\d,]+) of ([\d,]+) characters left out …\]", result.output)
    assert marker is not None
    total = sum(len(f"line {n}\n") for n in range(5000))
    assert int(marker[2].replace(",", "")) == total
    kept = len(result.output) - len(marker[0]) - 2
    assert int(marker[1].replace(",", "")) == total - kept
    assert result.stderr == "the end\n"


def test_the_whole_output_can_be_paged_and_searched(shared_box: Box, kernel: KernelRecord) -> None:
    result = shared_box.execute(kernel, "for n in range(5000): print('line', n)")
    whole = "".join(f"line {n}\n" for n in range(5000))
    text, start = "", 0
    while start < len(whole):
        page = shared_box.output(kernel, result.execution_id, start=start, length=9000)
        assert page.text
        text, start = text + page.text, start + len(page.text)
    assert text == whole
    matches = shared_box.search_output(kernel, result.execution_id, r"^line 43\d\d$", limit=3)
    assert [match.text for match in matches] == ["line 4300", "line 4301", "line 4302"]
    where = matches[0].start
    assert shared_box.output(kernel, result.execution_id, start=where, length=9).text == "line 4300"
    assert shared_box.output(kernel, result.execution_id, start=-10).text == "line 4999\n"
    assert shared_box.output(kernel, result.execution_id, stream="stderr").text == ""


def test_output_of_what_is_not_kept_is_refused_in_words(
    shared_box: Box, kernel: KernelRecord
) -> None:
    with pytest.raises(ExecutionNotFound, match="no execution 'nonsense'"):
        shared_box.output(kernel, "nonsense")
    with pytest.raises(BadInput, match="'stdout' or 'stderr'"):
        shared_box.output(kernel, "nonsense", stream="stdin")
    result = shared_box.execute(kernel, "print(1)")
    with pytest.raises(BadInput):
        shared_box.search_output(kernel, result.execution_id, "(")
    with pytest.raises(BadInput):
        shared_box.output(kernel, result.execution_id, length=0)


def test_input_is_answered_by_the_caller_or_refused(shared_box: Box, kernel: KernelRecord) -> None:
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "Ada"

    result = shared_box.execute(kernel, "'hello ' + input('who? ')", on_input=answer)
    assert result.return_value == "'hello Ada'"
    assert prompts == ["who? "]
    refused = shared_box.execute(kernel, "input('who? ')", timeout=10)
    assert refused.status == "error"
    assert refused.error is not None
    assert "input" in refused.error.evalue
    unanswered = shared_box.execute(kernel, "input('who? ')", on_input=lambda prompt: None)
    assert unanswered.status == "error"


# -- stream ---------------------------------------------------------------------------------


def next_line(items: Iterator[OutputItem | ExecutionResult]) -> str:
    """The next line on stdout; a text and its newline may come one after the other."""
    line = ""
    while not line.endswith("\n"):
        item = next(items)
        assert isinstance(item, OutputItem)
        assert (item.kind, item.name) == ("stream", "stdout")
        line += item.text or ""
    return line


def test_items_come_as_they_happen_and_the_result_last(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    code = (
        "import pathlib, time\n"
        "for n in range(3):\n"
        "    print(n)\n"
        "    while not pathlib.Path(f'go{n}').exists(): time.sleep(0.001)\n"
        "display('shown')\n'value'"
    )
    items = shared_box.stream(kernel, code, timeout=20)
    for number in range(3):
        assert next_line(items) == f"{number}\n"
        (tmp_path / f"go{number}").touch()  # only now can the cell go on
    *rest, last = items
    assert [(item.kind, item.text) for item in rest] == [
        ("display_data", "'shown'"),
        ("execute_result", "'value'"),
    ]
    assert isinstance(last, ExecutionResult)
    assert last.ok
    assert (last.output, last.return_value) == ("0\n1\n2\n", "'value'")


def test_an_error_is_streamed_too(shared_box: Box, kernel: KernelRecord) -> None:
    error, result = shared_box.stream(kernel, "1/0")
    assert error.kind == "error"
    assert error.data["ename"] == "ZeroDivisionError"
    assert result.status == "error"


def test_an_abandoned_stream_interrupts_its_cell(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    shared_box.execute(kernel, "x = 'kept'")
    items = shared_box.stream(kernel, "print('up')\nimport time; time.sleep(60)")
    assert next_line(items) == "up\n"
    items.close()  # type: ignore[attr-defined]
    waiting(lambda: shared_box.status(kernel)["running"] is None, what="the cell to stop")
    assert shared_box.execute(kernel, "x").return_value == "'kept'"


def test_a_stream_of_a_dying_kernel_ends_with_the_truth(
    shared_box: Box, kernel: KernelRecord
) -> None:
    items = shared_box.stream(kernel, "print('up')\nimport os; os._exit(1)")
    assert next_line(items) == "up\n"
    (result,) = items
    assert isinstance(result, ExecutionResult)
    assert (result.status, result.state) == ("error", "lost")


def test_a_slow_reader_misses_nothing(shared_box: Box, kernel: KernelRecord) -> None:
    items = shared_box.stream(kernel, "for n in range(60_000): print('line', n)", timeout=60)
    first = next(items)
    time.sleep(0.5)  # the cell prints on, far past what the socket holds
    *rest, result = items
    text = first.text + "".join(item.text for item in rest)
    assert text.count("\n") == 60_000
    assert text.endswith("line 59999\n")
    assert result.ok


# -- interrupt, cancel, restart, status, list -----------------------------------------------


def test_interrupt_stops_what_runs_and_nothing_else(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    assert shared_box.interrupt(kernel) is False
    shared_box.execute(kernel, "x = 1")
    thread, results = run_in_thread(
        lambda: shared_box.execute(kernel, "import time; time.sleep(60)")
    )
    waiting(lambda: shared_box.status(kernel)["running"], what="the cell to run")
    assert shared_box.interrupt(kernel) is True
    thread.join(10)
    (result,) = results
    assert (result.status, result.state) == ("error", "kept")
    assert result.error is not None
    assert result.error.ename == "KeyboardInterrupt"
    assert shared_box.execute(kernel, "x").return_value == "1"


def test_cancel_dequeues_or_interrupts_that_execution_and_no_other(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting, tmp_path: Path
) -> None:
    running, first = run_in_thread(
        lambda: shared_box.execute(
            kernel, "import time, pathlib\npathlib.Path('up').touch()\ntime.sleep(60)",
            execution_id="runs",
        )
    )  # fmt: skip
    waiting((tmp_path / "up").exists, what="the first to run")
    queued, second = run_in_thread(
        lambda: shared_box.execute(kernel, "ran = 'second'", execution_id="waits")
    )
    waiting(lambda: shared_box.status(kernel)["queued"] == 1, what="the second to queue")
    last, third = run_in_thread(lambda: shared_box.execute(kernel, "'third ran'"))
    waiting(lambda: shared_box.status(kernel)["queued"] == 2, what="the third to queue")

    assert shared_box.cancel(kernel, "nobody") is False
    assert shared_box.cancel(kernel, "waits") is True
    queued.join(10)
    assert second[0].status == "error"
    assert second[0].error.ename == "Cancelled"
    assert "did not run" in second[0].error.evalue
    assert running.is_alive()
    assert shared_box.cancel(kernel, "runs") is True
    running.join(10)
    last.join(10)
    assert first[0].error.ename == "KeyboardInterrupt"
    assert third[0].return_value == "'third ran'"
    assert shared_box.cancel(kernel, "runs") is False
    assert not shared_box.execute(kernel, "ran").ok


def test_the_timeout_counts_from_the_start_of_the_cell(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    thread, results = run_in_thread(
        lambda: shared_box.execute(kernel, "import time; time.sleep(1)")
    )
    waiting(lambda: shared_box.status(kernel)["running"], what="the first to run")
    assert shared_box.execute(kernel, "'second'", timeout=0.5).return_value == "'second'"
    thread.join(10)
    assert results[0].ok


def test_restart_gives_a_fresh_namespace_under_the_same_name(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, "x = 1")
    record = shared_box.restart(kernel)
    assert (record.kernel_id, record.name, record.epoch) == (kernel.kernel_id, kernel.name, 2)
    result = shared_box.execute(kernel, "x")
    assert result.error is not None
    assert result.error.ename == "NameError"
    assert (result.execution_count, result.epoch, result.state) == (1, 2, "kept")


def test_restart_answers_what_ran_and_what_waited(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    one, first = run_in_thread(lambda: shared_box.execute(kernel, "while True: pass"))
    waiting(lambda: shared_box.status(kernel)["running"], what="the cell to run")
    two, second = run_in_thread(lambda: shared_box.execute(kernel, "ran = 1"))
    waiting(lambda: shared_box.status(kernel)["queued"], what="the second to queue")
    shared_box.restart(kernel)
    one.join(10)
    two.join(10)
    for (result,) in (first, second):
        assert (result.status, result.state, result.epoch) == ("error", "lost", 2)
        assert "restarted" in result.cause
    assert second[0].error.ename == "Aborted"
    assert "not run" in second[0].error.evalue
    assert not shared_box.execute(kernel, "ran").ok


def test_status_shows_what_a_busy_kernel_does_without_disturbing_it(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting, tmp_path: Path
) -> None:
    idle = shared_box.status(kernel)
    assert idle["alive"] is True
    assert (idle["running"], idle["queued"], idle["stack"]) == (None, 0, None)
    assert {"interpreter", "warden", "stub"} == {p["role"] for p in idle["processes"]}
    code = (
        "import time, pathlib\n"
        "def deep_inside():\n    while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "deep_inside()\n'undisturbed'"
    )
    thread, results = run_in_thread(lambda: shared_box.execute(kernel, code, execution_id="slow"))
    waiting(lambda: "deep_inside" in (shared_box.status(kernel)["stack"] or ""), what="the stack")
    status = shared_box.status(kernel)
    assert status["kernel"]["status"] == "busy"
    assert status["running"]["execution_id"] == "slow"
    assert status["running"]["code"] == code
    assert status["running"]["seconds"] > 0
    (tmp_path / "go").touch()
    thread.join(10)
    assert results[0].return_value == "'undisturbed'"


def test_the_stack_is_shown_though_c_code_holds_the_gil(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    code = "def hogging():\n    sum(range(3 * 10**7))\nhogging()"
    thread, results = run_in_thread(lambda: shared_box.execute(kernel, code))
    waiting(lambda: shared_box.status(kernel)["running"], what="the cell to run")
    waiting(lambda: "hogging" in (shared_box.status(kernel)["stack"] or ""), what="the stack")
    thread.join(60)
    assert results[0].ok


def test_listing_knows_all_and_refreshing_asks_each(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    other = shared_box.get_or_create(f"beside {kernel.name}"[:128])
    try:
        listed = {record.name: record for record in shared_box.list_kernels()}
        assert {kernel.name, other.name} <= set(listed)
        thread, _ = run_in_thread(lambda: shared_box.execute(kernel, "import time; time.sleep(60)"))
        waiting(lambda: shared_box.status(kernel)["running"], what="the cell to run")
        fresh = {record.name: record for record in shared_box.list_kernels(refresh=True)}
        assert fresh[kernel.name].status == "busy"
        assert fresh[kernel.name].attempt_count == 1
        assert fresh[kernel.name].last_used_at >= kernel.last_used_at
        assert fresh[other.name].status == "idle"
        shared_box.interrupt(kernel)
        thread.join(10)
    finally:
        shared_box.destroy(other)


def test_executions_from_many_threads_queue_and_each_gets_its_own(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, "n = 0")
    results: list[tuple[int, ExecutionResult]] = []

    def work(number: int) -> None:
        for _ in range(5):
            code = f"n += 1\nprint('of {number}')\n{number}"
            results.append((number, shared_box.execute(kernel, code)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 50
    for number, result in results:
        assert (result.output, result.return_value) == (f"of {number}\n", str(number))
    assert shared_box.execute(kernel, "n").return_value == "50"


def test_ctrl_c_in_the_caller_interrupts_the_cell(environment: Path, tmp_path: Path) -> None:
    program = """
import os, signal, threading, kernelbox
kernel = kernelbox.get_or_create("k")
kernelbox.execute(kernel, "x = 'kept'")
def press():
    while kernelbox.status(kernel)["running"] is None: pass
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
try:
    kernelbox.execute(kernel, "import time; time.sleep(60)")
except KeyboardInterrupt:
    print("interrupted")
print(kernelbox.execute(kernel, "x", timeout=10).return_value)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "interrupted\n'kept'\n", ended.stderr


def test_ctrl_c_at_a_question_interrupts_the_cell(environment: Path, tmp_path: Path) -> None:
    program = """
import os, signal, kernelbox
kernel = kernelbox.get_or_create("k")
kernelbox.execute(kernel, "x = 'kept'")
def leave(prompt):
    os.kill(os.getpid(), signal.SIGINT)
code = "try: input('? ')\\nexcept EOFError: pass\\nimport time; time.sleep(60)"
try:
    kernelbox.execute(kernel, code, on_input=leave)
except KeyboardInterrupt:
    print("interrupted")
print(kernelbox.execute(kernel, "x", timeout=10).return_value)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50
    )
    assert ended.stdout == "interrupted\n'kept'\n", ended.stderr


# -- settings travel with each request ------------------------------------------------------


def test_each_box_has_its_own_limits_on_the_same_kernel(
    shared_box: Box, kernel: KernelRecord
) -> None:
    code = "print('x' * 1000)"
    with variant(shared_box, output_char_limit=100) as short:
        cut = short.execute(kernel, code)
        assert cut.truncated
        assert len(cut.output) <= 100
    assert shared_box.execute(kernel, code).output == "x" * 1000 + "\n"
    with variant(shared_box, execution_timeout=0.2) as hasty:
        assert hasty.execute(kernel, "import time; time.sleep(1)").status == "timeout"
    assert shared_box.execute(kernel, "time.sleep(0.3)").ok


def test_startup_code_is_the_callers_not_the_keepers(shared_box: Box) -> None:
    with variant(shared_box, startup_code="began = 'here'") as other:
        mine, theirs = shared_box.get_or_create("without"), other.get_or_create("with")
        try:
            assert not shared_box.execute(mine, "began").ok
            assert shared_box.execute(theirs, "began").return_value == "'here'"
        finally:
            shared_box.destroy(mine)
            shared_box.destroy(theirs)


# -- startup code ---------------------------------------------------------------------------


def test_startup_code_runs_once_in_new_and_restarted_kernels_and_not_after_a_branch(
    shared_box: Box, tmp_path: Path
) -> None:
    code = "open('ran', 'a').write('x')\nbegan = ['here']\nprint('noise')"
    with variant(shared_box, startup_code=code) as box:
        record = box.get_or_create("started", cwd=str(tmp_path))
        ran = tmp_path / "ran"
        assert ran.read_text() == "x"
        first = box.execute(record, "began.append(1); began")
        assert (first.return_value, first.output, first.execution_count) == ("['here', 1]", "", 1)
        box.get_or_create("started")
        assert ran.read_text() == "x"
        branch = box.branch(record, "branched")
        assert ran.read_text() == "x"
        assert box.execute(branch, "began").return_value == "['here', 1]"
        box.restart(record)
        assert ran.read_text() == "xx"
        assert box.execute(record, "began").return_value == "['here']"
        box.execute(record, "import os; os._exit(1)")
        assert box.execute(record, "began").return_value == "['here']"
        assert ran.read_text() == "xxx"
        box.restart(branch)
        assert box.execute(branch, "began").return_value == "['here']"
        box.destroy(branch)
        box.destroy(record)


@pytest.mark.parametrize(
    ("code", "words"),
    [("1/0", "ZeroDivisionError"), ("import os; os._exit(3)", "exit code 3"),
     ("this is no python", "SyntaxError")],
)  # fmt: skip
def test_failing_startup_code_is_reported_and_leaves_nothing(
    shared_box: Box, code: str, words: str
) -> None:
    with variant(shared_box, startup_code=code) as box, pytest.raises(StartupFailed) as caught:
        box.get_or_create("never comes up")
    assert words in str(caught.value)
    assert "'never comes up'" in str(caught.value)
    assert "never comes up" not in {record.name for record in shared_box.list_kernels()}
    record = shared_box.get_or_create("never comes up")
    assert (record.state, record.epoch) == ("kept", 1)
    shared_box.destroy(record)


def test_startup_code_that_hangs_is_given_up(shared_box: Box) -> None:
    code = "import time; time.sleep(60)"
    started = time.monotonic()
    with (
        variant(shared_box, startup_code=code, start_timeout=1, execution_timeout=1) as box,
        pytest.raises(StartupFailed),
    ):
        box.get_or_create("slow to start")
    assert time.monotonic() - started < 15
    assert "slow to start" not in {record.name for record in shared_box.list_kernels()}


# -- the caller's world ---------------------------------------------------------------------


def test_folder_and_environment_of_the_caller_reach_the_kernel(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "my_module_xyz.py").write_text("answer = 42")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("OF_THE_CALLER", "yes")
    first = box.get_or_create("first")
    code = "import os, my_module_xyz\nprint(os.getcwd(), os.environ['OF_THE_CALLER'])"
    result = box.execute(first, f"{code}\nmy_module_xyz.answer")
    assert result.output == f"{tmp_path}/work yes\n"
    assert result.return_value == "42"
    monkeypatch.delenv("OF_THE_CALLER")
    monkeypatch.chdir(tmp_path)
    second = box.get_or_create("second")
    result = box.execute(second, "import os; print(os.getcwd(), 'OF_THE_CALLER' in os.environ)")
    assert result.output == f"{tmp_path} False\n"


def test_folder_and_environment_can_be_given(shared_box: Box, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "ONLY": "this"}
    record = shared_box.get_or_create("given", cwd=str(tmp_path), environ=environ)
    try:
        result = shared_box.execute(record, "import os; print(os.getcwd(), os.environ['ONLY'])")
        assert result.output == f"{tmp_path} this\n"
        result = shared_box.execute(record, "'HOME' in os.environ")
        assert result.return_value == "False"
    finally:
        shared_box.destroy(record)


def test_a_folder_that_is_not_there_makes_no_kernel(shared_box: Box, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone' is not a folder .*No such file or directory"):
        shared_box.get_or_create("nowhere", cwd=str(tmp_path / "gone"))
    assert "nowhere" not in {record.name for record in shared_box.list_kernels()}


def test_the_callers_own_folder_may_be_gone(
    shared_box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    record = shared_box.get_or_create("from nowhere")
    try:
        assert shared_box.execute(record, "import os; os.getcwd()").return_value == "'/'"
    finally:
        shared_box.destroy(record)


# -- the module-level functions -------------------------------------------------------------


@pytest.fixture
def home_by_environment(environment: Path) -> Iterator[Path]:
    yield environment
    kernelbox.wipe()
    for box in kernelbox.api._boxes.values():  # type: ignore[attr-defined]
        box.close()


def test_the_functions_follow_the_environment_of_now(
    home_by_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = kernelbox.get_or_create("k")
    assert Path(record.connection_file).parent == home_by_environment / "runtime"
    assert kernelbox.execute("k", "print('x' * 50)").output == "x" * 50 + "\n"
    monkeypatch.setenv("KERNELBOX_OUTPUT_CHAR_LIMIT", "20")
    assert kernelbox.execute("k", "print('x' * 50)").truncated
    monkeypatch.setenv("KERNELBOX_OUTPUT_CHAR_LIMIT", "nonsense")
    with pytest.raises(BadInput, match="KERNELBOX_OUTPUT_CHAR_LIMIT"):
        kernelbox.execute("k", "1")
    monkeypatch.delenv("KERNELBOX_OUTPUT_CHAR_LIMIT")
    assert [r.name for r in kernelbox.list_kernels(refresh=True)] == ["k"]
    *_, last = kernelbox.stream("k", "6 * 7")
    assert last.return_value == "42"
    assert kernelbox.status("k")["alive"]
    assert kernelbox.interrupt("k") is False
    assert kernelbox.cancel("k", "x") is False
    assert kernelbox.branch("k", "b").parent == record.kernel_id
    assert kernelbox.restart("k").epoch == 2
    result = kernelbox.execute("k", "print('found')")
    assert kernelbox.output("k", result.execution_id).text == "found\n"
    assert len(kernelbox.search_output("k", result.execution_id, "fou")) == 1
    assert kernelbox.destroy("k") is True
    assert len(kernelbox.wipe()) == 1
    assert kernelbox.list_kernels() == []


def test_wipe_destroys_all_and_names_them(box: Box) -> None:
    ids = {box.get_or_create(name).kernel_id for name in ("a", "b", "c")}
    assert set(box.wipe()) == ids
    assert box.list_kernels() == []
    assert box.wipe() == []


def test_a_closed_box_can_be_used_again(box: Box) -> None:
    box.get_or_create("k")
    box.close()
    assert box.execute("k", "1").ok


def test_a_forked_caller_has_connections_of_its_own(box: Box) -> None:
    record = box.get_or_create("k")
    box.execute(record, "n = 0")
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                results = [box.execute(record, "n += 1\nn") for _ in range(10)]
                code = 0 if all(result.ok for result in results) else 2
            finally:
                os._exit(code)
        children.append(pid)
    for _ in range(10):
        assert box.execute(record, "n += 1\nn").ok
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert box.execute(record, "n").return_value == "50"
