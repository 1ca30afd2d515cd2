"""What requests carry and what answers look like, for checking the one and documenting both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from kernelbox.result import Checkpoint, InstallReport, KernelRecord, OutputMatch, SaveReport
from kernelbox.server.answers import to_json
from kernelbox.server.walls_body import Walls

# Letters of scripts whose blocks have no holes, so that every one of them is printable.
_LETTERS = "A-Za-z0-9À-ɏЀ-ӿぁ-ゖァ-ヺ一-鿿가-힣"
NAME_PATTERN = f"^[{_LETTERS}_][{_LETTERS}_ .:@+~-]{{0,95}}$"
SAVED_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
PACKAGE_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9._, -]*\])?[ -~]*$"
EXECUTION_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"

Name = Annotated[
    str,
    Field(
        pattern=NAME_PATTERN,
        description="A kernel's name: letters, digits, spaces and _ . : @ + ~ -",
        examples=["agent"],
    ),
]
NamePath = Annotated[str, Path(pattern=NAME_PATTERN, description="The session's name")]
KernelPath = Annotated[str, Path(description="The kernel's id or name")]
ExecutionPath = Annotated[str, Path(description="The execution's id, as its result has it")]
SavedPath = Annotated[
    str, Path(pattern=SAVED_PATTERN, description="What the saved session is called")
]
FilePath = Annotated[str, Path(description="Relative to the kernel's folder")]
StreamQuery = Annotated[Literal["stdout", "stderr"], Query(description="Which output is meant")]


def _whole(value: object) -> object:
    """In JSON, 2.0 is a whole number too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Limits before the validator: around it, they would not be in the schema.
Epoch = Annotated[int, BeforeValidator(_whole)]
Attempts = Annotated[int, Field(ge=1, le=100), BeforeValidator(_whole)]
Cells = Annotated[int, Field(ge=1, le=1000), BeforeValidator(_whole)]
Cursor = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
# A parameter may be left out, but there is no way to write null in a header or a query.
Absent = SkipJsonSchema[None]
_LARGEST_TAGS = 64 << 10


def _not_too_large(tags: dict[str, Any] | list[str]) -> dict[str, Any] | list[str]:
    """Every record carries its tags, and every listing all of them."""
    if len(to_json(tags)) > _LARGEST_TAGS:
        raise ValueError(f"tags may have {_LARGEST_TAGS:,} bytes as JSON")
    return tags


Tags = Annotated[
    dict[str, str | int | float | bool | None] | list[str], AfterValidator(_not_too_large)
]


class _Body(BaseModel):
    """A body: nothing is guessed, and a misspelt field is told of."""

    model_config = ConfigDict(strict=True, extra="forbid")


class CreateKernel(_Body):
    name: Name | None = Field(default=None, description="Made up if there is none")
    session_name: str | None = Field(default=None, max_length=1000)
    tags: Tags = Field(default_factory=dict, description="Means nothing to us; comes back")
    cwd: str | None = Field(
        default=None,
        min_length=1,
        max_length=4000,
        pattern=r"^[^\x00]*$",
        description="The folder that it starts in; default: the service's. Not for tenants",
    )
    template: str | None = Field(
        default=None,
        min_length=1,
        description="A live kernel to copy, by id or name; none that has walls",
    )
    profile: Walls | None = Field(
        default=None,
        description="The walls around it, by name or as an object; default: KERNELBOX_PROFILE. A "
        "tenant's kernel has some always: by default `moderate`, unless KERNELBOX_PROFILE names "
        "walls; less may be asked for, and what shows more, or lets more, is 403",
        examples=["restrictive", {"profile": "restrictive", "memory": 512 * 1024**2}],
    )


class CreateSession(_Body):
    tags: Tags = Field(default_factory=dict, description="For a new kernel only")


class Execute(_Body):
    code: str = Field(examples=["x = [1, 2, 3]\nsum(x)"])
    language: Literal["python", "bash"] = "python"
    timeout: Seconds | None = Field(
        default=None, description="Seconds that it may run; default: KERNELBOX_EXECUTION_TIMEOUT"
    )
    expect_epoch: Epoch | None = Field(
        default=None, description="Run only at this epoch; at any other nothing is run: 409"
    )
    execution_id: str | None = Field(
        default=None, pattern=EXECUTION_PATTERN, description="Made up if there is none"
    )
    atomic: bool = Field(default=False, description="If it fails, the kernel is as it was before")
    on_disconnect: Literal["interrupt", "continue"] | None = Field(
        default=None,
        description="What becomes of the cell when the caller goes away; default: interrupt, or "
        "continue with an Idempotency-Key",
    )


