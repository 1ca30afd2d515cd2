"""Finding the sockets of the host in what a sandbox is shown, without walking through it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kernelbox.walls import hostsockets, kernelcalls, mountinfo
from kernelbox.walls.hostsockets import Bound, Views, bound, find, locate
from kernelbox.walls.mountinfo import Mounted

HEAD = b"Num       RefCount Protocol Flags    Type St Inode Path\n"


def line(inode: int, name: bytes | None = None) -> bytes:
    words = b"00000000cf96cc93: 00000002 00000000 00010000 0001 01 %5d" % inode
    return words + (b"" if name is None else b" " + name) + b"\n"


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (b"", []),
        (HEAD, []),
        (HEAD + line(7), []),
        (HEAD + line(7, b"/run/a.sock"), [("/run/a.sock", "7")]),
        (HEAD + line(7, b"@abstract/a") + line(8, b"@"), []),
        (HEAD + line(7, b"a/b.sock"), [("a/b.sock", "7")]),
        (HEAD + line(7, b"/a b ") + line(123456, b"/c"), [("/a b ", "7"), ("/c", "123456")]),
        (HEAD + line(7, b"/a\nb\n") + line(8, b"/c"), [("/a\nb\n", "7"), ("/c", "8")]),
        (HEAD + line(7, b"/\xff\xc3\xa9"), [("/\udcffé", "7")]),
        # An accepted connection has the name of the one that listens.
        (HEAD + line(7, b"/a") + line(7, b"/a"), [("/a", "7")]),
        (b"what is this\n" * 3, []),
    ],
)
def test_names_are_read_as_they_were_given(table: bytes, names: list[tuple[str, str]]) -> None:
    assert bound(table) == [Bound(*each) for each in names]


MOUNTS = mountinfo.parse(
    "20 1 8:1 / / rw - ext4 /dev/a rw\n"
    "21 20 8:2 / /home rw - ext4 /dev/b rw\n"
    "22 20 8:2 /user/data /srv/data rw - ext4 /dev/b rw\n"
    "23 21 0:40 / /home/user/work/ram rw - tmpfs none rw\n"
    "24 20 8:1 /var/spool /home/user/work/sp\\040ool rw - ext4 /dev/a rw\n"
)
POINTS = {mount.point: mount for mount in MOUNTS}


def test_mountinfo_is_read() -> None:
    assert MOUNTS[4] == Mounted("8:1", "/var/spool", "/home/user/work/sp ool", "ext4", "rw")


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/", ("8:1", "/")),
        ("/etc/x", ("8:1", "/etc/x")),
        ("/home", ("8:2", "/")),
        ("/homes", ("8:1", "/homes")),
        ("/home/user/x", ("8:2", "/user/x")),
        ("/srv/data/x", ("8:2", "/user/data/x")),
        ("/home/user/work/ram/x", ("0:40", "/x")),
        ("/home/user/work/sp ool/x", ("8:1", "/var/spool/x")),
    ],
)
def test_a_file_is_known_by_its_file_system(path: str, place: tuple[str, str]) -> None:
    assert locate(path, POINTS) == place


WORK = "/home/user/work"


@pytest.mark.parametrize(
    ("shown", "path", "seen"),
    [
        # By its own path, and at another place.
        ((WORK, WORK), f"{WORK}/a/s", {(f"{WORK}/a/s", f"{WORK}/a/s")}),
        ((WORK, "/data"), f"{WORK}/a/s", {(f"{WORK}/a/s", "/data/a/s")}),
        ((WORK, "/data"), "/home/user/other/s", set()),
        ((WORK, "/data"), f"{WORK}er/s", set()),
        # Bound where the same folder is mounted once more, on either side.
        (("/srv/data", "/data"), "/home/user/data/s", {("/srv/data/s", "/data/s")}),
        (("/home/user", "/h"), "/srv/data/s", {("/home/user/data/s", "/h/data/s")}),
        # In what is mounted below what is shown.
        ((WORK, "/data"), f"{WORK}/ram/s", {(f"{WORK}/ram/s", "/data/ram/s")}),
        ((WORK, "/data"), "/var/spool/s", {(f"{WORK}/sp ool/s", "/data/sp ool/s")}),
        # It is what is shown, by its name.
        ((f"{WORK}/s", "/s"), f"{WORK}/s", set()),
    ],
)
def test_a_socket_is_seen_wherever_its_file_system_is(
    shown: tuple[str, str], path: str, seen: set[tuple[str, str]]
) -> None:
    assert Views([shown], POINTS).of(path, POINTS) == seen


def test_who_has_other_mounts_means_other_files() -> None:
    theirs = {
        mount.point: mount
        for mount in mountinfo.parse(
            "90 1 0:90 / / rw - overlay none rw\n"
            "91 90 8:2 /user/work/run /var/run/db rw - ext4 /dev/b rw\n"
        )
    }
    views = Views([(WORK, "/data")], POINTS)
    assert views.of("/var/run/db/s", theirs) == {(f"{WORK}/run/s", "/data/run/s")}


@contextmanager
def bound_to(*names: str) -> Iterator[None]:
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(name)
        yield


def test_real_ones_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("deep/er", "aside", "hidden"):
        os.makedirs(folder)
    os.symlink("deep", "link")
    (tmp_path / "file.sock").write_text("no socket")
    with bound_to(
        f"{tmp_path}/a.sock",
        f"{tmp_path}/link/er/b.sock",
        "deep/relative.sock",
        f"{tmp_path}/hidden/c.sock",
        f"{tmp_path}/aside/new",
    ):
        os.rename("aside/new", "aside/renamed.sock")
        os.link("a.sock", "hard.sock")
        found = find([(str(tmp_path), "/data")], ["/data/hidden"])
        assert set(found.places) == {
            "/data/a.sock",
            "/data/hard.sock",
            "/data/deep/er/b.sock",
            "/data/deep/relative.sock",
            "/data/aside/renamed.sock",
        }
        named = [(str(tmp_path), "/data"), (f"{tmp_path}/a.sock", "/data/a.sock")]
        assert "/data/a.sock" not in find(named).places
    assert find([(str(tmp_path), "/data")]).places == ()


def test_what_is_not_a_socket_any_more_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "was.sock"
    with bound_to(str(path)):
        path.unlink()
        assert find([(str(tmp_path), "/data")]).places == ()
        path.write_text("a file")
        assert find([(str(tmp_path), "/data")]).places == ()


def test_a_relative_name_whose_place_is_unknown_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    with bound_to("lost.sock"):
        monkeypatch.chdir("/")
        found = find([(str(tmp_path), "/data")])
    assert found.places == ()
    assert any("it is not known where they are" in note for note in found.notes)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a network without more ado")
def test_other_networks_are_searched_too(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernelcalls.unshare(kernelcalls.CLONE_NEWNET)
            with bound_to(f"{tmp_path}/far.sock"):
                os.write(writer, b".")
                signal.pause()
        finally:
            os._exit(0)
    try:
        assert os.read(reader, 1) == b"."
        assert find([(str(tmp_path), "/data")]).places == ("/data/far.sock",)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def test_where_nothing_can_be_listed_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostsockets, "_bytes", lambda path: b"")
    assert find([("/usr", "/usr")]).notes == (
        "the sockets of the host could not be listed, so that none is covered",
    )
