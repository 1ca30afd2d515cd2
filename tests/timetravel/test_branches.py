"""branch in full: many at once, reseeded, with files of its own, from a template."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelbox import (
    AsyncBox,
    BadInput,
    Box,
    KernelNotFound,
    KernelRecord,
    Settings,
    StartupFailed,
    Unsupported,
)

Waiting = Callable[..., None]


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    shared_box.get_or_create("anchor")


@pytest.fixture(autouse=True)
def tidy(shared_box: Box) -> object:
    """Ends the branches of a test."""
    yield
    for record in shared_box.list_kernels():
        if record.made_by != "start":
            shared_box.destroy(record)


def value(box: Box, kernel: KernelRecord | str, code: str) -> str | None:
    result = box.execute(kernel, code, timeout=20)
    assert result.ok, result.error
    return result.return_value


def test_many_at_once_are_of_one_moment(shared_box: Box, kernel: KernelRecord) -> None:
    value(shared_box, kernel, "x = 1")
    names = [f"b{n}" for n in range(5)]
    records = shared_box.branch(kernel, names=names)
    assert [record.name for record in records] == names
    assert {record.made_by for record in records} == {"fork"}
    results = shared_box.execute_many({record: f"x += {n}; x" for n, record in enumerate(records)})
    assert [result.return_value for result in results.values()] == ["1", "2", "3", "4", "5"]
    assert list(results) == records
    assert value(shared_box, kernel, "x") == "1"


def test_all_of_them_or_none(shared_box: Box, kernel: KernelRecord) -> None:
    with pytest.raises(BadInput, match="'anchor' already"):
        shared_box.branch(kernel, names=["one", "anchor"])
    with pytest.raises(BadInput, match="'two' is twice"):
        shared_box.branch(kernel, names=["two", "two"])
    names = {record.name for record in shared_box.list_kernels()}
    assert not names & {"one", "two"}
    shared_box.execute(
        kernel,
        "import os\nforks = 0\ndef count():\n    global forks\n    forks += 1\n"
        "def end():\n    if forks == 2: os._exit(1)\n"
        "os.register_at_fork(before=count, after_in_child=end)",
    )
    with pytest.raises(StartupFailed, match="'two' could not be made"):
        shared_box.branch(kernel, names=["one", "two", "three"])
    names = {record.name for record in shared_box.list_kernels(refresh=True)}
    assert not names & {"one", "two", "three"}


@pytest.mark.parametrize(
    "arguments",
    [{}, {"name": "a", "names": ["b"]}, {"names": []}, {"names": "abc"}, {"names": ["", "x"]}],
    ids=["none", "both", "empty", "string", "bad name"],
)
def test_names_that_cannot_be_meant_are_refused(
    shared_box: Box, kernel: KernelRecord, arguments: dict[str, object]
) -> None:
    with pytest.raises(BadInput):
        shared_box.branch(kernel, **arguments)  # type: ignore[call-overload]


def test_bad_words_are_refused(shared_box: Box, kernel: KernelRecord) -> None:
    with pytest.raises(BadInput, match="method is 'auto' or 'fork' or 'copy'"):
        shared_box.branch(kernel, "b", method="clone")
    with pytest.raises(BadInput, match="files is 'share' or 'copy'"):
        shared_box.branch(kernel, "b", files="both")


RANDOM = "import random, numpy as np; (random.random(), np.random.random())"


def test_random_numbers_are_the_same_unless_reseeded(shared_box: Box, kernel: KernelRecord) -> None:
    value(shared_box, kernel, RANDOM)
    shared_box.branch(kernel, "same")
    shared_box.branch(kernel, "other", reseed=True)
    mine, same, other = (value(shared_box, name, RANDOM) for name in (kernel, "same", "other"))
    assert mine == same
    assert other != mine
    shared_box.branch(kernel, "copied", reseed=True, method="copy")
    assert value(shared_box, "copied", RANDOM) != value(shared_box, kernel, RANDOM)


def test_files_are_shared_or_copied(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path, waiting: Waiting
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data").write_text("1")
    os.mkfifo(tmp_path / "pipe")
    shared_box.branch(kernel, "sharing")
    copy = shared_box.branch(kernel, "copying", files="copy")
    value(shared_box, copy, "open('sub/data', 'w').write('2')")
    assert (tmp_path / "sub" / "data").read_text() == "1"
    value(shared_box, "sharing", "open('sub/data', 'w').write('3')")
    assert (tmp_path / "sub" / "data").read_text() == "3"
    folder = Path(eval(value(shared_box, copy, "import os; os.getcwd()") or ""))
    assert (folder / "sub" / "data").read_text() == "2"
    assert shared_box.execute(copy, "cat sub/data", language="bash").output == "2"
    shared_box.destroy(copy)
    waiting(lambda: not folder.exists(), what="the copy to go with its kernel")


def test_a_folder_of_too_many_files_is_not_copied(
    shared_box: Box, kernel: KernelRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    value(shared_box, kernel, "import kernelbox.inside.forking as f; f._MOST_COPIED = 3")
    value(shared_box, kernel, "for n in range(9): open(str(n), 'w').close()")
    with pytest.raises(StartupFailed, match=r"more than 3 files.*files='share'"):
        shared_box.branch(kernel, "b", files="copy")
    assert value(shared_box, kernel, "1") == "1"


def test_a_branch_by_copy_has_what_can_be_pickled(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    value(
        shared_box,
        kernel,
        "import math as m, os\nx = [1]; y = x; n = 1\ndef f(): return n\n"
        "class C:\n    def g(self): return f()\nc = C()\ngen = (i for i in range(3))\n"
        "os.environ['OF_THE_CELL'] = 'yes'\n6 * 7",
    )
    shared_box.execute(kernel, "v=1; f() { echo f; }", language="bash")
    copy = shared_box.branch(kernel, "c", method="copy")
    assert (copy.made_by, copy.parent, copy.epoch) == ("copy", kernel.kernel_id, 1)
    assert [n for n in copy.notes if "gen" in n] == [
        "not carried: gen (TypeError: cannot pickle 'generator' object)"
    ]
    assert value(shared_box, copy, "x is y, f(), c.g(), isinstance(c, C), m.pi > 3, _") == (
        "(True, 1, 1, True, True, 42)"
    )
    assert value(shared_box, copy, "n = 5; f(), c.g()") == "(5, 5)"  # the same namespace
    assert value(shared_box, copy, "len(In), 'gen' in dir()") == "(5, False)"
    assert value(shared_box, copy, "os.getcwd()") == repr(str(tmp_path))
    assert shared_box.execute(copy, "echo $v; f", language="bash").output == "1\nf\n"
    assert value(shared_box, kernel, "next(gen), n") == "(0, 1)"


def test_startup_code_is_not_run_in_a_branch(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELBOX_STARTUP_CODE", "open('started', 'a').write('x')")
    with Box() as box:
        kernel = box.get_or_create("a")
        for method in ("fork", "copy"):
            box.branch(kernel, method, method=method)
            assert value(box, method, "open('started').read()") == "'x'"
        box.restart("copy")
        assert value(box, "copy", "open('started').read()") == "'xx'"


# -- templates ----------------------------------------------------------------------------------


def test_a_template_gives_its_data_and_keeps_its_distance(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value(shared_box, kernel, "import os, random; data = list(range(1000)); random.seed(1)")
    pid = value(shared_box, kernel, "os.getpid()")
    made = shared_box.get_or_create("made", template=kernel, tags={"a": 1})
    assert (made.made_by, made.parent, made.tags) == ("template", kernel.kernel_id, {"a": 1})
    assert shared_box.get_or_create("made", template=kernel).kernel_id == made.kernel_id
    assert value(shared_box, made, "sum(data)") == "499500"
    keys = [json.loads(Path(one.connection_file).read_text())["key"] for one in (made, kernel)]
    assert keys[0] != keys[1]
    assert value(shared_box, made, "random.random()") != value(
        shared_box, kernel, "random.random()"
    )
    attacks = [
        f"os.kill({pid}, 9)",
        f"open('/proc/{pid}/mem', 'rb').read(1)",
        f"import ctypes\nif ctypes.CDLL(None).ptrace(16, {pid}, 0, 0): raise PermissionError",
        "os.kill(os.getppid(), 9)",
    ]
    for again in (False, True):
        if again:  # an interpreter that is started anew has the same walls
            shared_box.restart(made)
            shared_box.execute(made, "import os")
        for attack in attacks:
            result = shared_box.execute(made, attack)
            assert result.error is not None
            assert result.error.ename == "PermissionError", attack
        result = shared_box.execute(made, f"kill -9 {pid}", language="bash")
        assert "not permitted" in result.stderr
    assert value(shared_box, kernel, "len(data)") == "1000"


def test_no_door_of_the_template_is_open_to_its_copies(
    shared_box: Box, kernel: KernelRecord
) -> None:
    """Its socket, the keeper's, its connection file (with the key to its ports), and the ways
    around the hiding of them."""
    pid = value(shared_box, kernel, "import os, socket, ctypes; os.getpid()")
    made = shared_box.get_or_create("made", template=kernel)
    sockets, runtime = os.path.dirname(kernel.address), os.path.dirname(kernel.connection_file)
    connect = "socket.socket(socket.AF_UNIX).connect({!r})"
    unmount = "if ctypes.CDLL(None).umount2({!r}, 2): raise PermissionError"
    attacks = {
        f"open({kernel.connection_file!r})": "FileNotFoundError",
        connect.format(kernel.address): "FileNotFoundError",
        connect.format(os.path.join(sockets, "keeper.sock")): "FileNotFoundError",
        unmount.format(runtime.encode()): "PermissionError",
        unmount.format(os.path.dirname(sockets).encode()): "PermissionError",
        f"open('/proc/{pid}/root{kernel.connection_file}')": "PermissionError",
        f"os.listdir('/proc/{pid}/cwd/')": "PermissionError",
        f"os.open('/proc/{pid}/ns/mnt', 0)": "PermissionError",
        f"os.open('/proc/{pid}/fd/1', os.O_WRONLY)": "PermissionError",
    }
    for again in (False, True):
        if again:
            shared_box.restart(made)
            shared_box.execute(made, "import os, socket, ctypes")
        for attack, ename in attacks.items():
            result = shared_box.execute(made, attack)
            assert result.error is not None, attack
            assert result.error.ename == ename, attack
        result = shared_box.execute(made, f"ls -A {runtime} {sockets}", language="bash")
        assert kernel.kernel_id not in result.output
    # Everything else is as it was: files can be made, moved between folders, and saved.
    code = "os.makedirs('a'); os.makedirs('b'); open('a/x', 'w').close(); os.rename('a/x', 'b/x')"
    assert shared_box.execute(made, code).status == "success"
    with pytest.raises(Unsupported, match="files='share'"):
        shared_box.branch(made, "of made", files="copy")
    branch = shared_box.branch(made, "of made")
    shared_box.restart(branch)
    result = shared_box.execute(branch, f"open({kernel.connection_file!r})")
    assert result.error is not None
    assert result.error.ename == "FileNotFoundError"
    program = "import kernelbox; kernelbox.Box(kernelbox.Settings({})).get_or_create('inner')"
    places = f"registry_path={shared_box.settings.registry_path!r}, runtime_dir={runtime!r}"
    result = shared_box.execute(made, program.format(places))
    assert result.error is not None
    assert "Point KERNELBOX_HOME at another folder" in result.error.evalue
    mark = shared_box.checkpoint(made)
    shared_box.execute(made, "import os; y = 1")
    shared_box.rewind(made, mark)
    result = shared_box.execute(made, connect.format(kernel.address))
    assert result.error is not None
    assert result.error.ename == "FileNotFoundError"


def test_a_kernel_with_files_of_its_own_is_no_template(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.branch(kernel, "own files", files="copy")
    with pytest.raises(Unsupported, match="shares its folder"):
        shared_box.get_or_create("made", template="own files")


def test_what_is_given_with_a_template_is_the_new_kernels_own(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    made = shared_box.get_or_create(
        "made",
        template=kernel.name,
        cwd=str(tmp_path / "elsewhere"),
        environ={**os.environ, "MINE": "yes"},
    )
    code = "import os; os.path.basename(os.getcwd()), os.environ['MINE']"
    assert value(shared_box, made, code) == "('elsewhere', 'yes')"
    with pytest.raises(KernelNotFound):
        shared_box.get_or_create("other", template="nobody")


def test_a_kernel_from_a_template_tells_of_the_one_before_it_that_was_lost(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    value(shared_box, kernel, "x = 'of the template'")
    hasty = Settings.from_wire({**shared_box.settings.to_wire(), "kernel_idle_timeout": 0.5})
    with Box(hasty) as box:
        first = box.get_or_create("brief", template=kernel)
    waiting(lambda: "brief" not in {r.name for r in shared_box.list_kernels()}, what="its end")
    again = shared_box.get_or_create("brief", template=kernel)
    assert (again.state, again.epoch) == ("lost", first.epoch + 1)
    assert "idle" in (again.cause or "")
    told = shared_box.execute(again, "x")
    assert (told.return_value, told.state) == ("'of the template'", "lost")
    assert "idle" in (told.cause or "")
    second = shared_box.execute(again, "x")
    assert (second.state, second.epoch) == ("kept", first.epoch + 1)
    shared_box.destroy(again)
    assert shared_box.get_or_create("brief", template=kernel).state == "kept"
    shared_box.destroy("brief")


# -- many cells ---------------------------------------------------------------------------------


def test_cells_of_many_kernels_run_at_the_same_time(shared_box: Box, kernel: KernelRecord) -> None:
    records = shared_box.branch(kernel, names=["m1", "m2", "m3"])
    # Each waits for the others' files: one after the other, they would wait for ever.
    code = (
        "import os, time\nopen('{me}', 'w').close()\n"
        "while not all(map(os.path.exists, ['m1', 'm2', 'm3'])): time.sleep(0.005)\n'{me}'"
    )
    results = shared_box.execute_many(
        {record: code.format(me=record.name) for record in records}, timeout=20
    )
    assert [r.return_value for r in results.values()] == ["'m1'", "'m2'", "'m3'"]
    by_name = shared_box.execute_many({"m1": "1/0", "m2": "2"}, atomic=True)
    assert (by_name["m1"].state, by_name["m2"].return_value) == ("rewound", "2")
    assert shared_box.execute_many({}) == {}


def test_a_kernel_that_is_not_there_is_noticed_before_anything_is_run(
    shared_box: Box, kernel: KernelRecord
) -> None:
    with pytest.raises(KernelNotFound):
        shared_box.execute_many({kernel.name: "ran = 1", "nobody": "1"})
    assert value(shared_box, kernel, "'ran' in dir()") == "False"


def test_code_that_cannot_be_run_is_noticed_before_any_other_is_run(
    shared_box: Box, kernel: KernelRecord
) -> None:
    other = shared_box.branch(kernel, "other of many")
    with pytest.raises(BadInput, match="code is a string"):
        shared_box.execute_many({kernel.name: "ran = 1", other.name: 7})  # type: ignore[dict-item]
    assert value(shared_box, kernel, "'ran' in dir()") == "False"
    shared_box.destroy(other)


def test_the_same_awaited(shared_box: Box, kernel: KernelRecord) -> None:
    import asyncio

    async def main() -> list[str | None]:
        async with AsyncBox(shared_box.settings) as box:
            records = await box.branch(kernel, names=["w1", "w2"])
            one = await box.branch(kernel, "w3")
            results = await box.execute_many(dict.fromkeys([*records, one], "1 + 1"))
            made = await box.get_or_create("w4", template=one)
            return [*(r.return_value for r in results.values()), made.made_by]

    assert asyncio.run(main()) == ["2", "2", "2", "template"]
