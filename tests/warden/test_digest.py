"""The digest, as tables and as fuzz: what a result keeps of a cell's output."""

from __future__ import annotations

import random

import pytest

from kernelbox.warden.digest import Digest, HeadAndTail, LineFolder
from kernelbox.warden.streams import Splitter

TOKEN = "0123456789abcdef"


def mark(number: int) -> bytes:
    return b"\x1e\x00" + TOKEN.encode() + b"%012x\x1e" % number


def cut(text: str, size: int, chance: random.Random) -> list[str]:
    """The text in random pieces of about ``size``."""
    pieces = []
    while text:
        length = chance.randint(1, size)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


# -- head and tail ------------------------------------------------------------------------------


def kept(text: str, limit: int) -> str:
    stream = HeadAndTail(limit)
    stream.add(1, text)
    assert stream.truncated == (len(text) > limit)
    return "".join(part for _, part in stream.pieces())


@pytest.mark.parametrize("limit", [1, 10, 50, 1000])
@pytest.mark.parametrize("extra", [-1, 0, 1, 7, 10_000])
def test_never_more_than_the_limit_marker_included(limit: int, extra: int) -> None:
    text = "".join(chr(97 + i % 26) for i in range(limit + extra))
    short = kept(text, limit)
    assert len(short) <= limit
    if extra <= 0:
        assert short == text
    else:
        assert short[-1:] == text[-1:], "errors live at the end"


def test_head_and_tail_stay_and_the_line_between_says_how_much_is_gone() -> None:
    text = "H" * 5000 + "x" * 90_000 + "T" * 5000
    short = kept(text, 1000)
    head, line, tail = short.split("\n")
    assert set(head) == {"H"}
    assert set(tail) == {"T"}
    assert abs(len(head) - len(tail)) <= 1
    gone = len(text) - len(head) - len(tail)
    assert line == f"[… {gone:,} of 100,000 characters left out …]"


def test_a_stream_in_pieces_is_kept_like_one_in_whole() -> None:
    chance = random.Random(3)
    for _ in range(300):
        limit = chance.choice([1, 5, 60, 100, 500])
        text = "".join(chance.choice("ab\n ü🎉") for _ in range(chance.randint(0, 3 * limit + 200)))
        stream = HeadAndTail(limit)
        for order, piece in enumerate(cut(text, chance.choice([1, 7, 80]), chance)):
            stream.add(order, piece)
        assert "".join(part for _, part in stream.pieces()) == kept(text, limit)
        orders = [order for order, _ in stream.pieces()]
        assert orders == sorted(orders)


def test_memory_is_bounded_by_the_limit() -> None:
    stream = HeadAndTail(100)
    for number in range(20_000):
        stream.add(number, "some text of a line\n")
    assert stream._head_size + stream._tail_size <= 300
    assert len(stream._tail) < 20


# -- carriage returns ---------------------------------------------------------------------------


def folded(*pieces: str) -> str:
    folder = LineFolder()
    done = [piece for order, text in enumerate(pieces) for piece in folder.feed(order, text)]
    return "".join(text for _, text in done + folder.finish())


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["plain\n"], "plain\n"),
        (["no end"], "no end"),
        (["a", "b", "\n", "c"], "ab\nc"),
        ([" 1%", "\r 2%", "\r 3%\n"], " 3%\n"),
        (["\r 1%", "\r 2%", "\n", "after\n"], " 2%\nafter\n"),
        (["windows\r\n", "lines\r\n"], "windows\nlines\n"),
        (["split\r", "\nend"], "split\nend"),
        (["bar\r"], "bar"),
        (["bar\r\r"], "bar"),
        (["bar\r\r\n"], "bar\n"),
        (["one\rtwo\rthree"], "three"),
        (["keep\none\rtwo\nkeep"], "keep\ntwo\nkeep"),
        (["gone\r", "", "there"], "there"),
        (["", "\n", "\r", "\n"], "\n\n"),
    ],
)
def test_a_line_that_is_drawn_again_counts_once(pieces: list[str], shown: str) -> None:
    assert folded(*pieces) == shown


def test_folding_does_not_depend_on_how_the_text_is_cut() -> None:
    chance = random.Random(5)
    for _ in range(500):
        text = "".join(chance.choice("ab\r\n") for _ in range(chance.randint(0, 40)))
        assert folded(*cut(text, 5, chance)) == folded(text)


def test_a_very_long_line_is_not_held_for_ever() -> None:
    folder = LineFolder()
    passed = sum(len(text) for n in range(100) for _, text in folder.feed(n, "x" * 10_000))
    assert passed >= 900_000


# -- the whole ----------------------------------------------------------------------------------


def stream(name: str, text: str, **metadata: object) -> dict[str, object]:
    return {"kind": "stream", "name": name, "text": text, "metadata": metadata}


def display(text: str, kind: str = "display_data") -> dict[str, object]:
    return {"kind": kind, "data": {"text/plain": text}, "metadata": {}}


def shown(digest: Digest) -> list[tuple[str, str | None]]:
    return [(item["name"] or item["kind"], item["text"]) for item in digest.finish()["outputs"]]


