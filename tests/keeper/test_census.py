"""The list of kernels, with a fresh word from each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from kernelbox import Box, KernelRecord


def warden_of(box: Box, kernel: KernelRecord) -> psutil.Process:
    (pid,) = (p["pid"] for p in box.status(kernel)["processes"] if p["role"] == "warden")
    return psutil.Process(pid)


@pytest.mark.slow
def test_who_does_not_answer_is_unreachable_and_who_has_ended_is_not_listed(box: Box) -> None:
    stopped, killed = box.get_or_create("stopped"), box.get_or_create("killed")
    victim, sleeper = warden_of(box, killed), warden_of(box, stopped)
    sleeper.suspend()
    try:
        with ThreadPoolExecutor(1) as pool, Box(box.settings) as other:
            listing = pool.submit(other.list_kernels, refresh=True)
            victim.kill()
            assert [(r.name, r.status) for r in listing.result(20)] == [("stopped", "unreachable")]
    finally:
        sleeper.resume()
    assert [record.name for record in box.list_kernels(refresh=True)] == ["stopped"]
