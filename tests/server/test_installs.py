"""Packages over HTTP: the service's policy, its index, and one shape of errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_service import Start
from wheels import Shop


def test_packages_are_installed_over_http(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("uv", reason="uv is not installed: pip install uv packaging")
    shop = Shop(tmp_path / "shop")
    shop.offer("kbx-plain", "1.0")
    shop.offer("kbx-blocked", "1.0")
    service = start(
        settings={
            "install_cache": str(tmp_path / "packages"),
            "install_indexes": [shop.address],
            "install_block": ["kbx-blocked"],
        }
    )
    service.execute("demo", "1")
    route = "/kernels/demo/install"
    for _ in range(2):  # to ask again changes nothing
        done = service.http.post(route, json={"packages": ["kbx-plain==1.*"]})
        assert done.status_code == 200, done.text
        assert done.json()["requested"] == ["kbx-plain==1.*"]
    assert service.execute("demo", "import kbx_plain; kbx_plain.version")["return_value"] == "'1.0'"
    for wanted, reason in (
        ("kbx-nope", "not_found"),
        ("kbx-blocked", "blocked"),
        ("kbx-plain @ file:///etc/passwd", "bad_request"),
    ):
        refused = service.http.post(route, json={"packages": [wanted]})
        assert refused.status_code == 409, refused.text
        assert refused.json()["error"] == "InstallFailed"
        assert refused.json()["details"]["reason"] == reason
    for body in ({}, {"packages": []}, {"packages": ["-r x"]}, {"packages": ["a"], "index": "x"}):
        assert service.http.post(route, json=body).status_code == 422
    missing = service.http.post("/kernels/nobody/install", json={"packages": ["kbx-plain"]})
    assert missing.status_code == 404
