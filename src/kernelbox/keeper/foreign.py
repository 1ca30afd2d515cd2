"""Kernels that are not ours: any other installed kernelspec, through jupyter_client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelbox.errors import Unsupported
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from kernelbox.keeper.keeper import Keeper
    from kernelbox.keeper.roots import FamilyLink


def start_foreign(keeper: Keeper, request: Frame) -> FamilyLink:
    """Start the warden of a foreign kernel; it takes the same requests as one of ours."""
    raise Unsupported("foreign kernels are not built yet")
