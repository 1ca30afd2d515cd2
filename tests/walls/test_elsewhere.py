"""The contract and the promises of `restrictive`, again where user namespaces are closed, and as an
ordinary user: the same tests, in another environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import NOBODY, interpreter, run

from kernelbox.walls import ways

CONTRACT = ["tests/walls/test_walled_kernels.py", "tests/walls/test_locks.py"]
PROMISES = [
    f"tests/security/test_{name}.py"
    for name in (
        *("host_files", "writing_outside", "network", "processes", "kernel_surface", "forgeries"),
        *("branches_and_checkpoints", "refusals", "unix_sockets"),
    )
]
# What one can have in a moment is tried everywhere; the rest is the same on every way.
_ONE = ["-k", "(restrictive or not (moderate or permissive or without_walls)) and not gvisor"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(ways.look().kind == "locks", reason="user namespaces are closed here"),
]


@pytest.fixture
def home() -> Iterator[Path]:
    """One that an ordinary user can get to, whatever the rights of the folders of pytest are."""
    folder = Path("/tmp") / f"kernelbox-elsewhere-{os.getpid()}-{os.urandom(4).hex()}"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


EVERYTHING = [*CONTRACT, *PROMISES]
_SOAK = pytest.mark.skipif(
    not os.environ.get("KERNELBOX_SOAK"), reason="a soak test: KERNELBOX_SOAK=1 runs it"
)
PLACES = [
    pytest.param("unshare", 0, EVERYTHING, id="no namespaces"),
    pytest.param("mount", NOBODY, CONTRACT, id="no mounts, ordinary user"),
    pytest.param("open", NOBODY, EVERYTHING, id="ordinary user"),
    # The same promises, in places between these three.
    pytest.param("mount", NOBODY, PROMISES, id="promises, no mounts, ordinary user", marks=_SOAK),
    pytest.param("unshare", NOBODY, EVERYTHING, id="no namespaces, ordinary user", marks=_SOAK),
    pytest.param("mount", 0, EVERYTHING, id="no mounts", marks=_SOAK),
]


@pytest.mark.parametrize(("how", "uid", "tests"), PLACES)
def test_restrictive_holds_there_too(
    home: Path, how: str, uid: int, tests: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _passes(how, uid, home, [*tests, *_ONE], capsys)


def _passes(
    how: str, uid: int, home: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if uid and os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    if not interpreter(uid or NOBODY):
        pytest.skip("there is no Python with our packages that an ordinary user can run")
    outcome = run(how, uid, home, words, seconds=190)
    with capsys.disabled():
        print(f"\n  {how}, {'ordinary' if uid else 'whoever'}: {str(outcome).splitlines()[0]}")
    assert outcome.code == 0, str(outcome)
    assert outcome.counts.get("passed", 0) > 20, str(outcome)
