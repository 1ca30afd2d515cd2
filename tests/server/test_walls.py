"""Walls over HTTP: by name or as an object, checked in our words, and no place of this machine but
what its operator allows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from http_service import Service, Start

from kernelbox.walls import ways

pytestmark = pytest.mark.skipif(
    bool(ways.look().why), reason=f"not all walls can be had here: {ways.look().why}"
)


def make(service: Service, name: str, profile: Any, **more: Any) -> Any:
    return service.http.post("/kernels", json={"name": name, "profile": profile, **more})


def test_an_object_is_walls_of_ones_own(service: Service) -> None:
    wanted = {
        "profile": "restrictive",
        "memory": "300MiB",
        "processes": 32.0,
        "name": "mine",
        "cpus": 1,
    }
    answer = make(service, "object", wanted)
    assert answer.status_code == 201, answer.text
    assert answer.json()["profile"] == "mine"
    walls = service.http.get("/kernels/object").json()["walls"]["profile"]
    assert (walls["memory"], walls["processes"], walls["network"]) == (300 << 20, 32, "off")
    seen = service.execute("object", "import os; os.path.exists('/etc/shadow')")
    assert seen["return_value"] == "False"
    service.http.delete("/kernels/object")


def test_what_is_left_out_is_as_in_moderate(service: Service) -> None:
    assert make(service, "little", {"network": "off"}).status_code == 201
    walls = service.http.get("/kernels/little").json()["walls"]["profile"]
    assert (walls["name"], walls["memory"], walls["allow"]) == (
        "moderate, changed",
        512_000_000,
        [],
    )
    service.http.delete("/kernels/little")


def test_a_name_is_still_a_name(service: Service) -> None:
    assert make(service, "named", "restrictive").json()["profile"] == "restrictive"
    service.http.delete("/kernels/named")
    assert make(service, "none", None).json()["profile"] == "open"
    service.http.delete("/kernels/none")


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ({"network": "off", "allow": ["pypi.org"]}, "say network='on' too"),
        ({"allow": ["127.0.0.1"]}, "is an address"),
        ({"allow": ["localhost"]}, "host's is out of reach"),
        ({"allow": []}, "allow names no domain"),
        ({"memory": 64 << 20, "soft_memory": 65 << 20}, "has to be below memory"),
        ({"scratch": "tmpfs", "disk": None}, "has to be bounded"),
        ({"memory": "512M"}, "String should match"),
        ({"memory": 512}, "greater than or equal to 16777216"),
        ({"memry": 1}, "memry"),
        ({"driver": "none"}, "'process' or 'gvisor'"),
        ({"network": "host"}, "'on' or 'off'"),
        ({"cwd": "host"}, "cwd"),
        ({"environment": "caller"}, "environment"),
        ({"syscalls": "all"}, "syscalls"),
        ({"profile": "open"}, "profile"),
        ({"security": {"profile": "restrictive"}}, "security"),
        ("./kernelbox.toml", "profile"),
        ("/etc/passwd", "profile"),
        ("strict", "profile"),
        (5, "profile"),
        (["restrictive"], "profile"),
    ],
    ids=str,
)
def test_nonsense_is_422_in_words(service: Service, profile: Any, words: str) -> None:
    answer = make(service, "nonsense", profile)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"] == "BadInput"
    assert words in answer.json()["message"]
    assert service.http.get("/kernels/nonsense").status_code == 404


def test_a_driver_that_is_not_there_is_a_conflict_or_a_kernel(service: Service) -> None:
    answer = make(service, "driven", {"driver": "gvisor", "network": "off"})
    assert answer.status_code in (201, 409, 503)
    if answer.status_code == 409:
        assert "gvisor" in answer.json()["message"]
    service.http.delete("/kernels/driven")


def test_no_place_of_the_machine_is_mounted(service: Service, tmp_path: Path) -> None:
    for source in (
        str(tmp_path),
        "/etc",
        "/proc",
        "/",
        "/srv/../etc",
        "/no/such/folder",
        os.path.expanduser("~"),
        "/srv",
    ):
        answer = make(service, "mounts", {"mounts": [{"source": source, "target": "/data"}]})
        assert answer.status_code == 403, answer.text
        assert "KERNELBOX_HTTP_MOUNTS" in answer.json()["hint"]
    assert service.http.get("/kernels/mounts").status_code == 404


def test_what_the_operator_allows_is_mounted_and_no_more(start: Start, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    for folder in (data, out, data / "below"):
        folder.mkdir()
    (data / "in.txt").write_text("hello")
    (out / "link").symlink_to("/etc")
    service = start(server={"mounts": [[str(data), "ro"], [str(out), "rw"]]})

    def mounting(*mounts: dict[str, str]) -> Any:
        return make(service, "mounting", {"network": "off", "mounts": list(mounts)})

    read = {"source": str(data), "target": "/data"}
    write = {"source": str(out), "target": "/out", "mode": "rw"}
    for refused in (
        {**read, "mode": "rw"},
        {**read, "source": f"{data}/below"},
        {**read, "source": f"{out}/link"},
        {**read, "source": str(tmp_path)},
        {**read, "source": f"{data}x"},
    ):
        assert mounting(refused).status_code == 403, refused
    assert mounting(read, write).status_code == 201
    code = "open('/out/copy', 'w').write(open('/data/in.txt').read())\nopen('/data/new', 'w')"
    done = service.execute("mounting", code)
    assert "Read-only file system" in done["error"]["evalue"]
    assert (out / "copy").read_text() == "hello"


def test_mounts_are_read_from_the_environment() -> None:
    from kernelbox import BadInput
    from kernelbox.server.settings import ServerSettings

    read = ServerSettings.from_environment({"KERNELBOX_HTTP_MOUNTS": "/srv/data, /srv/out:rw"})
    assert read.mounts == (("/srv/data", "ro"), ("/srv/out", "rw"))
    for text in ("data", "/srv/../etc", "/srv/"):
        with pytest.raises(BadInput, match=r"KERNELBOX_HTTP_MOUNTS|list of folders"):
            ServerSettings.from_environment({"KERNELBOX_HTTP_MOUNTS": text})
