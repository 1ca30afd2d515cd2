"""A home that cannot be used is refused in words; one that fails later loses no kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelbox import BadInput, Box, BoxError, ExecutionResult, Settings
from kernelbox.keeper.home import locate

FAST = {"KERNELBOX_KEEPER_LINGER": "0.1", "KERNELBOX_SPARES": "0"}


def fill(folder: Path) -> Path:
    """Use up every byte of a file system."""
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def assert_refused(home: str, *words: str) -> None:
    with Box(Settings.from_environment({**FAST, "KERNELBOX_HOME": home})) as box:
        with pytest.raises(BadInput) as caught:
            box.get_or_create("a")
        for word in (*words, "KERNELBOX_HOME"):
            assert word in str(caught.value)
        assert not os.path.exists(locate(box.settings).keeper_address)


def test_a_home_below_a_file_is_refused(tmp_path: Path, stopwatch) -> None:
    (tmp_path / "file").write_text("mine")
    watch = stopwatch()
    assert_refused(str(tmp_path / "file" / "home"), "Not a directory", "file")
    watch.within(2)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("home", ["/proc/kernelbox", "/proc/self/kernelbox", "/dev/null/x"])
def test_a_home_where_nothing_can_be_made_is_refused(home: str) -> None:
    assert_refused(home, "cannot be written")


def test_a_home_with_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    assert_refused(str(tmp_path / ("x" * 300)), "too long")
    assert_refused(str(tmp_path / "/".join(["long"] * 1500)), "too long")


def test_a_read_only_home_is_refused(small_disk: Path) -> None:
    if subprocess.run(["mount", "-o", "remount,ro", str(small_disk)]).returncode:
        pytest.skip("this machine does not let us remount")
    assert_refused(str(small_disk / "home"), "cannot be written", "Read-only")
    assert_refused(str(small_disk), "cannot be written")


def test_a_registry_path_that_is_a_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").write_text("mine")
    environ = {**FAST, "KERNELBOX_HOME": str(tmp_path), "KERNELBOX_REGISTRY_PATH": str(folder)}
    with Box(Settings.from_environment(environ)) as box, pytest.raises(BadInput, match="folder"):
        box.get_or_create("a")
    assert (folder / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious"]


def test_a_home_path_of_two_hundred_characters_works(environment, monkeypatch, tmp_path) -> None:
    home = tmp_path
    while len(str(home)) < 200:
        home /= "a-folder-with-a-long-name"[: max(1, 199 - len(str(home)))]
    assert len(str(home)) >= 200
    monkeypatch.setenv("KERNELBOX_HOME", str(home))
    with Box() as box:
        record = box.get_or_create("a")
        assert box.execute(record, "1+1").return_value == "2"
        assert box.branch("a", "b").connection_file.startswith(str(home))
        assert box.execute("b", "2+2").return_value == "4"


def test_a_home_with_odd_characters_works(environment, monkeypatch, tmp_path) -> None:
    home = tmp_path / "mit Leerzeichen, ünï©ode \"quotes\" $HOME; 'x' \n newline"
    monkeypatch.setenv("KERNELBOX_HOME", str(home))
    with Box() as box:
        box.get_or_create("a")
        assert box.execute("a", "1+1").return_value == "2"
        assert box.execute("a", "echo hi", language="bash").output == "hi\n"


def test_no_kernel_is_made_on_a_full_disk_and_no_file_is_left(
    small_disk: Path, environment, monkeypatch, stopwatch
) -> None:
    monkeypatch.setenv("KERNELBOX_HOME", str(small_disk / "home"))
    with Box() as box:
        box.get_or_create("before")
        ballast = fill(small_disk)
        watch = stopwatch()
        with pytest.raises(BoxError, match="No space left"):
            box.get_or_create("after")
        watch.within(5)
        assert box.execute("before", "1+1").return_value == "2"
        left = [path.name for path in (small_disk / "home" / "runtime").iterdir()]
        assert len(left) == 2, f"connection file and spool of one kernel, not {left}"
        ballast.unlink()
        box.get_or_create("after")
        assert box.execute("after", "2+2").return_value == "4"


def test_a_disk_that_fills_up_while_a_cell_prints_does_not_stop_the_cell(
    small_disk: Path, environment, monkeypatch, stopwatch
) -> None:
    monkeypatch.setenv("KERNELBOX_HOME", str(small_disk / "home"))
    fifty_megabytes = (
        "for n in range(50): print(f'{n:02}' * 499_999 + '!')\nprint('the end')\n'done'"
    )
    with Box() as box:
        box.get_or_create("a")
        watch = stopwatch()
        result = box.execute("a", fifty_megabytes, execution_id="big", timeout=60)
        watch.within(40)
        assert (result.status, result.return_value, result.state) == ("success", "'done'", "kept")
        assert result.output.startswith("0000")
        assert result.output.endswith("49!\nthe end\n")
        assert any("No space left" in note for note in result.notes)
        # The head is on the disk and can be read; the rest is missing, and that is said.
        page = box.output("a", "big", length=100)
        assert page.text == "00" * 50
        whole = box.output("a", "big", length=60_000_000)
        assert whole.total == 50_000_008
        assert len(whole.text) + whole.missing == whole.total
        assert 1_000_000 < len(whole.text) < 3_000_000
        assert whole.text.endswith("the end\n")  # small enough to find room after all
        assert box.search_output("a", "big", "the end")[0].text == "the end"
        assert box.execute("a", "1+1").return_value == "2"


def test_a_stream_is_whole_even_if_the_disk_fills_up(
    small_disk: Path, environment, monkeypatch
) -> None:
    monkeypatch.setenv("KERNELBOX_HOME", str(small_disk / "home"))
    with Box() as box:
        box.get_or_create("a")
        fill(small_disk)
        *items, result = box.stream("a", "for n in range(50): print('x' * 9_999)\n7", timeout=60)
        assert isinstance(result, ExecutionResult)
        assert (result.status, result.return_value) == ("success", "7")
        heard = sum(len(item.text or "") for item in items if item.kind == "stream")
        assert heard == 500_000
        assert box.execute("a", "1+1").return_value == "2"


def test_the_registry_is_written_when_the_disk_has_room_again(
    small_disk: Path, environment, monkeypatch, tmp_path: Path, waiting
) -> None:
    registry = small_disk / "registry.json"
    monkeypatch.setenv("KERNELBOX_REGISTRY_PATH", str(registry))
    with Box() as box:
        box.get_or_create("first")
        waiting(registry.exists, what="the registry to be written")
        assert "first" in registry.read_text()
        before = registry.read_text()
        ballast = fill(small_disk)
        record = box.get_or_create("second")
        assert box.execute(record, "1+1").return_value == "2"
        assert box.execute("first", "1+1").return_value == "2"
        assert registry.read_text() == before, "never half a registry"
        ballast.unlink()
        waiting(lambda: "second" in registry.read_text(), what="the registry to be written")
        assert sorted(path.name for path in small_disk.iterdir()) == ["registry.json"]


def test_a_home_that_is_removed_under_live_kernels_loses_none(environment: Path) -> None:
    with Box() as box:
        box.get_or_create("a")
        box.execute("a", "x = 42")
        shutil.rmtree(environment)
        assert box.execute("a", "x").return_value == "42"
        result = box.execute("a", "print('y' * 1_000_000)")
        assert (result.status, result.truncated) == ("success", True)
        box.get_or_create("b")
        assert box.execute("b", "1+1").return_value == "2"
        assert {record.name for record in box.list_kernels()} == {"a", "b"}
        assert box.destroy("a")
        assert box.destroy("b")


def test_two_homes_do_not_see_each_other(environment, tmp_path: Path) -> None:
    settings = [
        Settings.from_environment({**FAST, "KERNELBOX_HOME": str(tmp_path / name)})
        for name in ("one", "two")
    ]
    with Box(settings[0]) as one, Box(settings[1]) as two:
        first, second = one.get_or_create("same"), two.get_or_create("same")
        assert first.kernel_id != second.kernel_id
        one.execute("same", "x = 1")
        two.execute("same", "x = 2")
        assert one.execute("same", "x").return_value == "1"
        with pytest.raises(BoxError, match="no kernel named"):
            two.execute(first.kernel_id, "x")
        assert one.wipe() == [first.kernel_id]
        assert two.execute("same", "x").return_value == "2"
        assert two.wipe() == [second.kernel_id]
