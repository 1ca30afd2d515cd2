"""Promise: what a cell writes to the kernel's private socket changes nothing but its own result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from probes import ALL, PROFILES, Sandboxes
from processes import alive

from kernelbox import Box, KernelRecord

FORGE = """
import json, os, socket, struct, time
links = {}
for name in os.listdir('/proc/self/fd'):
    try: links[int(name)] = os.readlink(f'/proc/self/fd/{name}')
    except OSError: pass
(LIFELINE,) = [n for n, link in links.items() if n >= 500 and link.startswith('socket:')]
def say(**fields):
    body = json.dumps(fields).encode()
    os.write(LIFELINE, struct.pack('!I', len(body)) + body)
"""


@pytest.fixture(scope="module", params=ALL)
def forger(sandboxes: Sandboxes, request: pytest.FixtureRequest) -> Iterator[KernelRecord]:
    box = sandboxes.box
    name = f"forger-{request.param}"
    record = box.get_or_create(name, cwd=sandboxes.folder, profile=PROFILES[request.param])
    yield record
    box.destroy(record)


@pytest.fixture
def ready(sandboxes: Sandboxes, forger: KernelRecord) -> KernelRecord:
    assert sandboxes.box.execute(forger, FORGE).ok
    return forger


@pytest.fixture(autouse=True)
def nobody_else_is_affected(sandboxes: Sandboxes, host: dict[str, str]) -> Iterator[None]:
    box = sandboxes.box
    neighbour = box.get_or_create("neighbour", profile="restrictive")
    if box.execute(neighbour, "'mine' in globals()").return_value == "False":
        box.execute(neighbour, "mine = 'kept'")
    yield
    assert box.execute(neighbour, "mine").return_value == "'kept'"
    assert alive(int(host["pid"])), "a process of the host"


def _pid(box: Box, kernel: KernelRecord, role: str = "interpreter") -> int:
    (pid,) = [p["pid"] for p in box.status(kernel)["processes"] if p["role"] == role]
    return int(pid)


def test_a_hello_with_the_pid_of_a_process_of_the_host(
    sandboxes: Sandboxes, host: dict[str, str], ready: KernelRecord
) -> None:
    box = sandboxes.box
    before = _pid(box, ready)
    for pid in (host["pid"], "1", str(before), "0", "-1"):
        assert box.execute(ready, f"say(op='hello', pid={pid})").state == "kept"
        assert _pid(box, ready) == before
    # Were it believed, this is where somebody else would be signalled.
    result = box.execute(ready, f"say(op='hello', pid={host['pid']}); time.sleep(30)", timeout=0.3)
    assert result.status == "timeout"
    box.interrupt(ready)
    assert alive(int(host["pid"]))


def test_a_child_cannot_pose_as_the_interpreter(sandboxes: Sandboxes, ready: KernelRecord) -> None:
    before = _pid(sandboxes.box, ready)
    sandboxes.box.execute(
        ready,
        "if os.fork() == 0:\n    os.setsid()\n    say(op='hello', pid=os.getpid())\n    os._exit(0)\n"
        "os.wait()",
    )
    assert _pid(sandboxes.box, ready) == before


def test_credentials_cannot_be_forged(sandboxes: Sandboxes, ready: KernelRecord) -> None:
    """The kernel checks what pid a message claims to come from."""
    result = sandboxes.box.execute(
        ready,
        "s = socket.socket(fileno=os.dup(LIFELINE))\n"
        "try: s.sendmsg([b''.join([struct.pack('!I', 14), b'{\"op\":\"hello\"}'])],"
        " [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack('iii', 1, os.getuid(), os.getgid()))]); print('sent')\n"
        "except PermissionError: print('refused')\nfinally: s.close()",
    )
    assert result.output == "refused\n"


def test_lies_about_results_end_with_the_interpreter_that_told_them(
    sandboxes: Sandboxes, ready: KernelRecord
) -> None:
    """A cell can lie about itself, and so can whatever it has turned its own interpreter into."""
    box = sandboxes.box
    box.execute(
        ready,
        "for n in range(3): say(op='done', ok=True, execution_count=99, epoch=77, state='kept',"
        " execution_id='next', id='next', error=None, payload=[])",
    )
    result = box.execute(ready, "1")
    assert (result.epoch, result.state, result.return_value) == (1, "kept", "1")
    assert box.execute(ready, "21 * 2").return_value == "42"
    failing = box.execute(ready, "1 / 0")
    assert failing.error is not None
    assert failing.error.ename == "ZeroDivisionError"


def test_an_epoch_or_a_state_is_not_the_interpreters_to_tell(
    sandboxes: Sandboxes, ready: KernelRecord
) -> None:
    box = sandboxes.box
    for op in ("died", "lost", "rewound", "exit", "started", "walled", "refused", "become", "end"):
        result = box.execute(
            ready, f"say(op={op!r}, epoch=9, state='lost', tag=0, pid=1, status=9, profile='open')"
        )
        assert (result.state, result.epoch) == ("kept", 1), op
    status = box.status(ready)
    assert status["kernel"]["profile"] == ready.profile
    assert (status["kernel"]["epoch"], status["alive"]) == (1, True)


def test_descriptors_cannot_be_put_into_the_warden(
    sandboxes: Sandboxes, ready: KernelRecord
) -> None:
    box = sandboxes.box
    warden = psutil.Process(_pid(box, ready, "warden"))
    before = warden.num_fds()
    box.execute(
        ready,
        's = socket.socket(fileno=os.dup(LIFELINE))\nbody = b\'{"op": "nothing"}\'\n'
        "for n in range(50): socket.send_fds(s, [struct.pack('!I', len(body)) + body], [0] * 8)\n"
        "s.close()",
    )
    box.execute(ready, "None")
    assert warden.num_fds() <= before + 2


def test_nonsense_costs_the_forger_its_own_interpreter_only(
    sandboxes: Sandboxes, ready: KernelRecord
) -> None:
    box = sandboxes.box
    began = time.monotonic()
    result = box.execute(ready, "os.write(LIFELINE, b'GET / HTTP/1.1'); time.sleep(20)", timeout=10)
    assert (result.status, result.state) == ("error", "lost")
    assert "nonsense" in str(result.cause)
    assert time.monotonic() - began < 9
    after = box.execute(ready, "import os; print(os.getuid() != 0, os.access('/etc/shadow', 4))")
    assert after.output == "True False\n", "the next one is behind the same walls"
    _start_again(box, ready)


def _start_again(box: Box, kernel: KernelRecord) -> None:
    """With an epoch of 1 again, for the tests that count on it."""
    record = box.status(kernel)["kernel"]
    box.destroy(kernel)
    profile = next(each for each in PROFILES.values() if each.name == record["profile"])
    made = box.get_or_create(kernel.name, profile=profile)
    object.__setattr__(kernel, "kernel_id", made.kernel_id)
    object.__setattr__(kernel, "address", made.address)


def test_a_flood_of_frames_delays_no_other_kernel(
    sandboxes: Sandboxes, ready: KernelRecord
) -> None:
    box = sandboxes.box
    flood = (
        "s = socket.socket(fileno=os.dup(LIFELINE))\n"
        "body = b'{\"op\": \"nothing\"}'\nframes = (struct.pack('!I', len(body)) + body) * 5000\n"
        "while True: s.sendall(frames)"
    )
    with ThreadPoolExecutor(1) as pool, Box(box.settings) as other:
        running = pool.submit(other.execute, ready, flood, timeout=0.8)
        began = time.monotonic()
        while not running.done():
            assert box.execute("neighbour", "1 + 1").return_value == "2"
            assert time.monotonic() - began < 15
        assert running.result().status == "timeout"
    _start_again(box, ready)
