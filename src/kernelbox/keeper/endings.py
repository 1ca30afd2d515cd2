"""Kernels that are being destroyed, and who waits to hear that they are gone."""

from __future__ import annotations

from kernelbox.keeper.families import FamilyLink, Reply


class Endings:
    """One entry per kernel, however many callers destroy it at once."""

    def __init__(self) -> None:
        self._by_kernel: dict[str, tuple[FamilyLink | None, list[Reply]]] = {}

    def __contains__(self, kernel_id: object) -> bool:
        return kernel_id in self._by_kernel

    def __len__(self) -> int:
        return len(self._by_kernel)

    def begin(self, kernel_id: str, link: FamilyLink | None, reply: Reply) -> bool:
        """Wait for a kernel's end; False if it is under way already."""
        under_way = kernel_id in self._by_kernel
        self._by_kernel.setdefault(kernel_id, (link, []))[1].append(reply)
        return not under_way

    def of(self, link: FamilyLink) -> list[str]:
        """The kernels of a family that are ending."""
        return [key for key, (family, _) in self._by_kernel.items() if family is link]

    def finish(self, kernel_id: str) -> None:
        """All its processes are gone: tell everyone."""
        _, replies = self._by_kernel.pop(kernel_id, (None, ()))
        for reply in replies:
            reply({"destroyed": True, "kernel_id": kernel_id})