def test_outputs_are_in_order_and_neighbours_are_joined() -> None:
    digest = Digest(1000)
    for event in [
        stream("stdout", "a\n"), stream("stdout", "b\n"), display("shown"),
        stream("stderr", "e\n"), stream("stdout", "c\n"), display("42", "execute_result"),
    ]:  # fmt: skip
        digest.add(event)
    result = digest.finish()
    assert result["output"] == "a\nb\nc\n"
    assert result["stderr"] == "e\n"
    assert result["return_value"] == "42"
    assert not result["truncated"]
    assert [(i["name"] or i["kind"], i["text"]) for i in result["outputs"]] == [
        ("stdout", "a\nb\n"), ("display_data", "shown"), ("stderr", "e\n"), ("stdout", "c\n"),
        ("execute_result", "42"),
    ]  # fmt: skip


def test_half_a_line_before_a_display_stays_before_it() -> None:
    digest = Digest(1000)
    for event in [stream("stdout", "loading… "), display("shown"), stream("stdout", "done\n")]:
        digest.add(event)
    assert shown(digest) == [
        ("stdout", "loading… "), ("display_data", "shown"), ("stdout", "done\n"),
    ]  # fmt: skip


def test_a_progress_bar_is_one_line_also_between_prints() -> None:
    digest = Digest(1000)
    for n in range(50):
        digest.add(stream("stderr", f"\r{n:3d}%"))
        digest.add(stream("stdout", f"line {n}\n"))
    digest.add(stream("stderr", "\n"))
    result = digest.finish()
    assert result["stderr"] == " 49%\n"
    assert result["output"].count("\n") == 50


def test_each_stream_and_each_value_has_the_limit_to_itself() -> None:
    digest = Digest(200)
    digest.add(stream("stdout", "o" * 1000))
    digest.add(stream("stderr", "e" * 100))
    digest.add(display("d" * 1000))
    digest.add(display("r" * 1000, "execute_result"))
    result = digest.finish()
    assert result["truncated"]
    assert len(result["output"]) <= 200
    assert result["stderr"] == "e" * 100
    assert len(result["return_value"]) <= 200
    assert all(len(item["text"]) <= 200 for item in result["outputs"])


def test_an_error_fits_too() -> None:
    digest = Digest(200)
    error = {"ename": "ValueError", "evalue": "v" * 1000, "traceback": ["t" * 1000, "the end"]}
    digest.add({"kind": "error", "text": "whatever", "data": error})
    (item,) = digest.finish()["outputs"]
    assert len(item["text"]) <= 200
    assert item["text"].endswith("the end")
    assert len(item["data"]["evalue"]) <= 200
    assert len("\n".join(item["data"]["traceback"])) <= 200


def test_background_output_is_bounded_and_kept_apart() -> None:
    digest = Digest(200)
    for _ in range(10):
        digest.add(stream("stdout", "b" * 100, background=True))
    digest.add(stream("stdout", "mine\n"))
    result = digest.finish()
    assert result["output"] == "mine\n"
    first, second = result["outputs"]
    assert first["metadata"] == {"background": True}
    assert len(first["text"]) <= 200
    assert second["text"] == "mine\n"
    assert second["metadata"] == {}


def test_outputs_hold_what_the_streams_hold() -> None:
    chance = random.Random(11)
    for _ in range(200):
        digest = Digest(chance.choice([1, 30, 120, 5000]))
        for _ in range(chance.randint(0, 30)):
            if chance.random() < 0.3:
                digest.add(display(chance.choice("abc")))
            else:
                text = "".join(chance.choice("xy\n\r") for _ in range(chance.randint(0, 40)))
                digest.add(stream(chance.choice(["stdout", "stderr"]), text))
        result = digest.finish()
        for name, field in (("stdout", "output"), ("stderr", "stderr")):
            parts = [item["text"] for item in result["outputs"] if item["name"] == name]
            assert "".join(parts) == result[field]


# -- taking pipes apart -------------------------------------------------------------------------


def taken(chunks: list[bytes]) -> list[object]:
    splitter = Splitter(TOKEN)
    items: list[object] = []
    for chunk in chunks:
        items += splitter.feed(chunk)
    return items + list(splitter.feed(b"", last=True))


def joined(items: list[object]) -> list[object]:
    result: list[object] = []
    for item in items:
        if isinstance(item, str) and result and isinstance(result[-1], str):
            result[-1] += item
        else:
            result.append(item)
    return result


def test_text_and_marks_are_told_apart() -> None:
    data = b"before" + mark(7) + b"between" + mark(255) + mark(3) + b"after"
    assert taken([data]) == ["before", 7, "between", 255, 3, "after"]


def test_the_cut_of_the_chunks_does_not_matter() -> None:
    chance = random.Random(13)
    alphabet = [b"a", "ü".encode(), "🎉".encode(), b"\x1e", b"\x1e\x00", b"\xff", b"\n", b"\x00",
                b"\x1e\x00" + TOKEN[:8].encode()]  # fmt: skip
    for _ in range(300):
        data = b"".join(
            mark(chance.randint(0, 9)) if chance.random() < 0.2
            else chance.choice(alphabet)
            for _ in range(chance.randint(0, 40))
        )  # fmt: skip
        at, chunks = 0, []
        while at < len(data):
            size = chance.randint(1, 12)
            chunks.append(data[at : at + size])
            at += size
        assert joined(taken(chunks)) == joined(taken([data]))


def test_a_mark_that_is_none_is_left_out_and_harms_nothing() -> None:
    broken = b"\x1e\x00" + TOKEN.encode() + b"not hex here\x1e"
    assert joined(taken([b"a" + broken + b"b"])) == ["ab"]
    other = b"\x1e\x00" + b"f" * 16 + b"000000000001\x1e"
    assert joined(taken([other])) == [other.decode()]
