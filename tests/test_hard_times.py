"""What a hostile review found: each of these once hung, lied or left something behind."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelbox import Box, KernelRecord, Settings, StartupFailed
from kernelbox.wire import Decoder, encode

Waiting = Callable[..., None]


@pytest.fixture
def starting(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Box]:
    """A box whose kernels run this code first, with little patience."""
    monkeypatch.setenv("KERNELBOX_START_TIMEOUT", "3")

    def make(code: str) -> Box:
        monkeypatch.setenv("KERNELBOX_STARTUP_CODE", code)
        return Box(Settings.from_environment())

    return make


# -- results that are too large -------------------------------------------------------------


def test_displays_beyond_all_bounds_end_in_a_result(shared_box: Box, kernel: KernelRecord) -> None:
    code = (
        "from IPython.display import display\n"
        "for _ in range(9): display({'image/png': 'x' * 40_000_000, 'text/plain': 'big'}, raw=True)"
    )
    result = shared_box.execute(kernel, code)
    assert (result.status, result.state) == ("success", "kept")
    assert result.truncated
    assert any("left out" in note for note in result.notes)
    assert shared_box.execute(kernel, "1 + 1").return_value == "2"


def test_of_many_displays_the_latest_are_kept(shared_box: Box, kernel: KernelRecord) -> None:
    code = (
        "from IPython.display import display\n"
        "for n in range(50): display({'image/png': 'x' * 1_000_000, 'text/plain': str(n)}, raw=True)"
    )
    result = shared_box.execute(kernel, code)
    shown = [item.text for item in result.outputs]
    assert shown[-1] == "49"
    assert 20 < len(shown) < 50
    assert any("left out" in note for note in result.notes)


@pytest.mark.slow
def test_an_output_limit_beyond_all_bounds_still_ends_in_a_result(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELBOX_OUTPUT_CHAR_LIMIT", str(10**9))
    with Box(Settings.from_environment()) as box:
        kernel = box.get_or_create("big")
        result = box.execute(kernel, "print('x' * 300_000_000)")
        assert result.status == "success"
        assert any("too large to be sent" in note for note in result.notes)
        page = box.output(kernel, result.execution_id, start=299_999_990, length=20)
        assert page.text.endswith("x\n")


def test_an_error_that_was_cut_says_so(shared_box: Box, kernel: KernelRecord) -> None:
    result = shared_box.execute(kernel, "raise ValueError('x' * 50_000)")
    assert result.truncated
    assert any("cut" in note for note in result.notes)


# -- startup code ---------------------------------------------------------------------------


def test_startup_code_that_kills_a_restarted_kernel_is_not_tried_for_ever(
    starting: Callable[[str], Box], tmp_path: Path
) -> None:
    once = tmp_path / "once"
    code = f"import os, pathlib\np = pathlib.Path({str(once)!r})\np.exists() and os._exit(3)\np.touch()"
    with starting(code) as box:
        record = box.get_or_create("k")
        assert box.execute(record, "import os; os._exit(1)").state == "lost"
        result = box.execute(record, "1 + 1")
        assert result.status == "error"
        assert "startup code" in (result.cause or "") + str(result.error)
        status = box.status(record)
        assert status["kernel"]["epoch"] <= 4
        assert len(status["kernel"]["notes"]) <= 2
        once.unlink()
        assert box.execute(record, "1 + 1").return_value == "2", "the next request tries again"


def test_startup_code_that_hangs_in_a_restart_is_named(
    starting: Callable[[str], Box], tmp_path: Path
) -> None:
    once = tmp_path / "once"
    code = (
        f"import time, pathlib\np = pathlib.Path({str(once)!r})\n"
        "p.exists() and time.sleep(600)\np.touch()"
    )
    with starting(code) as box:
        record = box.get_or_create("k")
        with pytest.raises(StartupFailed, match="startup code"):
            box.restart(record)
        once.unlink()
        assert box.restart(record).kernel_id == record.kernel_id


def test_startup_code_that_hangs_after_a_death_is_given_up(
    starting: Callable[[str], Box], tmp_path: Path
) -> None:
    once = tmp_path / "once"
    code = (
        f"import time, pathlib\np = pathlib.Path({str(once)!r})\n"
        "p.exists() and time.sleep(600)\np.touch()"
    )
    with starting(code) as box:
        record = box.get_or_create("k")
        box.execute(record, "import os; os._exit(1)")
        result = box.execute(record, "1 + 1", timeout=2)
        assert result.status in ("success", "error")
        assert any("startup code" in note for note in box.status(record)["kernel"]["notes"])


# -- branches -------------------------------------------------------------------------------


def test_a_copy_that_dies_in_the_fork_is_reported_and_its_name_is_free(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is forked twice, but hooks are run once: this is the one place where they can."""
    monkeypatch.setenv("KERNELBOX_START_TIMEOUT", "2")
    code = (
        "import os\nforks = 0\n"
        "def hook():\n    global forks\n    forks += 1\n    os._exit(1)\n"
        "os.register_at_fork(after_in_child=hook)"
    )
    with Box(Settings.from_environment()) as box:
        kernel = box.get_or_create("a")
        box.execute(kernel, code)
        with pytest.raises(StartupFailed, match="'b' could not be made"):
            box.branch(kernel, "b")
        assert box.execute(kernel, "forks").return_value == "0"
        assert box.execute(box.get_or_create("b"), "1 + 1").return_value == "2"


