"""Results and records are plain data, with the fields and defaults that seed 002 names."""

from __future__ import annotations

import base64
import dataclasses
import json
import typing
from pathlib import Path

import pytest

from kernelbox import AttemptSnapshot, ErrorInfo, ExecutionResult, KernelRecord, OutputItem

# The table of seed 002, `ok` aside, in its order.
FIELDS = {
    "status": "str",
    "output": "str",
    "stderr": "str",
    "return_value": "str | None",
    "error": "ErrorInfo | None",
    "execution_count": "int | None",
    "duration_ms": "int",
    "outputs": "list[OutputItem]",
    "truncated": "bool",
    "attempts": "list[AttemptSnapshot]",
}


def names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def test_a_result_has_the_fields_of_seed_002_in_their_order() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(ExecutionResult)}
    assert list(fields)[: len(FIELDS)] == list(FIELDS)
    assert {name: fields[name] for name in FIELDS} == FIELDS
    assert typing.get_type_hints(ExecutionResult)["attempts"] == list[AttemptSnapshot]


def test_a_result_says_what_became_of_the_namespace() -> None:
    assert {"state", "cause", "epoch", "exit_code", "execution_id", "steps", "notes"} <= set(
        names(ExecutionResult)
    )


def test_other_types_have_the_fields_that_the_seeds_name() -> None:
    assert names(ErrorInfo) == ["ename", "evalue", "traceback"]
    assert names(OutputItem) == ["kind", "text", "name", "data", "metadata"]
    assert names(AttemptSnapshot) == ["attempt", "code", "status", "output", "stderr", "error"]
    assert names(KernelRecord)[:9] == [
        "kernel_id", "connection_file", "name", "created_at", "last_used_at", "status",
        "session_name", "attempt_count", "tags",
    ]  # fmt: skip
    assert {"epoch", "state", "cause", "parent", "notes"} <= set(names(KernelRecord))


@pytest.mark.parametrize(
    ("status", "ok"),
    [("success", True), ("error", False), ("timeout", False), ("max_attempts_exceeded", False)],
)
def test_ok_is_success_and_nothing_else(status: str, ok: bool) -> None:
    assert ExecutionResult(status).ok is ok


def test_images_are_decoded_in_order(tmp_path: Path) -> None:
    png = base64.b64encode(b"\x89PNG one").decode()
    result = ExecutionResult(
        "success",
        outputs=[
            OutputItem("stream", text="x", name="stdout"),
            OutputItem("display_data", data={"text/plain": "<Figure>", "image/png": png}),
            OutputItem("execute_result", data={"image/svg+xml": "<svg/>"}),
            OutputItem("display_data", data={"image/jpeg": base64.b64encode(b"jpg").decode()}),
        ],
    )
    assert [(image.mime, image.data) for image in result.images] == [
        ("image/png", b"\x89PNG one"),
        ("image/svg+xml", b"<svg/>"),
        ("image/jpeg", b"jpg"),
    ]
    result.images[0].save(str(tmp_path / "one.png"))
    assert (tmp_path / "one.png").read_bytes() == b"\x89PNG one"


def test_an_image_that_is_no_base64_is_passed_over() -> None:
    result = ExecutionResult(
        "success", outputs=[OutputItem("display_data", data={"image/png": "not base64!"})]
    )
    assert result.images == []


def test_a_result_survives_the_wire_and_passes_over_what_it_does_not_know() -> None:
    result = ExecutionResult(
        "error",
        output="o",
        error=ErrorInfo("E", "v", ["t"]),
        outputs=[OutputItem("stream", text="o", name="stdout")],
        epoch=3,
    )
    sent = json.loads(json.dumps(result.to_dict()))
    sent["of_a_newer_version"] = sent["error"]["new"] = sent["outputs"][0]["new"] = 1
    assert ExecutionResult.from_wire(sent) == result


def test_attempts_survive_the_wire() -> None:
    snapshot = AttemptSnapshot(1, "1/0", "error", "", "", ErrorInfo("E", "v", []))
    result = ExecutionResult("success", attempts=[snapshot])
    assert ExecutionResult.from_wire(json.loads(json.dumps(result.to_dict()))) == result


def test_a_dict_starts_with_what_readers_want_first() -> None:
    values = ExecutionResult("success", output="x").to_dict()
    assert list(values)[:3] == ["status", "output", "return_value"]
    assert set(values) == set(names(ExecutionResult))


def test_an_error_reads_as_python_prints_it() -> None:
    assert str(ErrorInfo("ZeroDivisionError", "division by zero")) == (
        "ZeroDivisionError: division by zero"
    )
    assert str(ErrorInfo("KeyboardInterrupt", "")) == "KeyboardInterrupt"


def test_records_are_data_and_survive_the_wire() -> None:
    record = KernelRecord("id", "/c.json", "n", 1.0, 2.0, tags=["a"])
    assert KernelRecord.from_wire({**record.to_dict(), "new": 1}) == record
    assert (record.status, record.state, record.epoch, record.cause) == ("idle", "kept", 1, None)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (ExecutionResult("success"), "(no output)"),
        (ExecutionResult("success", output="a\n", stderr="b\n", return_value="3"), "a\nb\n3"),
        (
            ExecutionResult("error", output="a\n", error=ErrorInfo("E", "why", ["x", "E: why"])),
            "a\nx\nE: why",
        ),
        (ExecutionResult("error", error=ErrorInfo("E", "why")), "E: why"),
        (
            ExecutionResult("error", error=ErrorInfo("D", ""), state="lost", cause="killed"),
            "D\nAll variables are gone (killed). Make again what you need.",
        ),
        (
            ExecutionResult("error", error=ErrorInfo("E", ""), state="rewound"),
            "E\nThe cell failed and was undone: variables are as they were before it.",
        ),
    ],
)
def test_a_model_reads_what_it_needs(result: ExecutionResult, words: str) -> None:
    assert result.for_model() == words
