"""The spool: everything an execution put out, in memory or on disk, its middle dropped past a cap."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kernelbox.client.spoolreader import SpoolReader
from kernelbox.errors import BadInput
from kernelbox.result import OutputPage
from kernelbox.spool import Event, Spool

ROOMY = 256 << 20


def text(name: str, content: str) -> Event:
    return {"kind": "stream", "name": name, "text": content}


def reader(spool: Spool) -> SpoolReader:
    return SpoolReader(spool.manifest())


def whole(spool: Spool, stream: str = "stdout") -> str:
    page = reader(spool).page(stream, start=0, length=1 << 40)
    assert page.missing == 0
    return page.text


@pytest.fixture
def stem(tmp_path: Path) -> str:
    return str(tmp_path / "spool")


# -- writing ------------------------------------------------------------------------------------


def test_events_come_back_as_they_were(stem: str) -> None:
    events: list[Event] = [
        text("stdout", "ü🎉\n"),
        text("stderr", "lone \udc80 surrogate"),
        {"kind": "display_data", "data": {"text/plain": "x"}, "metadata": {}},
        {"kind": "stream", "name": "stdout", "text": "b", "metadata": {"background": True}},
        {"kind": "clear_output", "metadata": {"wait": True}},
    ]
    spool = Spool(stem, "id", limit=ROOMY)
    assert [spool.append(event) for event in events] == [0, 1, 2, 3, 4]
    assert spool.read(0, at_most=1 << 20) == list(enumerate(events))
    assert spool.read(3, at_most=1 << 20) == list(enumerate(events))[3:]
    assert spool.read(5, at_most=1 << 20) == []
    assert whole(spool) == "ü🎉\n"
    assert whole(spool, "stderr") == "lone \udc80 surrogate"
    spool.delete()


def test_small_output_needs_no_file_until_it_is_asked_for(stem: str, tmp_path: Path) -> None:
    spool = Spool(stem, "id", limit=ROOMY)
    spool.append(text("stdout", "small"))
    assert list(tmp_path.iterdir()) == []
    assert spool.in_memory > 0
    assert whole(spool) == "small"
    spool.append(text("stdout", " and more"))
    assert whole(spool) == "small and more"
    spool.delete()
    assert list(tmp_path.iterdir()) == []


def test_large_output_is_on_disk_for_nobody_else(stem: str, tmp_path: Path) -> None:
    spool = Spool(stem, "id", limit=ROOMY)
    for _ in range(100):
        spool.append(text("stdout", "x" * 10_000))
    assert spool.in_memory == 0
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(whole(spool)) == 1_000_000
    spool.delete()


def test_an_id_is_no_path(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    spool = Spool(str(inner / "1"), "../../evil", limit=ROOMY)
    spool.append(text("stdout", "x" * 200_000))
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert reader(spool).page("stdout", start=0, length=10).text == "x" * 10
    spool.delete()


def test_a_finished_spool_holds_no_file_open_and_can_still_be_read(stem: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    spools = [Spool(f"{stem}-{n}", "id", limit=ROOMY) for n in range(20)]
    for spool in spools:
        spool.append(text("stdout", "y" * 100_000))
        spool.append(text("stdout", "z"))
        spool.seal()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert spools[3].read(1, at_most=10) == [(1, text("stdout", "z"))]
    assert whole(spools[7]) == "y" * 100_000 + "z"
    assert len(os.listdir("/proc/self/fd")) <= before
    for spool in spools:
        spool.delete()


def test_past_the_cap_head_and_tail_stay_and_the_gap_is_told(stem: str, tmp_path: Path) -> None:
    limit = 1 << 16
    spool = Spool(stem, "id", limit=limit)
    for n in range(5000):
        spool.append(text("stdout", f"line {n:06d} {'x' * 80}\n"))
        assert spool.size <= 1.3 * limit
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1.3 * limit
    events = spool.read(0, at_most=1 << 30)
    numbers = [number for number, _ in events]
    assert numbers[0] == 0
    assert numbers[-1] == 4999
    (gap,) = [event for _, event in events if event["kind"] == "gap"]
    assert gap["events"] == 5000 - (len(events) - 1)
    page = reader(spool).page("stdout", start=0, length=1 << 30)
    assert page.text.startswith("line 000000")
    assert page.text.endswith("x\n")
    assert page.missing == page.total - len(page.text) > 0
    inside_the_gap = reader(spool).page("stdout", start=page.total // 2, length=100)
    assert (inside_the_gap.text, inside_the_gap.missing) == ("", 100)
    last = reader(spool).page("stdout", start=-20, length=100)
    assert (last.text, last.missing) == ("x" * 19 + "\n", 0)
    found = reader(spool).search("line 004999", stream="stdout", limit=5)
    assert [match.line for match in found] == [None], "after a gap nobody knows the line's number"
    spool.delete()
    assert list(tmp_path.iterdir()) == []


# -- reading ------------------------------------------------------------------------------------


def test_pages_of_any_size_make_up_the_whole(stem: str) -> None:
    chance = random.Random(17)
    spool = Spool(stem, "id", limit=ROOMY)
    said = {"stdout": "", "stderr": ""}
    for _ in range(400):
        name = chance.choice(["stdout", "stderr"])
        piece = "".join(chance.choice("ab ü🎉\n") for _ in range(chance.randint(0, 900)))
        spool.append(text(name, piece))
        said[name] += piece
    pages = reader(spool)
    for name, expected in said.items():
        for size in (7919, 100_000):
            parts = []
            start = 0
            while start < len(expected):
                page = pages.page(name, start=start, length=size)
                assert page == OutputPage(
                    expected[start : start + size],
                    start,
                    min(start + size, len(expected)),
                    len(expected),
                )
                parts.append(page.text)
                start = page.end
            assert "".join(parts) == expected
        for _ in range(50):
            start, size = chance.randint(0, len(expected)), chance.randint(0, 5000)
            assert pages.page(name, start=start, length=size).text == expected[start : start + size]
    spool.delete()


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, 4, ("0123", 0, 4)),
        (-3, 10, ("789", 7, 10)),
        (-100, 2, ("01", 0, 2)),
        (8, 100, ("89", 8, 10)),
        (10, 5, ("", 10, 10)),
        (500, 5, ("", 10, 10)),
        (3, 0, ("", 3, 3)),
        (3, -5, ("", 3, 3)),
    ],
)
def test_odd_places(stem: str, start: int, length: int, expected: tuple[str, int, int]) -> None:
    spool = Spool(stem, "id", limit=ROOMY)
    spool.append(text("stdout", "01234"))
    spool.append(text("stdout", "56789"))
    page = reader(spool).page("stdout", start=start, length=length)
    assert (page.text, page.start, page.end, page.total) == (*expected, 10)
    assert page.missing == 0
    spool.delete()


def test_search_finds_lines_with_their_number_and_place(stem: str) -> None:
    spool = Spool(stem, "id", limit=ROOMY)
    content = "".join(f"line {n}\n" for n in range(1, 3001)) + "the end"
    for at in range(0, len(content), 37):  # lines are cut anywhere
        spool.append(text("stdout", content[at : at + 37]))
    matches = reader(spool).search(r"^line \d*99$", stream="stdout", limit=1000)
    assert [match.text for match in matches] == [f"line {n}" for n in range(99, 3000, 100)]
    for match in matches:
        assert match.line == int(match.text.split()[1])
        assert content[match.start :].startswith(match.text + "\n")
    assert len(reader(spool).search("line", stream="stdout", limit=7)) == 7
    (end,) = reader(spool).search("the end", stream="stdout", limit=5)
    assert (end.line, end.text) == (3001, "the end")
    assert reader(spool).search("line", stream="stderr", limit=5) == []
    spool.delete()


def test_a_match_in_a_very_long_line_is_an_excerpt(stem: str) -> None:
    spool = Spool(stem, "id", limit=ROOMY)
    for _ in range(300):
        spool.append(text("stdout", "x" * 65_536))
    spool.append(text("stdout", "needle"))
    for _ in range(300):
        spool.append(text("stdout", "x" * 65_536))
    (match,) = reader(spool).search("needle", stream="stdout", limit=5)
    assert match.line == 1
    assert len(match.text) <= 1000
    assert "needle" in match.text
    page = reader(spool).page("stdout", start=match.start, length=len(match.text))
    assert page.text == match.text
    spool.delete()


def test_a_bad_pattern_is_bad_input(stem: str) -> None:
    spool = Spool(stem, "id", limit=ROOMY)
    with pytest.raises(BadInput, match="regular expression"):
        reader(spool).search("(", stream="stdout", limit=5)


def test_a_file_that_is_gone_is_told_as_missing(stem: str, tmp_path: Path) -> None:
    """The tail of a running execution may be dropped between the question and the reading."""
    spool = Spool(stem, "id", limit=ROOMY)
    spool.append(text("stdout", "x" * 100_000))
    pages = reader(spool)
    for path in tmp_path.iterdir():
        path.unlink()
    page = pages.page("stdout", start=0, length=50)
    assert (page.text, page.missing, page.total) == ("", 50, 100_000)
    spool.delete()


def test_a_reader_of_what_was_thrown_away_gets_to_the_end(stem: str) -> None:
    spool = Spool(stem, "id", limit=ROOMY)
    for number in range(10):
        spool.append(text("stdout", f"{number}\n"))
    spool.delete()
    assert spool.read(3, at_most=1 << 20) == [(9, {"kind": "gap", "events": 7})]
    assert spool.read(10, at_most=1 << 20) == []
