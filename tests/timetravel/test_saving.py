"""save and load: a session on disk, signed, and refused if it is not what was saved."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import wait_until

from kernelbox import AsyncBox, BadInput, Box, BoxError, KernelRecord, Settings


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    shared_box.get_or_create("anchor")


@pytest.fixture(autouse=True)
def tidy(shared_box: Box) -> object:
    yield
    for record in shared_box.list_kernels():
        if record.made_by == "load":
            shared_box.destroy(record)


SESSION = (
    "import math as m, numpy as np, pandas as pd, os, socket, threading\n"
    "x = [1, 2]; y = x; n = 5\ndef f(): return n\n"
    "class C:\n    def __init__(self): self.n = n\n    def g(self): return f()\n"
    "c = C(); a = np.arange(10); d = pd.DataFrame({'k': [1]})\n"
    "def count():\n    k = 0\n    def inc():\n        nonlocal k\n        k += 1\n        return k\n"
    "    return inc\ninc = count(); inc()\n"
    "s = socket.socket(); lock = threading.Lock(); g = (i for i in 'ab'); _mine = 1\n"
    "fact = lambda i: 1 if i < 2 else i * fact(i - 1)\n6 * 7"
)


def value(box: Box, kernel: KernelRecord | str, code: str) -> str | None:
    result = box.execute(kernel, code, timeout=20)
    assert result.ok, result.error
    return result.return_value


@pytest.fixture
def saved(shared_box: Box, kernel: KernelRecord, tmp_path: Path) -> Path:
    value(shared_box, kernel, SESSION)
    shared_box.save(kernel, str(tmp_path / "s.kbx"))
    return tmp_path / "s.kbx"


SLOW = (
    "class Slow:\n    def __reduce__(self):\n"
    "        return exec, (\"open('loading', 'w').close(); import time; time.sleep(60)\",)\n"
    "slow = Slow()"
)


def test_who_leaves_while_a_session_is_loaded_leaves_no_half_of_it(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    value(shared_box, kernel, SLOW)
    shared_box.save(kernel, str(tmp_path / "s.kbx"))
    begun = tmp_path / "loading"

    async def story() -> None:
        async with AsyncBox(shared_box.settings) as box:
            loading = asyncio.create_task(box.load("half", str(tmp_path / "s.kbx")))
            await asyncio.to_thread(wait_until, begun.exists, what="the session to be read")
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading

    asyncio.run(story())
    assert "half" not in {record.name for record in shared_box.list_kernels()}
    begun.unlink()
    program = f"""
import os, signal, threading
from kernelbox import Box, Settings
box = Box(Settings.from_wire({shared_box.settings.to_wire()!r}))
def press():
    while not os.path.exists({str(begun)!r}): pass
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
try:
    box.load("half", {str(tmp_path / "s.kbx")!r})
except KeyboardInterrupt:
    print("interrupted")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")
    assert "half" not in {record.name for record in shared_box.list_kernels()}


def test_a_session_comes_back(shared_box: Box, kernel: KernelRecord, tmp_path: Path) -> None:
    value(shared_box, kernel, SESSION)
    path = tmp_path / "s.kbx"
    report = shared_box.save(kernel, str(path))
    assert (report.path, report.size, report.cells) == (str(path), path.stat().st_size, 1)
    assert report.failures == {
        "s": "TypeError: cannot pickle 'socket' object",
        "lock": "TypeError: cannot pickle '_thread.lock' object",
        "g": "TypeError: cannot pickle 'generator' object",
    }
    assert {"x", "f", "C", "np", "_mine", "fact"} <= set(report.variables)
    assert path.stat().st_mode & 0o777 == 0o600
    shared_box.destroy(kernel)
    loaded = shared_box.load("again", str(path))
    assert (loaded.made_by, loaded.status) == ("load", "idle")
    assert sorted(n.split()[2] for n in loaded.notes if n.startswith("not loaded")) == [
        "g", "lock", "s",
    ]  # fmt: skip
    assert value(shared_box, "again", "x is y, f(), c.g(), c.n, isinstance(c, C), inc()") == (
        "(True, 5, 5, 5, True, 2)"
    )
    assert value(shared_box, "again", "n = 6; f(), c.g(), int(a.sum()), list(d.k), fact(5)") == (
        "(6, 6, 45, [1], 120)"
    )
    result = shared_box.execute("again", "'import math' in In[1], Out[1], _mine")
    assert result.return_value == "(True, 42, 1)"
    assert value(shared_box, "again", "os.getcwd()") == repr(str(tmp_path))
    assert result.execution_count == 4


