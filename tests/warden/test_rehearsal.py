"""The rehearsal in the root: it may fail, it may not hang, and it never ends the root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelbox.warden.rehearsal import rehearse


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_rehearsal_leaves_nothing_open(tmp_path: Path) -> None:
    rehearse(str(tmp_path))  # what is opened once and for all
    before = open_descriptors()
    rehearse(str(tmp_path))
    assert open_descriptors() == before


def test_a_rehearsal_without_a_stage_fails_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    """As when somebody takes the folder away, or the disk is full."""
    stage = tmp_path / "stage"
    stage.mkdir()
    (stage / "r" / "draft.json").mkdir(parents=True)  # no connection file can be written
    before = open_descriptors()
    with pytest.raises((RuntimeError, TimeoutError, OSError)):
        rehearse(str(stage))
    assert open_descriptors() == before
