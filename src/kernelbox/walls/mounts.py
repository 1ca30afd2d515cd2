"""Files and folders of the host that a sandbox sees."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from kernelbox.errors import BadInput
from kernelbox.walls.wording import did_you_mean, shown

Mode = Literal["ro", "rw"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host that a sandbox sees at ``target``."""

    source: str
    target: str
    mode: Mode = "ro"

    def check(self) -> Mount:
        for field in ("source", "target"):
            path = getattr(self, field)
            if not isinstance(path, str) or not _is_whole_path(path):
                raise BadInput(
                    f"the {field} of a mount takes a path from / on, without .. and without a "
                    f"slash at its end, not {shown(path)}",
                    field="mounts",
                )
            # A view of the host's processes or devices is a way out, and so is its whole tree.
            if path == "/" or path.startswith(("/proc/", "/sys/", "/dev/")) or path in _NEVER:
                raise BadInput(
                    f"{path} cannot be the {field} of a mount: a sandbox has a root, /proc, /sys "
                    f"and /dev of its own. Mount the folder that the code needs",
                    field="mounts",
                )
        if self.mode not in get_args(Mode):
            raise BadInput(
                f"the mode of a mount takes one of ro, rw; not {shown(self.mode)}", field="mounts"
            )
        return self

    def __str__(self) -> str:
        at = "" if self.source == self.target else f" at {self.target}"
        return f"{self.source}{at} ({self.mode})"


_NEVER = ("/proc", "/sys", "/dev")


def mounts_from(values: object) -> tuple[Mount, ...]:
    """Mounts as they travel: a list of ``{"source": …, "target": …, "mode": …}``."""
    if not isinstance(values, list | tuple):
        raise BadInput(f"mounts takes a list, not {shown(values)}", field="mounts")
    known = ("source", "target", "mode")
    made = []
    for value in values:
        if isinstance(value, Mount):
            made.append(value)
            continue
        if not isinstance(value, Mapping):
            raise BadInput(
                f"a mount takes source, target and mode, not {shown(value)}", field="mounts"
            )
        for key in value:
            if key not in known:
                raise BadInput(
                    f"a mount has no {shown(key)}; it has {', '.join(known)}"
                    f"{did_you_mean(key, known)}",
                    field="mounts",
                )
        if "source" not in value:
            raise BadInput("a mount has to name its source", field="mounts")
        made.append(Mount(**{"target": value["source"], **value}))
    return tuple(made)


def _is_whole_path(path: str) -> bool:
    # normpath leaves two slashes at the beginning as they are.
    if not path.startswith("/") or path.startswith("//"):
        return False
    return os.path.normpath(path) == path and path.isprintable()
