"""A kernel with a Jupyter client attached."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelbox import KernelRecord

sys.path.insert(0, str(Path(__file__).parent))  # for jupyter_clients, which the tests here share

from jupyter_clients import Client, attached  # noqa: E402


@pytest.fixture
def client(kernel: KernelRecord) -> Iterator[Client]:
    with attached(kernel) as made:
        yield made
