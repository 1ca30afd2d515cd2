"""Walls by the command line: by name or in a file, explained, and told when they cannot be had."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import closed
import pytest

from kernelbox import AsyncBox, Settings
from kernelbox.walls import ways

WAY = ways.look()
walled = pytest.mark.skipif(bool(WAY.why), reason=f"not all walls can be had here: {WAY.why}")
TOML = '[security]\nprofile = "restrictive"\n[resources]\nmemory = "300MiB"\n'
JSON = {"profile": "restrictive", "memory": "300MiB"}


@walled
@pytest.mark.parametrize("how", ["name", "toml", "json"])
def test_create_takes_walls(cli: Any, name: str, tmp_path: Path, how: str) -> None:
    (tmp_path / "walls.toml").write_text(TOML)
    (tmp_path / "walls.json").write_text(json.dumps(JSON))
    wanted = "restrictive" if how == "name" else str(tmp_path / f"walls.{how}")
    done = cli("create", "--name", name, "--profile", wanted)
    assert done.code == 0, done.stderr
    told = "restrictive" if how == "name" else "restrictive, changed"
    assert done.json["profile"] == told
    ran = cli("exec", "--name", name, "import os; os.path.exists('/etc/shadow')")
    assert ran.json["return_value"] == "False"
    cli("destroy", "--name", name)


def test_walls_that_mean_nothing_are_an_error_in_words(cli: Any, name: str) -> None:
    done = cli("create", "--name", name, "--profile", "restrictve")
    assert done.code != 0
    assert "did you mean 'restrictive'" in done.error["message"]


async def _with_walls(settings: Settings) -> str:
    async with AsyncBox(settings) as box:
        kernel = await box.get_or_create("walled", profile={"profile": "restrictive", "cpus": 1})
        try:
            return kernel.profile
        finally:
            await box.wipe()


@walled
def test_the_asynchronous_box_takes_the_same(environment: Path) -> None:
    assert asyncio.run(_with_walls(Settings.from_environment())) == "restrictive, changed"


@pytest.mark.parametrize("words", [(), ("restrictive",)], ids=["all", "one"])
def test_show_may_be_said_or_left_out(cli: Any, words: tuple[str, ...]) -> None:
    assert cli("profile", "show", *words).json == cli("profile", *words).json


def test_a_profile_says_which_way_it_is_held(cli: Any) -> None:
    facts = cli("profile", "restrictive").json
    assert facts["way"] in ("namespaces", "locks")
    assert bool(facts["leaks"]) == (facts["way"] == "locks")
    assert cli("profile", "open").json["way"] is None


def test_without_landlock_either_there_are_no_walls_and_a_reason(
    own_shell: Any, tmp_path: Path
) -> None:
    command = [sys.executable, closed.__file__, "nothing", "0", *own_shell.program]
    create = [*command, "create", "--name", "k", "--profile", "restrictive"]
    done = subprocess.run(create, capture_output=True, env=own_shell.environ, cwd=tmp_path)
    error = json.loads(done.stderr)
    assert error["error"] == "Unsupported"
    assert "no Landlock" in error["message"]
    listed = subprocess.run([*command, "list"], capture_output=True, env=own_shell.environ)
    assert json.loads(listed.stdout)["kernels"] == []


@pytest.mark.parametrize("how", ["unshare", "mount"])
def test_closed_namespaces_are_told_of(own_shell: Any, tmp_path: Path, how: str) -> None:
    def run(*words: str) -> Any:
        command = [sys.executable, closed.__file__, how, "0", *own_shell.program, *words]
        done = subprocess.run(command, capture_output=True, env=own_shell.environ, cwd=tmp_path)
        return json.loads(done.stdout)

    (walls,) = [c for c in run("doctor", "--no-kernel")["checks"] if c["check"] == "walls"]
    assert walls["status"] == "warn"
    assert "Landlock" in walls["found"] or "cannot be built" in walls["found"]
    assert "user namespaces" in walls["do"]
    moderate, restrictive = run("profile", "moderate"), run("profile", "restrictive")
    assert "only 'restrictive' can be had" in moderate["missing"]
    assert restrictive["way"] == "locks"
    assert restrictive["missing"] or any("stat" in leak for leak in restrictive["leaks"])
