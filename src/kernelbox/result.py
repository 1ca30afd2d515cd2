"""What an execution gives back, and what a kernel is: plain data, the same in every entrance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeVar

Status = Literal["success", "error", "timeout", "max_attempts_exceeded"]
State = Literal["kept", "rewound", "lost", "unknown"]

_T = TypeVar("_T")


def _known(cls: type[_T], values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that ``cls`` has fields for: a newer peer may send more."""
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if name in names}


@dataclass(slots=True)
class ErrorInfo:
    """Why a cell failed. ``traceback`` is a list of strings without colour codes."""

    ename: str
    evalue: str
    traceback: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.ename}: {self.evalue}" if self.evalue else self.ename

    @classmethod
    def from_wire(cls, values: Mapping[str, Any] | None) -> ErrorInfo | None:
        return cls(**_known(cls, values)) if values else None


@dataclass(slots=True)
class OutputItem:
    """One thing that a cell put out, in order: ``stream``, ``display_data``, ``execute_result``,
    ``update_display_data``, ``clear_output`` or ``error``."""

    kind: str
    text: str | None = None
    name: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> OutputItem:
        return cls(**_known(cls, values))


@dataclass(slots=True, frozen=True)
class Image:
    """A picture that a cell showed: ``data`` holds its bytes."""

    mime: str
    data: bytes

    def save(self, path: str) -> None:
        """Write the picture to a file."""
        with open(path, "wb") as file:
            file.write(self.data)


@dataclass(slots=True)
class AttemptSnapshot:
    """One try of ``execute_with_retry``."""

    attempt: int
    code: str
    status: str
    output: str
    stderr: str
    error: ErrorInfo | None

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> AttemptSnapshot:
        return cls(**{**_known(cls, values), "error": ErrorInfo.from_wire(values.get("error"))})


@dataclass(slots=True)
class ExecutionResult:
    """Everything there is to know about one execution, state of the namespace included."""

    status: str
    output: str = ""
    stderr: str = ""
    return_value: str | None = None
    error: ErrorInfo | None = None
    execution_count: int | None = None
    duration_ms: int = 0
    outputs: list[OutputItem] = field(default_factory=list)
    truncated: bool = False
    attempts: list[AttemptSnapshot] = field(default_factory=list)
    exit_code: int | None = None
    state: str = "kept"
    cause: str | None = None
    epoch: int = 0
    execution_id: str = ""
    kernel_id: str = ""
    steps: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when the code ran to its end without an error."""
        return self.status == "success"

    @property
    def images(self) -> list[Image]:
        """The pictures among the outputs, decoded, in order."""
        from base64 import b64decode

        found = []
        for item in self.outputs:
            for mime, content in item.data.items():
                if mime.startswith("image/") and isinstance(content, str):
                    try:
                        raw = content.encode() if "svg" in mime else b64decode(content)
                    except ValueError:
                        continue  # a library's mistake; the item still shows it
                    found.append(Image(mime, raw))
        return found

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON; ``status``, ``output`` and ``return_value`` come first."""
        values = asdict(self)
        first = ("status", "output", "return_value")
        return {name: values[name] for name in first} | values

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> ExecutionResult:
        kept = _known(cls, values)
        kept["error"] = ErrorInfo.from_wire(kept.get("error"))
        kept["outputs"] = [OutputItem.from_wire(item) for item in kept.get("outputs", ())]
        kept["attempts"] = [AttemptSnapshot.from_wire(item) for item in kept.get("attempts", ())]
        return cls(**kept)


@dataclass(slots=True)
class KernelRecord:
    """A kernel as the registry knows it. It, its name or its id will do wherever a kernel is."""

    kernel_id: str
    connection_file: str
    name: str
    created_at: float
    last_used_at: float
    status: str = "idle"
    session_name: str | None = None
    attempt_count: int = 0
    tags: dict[str, Any] | list[str] = field(default_factory=dict)
    kernel_type: str = "python3"
    epoch: int = 1
    state: str = "kept"
    cause: str | None = None
    parent: str | None = None
    notes: list[str] = field(default_factory=list)
    address: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> KernelRecord:
        return cls(**_known(cls, values))


__all__ = [
    "AttemptSnapshot",
    "ErrorInfo",
    "ExecutionResult",
    "Image",
    "KernelRecord",
    "OutputItem",
    "State",
    "Status",
]
