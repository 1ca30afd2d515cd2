"""A registry that cannot be read is set aside, and the kernels are found without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelbox import KernelNotFound

UUID = "01234567-89ab-cdef-0123-456789abcdef"
RECORD = {"kernel_id": UUID, "name": "x", "created_at": 1.0, "last_used_at": 1.0, "epoch": 1}

CORRUPTED = {
    "garbage": b"\x00\xff\xfe garbage \x80",
    "empty": b"",
    "truncated": None,
    "null": b"null",
    "a list": b"[]",
    "a number": b"7",
    "no kernels": b"{}",
    "kernels as a dict": b'{"kernels": {"a": 1}}',
    "kernels of strings": b'{"kernels": ["a", "b"]}',
    "a record without a name": json.dumps({"kernels": [{"kernel_id": UUID}]}).encode(),
    "an id that leads elsewhere": json.dumps(
        {"kernels": [{**RECORD, "kernel_id": "../../precious"}]}
    ).encode(),
    "an id that is a number": json.dumps({"kernels": [{**RECORD, "kernel_id": 7}]}).encode(),
    "times as words": json.dumps({"kernels": [{**RECORD, "created_at": "monday"}]}).encode(),
    "a name that is a list": json.dumps({"kernels": [{**RECORD, "name": ["x"]}]}).encode(),
    "a bad grave": b'{"kernels": [], "graves": [{"kernel_id": "x"}]}',
    "a grave in no time": json.dumps(
        {
            "kernels": [],
            "graves": [
                {"kernel_id": UUID, "name": "x", "cause": "", "epoch": 1, "ended_at": 1e300}
            ],
        }
    ).encode(),
    "a thousand brackets": b"[" * 100_000,
    "not a number": b'{"kernels": [], "graves": NaN}',
}


def test_a_corrupted_registry_is_set_aside_and_live_kernels_are_found_again(stage) -> None:
    box, registry = stage.box, Path(stage.home.registry_path)
    precious = registry.parent.parent / "precious.sock"
    precious.touch()
    kernel = box.get_or_create("live")
    box.execute(kernel, "x = 42")
    for number, content in enumerate(CORRUPTED.values()):
        stage.kill(stage.keeper())
        bad = registry.read_bytes()[:-100] if content is None else content
        registry.write_bytes(bad)
        again = box.get_or_create("live")
        assert again.kernel_id == kernel.kernel_id, content
        assert box.execute("live", "x").return_value == "42"
        aside = sorted(registry.parent.glob("registry.json.corrupt-*"))
        assert len(aside) == number + 1, content
        assert bad in [path.read_bytes() for path in aside]
        assert json.loads(registry.read_text())["kernels"][0]["name"] == "live"
    assert precious.exists()
    # The next caller to get a kernel is told what happened to the file.
    fresh = box.get_or_create("fresh")
    assert any("set aside" in note for note in fresh.notes)


def test_a_registry_of_kernels_that_are_long_gone_is_believed_and_buried(stage) -> None:
    registry = Path(stage.home.registry_path)
    registry.parent.mkdir(parents=True)
    registry.write_text(json.dumps({"version": 1, "kernels": [{**RECORD, "name": "old"}]}))
    with pytest.raises(KernelNotFound, match=r"'old' ended at .* gone when a new keeper looked"):
        stage.box.execute("old", "1")
    assert stage.box.get_or_create("old").state == "lost"


def test_a_registry_from_the_future_is_read_as_far_as_it_is_understood(stage) -> None:
    registry = Path(stage.home.registry_path)
    registry.parent.mkdir(parents=True)
    content = {"version": 99, "kernels": [{**RECORD, "colour": "blue"}], "moods": ["sunny"]}
    registry.write_text(json.dumps(content))
    assert stage.box.list_kernels() == []
    assert stage.box.get_or_create("x").state == "lost"
    assert not list(registry.parent.glob("*.corrupt-*"))


def test_what_a_killed_keeper_has_half_written_is_removed(stage) -> None:
    registry = Path(stage.home.registry_path)
    stage.box.get_or_create("a")
    stage.kill(stage.keeper())
    half = registry.parent / ".registry.json-writing-abc"
    half.write_text('{"kern')
    assert stage.box.execute("a", "1+1").return_value == "2"
    stage.box.list_kernels()
    assert not half.exists()
