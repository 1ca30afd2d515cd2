"""Promise: whatever way a session goes (branch, rewind, undo, restart, bash), it stays inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from probes import ALL, PROFILES, Probe, Sandboxes, bash
from processes import wait_until

from kernelbox import Box, Unsupported

TELLING = [
    Probe("a secret", "read('@aside@/secret.txt', '@file_word@')"),
    Probe("a key", "read('@home@/.ssh/id_ed25519', '@key_word@')"),
    Probe("the host's loopback", "socket.create_connection(('127.0.0.1', @tcp@), 2); breach()"),
    Probe("a new namespace", "in_child(lambda: attempt('unshare', 0x10000000))"),
    Probe("rights", """
facts = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
ok = all(int(facts.get(n, '0'), 16) == 0 for n in ('CapEff', 'CapPrm', 'CapBnd', 'CapAmb', 'CapInh'))
denied() if ok and _libc.prctl(39, 0, 0, 0, 0) == 1 and facts['Seccomp'] == '2' and facts['Uid'].split() == ['1000'] * 4 else breach(facts)
"""),
    bash("all of it in bash", "cat @aside@/secret.txt && echo BREACH; (exec 3<>/dev/tcp/127.0.0.1/@tcp@) && echo BREACH; unshare -Ur true && echo BREACH; kill -0 @pid@ && echo BREACH; [[ -z $(cat /proc/self/status) ]] || grep -q 'CapEff:.*0000000000000000' /proc/self/status || echo BREACH"),
]  # fmt: skip

Step = Callable[[Box, str], str]


def _branch(box: Box, name: str) -> str:
    return box.branch(name, f"{name}-branch").name


def _branch_of_branch(box: Box, name: str) -> str:
    return box.branch(box.branch(name, f"{name}-one"), f"{name}-two").name


def _rewind(box: Box, name: str) -> str:
    mark = box.checkpoint(name)
    box.execute(name, "x = 'other'")
    box.rewind(name, mark)
    assert box.execute(name, "x").return_value == "'first'"
    return name


def _undo(box: Box, name: str) -> str:
    assert box.execute(name, "x = 'other'; 1/0", atomic=True).state == "rewound"
    assert box.execute(name, "x").return_value == "'first'"
    return name


def _undo_of_a_death(box: Box, name: str) -> str:
    assert box.execute(name, "import os; os._exit(1)", atomic=True).state == "rewound"
    return name


def _restart(box: Box, name: str) -> str:
    box.restart(name)
    return name


def _death(box: Box, name: str) -> str:
    assert box.execute(name, "import os; os.kill(os.getpid(), 9)").state == "lost"
    return name


STEPS = {
    "branch": _branch,
    "branch of a branch": _branch_of_branch,
    "rewind": _rewind,
    "undo": _undo,
    "undo of a death": _undo_of_a_death,
    "restart": _restart,
    "death": _death,
}


@pytest.fixture(scope="module")
def start(sandboxes: Sandboxes) -> Iterator[Callable[[str, str], str]]:
    made: list[str] = []

    def start(how: str, profile: str) -> str:
        name = f"{how.replace(' ', '-')}-{profile}"
        sandboxes.box.get_or_create(name, cwd=sandboxes.folder, profile=PROFILES[profile])
        sandboxes.box.execute(name, "x = 'first'")
        made.append(name)
        return name

    yield start
    for record in sandboxes.box.list_kernels():
        if any(record.name.startswith(name) for name in made):
            sandboxes.box.destroy(record)


@pytest.mark.parametrize("profile", ALL)
@pytest.mark.parametrize("how", STEPS)
def test_it_stays_behind_the_same_walls(
    sandboxes: Sandboxes, start: Callable[[str, str], str], how: str, profile: str
) -> None:
    name = STEPS[how](sandboxes.box, start(how, profile))
    for probe in TELLING:
        sandboxes.must_fail(probe, profile, kernel=name)
    assert sandboxes.box.status(name)["kernel"]["profile"] == PROFILES[profile].name


@pytest.mark.parametrize("probe", TELLING, ids=str)
def test_without_walls_the_probe_works(sandboxes: Sandboxes, probe: Probe) -> None:
    sandboxes.must_succeed(probe)


def test_all_that_is_forked_counts_against_one_limit(
    sandboxes: Sandboxes, start: Callable[[str, str], str]
) -> None:
    """Three times a third of the memory is too much, however many kernels share it."""
    name = start("limit", "restrictive")
    box = sandboxes.box
    fill = "data = bytearray(90_000_000)\ndata[::4096] = b'x' * len(data[::4096])"
    targets = (name, box.branch(name, f"{name}-a").name, box.branch(name, f"{name}-b").name)
    for target in targets:
        box.execute(target, fill)

    def kept() -> int:
        answers = [box.execute(target, "'data' in globals()").return_value for target in targets]
        return answers.count("True")

    wait_until(lambda: kept() < 3, what="somebody to go", seconds=3)
    assert box.execute(name, "1+1").return_value == "2"


def test_a_copy_without_walls_cannot_be_had(
    sandboxes: Sandboxes, start: Callable[[str, str], str]
) -> None:
    name = start("template", "restrictive")
    with pytest.raises(Unsupported, match="behind walls"):
        sandboxes.box.get_or_create("copy", template=name)
    assert "copy" not in [record.name for record in sandboxes.box.list_kernels()]
