"""What an execution gives back, and what a kernel is: plain data, the same in every entrance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

Status = Literal["success", "error", "timeout", "max_attempts_exceeded"]
State = Literal["kept", "rewound", "lost", "unknown"]

_T = TypeVar("_T")


def _known(cls: type[_T], values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that ``cls`` has fields for: a newer peer may send more."""
    names = cls.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: value for name, value in values.items() if name in names}


@dataclass(slots=True)
class ErrorInfo:
    """Why a cell failed: ``ename``, the exception's class or a name of ours (``TimeoutError``,
    ``KernelDied``, ``BashError``, …), ``evalue``, its message, and ``traceback``, a list of strings
    without colour codes."""

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
    """One thing that a cell put out.

    - ``kind``: ``stream`` (printed text), ``display_data``, ``update_display_data``,
      ``clear_output``, ``execute_result`` (the value), ``error``, or, in a stream, ``gap``: output
      that this reader was too slow for
    - ``text``: the printed text, or the plain text of what was shown; None if it has none
    - ``name``: ``stdout`` or ``stderr``, of a ``stream``
    - ``data``: MIME type to content; of an ``error``, its ``ename``, ``evalue`` and ``traceback``
    - ``metadata``: as the library that showed it has it; ``{"background": True}`` marks what came
      from a thread or a task between cells
    """

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
    """A picture that a cell showed: ``mime`` says what it is (``image/png``), ``data`` has its
    bytes."""

    mime: str
    data: bytes

    def save(self, path: str) -> None:
        """Write the picture to a file."""
        with open(path, "wb") as file:
            file.write(self.data)


@dataclass(slots=True)
class AttemptSnapshot:
    """One try of ``execute_with_retry``: its number (``attempt``, from 1), the ``code`` that was
    run, and the ``status``, ``output``, ``stderr`` and ``error`` of its result."""

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
    """What came of one execution, and what became of the kernel's variables.

    How it ended:

    - ``status``: ``success``, ``error``, ``timeout`` or ``max_attempts_exceeded``; ``ok`` is True
      for the first
    - ``error``: an :class:`ErrorInfo`; None if and only if ``ok``
    - ``exit_code``: of a bash command, otherwise None
    - ``steps``: what was done about a timeout (interrupted, interrupted again, killed)
    - ``attempts``: each try of ``execute_with_retry``

    What it put out:

    - ``output``, ``stderr``: what it printed; if long, the head and the tail
    - ``return_value``: the value of its last expression *as text*, as a prompt would show it; None
      if it has none
    - ``outputs``: everything it showed, in order; ``images``: the pictures among it, decoded
    - ``truncated``: something was cut. Printed text can be read with ``output()``; a value is whole
      in the kernel, as ``_`` or ``Out[n]``
    - ``notes``: what else there is to know, in sentences: what was cut, and how to get at it

    Which execution it was:

    - ``execution_id``: its name in ``output()``, ``search_output()`` and ``cancel()``
    - ``execution_count``: the n of ``In[n]`` and ``Out[n]``; None for bash and for what did not run
    - ``duration_ms``: how long it ran; waiting in the queue is not counted

    The kernel's state:

    - ``state``: ``kept``; ``rewound`` to what it was before this cell (``atomic=True``); ``lost``;
      or ``unknown``, if the connection broke and nobody could be asked. A loss between cells is
      told to the first caller who comes, once
    - ``cause``: why it is not ``kept``, and what was lost
    - ``epoch``: goes up each time the variables are not what they were: lost or rewound; 0 if it is
      not known
    - ``kernel_id``: the kernel that ran it. Epochs compare only within one id
    """

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

    def for_model(self) -> str:
        """In the words that a model needs, and no more: what was printed, the value or the end of
        the traceback, and whether its variables are still there."""
        parts = [self.output, self.stderr, self.return_value or ""]
        if self.error is not None:
            parts += self.error.traceback[-6:] or [str(self.error)]
        if self.state == "lost":
            parts.append(f"All variables are gone ({self.cause}). Make again what you need.")
        elif self.state == "rewound":
            parts.append("The cell failed and was undone: variables are as they were before it.")
        elif self.state == "unknown":
            parts.append(f"It is not known whether the variables are there ({self.cause}).")
        return "\n".join(part.rstrip() for part in parts if part.strip()) or "(no output)"

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


@dataclass(slots=True, frozen=True)
class Event:
    """What happened in an execution, in order: ``item`` is an :class:`OutputItem`, but the last is
    the :class:`ExecutionResult`. Who comes back asks for what is from ``number + 1`` on. Numbers
    may skip."""

    number: int
    item: OutputItem | ExecutionResult