def test_a_hook_that_hangs_in_the_fork_does_not_wedge_the_kernel(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELBOX_FORK_TIMEOUT", "1")
    with Box(Settings.from_environment()) as box:
        kernel = box.get_or_create("a")
        box.execute(kernel, "import os, time\nos.register_at_fork(before=lambda: time.sleep(4))")
        with pytest.raises(StartupFailed, match="did not end within 1 s"):
            box.branch(kernel, "b")
        assert box.execute(kernel, "1 + 1", timeout=10).return_value == "2"


def test_a_branch_carries_the_shell(shared_box: Box, kernel: KernelRecord) -> None:
    def bash(kernel: KernelRecord, code: str) -> str:
        return shared_box.execute(kernel, code, language="bash").output

    bash(kernel, "mkdir d; cd d; export WHO=me; f() { echo $WHO; }")
    copy = shared_box.branch(kernel, f"{kernel.name}-copy")
    try:
        assert bash(copy, "basename $PWD; f; WHO=you; cd /") == "d\nme\n"
        assert bash(kernel, "basename $PWD; f") == "d\nme\n"
    finally:
        shared_box.destroy(copy)


# -- the truth about epochs -----------------------------------------------------------------


def test_a_record_fetched_after_a_death_has_the_new_epoch(
    shared_box: Box, kernel: KernelRecord
) -> None:
    for epoch in (2, 3, 4):
        assert shared_box.execute(kernel, "import os; os._exit(1)").epoch == epoch
        assert shared_box.get_or_create(kernel.name).epoch == epoch
        listed = {record.name: record.epoch for record in shared_box.list_kernels()}
        assert listed[kernel.name] == epoch


def test_an_epoch_that_has_not_come_yet_is_said_to_be_so(
    shared_box: Box, kernel: KernelRecord
) -> None:
    with pytest.raises(Exception, match="has not come to that yet"):
        shared_box.execute(kernel, "1", expect_epoch=9)


# -- errors that a model can repair with ----------------------------------------------------


def test_a_failed_command_brings_its_last_words_along(
    shared_box: Box, kernel: KernelRecord
) -> None:
    result = shared_box.execute(kernel, "ls /nope", language="bash")
    assert result.error is not None
    assert "cannot access" in result.error.traceback[0]


def test_a_timeout_says_where_it_hit_and_shows_nothing_of_ours(
    shared_box: Box, kernel: KernelRecord
) -> None:
    result = shared_box.execute(kernel, "x = 1\nwhile True:\n    x += 1", timeout=0.5)
    assert result.status == "timeout"
    assert result.error is not None
    text = "\n".join(result.error.traceback)
    assert "while True" in text
    assert result.error.traceback[-1].startswith("TimeoutError: timed out")
    assert "interrupts.py" not in text + "".join(item.text or "" for item in result.outputs)


# -- requests that only a keeper may make ---------------------------------------------------


@pytest.fixture
def line(shared_box: Box, kernel: KernelRecord) -> Iterator[Callable[[dict[str, Any]], str]]:
    """A client of a kernel's socket that says what it likes."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(kernel.address)

        def ask(request: dict[str, Any]) -> str:
            sock.sendall(encode({"id": 1, **request}))
            decoder = Decoder()
            while not (frames := decoder.feed(sock.recv(1 << 16))):
                pass
            return json.dumps(frames[0])

        yield ask


@pytest.mark.parametrize("op", ["become", "prime", "branch", "retire"])
def test_a_client_cannot_ask_what_only_a_keeper_may(
    shared_box: Box, kernel: KernelRecord, line: Callable[[dict[str, Any]], str], op: str
) -> None:
    assert "only a keeper" in line({"op": op})
    assert shared_box.execute(kernel, "1 + 1").state == "kept"


def test_a_client_that_watches_and_leaves_does_not_deafen_the_keeper(
    shared_box: Box, waiting: Waiting
) -> None:
    kernel = shared_box.get_or_create("watched")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(kernel.address)
        sock.sendall(encode({"id": 1, "op": "watch"}))
        assert sock.recv(1 << 16)
    assert shared_box.destroy(kernel)
    assert "watched" not in {record.name for record in shared_box.list_kernels()}