def test_it_comes_back_in_another_process_and_another_keeper(
    environment: Path, tmp_path: Path
) -> None:
    save = "import kernelbox as k; a = k.get_or_create('a'); k.execute(a, 'x = 41'); k.save(a, 's'); k.wipe()"
    load = "import kernelbox as k; a = k.load('b', 's'); print(k.execute(a, 'x + 1').return_value); k.wipe()"
    for program in (save, load):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "42\n"


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda _: b"", "is not a saved session"),
    "something else": (lambda _: b"PK\x03\x04" + b"x" * 500, "is not a saved session"),
    "a pickle": (lambda _: b"\x80\x05K*." * 50, "is not a saved session"),
    "cut in the head": (lambda data: data[:22], "not whole"),
    "cut in the middle": (lambda data: data[: len(data) // 2], "not whole"),
    "cut by a byte": (lambda data: data[:-1], "not whole"),
    "something added": (lambda data: data + b"x", "not whole"),
    "a bit of the variables": (lambda data: flip(data, 200), "was not saved by this home"),
    "a bit of the signature": (lambda data: flip(data, len(data) - 3), "was not saved by this home"),
    "a bit of the contents": (lambda data: flip(data, len(data) - 60), "was not saved by|damaged"),
    "a size beyond all bounds": (
        lambda data: data[:20] + b"\xff" * 16 + data[36:],
        "not whole",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_a_file_that_is_not_what_was_saved_is_refused_and_nothing_is_made(
    shared_box: Box, saved: Path, what: str
) -> None:
    damage, words = DAMAGE[what]
    saved.write_bytes(damage(saved.read_bytes()))
    before = {record.name for record in shared_box.list_kernels()}
    with pytest.raises(BadInput, match=words):
        shared_box.load("damaged", str(saved))
    assert {record.name for record in shared_box.list_kernels()} == before
    assert list(Path(shared_box.settings.runtime_dir).glob(".loading-*")) == []


def test_a_strangers_file_is_refused_unless_it_is_trusted(
    shared_box: Box, saved: Path, environment: Path
) -> None:
    with Box(Settings.from_environment()) as other:
        with pytest.raises(BadInput, match=r"not saved by this home.*trust=True"):
            other.load("a", str(saved))
        record = other.load("a", str(saved), trust=True)
        assert value(other, record, "f()") == "5"
        other.wipe()


def test_code_in_a_forged_file_is_never_run(shared_box: Box, saved: Path, tmp_path: Path) -> None:
    """The pickle in it is replaced, sizes and all; only the signature cannot be."""
    import pickle
    import struct

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {tmp_path}/owned",)

    evil = pickle.dumps([]) * 2 + pickle.dumps(Evil())
    piece = struct.pack("!QQQ", 1, 0, len(evil)) + b"e" + evil
    data = saved.read_bytes()
    pieces, manifest = struct.unpack("!QQ", data[20:36])
    forged = data[:20] + struct.pack("!QQ", len(piece), manifest) + piece + data[36 + pieces :]
    saved.write_bytes(forged)
    with pytest.raises(BadInput, match="not saved by this home"):
        shared_box.load("owned", str(saved))
    assert not (tmp_path / "owned").exists()
    shared_box.load("owned", str(saved), trust=True)  # and the forgery is one that would work
    assert (tmp_path / "owned").exists()


def test_what_another_python_saved_is_refused_with_both_versions(
    shared_box: Box, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json
    import struct

    data = saved.read_bytes()
    pieces, _ = struct.unpack("!QQ", data[20:36])
    manifest = json.loads(data[36 + pieces : -32])
    manifest["python"] = [3, 9, 0]
    encoded = json.dumps(manifest).encode()
    sizes = struct.pack("!QQ", pieces, len(encoded))
    saved.write_bytes(data[:20] + sizes + data[36 : 36 + pieces] + encoded + b"x" * 32)
    with pytest.raises(BoxError, match=r"saved by Python 3\.9 and cannot be read by 3\."):
        shared_box.load("older", str(saved), trust=True)
    assert "older" not in {record.name for record in shared_box.list_kernels()}


def test_a_module_that_is_missing_costs_only_what_needs_it(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    (tmp_path / "later_gone.py").write_text("class Thing:\n    pass\n")
    value(shared_box, kernel, "import later_gone; t = later_gone.Thing(); both = [t]; x = 1")
    shared_box.save(kernel, str(tmp_path / "s"))
    (tmp_path / "later_gone.py").unlink()
    record = shared_box.load("without", str(tmp_path / "s"))
    missing = {note.split()[2] for note in record.notes if note.startswith("not loaded")}
    assert missing == {"later_gone", "t", "both"}
    assert all("later_gone" in note or "both" in note for note in record.notes)
    assert value(shared_box, record, "x") == "1"


def test_saving_where_it_cannot_be_leaves_nothing(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="is a folder"):
        shared_box.save(kernel, str(tmp_path))
    with pytest.raises(BadInput, match="No such file"):
        shared_box.save(kernel, str(tmp_path / "no" / "such" / "folder"))
    with pytest.raises(BadInput, match="path of a file"):
        shared_box.save(kernel, "")
    with pytest.raises(BadInput, match="there is no file"):
        shared_box.load("b", str(tmp_path / "missing"))
    shared_box.save(kernel, str(tmp_path / "s"))
    with pytest.raises(BadInput, match="already"):
        shared_box.load(kernel.name, str(tmp_path / "s"))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_kernel_that_dies_while_it_is_saved_leaves_the_old_file(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    value(shared_box, kernel, "x = 1")
    shared_box.save(kernel, str(tmp_path / "s"))
    before = (tmp_path / "s").read_bytes()
    value(
        shared_box,
        kernel,
        "class Bad:\n    def __reduce__(self):\n        import os; os._exit(1)\nb = Bad()",
    )
    with pytest.raises(BoxError, match="died before its session was saved"):
        shared_box.save(kernel, str(tmp_path / "s"))
    assert (tmp_path / "s").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_the_same_awaited(shared_box: Box, kernel: KernelRecord, tmp_path: Path) -> None:
    import asyncio

    async def main() -> str | None:
        async with AsyncBox(shared_box.settings) as box:
            await box.execute(kernel, "x = 1")
            await box.save(kernel, str(tmp_path / "s"))
            record = await box.load("awaited", str(tmp_path / "s"))
            return (await box.execute(record, "x")).return_value

    assert asyncio.run(main()) == "1"
