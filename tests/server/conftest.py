"""Services for the tests of the HTTP entrance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from http_service import Service, Start, services


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with services(tmp_path) as starter:
        yield starter


@pytest.fixture(scope="module")
def shared_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with services(tmp_path_factory.mktemp("service")) as starter:
        yield starter


@pytest.fixture(scope="module")
def service(shared_start: Start) -> Service:
    """One service for a module of small tests that each use a kernel of their own name."""
    started = shared_start()
    started.execute("anchor", "1")  # keeps the keeper, and its warm root, from leaving
    return started
