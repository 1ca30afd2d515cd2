"""The service and its own OpenAPI agree: schemathesis tries every route, with all its checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from http_service import Service, Start

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_schemathesis_finds_no_difference(start: Start, tmp_path: Path) -> None:
    service = start(
        server={"api_token": "secret", "max_kernels": 10},
        settings={
            "execution_timeout": 0.5,
            "interrupt_grace": 0.2,
            "kill_grace": 0.5,
            "fork_timeout": 5,
            "kernel_idle_timeout": 0,
            "install_cache": str(tmp_path / "packages"),
            "install_indexes": [f"file://{tmp_path}/nowhere"],
        },
    )
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    played = subprocess.run(
        [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{service.url}/openapi.json",
            "--checks=all",
            "--header=Authorization: Bearer secret",
            "--max-examples=5",
            "--seed=1",
            "--no-color",
            "--suppress-health-check=all",
            "--generation-database=none",
        ],
        cwd=tmp_path,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "schema_hooks", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert played.returncode == 0, played.stdout[-20000:] + played.stderr[-2000:]


def test_every_route_documents_its_errors_in_one_shape(service: Service) -> None:
    schema = service.http.get("/openapi.json").json()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            if path in ("/", "/health"):
                continue
            statuses = operation["responses"]
            for status in ("401", "403", "413", "415", "422", "429", "500", "503"):
                assert status in statuses, (method, path, status)
            for status, response in statuses.items():
                if status >= "400":
                    shape = response["content"]["application/json"]["schema"]["$ref"]
                    assert shape.endswith("/ErrorBody"), (method, path, status)
