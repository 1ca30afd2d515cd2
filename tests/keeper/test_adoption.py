"""What a new keeper makes of the kernels that an earlier one has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kernelbox import Box, Settings

Waiting = Callable[..., None]
Find = Callable[[Box], list[psutil.Process]]


def names(box: Box) -> set[str]:
    return {record.name for record in box.list_kernels()}


@pytest.mark.slow
def test_a_kernel_of_which_it_hears_late_is_ended_when_idle(
    box: Box, keepers: Find, waiting: Waiting
) -> None:
    hasty = Settings.from_wire({**box.settings.to_wire(), "kernel_idle_timeout": 2.0})
    with Box(hasty) as other:
        record = other.get_or_create("late")
        (pid,) = (p["pid"] for p in other.status(record)["processes"] if p["role"] == "warden")
    registry = Path(box.settings.registry_path)
    waiting(
        lambda: registry.exists() and record.kernel_id in registry.read_text(),
        what="the registry to be written",
    )
    (keeper,) = keepers(box)
    warden = psutil.Process(pid)
    warden.suspend()
    try:
        keeper.kill()
        waiting(lambda: not keepers(box), what="the keeper to die")
        assert names(box) == {"late"}  # the new one has waited for its warden, in vain
    finally:
        warden.resume()
    waiting(lambda: not names(box), what="it to be ended", seconds=20)