@dataclass(slots=True)
class Checkpoint:
    """A moment of a kernel that ``rewind`` can go back to.

    - ``checkpoint_id``: its id; ``label``: what it was called when it was made, or None
    - ``automatic``: made before a cell, for ``undo`` (``KERNELBOX_UNDO``); these come and go
    - ``created_at``: seconds since 1970; ``execution_count``: how many cells had been run
    - ``private_kb``: memory that it alone has: what the kernel has changed since then
    - ``notes``: what it shares with the kernel instead of having its own, in sentences
    """

    checkpoint_id: str
    label: str | None
    automatic: bool
    created_at: float
    execution_count: int
    private_kb: int = 0
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Checkpoint:
        return cls(**_known(cls, values))


@dataclass(frozen=True, slots=True)
class OutputPage:
    """A part of an execution's output: ``text`` starts at character ``start`` of ``total``."""

    text: str
    start: int
    end: int
    total: int
    missing: int = 0


@dataclass(frozen=True, slots=True)
class OutputMatch:
    """A line of an execution's output that a search found; ``start`` is the text's first character.

    Of a line over a thousand characters, ``text`` is the part around the match.
    """

    line: int | None
    start: int
    text: str


@dataclass(slots=True)
class SaveReport:
    """What ``save`` wrote, and what it could not.

    - ``path``, ``size``: the file, and how many bytes it has
    - ``variables``: the names that are in it, those of imported modules among them
    - ``failures``: names that are not, each with the reason
    - ``cells``: how many cells' source is in it
    """

    path: str
    size: int
    variables: list[str]
    failures: dict[str, str]
    cells: int

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


@dataclass(slots=True, frozen=True)
class InstalledPackage:
    """A package and its version."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(slots=True)
class InstallReport:
    """What ``install`` did. As text it is one line.

    - ``requested``: what was asked for, as it was understood
    - ``installed``: what the kernel has now and had not before, dependencies included
    - ``seconds``: how long it took; ``cached``: nothing had to be downloaded
    - ``notes``: what else there is to know, in sentences: what was there already
    """

    requested: list[str]
    installed: list[InstalledPackage]
    seconds: float = 0.0
    cached: bool = False
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        names = ", ".join(map(str, self.installed))
        parts = [f"installed {names}" if names else "nothing had to be installed", *self.notes]
        return f"{'; '.join(parts)} ({self.seconds:.1f} s{', cached' if self.cached else ''})"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> InstallReport:
        kept = _known(cls, values)
        kept["installed"] = [InstalledPackage(**each) for each in kept.get("installed", ())]
        return cls(**kept)


@dataclass(slots=True)
class KernelRecord:
    """A kernel, as it was when this was made. Functions take the record, the name or the id.

    - ``kernel_id``: its id; a kernel that is destroyed and made again has another
    - ``name``: its name in this home
    - ``status``: ``idle`` or ``busy``; ``unreachable`` if it did not answer
      ``list_kernels(refresh=True)``
    - ``epoch``, ``state``, ``cause``: as in :class:`ExecutionResult`
    - ``created_at``, ``last_used_at``: seconds since 1970
    - ``attempt_count``: how many executions it has been asked for
    - ``session_name``, ``tags``: what ``get_or_create`` was given when it was made
    - ``kernel_type``: ``python3`` is ours; others are named after their kernelspec
    - ``parent``: the id of the kernel that it is a branch of, or None
    - ``made_by``: ``start``; of a branch ``fork`` or ``copy``; ``template``; or ``load``
    - ``profile``: the walls around it: ``open`` means none
    - ``notes``: what else there is to know, in sentences: what a branch could not carry, why a
      start took longer
    - ``connection_file``: for Jupyter clients (``jupyter console --existing …``)
    - ``address``: the socket it listens on; for our own use
    """

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
    made_by: str = "start"
    profile: str = "open"
    notes: list[str] = field(default_factory=list)
    address: str = ""

    def __hash__(self) -> int:
        return hash(self.kernel_id)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> KernelRecord:
        return cls(**_known(cls, values))


__all__ = [
    "AttemptSnapshot",
    "Checkpoint",
    "ErrorInfo",
    "ExecutionResult",
    "Image",
    "InstallReport",
    "InstalledPackage",
    "KernelRecord",
    "OutputItem",
    "OutputMatch",
    "OutputPage",
    "SaveReport",
    "State",
    "Status",
]
