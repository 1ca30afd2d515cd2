"""What a spare has ready, and that nothing of it stays where it cannot be had whole."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from kernelbox.warden.connection import open_ports
from kernelbox.warden.reservation import reserve


def request(folder: Path) -> dict[str, str]:
    return {
        "address": str(folder / "k.sock"),
        "draft": str(folder / ".spare.json"),
        "connection_file": str(folder / "kernel.json"),
        "spool": str(folder / "spool"),
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_is_there_and_nobody_else_may_look(tmp_path: Path) -> None:
    made = reserve(request(tmp_path))
    assert names(tmp_path) == [".spare.json", "k.sock", "spool"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600, 0o700}
    ports = json.loads(Path(made.draft).read_text())
    assert ports["shell_port"] == made.ports.listeners["shell"].getsockname()[1]
    made.discard()
    assert names(tmp_path) == []
    assert made.listener.fileno() == made.ports.listeners["hb"].fileno() == -1


def test_what_was_taken_is_not_thrown_away(tmp_path: Path) -> None:
    made = reserve(request(tmp_path))
    ports = made.take_ports()
    assert made.take_listener("elsewhere") is None
    listener = made.take_listener(made.address)
    assert listener is not None
    assert made.publish(made.connection_file, made.ports)
    assert made.publish(made.connection_file, made.ports), "the keeper may have been first"
    made.discard()
    assert names(tmp_path) == ["k.sock", "kernel.json", "spool"]
    listener.close()
    ports.close()


def test_another_file_or_other_ports_are_not_its_business(tmp_path: Path) -> None:
    made = reserve(request(tmp_path))
    other = open_ports()
    assert not made.publish(str(tmp_path / "other.json"), made.ports)
    assert not made.publish(made.connection_file, other)
    made.discard()
    assert names(tmp_path) == []
    other.close()


@pytest.mark.parametrize("missing", ["address", "draft"])
def test_where_a_folder_is_gone_nothing_is_left(tmp_path: Path, missing: str) -> None:
    wanted = request(tmp_path)
    wanted[missing] = str(tmp_path / "gone" / "x")
    with pytest.raises(OSError, match="No such file"):
        reserve(wanted)
    assert names(tmp_path) == []
