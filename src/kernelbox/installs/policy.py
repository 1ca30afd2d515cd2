"""What may be installed, decided by the host: which packages, from which indexes, built or not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelbox.config import Settings

_RUNS = re.compile(r"[-_.]+")


def plain_name(name: str) -> str:
    """The one spelling of a package's name: ``Foo._Bar`` is ``foo-bar``. Wildcards stay."""
    return _RUNS.sub("-", name).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Made of the settings of whoever answers for the kernel; a cell cannot change it."""

    who: str = "on"
    """``on``: callers and cells; ``callers``: no cells; ``off``: nobody."""
    allow: tuple[str, ...] = ("*",)
    """What may be asked for; what that depends on comes along."""
    block: tuple[str, ...] = ()
    """What never comes, also not because another package wants it. It beats ``allow``."""
    indexes: tuple[str, ...] = ()
    """The only indexes, the first of them the default one; none: those of the host's own
    configuration."""
    source: bool = False
    """Whether packages may be built on the host, which runs their code there."""
    timeout: float = 300.0
    size: int = 8 << 30
    """Bytes that the packages of one kernel may have on disk."""
    cache_size: int = 20 << 30

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        return cls(
            who=settings.install,
            allow=settings.install_allow,
            block=settings.install_block,
            indexes=settings.install_indexes,
            source=settings.install_source == "allow",
            timeout=settings.install_timeout,
            size=settings.install_size,
            cache_size=settings.install_cache_size,
        )

    def refuses_everything(self, *, cell: bool) -> str:
        """Why this caller may install nothing at all; empty if it may."""
        if self.who == "off":
            return "installing is switched off here (KERNELBOX_INSTALL=off)"
        if self.who == "callers" and cell:
            return (
                "code may not install packages here (KERNELBOX_INSTALL=callers); whoever runs "
                "this kernel can: install(kernel, 'name')"
            )
        return ""

    def refuses(self, name: str, *, asked_for: bool) -> str:
        """Why this package may not come; empty if it may."""
        plain = plain_name(name)
        if pattern := _matching(plain, self.block):
            return f"{plain} is blocked here (KERNELBOX_INSTALL_BLOCK has {pattern!r})"
        if asked_for and not _matching(plain, self.allow):
            allowed = ", ".join(self.allow[:20]) or "nothing"
            return f"{plain} is not allowed here (KERNELBOX_INSTALL_ALLOW has: {allowed})"
        return ""

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Policy:
        lists = {name: tuple(values[name]) for name in ("allow", "block", "indexes")}
        return cls(**{**values, **lists})


def _matching(plain: str, patterns: tuple[str, ...]) -> str:
    for pattern in patterns:
        if fnmatchcase(plain, plain_name(pattern)):
            return pattern
    return ""