class Repeated(_Body):
    code: str
    language: Literal["python", "bash"] = "python"
    timeout: Seconds | None = None
    atomic: bool = Field(default=False, description="Every attempt starts from the same state")
    max_attempts: Attempts | None = Field(
        default=None, description="The first run included; default: KERNELBOX_MAX_RETRIES"
    )


class ExecuteRetry(Repeated):
    replacement_codes: list[str] = Field(
        default_factory=list,
        description="Code for the second attempt, the third, …; then the last code again",
    )


class ExecuteWithRetry(Repeated):
    on_error_code: str | None = Field(
        default=None, description="Code for every attempt after the first; default: the same"
    )


class Branch(_Body):
    name: Name | None = Field(default=None, description="The name of one branch")
    names: list[Name] | None = Field(
        default=None, min_length=1, max_length=64, description="Or of many, from one moment"
    )
    reseed: bool = Field(default=False, description="Random numbers of its own")
    files: Literal["share", "copy"] = "share"
    method: Literal["auto", "fork", "copy"] = "auto"


class TakeCheckpoint(_Body):
    label: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None


class Install(_Body):
    packages: list[Annotated[str, Field(pattern=PACKAGE_PATTERN, max_length=300)]] = Field(
        min_length=1,
        max_length=200,
        description="Names, with versions if you like; no options, paths or addresses",
        examples=[["pandas==2.*"]],
    )
    upgrade: bool = Field(default=False, description="Newer versions of what is there already")


class Rewind(_Body):
    checkpoint: str = Field(min_length=1, description="A checkpoint's id or label")


class Undo(_Body):
    n: Cells = Field(default=1, description="How many cells")


class Save(_Body):
    name: Annotated[str, Field(pattern=SAVED_PATTERN)] | None = Field(
        default=None, description="What to call it; made up if there is none"
    )


class Load(_Body):
    name: Name = Field(description="The name of the new kernel")
    trust: bool = Field(
        default=False,
        description="Load it although another home saved it: that runs code which is in it, behind "
        "the walls that it was saved behind, as far as a tenant may have them",
    )


class Complete(_Body):
    code: str
    cursor: Cursor | None = Field(default=None, description="Default: the end of the code")


# -- answers ------------------------------------------------------------------------------------


@dataclass
class Kernel(KernelRecord):
    """A kernel; ``age_seconds`` is how long ago it was made."""

    age_seconds: float = 0.0


@dataclass
class Kernels:
    kernels: list[Kernel]


@dataclass
class KernelStatus:
    """What a kernel is doing: ``running`` is null or what runs, ``queued`` how many cells wait."""

    alive: bool
    kernel: Kernel
    running: dict[str, Any] | None
    queued: int
    recent: list[dict[str, Any]]
    cwd: str
    processes: list[dict[str, Any]]
    stack: str | None


@dataclass
class Destroyed:
    destroyed: bool


@dataclass
class AllDestroyed:
    """The ids of what was destroyed."""

    destroyed: list[str]


@dataclass
class Interrupted:
    """False: nothing ran."""

    interrupted: bool


@dataclass
class Cancelled:
    """False: it neither waited nor ran."""

    cancelled: bool


@dataclass
class CheckpointTaken:
    checkpoint_id: str


@dataclass
class Checkpoints:
    checkpoints: list[Checkpoint]


@dataclass
class Installed(InstallReport):
    """What the kernel has now and had not before."""


@dataclass
class Dropped:
    dropped: bool


@dataclass
class Matches:
    matches: list[str]


@dataclass
class Page:
    """A part of an execution's output; ``missing`` characters of it are not kept any more. With
    ``search``, ``matches`` has the lines that match instead."""

    text: str = ""
    start: int = 0
    end: int = 0
    total: int = 0
    missing: int = 0


@dataclass
class Found:
    """The lines that match; if there are as many as ``limit``, there may be more."""

    matches: list[OutputMatch]


@dataclass
class File:
    """``kind`` is file, folder, link or other."""

    name: str
    kind: str
    size: int
    modified_at: float


@dataclass
class Files:
    path: str
    files: list[File]


@dataclass
class Written:
    path: str
    size: int


@dataclass
class Deleted:
    deleted: bool


@dataclass
class Saved(SaveReport):
    """What was saved, and under which ``name``."""

    name: str = ""


@dataclass
class SavedFile:
    name: str
    size: int
    saved_at: float


@dataclass
class SavedFiles:
    saved: list[SavedFile]


@dataclass
class Health:
    status: str
    service: str
    version: str


@dataclass
class Link:
    href: str
    description: str


@dataclass
class Root:
    service: str
    version: str
    links: dict[str, Link] = field(default_factory=dict)
