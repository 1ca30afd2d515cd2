"""Output that fits a context window, and the whole of it for those who ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kernelbox import BadInput, Box, KernelRecord
from kernelbox.errors import BoxError


@pytest.fixture
def narrow(shared_box: Box) -> Iterator[Box]:
    """The same home, for a caller with a small window: settings travel with each request."""
    with Box(replace(shared_box.settings, output_char_limit=500)) as box:
        yield box


# -- the window ---------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 10, 50, 1000])
def test_streams_and_values_keep_to_the_limit(
    shared_box: Box, kernel: KernelRecord, limit: int
) -> None:
    code = (
        "import sys\nprint('OUT' + 'o' * 5000 + 'TUO'); print('ERR' + 'e' * 5000, file=sys.stderr)\n"
        "'VALUE' + 'v' * 5000"
    )
    with Box(replace(shared_box.settings, output_char_limit=limit)) as box:
        result = box.execute(kernel, code)
    assert result.ok
    assert result.truncated
    assert result.return_value is not None
    for text in (result.output, result.stderr, result.return_value):
        assert 0 < len(text) <= limit
    assert result.output.endswith("TUO\n"[-limit:])
    if limit == 1000:
        assert result.output.startswith("OUT")
        assert "of 5,007 characters left out" in result.output
        assert result.return_value.startswith("'VALUE")


def test_what_fits_is_left_alone(narrow: Box, kernel: KernelRecord) -> None:
    result = narrow.execute(kernel, "print('x' * 499)")
    assert result.output == "x" * 499 + "\n"
    assert not result.truncated
    assert result.notes == []


def test_the_outputs_hold_no_more_than_the_fields(narrow: Box, kernel: KernelRecord) -> None:
    result = narrow.execute(
        kernel,
        "from IPython.display import display\n"
        "print('a' * 5000); display('b' * 5000); print('c' * 5000)",
    )
    shown = [item for item in result.outputs if item.kind == "stream"]
    assert "".join(item.text or "" for item in shown) == result.output
    assert all(len(item.text or "") <= 500 for item in result.outputs)


def test_the_error_is_at_the_end_and_stays(narrow: Box, kernel: KernelRecord) -> None:
    result = narrow.execute(kernel, "print('noise\\n' * 5000); print('the reason')\n1/0")
    assert result.output.endswith("the reason\n")
    assert result.error is not None
    assert result.error.ename == "ZeroDivisionError"


def test_a_huge_error_fits_as_well(narrow: Box, kernel: KernelRecord) -> None:
    result = narrow.execute(kernel, "raise ValueError('v' * 1_000_000 + 'end')")
    assert result.error is not None
    assert len(result.error.evalue) <= 500
    assert result.error.evalue.endswith("end")
    assert len("\n".join(result.error.traceback)) <= 500
    assert all(len(item.text or "") <= 500 for item in result.outputs)


def test_a_result_says_how_to_read_the_rest(narrow: Box, kernel: KernelRecord) -> None:
    result = narrow.execute(kernel, "print('x' * 5000)")
    (note,) = result.notes
    assert result.execution_id in note
    value = narrow.execute(kernel, "'x' * 5000")
    assert value.truncated
    assert value.execution_id not in value.notes[0], "output() does not hold values"


def test_background_output_fits_and_says_what_is_gone(
    narrow: Box, kernel: KernelRecord, waiting, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    narrow.execute(
        kernel,
        "import pathlib, threading, time\n"
        "def talk():\n"
        "    time.sleep(0.05)\n"
        "    for n in range(40_000): print(f'{n:09d}')\n"
        f"    pathlib.Path({str(done)!r}).touch()\n"
        "thread = threading.Thread(target=talk); thread.start()",
    )
    waiting(done.exists, what="the thread to end")
    result = narrow.execute(kernel, "print('mine')")
    assert result.output == "mine\n"
    background = "".join(i.text or "" for i in result.outputs if i.metadata.get("background"))
    assert len(background) <= 500
    assert "left out" in background
    assert background.endswith("000039999\n")
    assert result.truncated


# -- the whole ----------------------------------------------------------------------------------


def test_five_megabytes_are_paged_back_to_what_was_printed(
    narrow: Box, kernel: KernelRecord
) -> None:
    code = (
        "for n in range(0, 250_000, 500):\n"
        "    print('\\n'.join(f'{i:06d} ünïcödé 🎉 x' for i in range(n, n + 500)))"
    )
    result = narrow.execute(kernel, code, timeout=60)
    expected = "".join(f"{n:06d} ünïcödé 🎉 x\n" for n in range(250_000))
    assert result.truncated
    assert result.output[:6] == "000000"
    assert result.output[-20:] == expected[-20:]
    parts = []
    start = 0
    while True:
        page = narrow.output(kernel, result.execution_id, start=start, length=1_500_000)
        assert page.total == len(expected)
        assert page.missing == 0
        parts.append(page.text)
        start = page.end
        if start >= page.total:
            break
    assert "".join(parts) == expected
    tail = narrow.output(kernel, result.execution_id, start=-30, length=30)
    assert tail.text == expected[-30:]
    (match,) = narrow.search_output(kernel, result.execution_id, "^123456")
    assert match.line == 123_457
    assert expected[match.start :].startswith(match.text)


def test_each_stream_is_read_by_itself(shared_box: Box, kernel: KernelRecord) -> None:
    result = shared_box.execute(
        kernel, "import sys\nfor n in range(3): print(n); print(-n, file=sys.stderr)"
    )
    read = shared_box.output
    assert read(kernel, result.execution_id).text == "0\n1\n2\n"
    assert read(kernel, result.execution_id, stream="stderr").text == "0\n-1\n-2\n"
    with pytest.raises(BadInput):
        read(kernel, result.execution_id, stream="display")
    for pattern in ("(", "x{99999999999}", "(" * 5000 + ")" * 5000, 7):
        with pytest.raises(BadInput, match=r"pattern is a string|is no regular expression"):
            shared_box.search_output(kernel, result.execution_id, pattern)  # type: ignore[arg-type]


def test_a_progress_bar_is_whole_in_the_spool(shared_box: Box, kernel: KernelRecord) -> None:
    result = shared_box.execute(kernel, "for n in range(5): print(f'\\r{n}', end='')")
    assert result.output == "4"
    assert shared_box.output(kernel, result.execution_id).text == "\r0\r1\r2\r3\r4"


def test_the_output_of_a_running_cell_can_be_read(
    shared_box: Box, kernel: KernelRecord, waiting
) -> None:
    import threading

    thread = threading.Thread(
        target=lambda: shared_box.execute(
            kernel, "import time\nprint('so far')\ntime.sleep(1)", execution_id="running"
        )
    )
    thread.start()

    def so_far() -> bool:
        try:
            return shared_box.output(kernel, "running").text == "so far\n"
        except BoxError:
            return False

    waiting(so_far, what="the first line")
    thread.join()


def test_the_last_words_of_a_dead_interpreter_can_be_read(
    narrow: Box, kernel: KernelRecord
) -> None:
    result = narrow.execute(kernel, "print('x' * 100_000); import os; os._exit(1)")
    assert result.state == "lost"
    assert narrow.output(kernel, result.execution_id).total == 100_001


def test_an_unknown_execution_is_told_so(shared_box: Box, kernel: KernelRecord) -> None:
    with pytest.raises(BoxError, match="no-such-id"):
        shared_box.output(kernel, "no-such-id")


def test_an_id_of_the_callers_own_is_no_path_and_may_be_used_again(
    shared_box: Box, kernel: KernelRecord
) -> None:
    with pytest.raises(BadInput):
        shared_box.execute(kernel, "1", execution_id="../../../escaped")
    for text in ("first", "second"):
        shared_box.execute(kernel, f"print('{text} ' * 50_000)", execution_id="mine")
        assert shared_box.output(kernel, "mine", length=6).text.strip() == text
    spooled = Path(shared_box.settings.runtime_dir).glob(f"spool-{kernel.kernel_id}/*")
    assert len(list(spooled)) == 1, "the first one's file is gone"


# -- what is kept -------------------------------------------------------------------------------


@pytest.fixture
def frugal(shared_box: Box, tmp_path: Path) -> Iterator[tuple[Box, KernelRecord]]:
    """A kernel that keeps little: its maker's settings say how much."""
    settings = replace(
        shared_box.settings, spool_keep=3, spool_limit=1 << 16, output_char_limit=200
    )
    with Box(settings) as box:
        record = box.get_or_create("frugal", cwd=str(tmp_path))
        yield box, record
        box.destroy(record)


