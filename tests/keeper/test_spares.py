"""Spares: warm families that wait for a caller, and become entirely that caller's."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from kernelbox import Box, Settings

Waiting = Callable[..., None]
Find = Callable[[Box], list[psutil.Process]]


@pytest.fixture
def spared(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setenv("KERNELBOX_SPARES", "2")
    return Box(Settings.from_environment())


def test_spares_appear_are_used_are_refilled_and_end_with_the_keeper(
    spared: Box, wardens: Find, keepers: Find, waiting: Waiting
) -> None:
    with spared as box:
        box.get_or_create("first")
        waiting(lambda: len(wardens(box)) == 3, what="two spares to appear")
        before = {process.pid for process in wardens(box)}
        record = box.get_or_create("second")
        used = next(p["pid"] for p in box.status(record)["processes"] if p["role"] == "warden")
        assert used in before  # it was there before it was asked for
        assert box.execute(record, "1 + 1").return_value == "2"
        waiting(lambda: len(wardens(box)) == 4, what="the spares to be refilled")
        spares = {process.pid for process in wardens(box)} - before
        assert len(spares) == 1
        assert {r.name for r in box.list_kernels()} == {"first", "second"}  # nobody sees spares
        box.wipe()
        waiting(lambda: not keepers(box), what="the keeper to leave")
        waiting(lambda: not wardens(box), what="the spares to go with it")


def test_a_spare_is_entirely_the_callers(
    spared: Box, wardens: Find, waiting: Waiting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spared as box:
        box.get_or_create("first")
        waiting(lambda: len(wardens(box)) == 3, what="two spares to appear")
        (tmp_path / "later").mkdir()
        monkeypatch.chdir(tmp_path / "later")
        monkeypatch.setenv("SET_LATER", "yes")
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        monkeypatch.delenv("KERNELBOX_SPARES")
        record = box.get_or_create("second", tags={"a": 1})
        code = (
            "import os, time, sys\n"
            "print(os.getcwd(), os.environ['SET_LATER'], 'KERNELBOX_SPARES' in os.environ)\n"
            "print(time.tzname[0], len(In), len(Out))"
        )
        result = box.execute(record, code)
        assert result.output == f"{tmp_path}/later yes False\nJST 2 0\n"
        assert result.execution_count == 1
        assert (record.name, record.tags, record.epoch) == ("second", {"a": 1}, 1)
        left = box.execute(record, "sorted(n for n in dir() if not n.startswith('_'))").return_value
        assert left == "['In', 'Out', 'exit', 'get_ipython', 'open', 'os', 'quit', 'sys', 'time']"


def test_random_numbers_of_kernels_differ(spared: Box, wardens: Find, waiting: Waiting) -> None:
    with spared as box:
        box.get_or_create("0")
        waiting(lambda: len(wardens(box)) == 3, what="two spares to appear")
        code = (
            "import random, uuid, tempfile, numpy\n"
            "print(random.random(), numpy.random.random(), uuid.uuid4(), tempfile.mktemp())"
        )
        texts = {box.execute(box.get_or_create(str(n)), code).output for n in range(4)}
        assert len(texts) == 4
        numbers = [set(column) for column in zip(*(text.split() for text in texts), strict=True)]
        assert all(len(column) == 4 for column in numbers)


def test_startup_code_and_a_death_work_with_spares(
    spared: Box, wardens: Find, waiting: Waiting
) -> None:
    with spared as box:
        box.get_or_create("first")
        waiting(lambda: len(wardens(box)) == 3, what="two spares to appear")
        wire = {**box.settings.to_wire(), "startup_code": "began = 1"}
        with Box(Settings.from_wire(wire)) as other:
            record = other.get_or_create("started")
            assert other.execute(record, "began").return_value == "1"
            other.execute(record, "import os; os._exit(1)")
            assert other.execute(record, "began").return_value == "1"


def test_killed_spares_are_not_handed_out(spared: Box, wardens: Find, waiting: Waiting) -> None:
    with spared as box:
        first = box.get_or_create("first")
        mine = next(p["pid"] for p in box.status(first)["processes"] if p["role"] == "warden")
        waiting(lambda: len(wardens(box)) == 3, what="two spares to appear")
        spares = [process for process in wardens(box) if process.pid != mine]
        for process in spares:
            process.kill()
        psutil.wait_procs(spares, timeout=10)
        record = box.get_or_create("second")
        assert box.execute(record, "1").return_value == "1"
        assert box.execute(first, "1").state == "kept"


def warm_spares(box: Box) -> int:
    """How many the keeper would hand out without waiting for their answer."""
    return int(box._driver.run(box._calls.keeper({"op": "hello"}))["warm"])


def test_a_warm_spare_is_handed_out_with_all_that_its_record_says(
    spared: Box, waiting: Waiting
) -> None:
    with spared as box:
        box.get_or_create("first")
        waiting(lambda: warm_spares(box) == 2, what="two spares to be warm")
        runtime = Path(box.settings.runtime_dir)
        assert len(list(runtime.glob("kernel-*.json"))) == 1, "a spare's file is not seen"
        record = box.get_or_create("second", session_name="s", tags={"a": 1})
        connection = json.loads(Path(record.connection_file).read_text())
        assert connection["key"]
        socket.create_connection(("127.0.0.1", connection["hb_port"]), 5).close()
        (fresh,) = (r for r in box.list_kernels(refresh=True) if r.name == "second")
        told, true = asdict(record), asdict(fresh)
        assert abs(told.pop("last_used_at") - true.pop("last_used_at")) < 60
        assert told == true
        assert box.execute(record, "1 + 1").return_value == "2"


def test_a_killed_spare_leaves_no_files(spared: Box, wardens: Find, waiting: Waiting) -> None:
    with spared as box:
        first = box.get_or_create("first")
        waiting(lambda: warm_spares(box) == 2, what="two spares to be warm")
        mine = next(p["pid"] for p in box.status(first)["processes"] if p["role"] == "warden")
        rundir, runtime = Path(box._calls.home.rundir), Path(box.settings.runtime_dir)
        assert len(list(runtime.glob(".spare-*"))) == 2
        for process in wardens(box):
            if process.pid != mine:
                process.kill()
        waiting(lambda: not list(runtime.glob(".spare-*")), what="their files to go")
        assert sorted(p.name for p in rundir.glob("*.sock")) == sorted(
            ["keeper.sock", f"{first.kernel_id}.sock"]
        )


def test_no_spares_when_none_are_wanted(box: Box, wardens: Find) -> None:
    import time

    box.get_or_create("only")
    time.sleep(0.6)  # well past the time in which spares are made
    assert len(wardens(box)) == 1
