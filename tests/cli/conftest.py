"""The command line as a shell would run it: a process of its own, in a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import such, wait_until

from kernelbox import Box, Settings
from kernelbox.cli import entry
from kernelbox.keeper.home import locate

PATIENCE = 60


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it said."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def json(self) -> Any:
        """The one line of standard output."""
        (line,) = self.stdout.splitlines()
        return json.loads(line)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def error(self) -> Any:
        """The one line of standard error."""
        (line,) = self.stderr.splitlines()
        return json.loads(line)


class Shell:
    """Runs ``kernelbox …`` in one home."""

    program = (sys.executable, "-P", "-m", "kernelbox")

    def __init__(self, home: Path, **environ: str) -> None:
        self.folder = home.parent
        kept = {key: value for key, value in os.environ.items() if not key.startswith("KERNELBOX_")}
        self.environ = {**kept, "KERNELBOX_HOME": str(home), **environ}

    def __call__(self, *words: str, stdin: bytes = b"", **environ: str) -> Done:
        done = subprocess.run(
            [*self.program, *words],
            input=stdin,
            capture_output=True,
            env={**self.environ, **environ},
            cwd=self.folder,
            timeout=PATIENCE,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def started(self, *words: str, ignores: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A command that runs on; it is ended if the test does not."""

        def prepare() -> None:
            # Whoever runs the tests in the background has us ignore Ctrl-C; a shell would not.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if ignores is not None:
                signal.signal(ignores, signal.SIG_IGN)

        process = subprocess.Popen(
            [*self.program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environ,
            cwd=self.folder,
            preexec_fn=prepare,  # noqa: PLW1509 - no test has threads while it starts one
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    @property
    def settings(self) -> Settings:
        return Settings.from_environment(self.environ)


@contextmanager
def shell_in(folder: Path, **environ: str) -> Iterator[Shell]:
    """A home that is gone in the end, with all its processes."""
    shell = Shell(folder / "home", KERNELBOX_SPARES="0", KERNELBOX_KEEPER_LINGER="0.1", **environ)
    yield shell
    place = locate(shell.settings)
    if any(Path(place.rundir).glob("*.sock")):
        with Box(shell.settings) as box:
            box.wipe()
    wait_until(
        lambda: not such(lambda process: place.rundir in " ".join(process.cmdline())),
        what=f"processes of {place.rundir} to end",
    )
    assert list(Path(place.rundir).glob("*.sock")) == []
    assert list(Path(place.runtime_dir).glob("*")) == []


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One home for all the small tests; each uses a kernel of its own name."""
    with shell_in(tmp_path_factory.mktemp("cli")) as made:
        made("create", "--name", "anchor")  # so that the keeper stays
        yield made


@pytest.fixture
def own_shell(tmp_path: Path) -> Iterator[Shell]:
    """A home for one test."""
    with shell_in(tmp_path) as made:
        yield made


@pytest.fixture
def kernels(shell: Shell) -> Iterator[Box]:
    """The same home, from the inside."""
    with Box(shell.settings) as made:
        yield made


@pytest.fixture
def name(request: pytest.FixtureRequest, shell: Shell) -> Iterator[str]:
    """A kernel's name that no other test uses; what is called like it goes with the test."""
    name = str(request.node.name)[:100].replace("/", "_")
    yield name
    with Box(shell.settings) as box:
        for record in box.list_kernels():
            if record.name.startswith(name):
                box.destroy(record)


class Inside:
    """The same commands in this process, which saves the time that a Python takes to start."""

    def __init__(
        self, shell: Shell, patching: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]
    ) -> None:
        self._patching = patching
        self._capture = capture
        self.environ = shell.environ
        self.settings = shell.settings
        self.started = shell.started
        self.folder = shell.folder

    def __call__(self, *words: str, **environ: str) -> Done:
        with self._patching.context() as patching:
            patching.chdir(self.folder)
            for variable, value in {**self.environ, **environ}.items():
                patching.setenv(variable, value)
            self._capture.readouterr()
            code = entry.main(words)
            return Done(code, *self._capture.readouterr())


@pytest.fixture
def cli(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Inside:
    return Inside(shell, monkeypatch, capfdbinary)


@pytest.fixture
def own_cli(
    own_shell: Shell, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Inside:
    return Inside(own_shell, monkeypatch, capfdbinary)
