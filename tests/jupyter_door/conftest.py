"""A service with a Jupyter door, and kernels behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from http_service import Service, Start, services
from kernel_sockets import Talk, talking

from kernelbox import Box, Settings


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with services(tmp_path) as starter:
        yield starter


@pytest.fixture(scope="module")
def shared_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with services(tmp_path_factory.mktemp("door")) as starter:
        yield starter


@pytest.fixture(scope="module")
def service(shared_start: Start) -> Service:
    """One service for a module of tests that each start a kernel of their own."""
    started = shared_start()
    started.execute("anchor", "1")  # keeps the keeper, and its warm root, from leaving
    return started


@pytest.fixture(scope="module")
def home(service: Service) -> Iterator[Box]:
    """The service's home, reached as any program on this machine would."""
    settings = Settings(
        registry_path=str(service.home / "registry.json"),
        runtime_dir=str(service.home / "runtime"),
        spares=0,
        keeper_linger=0.1,
    )
    with Box(settings) as box:
        yield box


@pytest.fixture
def kernel(service: Service) -> Iterator[str]:
    """The id of a fresh kernel, started by a Jupyter client."""
    reply = service.http.post("/api/kernels", json={"name": "python3"})
    assert reply.status_code == 201, reply.text
    kernel_id = reply.json()["id"]
    yield kernel_id
    service.http.delete(f"/api/kernels/{kernel_id}")


@pytest.fixture
def talk(service: Service, kernel: str) -> Iterator[Talk]:
    with talking(service, kernel) as connected:
        yield connected


@pytest.fixture
def attached(service: Service) -> Callable[[str], int]:
    """How many clients a kernel has, as the service says."""

    def count(kernel: str) -> int:
        number: int = service.http.get(f"/api/kernels/{kernel}").json()["connections"]
        return number

    return count
