"""Walls in a request: one of the names, or an object with the fields of a profile.

What a field takes by itself is in the schema; what has to fit together is for
:class:`kernelbox.walls.profiles.Profile` to say, in its own words. An object always has walls, and
it never names a place of this machine, but for what the operator lets be mounted.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from kernelbox.errors import BadInput
from kernelbox.server.errors import Refused
from kernelbox.server.reception import Guest
from kernelbox.walls.profilefiles import size
from kernelbox.walls.profiles import COUNTS, SIZES, Profile, mounts_from, named

_MOST = 2**50  # exact in every JSON
_PATH = r"^/[^\x00]*$"


def _whole(value: object) -> object:
    """In JSON, 2.0 is a whole number too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# "512MB", "1GiB": from the least memory that a profile takes on.
_Words = Annotated[
    str,
    Field(pattern=r"^((1[7-9]|[2-9][0-9]|[1-9][0-9]{2,5}) ?Mi?B|[1-9][0-9]{0,5} ?Gi?B)$"),
]
# Limits before the validator: around it, they would not be in the schema.
_Memory = Annotated[int, Field(ge=SIZES["memory"], le=_MOST), BeforeValidator(_whole)] | _Words
_FileSize = Annotated[int, Field(ge=SIZES["file_size"], le=_MOST), BeforeValidator(_whole)] | _Words
_Disk = Annotated[int, Field(ge=SIZES["disk"], le=_MOST), BeforeValidator(_whole)] | _Words
_Processes = Annotated[int, Field(ge=COUNTS["processes"], le=_MOST), BeforeValidator(_whole)]
_OpenFiles = Annotated[int, Field(ge=COUNTS["open_files"], le=_MOST), BeforeValidator(_whole)]
_Cpus = Annotated[float, Field(ge=0.01, le=4096)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class MountBody(_Strict):
    """A folder of the service's machine: one that KERNELBOX_HTTP_MOUNTS names."""

    source: str = Field(pattern=_PATH, max_length=4000)
    target: str | None = Field(
        default=None, pattern=_PATH, max_length=4000, description="Default: the same place"
    )
    mode: Literal["ro", "rw"] = "ro"


class ProfileBody(_Strict):
    """Walls of one's own. What is left out is as in ``profile``."""

    profile: Literal["permissive", "moderate", "restrictive"] = Field(
        default="moderate", description="What the rest changes"
    )
    name: str | None = Field(
        default=None, min_length=1, max_length=128, pattern=r"^[!-~]([ -~]*[!-~])?$"
    )
    driver: Literal["process", "gvisor"] = "process"
    network: Literal["on", "off"] = Field(
        default="on", description="Through KernelBox's proxy, or not at all"
    )
    allow: list[str] = Field(
        default=["*"], max_length=1000, description="Domains: pypi.org, *.example.com, …"
    )
    cwd: Literal["rw", "ro", "none"] = "none"
    home: Literal["ro", "none"] = "none"
    environment: Literal["filtered", "minimal"] = "minimal"
    root: Literal["overlay", "readonly"] = "overlay"
    scratch: Literal["private", "tmpfs"] = "private"
    memory: _Memory | None = Field(default=None, description="Bytes; null: no limit")
    soft_memory: _Memory | None = Field(
        default=None, description="Bytes at which a cell gets a MemoryError"
    )
    cpus: _Cpus | None = None
    processes: _Processes | None = None
    open_files: _OpenFiles | None = None
    file_size: _FileSize | None = None
    disk: _Disk | None = None
    syscalls: Literal["deny-list", "allow-list"] = "deny-list"
    mounts: list[MountBody] = Field(default=[], max_length=100)

    def checked(self) -> Profile:
        """The profile that is meant, or :class:`kernelbox.BadInput`."""
        said = self.model_dump(exclude_unset=True)
        if said.get("name") == "open":
            raise BadInput("walls cannot be called 'open', which means that there are none")
        base = named(said.pop("profile", "moderate"))
        if said.get("name") is None:
            said.pop("name", None)
        for field in SIZES:
            if isinstance(value := said.get(field), str):
                said[field] = size(value, field=field)
        if "mounts" in said:
            said["mounts"] = mounts_from(
                [
                    {name: value for name, value in mount.items() if value is not None}
                    for mount in said["mounts"]
                ]
            )
        return base.but(**said)


def _kind(value: object) -> str:
    return "name" if value is None or isinstance(value, str) else "object"


Walls = Annotated[
    Annotated[Literal["open", "permissive", "moderate", "restrictive"], Tag("name")]
    | Annotated[ProfileBody, Tag("object")],
    Discriminator(_kind),
]


def walls_for(guest: Guest, wanted: str | ProfileBody | None) -> str | Profile | None:
    """The walls that a guest asks for, as far as a request can say; what a tenant may have is for
    :class:`kernelbox.server.tenancy.Tenancy` to say."""
    if not isinstance(wanted, ProfileBody):
        return wanted
    # Before anything is said about them: which paths there are is not for a stranger to find out.
    for mount in wanted.mounts:
        if not guest.reception.server.may_mount(mount.source, mount.mode):
            raise Refused(
                403,
                "NotAllowed",
                f"{mount.source} cannot be mounted ({mount.mode}) by this service",
                hint="its operator names the folders that can be in KERNELBOX_HTTP_MOUNTS: "
                "/srv/data to be read, /srv/out:rw to be written, too",
            )
    return wanted.checked()