def test_only_the_latest_executions_are_kept(frugal: tuple[Box, KernelRecord]) -> None:
    box, kernel = frugal
    ids = [box.execute(kernel, f"print({n})").execution_id for n in range(5)]
    for n in (2, 3, 4):
        assert box.output(kernel, ids[n]).text == f"{n}\n"
    for n in (0, 1):
        with pytest.raises(BoxError, match="KERNELBOX_SPOOL_KEEP"):
            box.output(kernel, ids[n])


def test_past_the_cap_the_middle_is_dropped_and_told(frugal: tuple[Box, KernelRecord]) -> None:
    box, kernel = frugal
    result = box.execute(kernel, "for n in range(100_000): print(f'{n:09d}')", timeout=30)
    head = box.output(kernel, result.execution_id, start=0, length=1000)
    tail = box.output(kernel, result.execution_id, start=-1000, length=1000)
    assert head.text == "".join(f"{n:09d}\n" for n in range(100))
    assert tail.text == "".join(f"{n:09d}\n" for n in range(99_900, 100_000))
    assert head.total == 1_000_000
    everything = box.output(kernel, result.execution_id, start=0, length=2_000_000)
    assert everything.missing == 1_000_000 - len(everything.text) > 800_000
    spooled = Path(box.settings.runtime_dir).glob(f"spool-{kernel.kernel_id}/*")
    assert sum(path.stat().st_size for path in spooled) < 1 << 18


def test_many_large_outputs_do_not_use_up_descriptors(
    shared_box: Box, kernel: KernelRecord
) -> None:
    def warden_files() -> int:
        processes = shared_box.status(kernel)["processes"]
        (pid,) = [process["pid"] for process in processes if process["role"] == "warden"]
        return psutil.Process(pid).num_fds()

    shared_box.execute(kernel, "line = 'x' * 200_000")
    before = warden_files()
    for _ in range(12):
        shared_box.execute(kernel, "print(line)")
    assert warden_files() <= before + 2


def test_files_are_private_and_go_with_the_kernel(shared_box: Box, tmp_path: Path) -> None:
    kernel = shared_box.get_or_create("short-lived", cwd=str(tmp_path))
    shared_box.execute(kernel, "print('x' * 200_000)")
    folder = Path(shared_box.settings.runtime_dir) / f"spool-{kernel.kernel_id}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in folder.iterdir()] == [0o600]
    shared_box.destroy(kernel)
    assert not folder.exists()
