"""Shell completion, in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelbox.cli.completion import SCRIPTS, candidates

KERNELS = [("demo", "id-1"), ("my kernel", "id-2")]


@pytest.mark.parametrize(
    ("before", "current", "some", "none"),
    [
        ([], "ch", {"checkpoint", "checkpoints"}, {"create"}),
        ([], "", {"exec", "--help"}, set()),
        (["help"], "ex", {"exec"}, set()),
        (["exec"], "--na", {"--name"}, {"--bash"}),
        (["exec", "--name", "demo"], "-", {"--bash", "-f"}, {"--name"}),
        (["exec", "--name"], "", {"demo", "my kernel"}, {"id-1"}),
        (["exec", "--name"], "my", {"my kernel"}, {"demo"}),
        (["status", "--id"], "", {"id-1", "id-2"}, {"demo"}),
        (["branch", "--files"], "", {"share", "copy"}, {"--to"}),
        (["branch", "--to", "a"], "--", {"--to"}, set()),
        (["completion"], "", {"bash", "zsh", "fish"}, {"--name"}),
        (["exec", "-f"], "x", set(), {"demo"}),
        (["nonsense"], "", set(), {"demo"}),
    ],
)
def test_what_a_word_could_become(
    before: list[str], current: str, some: set[str], none: set[str]
) -> None:
    found = set(candidates(before, current, lambda: KERNELS))
    assert some <= found
    assert not none & found


@pytest.fixture(scope="module")
def path_with_kernelbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``kernelbox`` in it, as an installation would put it on the PATH."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "kernelbox"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m kernelbox "$@"\n')
    program.chmod(0o755)
    return folder


def run_in(program: str, script: str, shell: Any, folder: Path) -> str:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    environ = {**shell.environ, "PATH": f"{folder}:{shell.environ['PATH']}", "TERM": "dumb"}
    done = subprocess.run(
        [program, *(("-f",) if program == "zsh" else ()), "-c", script],
        capture_output=True,
        text=True,
        env=environ,
        cwd=folder,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


def in_bash(shell: Any, folder: Path, *words: str) -> list[str]:
    line = " ".join(f"'{word}'" for word in words)
    script = f"""
eval "$(kernelbox completion bash)"
complete -p kernelbox >/dev/null || exit 9
COMP_WORDS=(kernelbox {line}); COMP_CWORD={len(words)}
_kernelbox
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return run_in("bash", script, shell, folder).split("\n")[:-1]


def test_bash_completes_commands_options_and_names(
    shell: Any, path_with_kernelbox: Path, name: str
) -> None:
    shell("create", "--name", f"{name} spaced")
    assert in_bash(shell, path_with_kernelbox, "checkpoint") == ["checkpoint", "checkpoints"]
    assert in_bash(shell, path_with_kernelbox, "exec", "--ti") == ["--timeout"]
    assert in_bash(shell, path_with_kernelbox, "exec", "--name", name) == [f"{name}\\ spaced"]


def test_completion_starts_no_keeper(own_shell: Any) -> None:
    from kernelbox.keeper.home import locate

    done = own_shell("__complete", "exec", "--name", "")
    assert (done.code, done.stdout, done.stderr) == (0, b"", b"")
    assert not Path(locate(own_shell.settings).rundir).exists()


def test_zsh_takes_its_script_and_completes(shell: Any, path_with_kernelbox: Path) -> None:
    script = """
autoload -Uz compinit && compinit -u -D
eval "$(kernelbox completion zsh)"
_describe() { print -l -- "${(@P)2}" }
words=(kernelbox che); CURRENT=2
_kernelbox
"""
    said = run_in("zsh", script, shell, path_with_kernelbox).splitlines()
    assert [line.partition(":")[0] for line in said] == ["checkpoint", "checkpoints"]


def test_fish_takes_its_script_and_completes(shell: Any, path_with_kernelbox: Path) -> None:
    script = 'kernelbox completion fish | source; complete -C "kernelbox che"'
    said = run_in("fish", script, shell, path_with_kernelbox).splitlines()
    assert [line.partition("\t")[0] for line in said] == ["checkpoint", "checkpoints"]


def test_the_scripts_are_printed(cli: Any) -> None:
    for program, script in SCRIPTS.items():
        assert cli("completion", program).stdout.decode() == script
