"""Files of a kernel: any size in and out, and no way out of its folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_service import Service
from processes import wait_until

from kernelbox.server.errors import Refused
from kernelbox.server.folder import Folder, Start, parts_of
from kernelbox.server.transfer import part_of


@pytest.fixture
def home(service: Service, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A kernel in a folder of its own; the address of its files."""
    name = request.node.name[:60].replace("[", "-").replace("]", "").replace("%", "")
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    made = service.http.post("/kernels", json={"name": name, "cwd": str(tmp_path)})
    assert made.status_code == 201, made.text
    yield f"/kernels/{name}/files"
    service.http.delete(f"/kernels/{name}")


def test_a_file_is_written_listed_read_and_deleted(
    service: Service, home: str, tmp_path: Path
) -> None:
    http = service.http
    content = bytes(range(256)) * 10
    written = http.put(f"{home}/data/raw.bin", content=content)
    assert written.status_code == 201
    assert written.json() == {"path": "data/raw.bin", "size": len(content)}
    assert (tmp_path / "data" / "raw.bin").read_bytes() == content
    (listed,) = http.get(home).json()["files"]
    assert (listed["name"], listed["kind"]) == ("data", "folder")
    (listed,) = http.get(home, params={"path": "data"}).json()["files"]
    assert (listed["name"], listed["kind"], listed["size"]) == ("raw.bin", "file", len(content))

    read = http.get(f"{home}/data/raw.bin")
    assert read.content == content
    assert read.headers["content-disposition"] == "attachment"  # no browser runs it as our page
    assert read.headers["x-content-type-options"] == "nosniff"
    part = http.get(f"{home}/data/raw.bin", headers={"range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, content[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(content)}"
    stale = {"range": "bytes=10-19", "if-range": '"another"'}
    assert http.get(f"{home}/data/raw.bin", headers=stale).content == content
    beyond = http.get(f"{home}/data/raw.bin", headers={"range": "bytes=99999-"})
    assert (beyond.status_code, beyond.json()["error"]) == (416, "NoSuchRange")

    assert http.delete(f"{home}/data").json()["error"] == "FolderNotEmpty"
    assert http.delete(f"{home}/data/raw.bin").json() == {"deleted": True}
    assert http.delete(f"{home}/data").json() == {"deleted": True}
    assert http.get(f"{home}/data/raw.bin").json()["error"] == "FileNotFound"
    assert http.put(f"{home}/empty", content=b"").json()["size"] == 0


def test_a_large_file_goes_in_and_out_in_pieces(
    service: Service, home: str, tmp_path: Path
) -> None:
    block = os.urandom(1 << 20)

    def blocks() -> Iterator[bytes]:
        for _ in range(64):
            yield block

    assert service.http.put(f"{home}/large", content=blocks()).json()["size"] == 64 << 20
    assert (tmp_path / "large").stat().st_size == 64 << 20
    total = 0
    with service.http.stream("GET", f"{home}/large") as reply:
        for piece in reply.iter_bytes(1 << 20):
            assert piece == block
            total += len(piece)
    assert total == 64 << 20
    # Nowhere was the whole of it in memory.
    with open(f"/proc/{service.process.pid}/status") as status:
        (peak,) = (line for line in status if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 400_000


def test_an_upload_that_breaks_off_leaves_the_old_file(
    service: Service, home: str, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("old")
    head = f"PUT {home}/kept HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\nnew"
    with socket.create_connection(("127.0.0.1", service.port)) as line:
        line.sendall(head.encode())
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, what="the upload to begin")
        assert [one["name"] for one in service.http.get(home).json()["files"]] == ["kept"]
    wait_until(lambda: len(list(tmp_path.iterdir())) == 1, what="the draft to go")
    assert (tmp_path / "kept").read_text() == "old"


OUTSIDE = [
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "a/../../secret",
    "link/secret",
    "away",
    "nul%00byte",
    "x" * 5000,
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leads_out_of_the_folder(
    service: Service, tmp_path_factory: pytest.TempPathFactory, path: str
) -> None:
    outer = tmp_path_factory.mktemp("outer")
    inner = outer / "inner"
    (inner / "a").mkdir(parents=True)
    (outer / "secret").write_text("secret")
    (inner / "link").symlink_to(outer)
    (inner / "away").symlink_to(outer / "secret")
    name = f"walls-{OUTSIDE.index(path)}"
    service.http.post("/kernels", json={"name": name, "cwd": str(inner)})
    where = f"/kernels/{name}/files/{path}"
    for method, content in (("GET", None), ("PUT", b"overwritten"), ("DELETE", None)):
        if method == "DELETE" and path == "away":
            continue  # a link is deleted, not what it points to
        reply = raw(service, method, where, content)
        assert reply in (403, 404, 409), (method, path, reply)
    assert (outer / "secret").read_text() == "secret"
    assert sorted(one.name for one in outer.iterdir()) == ["inner", "secret"]
    query = service.http.get(f"/kernels/{name}/files?path={path}")
    assert query.status_code in (403, 404)
    service.http.delete(f"/kernels/{name}")


def raw(service: Service, method: str, path: str, content: bytes | None) -> int:
    """The status of a request whose path no client has tidied up."""
    body = content or b""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as line:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return int(line.makefile("rb").readline().split()[1])


def test_only_files_are_read_and_replaced(service: Service, home: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        assert service.http.get(f"{home}/{name}").json()["error"] == "NotAFile"
        assert service.http.put(f"{home}/{name}", content=b"x").json()["error"] == "NotAFile"
    kinds = {one["name"]: one["kind"] for one in service.http.get(home).json()["files"]}
    assert kinds == {"pipe": "other", "folder": "folder"}


def test_a_folder_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "sub").mkdir(parents=True)
    outside.mkdir()
    folder = Folder(Start.at(str(root)))
    upload = folder.begin("sub/file")
    (root / "sub").rename(root / "moved")
    (root / "sub").symlink_to(outside)
    upload.write(b"content")
    upload.finish()
    upload.close()
    assert list(outside.iterdir()) == []
    assert (root / "moved" / "file").read_bytes() == b"content"
    with pytest.raises(Refused) as refused:
        folder.begin("sub/file")
    assert refused.value.status_code in (403, 404)


def test_the_folder_itself_is_neither_followed_nor_swapped(
    service: Service, home: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "secret").write_text("secret")
    assert service.http.get(home).json()["files"] == []
    moved = tmp_path.with_name(tmp_path.name + "-moved")
    tmp_path.rename(moved)
    tmp_path.symlink_to(other)
    try:
        assert service.http.get(f"{home}/secret").status_code in (403, 404)
        assert service.http.put(f"{home}/new", content=b"x").status_code in (403, 404)
        tmp_path.unlink()
        other.rename(tmp_path)
        reply = service.http.get(f"{home}/secret")
        assert (reply.status_code, reply.json()["error"]) == (403, "OutsideFolder")
        assert sorted(os.listdir(tmp_path)) == ["secret"]
    finally:
        tmp_path.rename(other)
        moved.rename(tmp_path)
    assert service.http.get(home).json()["files"] == []


def test_what_is_ours_is_not_served(service: Service) -> None:
    """The folder of the service's tests lies in that of this kernel."""
    above = service.home.parent
    service.http.post("/kernels", json={"name": "above", "cwd": str(above)})
    service.http.post("/kernels/above/save", json={"name": "mine"})
    http, files = service.http, "/kernels/above/files"
    for path in (
        "home/session.key",
        "home/registry.json",
        "home/runtime",
        "home/server/saved/all/mine",
        "home/new",
    ):
        for reply in (
            http.get(f"{files}/{path}"),
            http.put(f"{files}/{path}", content=b"x"),
            http.delete(f"{files}/{path}"),
            http.get(files, params={"path": os.path.dirname(path)}),
        ):
            assert (reply.status_code, reply.json()["error"]) == (403, "NotAllowed"), path
    assert "home" in [one["name"] for one in http.get(files).json()["files"]]
    http.delete("/kernels/above")


def test_what_is_ours_is_not_served_from_the_home_itself(service: Service) -> None:
    http, files = service.http, "/kernels/at-home/files"
    http.post("/kernels", json={"name": "at-home", "cwd": str(service.home)})
    for path in ("session.key", "registry.json", "runtime/x"):
        assert http.put(f"{files}/{path}", content=b"x").status_code == 403
    http.post("/kernels", json={"name": "in-runtime", "cwd": str(service.home / "runtime")})
    assert http.get("/kernels/in-runtime/files").status_code == 403
    for name in ("at-home", "in-runtime"):
        http.delete(f"/kernels/{name}")


def test_drafts_that_nobody_finishes_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".kernelbox-upload-old", tmp_path / ".kernelbox-upload-new"
    for draft in (old, new):
        draft.write_text("half")
    os.utime(old, (0, 0))
    Folder(Start.at(str(tmp_path))).begin("file").close()
    assert sorted(os.listdir(tmp_path)) == [new.name]


@pytest.mark.parametrize("path", ["..", "a/..", "../a", "/a", "a\0b", "a/../b"])
def test_parts_that_could_lead_out_are_refused_unopened(path: str) -> None:
    with pytest.raises(Refused):
        parts_of(path)


def test_parts_of_a_plain_path() -> None:
    assert parts_of("a/./b//c/") == ["a", "b", "c"]
    assert parts_of("") == []
    assert parts_of("...") == ["..."]


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (None, None),
        ("bytes=0-9", (0, 10)),
        ("bytes=90-", (90, 100)),
        ("bytes=90-500", (90, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-500", (0, 100)),
        ("bytes=9-3", None),
        ("bytes=-", None),
        ("bytes=0-1,5-6", None),
        ("pages=1-2", None),
    ],
)
def test_which_bytes_a_range_means(asked: str | None, part: tuple[int, int] | None) -> None:
    assert part_of(asked, 100) == part


def test_a_range_beyond_the_end_is_refused() -> None:
    for asked in ("bytes=100-", "bytes=-0"):
        with pytest.raises(Refused):
            part_of(asked, 100)
