"""Kernels that are being made, and who waits to hear that they are there."""

from __future__ import annotations

from collections.abc import Iterator

from kernelbox.errors import BoxError
from kernelbox.keeper.families import Answer, Reply


class Beginnings:
    """One entry per name, however many callers want it at once."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Reply]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._waiting))

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, name: str, reply: Reply) -> None:
        """A kernel is made for whoever this is."""
        self._waiting[name] = [reply]

    def join(self, name: str, reply: Reply) -> None:
        """Wait for one that is being made for somebody else."""
        self._waiting[name].append(reply)

    def abandon(self, *names: str) -> None:
        """It could not even be begun, for which only its caller has waited, and is told."""
        for name in names:
            self._waiting.pop(name, None)

    def finish(self, name: str, content: Answer) -> None:
        """Tell everyone; it was created for the first."""
        first = True
        for reply in self._waiting.pop(name, ()):
            if isinstance(content, BoxError) or first:
                reply(content)
            else:
                reply({**content, "created": False})
            first = False
