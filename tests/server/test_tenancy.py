"""Which kernels tenants may have: decided without any, and none where there can be no walls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from http_service import LAUNCH, Start

from kernelbox import BadInput, Settings
from kernelbox.server.errors import Refused
from kernelbox.server.settings import ServerSettings
from kernelbox.server.tenancy import Tenancy
from kernelbox.walls import ways
from kernelbox.walls.profiles import PROFILES, Profile

CLOSED = Path(__file__).parents[1] / "support" / "closed.py"


def tenancy(profile: str = "open", **server: Any) -> Tenancy:
    return Tenancy(Settings(profile=profile), ServerSettings(**server))


def walls(tmp_path: Path, text: str) -> str:
    path = tmp_path / "walls.toml"
    path.write_text(text)
    return str(path)


def test_the_default_is_the_operators_walls_or_moderate(tmp_path: Path) -> None:
    assert tenancy().default == PROFILES["moderate"]
    assert tenancy("restrictive").default == PROFILES["restrictive"]
    own = tenancy(walls(tmp_path, "[resources]\nmemory = '2GiB'\n[network]\nmode = 'off'\n"))
    assert (own.default.memory, own.default.network) == (2 << 30, "off")
    assert own.allowed(None) is own.default


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("permissive", "home='ro' shows the home"),
        ("[security]\ncwd = 'ro'\n", "cwd='ro' shows a folder"),
        ("[security]\nenvironment = 'filtered'\n", "passes variables of the service"),
        ("[security]\nsyscalls = 'all'\n", "takes the filter"),
        ("[[mounts]]\nsource = '/srv'\n", r"/srv \(ro\) is not in KERNELBOX_HTTP_MOUNTS"),
        ("[[secrets]]\nname = 'KEY'\ndomain = 'example.com'\n", "secrets are those of the host"),
    ],
)
def test_walls_of_the_operator_that_show_the_machine_are_refused_at_the_start(
    tmp_path: Path, text: str, words: str
) -> None:
    profile = text if text in PROFILES else walls(tmp_path, text)
    with pytest.raises(BadInput, match=words):
        tenancy(profile)


def test_mounts_of_the_operators_walls_are_for_tenants_if_both_settings_say_so(
    tmp_path: Path,
) -> None:
    profile = walls(tmp_path, "[[mounts]]\nsource = '/srv'\nmode = 'rw'\n")
    assert tenancy(profile, mounts=(("/srv", "rw"),)).default.mounts
    with pytest.raises(BadInput, match=r"/srv \(rw\) is not in KERNELBOX_HTTP_MOUNTS"):
        tenancy(profile, mounts=(("/srv", "ro"),))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kernel_type": "ipykernel"}, "kernels of the type 'ipykernel' cannot have any"),
        ({"install_source": "allow"}, "outside of all walls"),
    ],
)
def test_settings_that_no_walls_make_good_are_refused_at_the_start(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        Tenancy(Settings(**settings), ServerSettings())


def test_a_tenant_may_have_less_than_the_default_and_not_more(tmp_path: Path) -> None:
    usual, strict = tenancy(), tenancy("restrictive")
    roomy = tenancy(walls(tmp_path, "[resources]\nmemory = '2GiB'\nprocesses = 'none'\n"))
    for each in (usual, roomy, strict):
        assert each.allowed("restrictive") == PROFILES["restrictive"]
    for each in (usual, roomy):
        assert each.allowed("moderate") == PROFILES["moderate"]
    with pytest.raises(Refused, match=r"memory may be 256,000,000 at most.*network may be 'off'"):
        strict.allowed("moderate")
    for most, each in ((512_000_000, usual), (2 << 30, roomy)):
        assert each.allowed(Profile(memory=most)).memory == most
        for more in (most + 1, None):
            with pytest.raises(Refused, match="memory may be"):
                each.allowed(Profile(memory=more))
    assert roomy.allowed(Profile(processes=None)).processes is None
    with pytest.raises(Refused, match="syscalls may be 'allow-list' only"):
        strict.allowed(PROFILES["restrictive"].but(syscalls="deny-list"))


@pytest.mark.parametrize(
    ("wanted", "fine"),
    [
        ({"network": "off", "allow": ()}, True),
        ({"allow": ("pypi.org",)}, True),
        ({"allow": ("a.example.com", "*.b.example.com", "*.example.com")}, True),
        ({"allow": ("api.test:8443",)}, True),
        ({"allow": ("*",)}, False),
        ({"allow": ("example.com",)}, False),
        ({"allow": ("evilexample.com",)}, False),
        ({"allow": ("*.org",)}, False),
        ({"allow": ("pypi.org", "files.pythonhosted.org")}, False),
        ({"allow": ("pypi.org:8080",)}, False),
        ({"allow": ("api.test",)}, False),
        ({"network": "raw", "allow": ()}, False),
    ],
)
def test_a_tenant_reaches_no_domains_but_those_of_the_default(
    tmp_path: Path, wanted: dict[str, Any], fine: bool
) -> None:
    text = "[network]\nallow = ['pypi.org', '*.example.com', 'api.test:8443']\n"
    listed = tenancy(walls(tmp_path, text))
    if fine:
        assert listed.allowed(Profile(**wanted)).network == wanted.get("network", "on")
        return
    with pytest.raises(Refused, match=r"domains that may be reached|network may be 'on'"):
        listed.allowed(Profile(**wanted))


def test_a_tenant_does_not_choose_a_weaker_driver_than_the_operators(tmp_path: Path) -> None:
    guarded = tenancy(walls(tmp_path, "[security]\ndriver = 'gvisor'\n"))
    assert guarded.allowed("restrictive").driver == "gvisor"
    assert guarded.allowed(Profile(driver="process")).driver == "gvisor"
    assert guarded.claimed(PROFILES["restrictive"].to_wire()).driver == "gvisor"
    assert tenancy().allowed(Profile(driver="gvisor")).driver == "gvisor"


def test_a_session_is_loaded_behind_walls_that_a_tenant_may_have() -> None:
    usual = tenancy()
    assert usual.claimed(None) == usual.default
    assert usual.claimed(PROFILES["open"].to_wire()) == usual.default
    assert usual.claimed(PROFILES["restrictive"].to_wire()) == PROFILES["restrictive"]
    with pytest.raises(Refused, match="shows the home"):
        usual.claimed(PROFILES["permissive"].to_wire())
    for nonsense in ("moderate", 5, [], {"walls": 1}, {"memory": "much"}, {"mounts": 5}):
        with pytest.raises(BadInput):
            usual.claimed(nonsense)


def test_a_tenant_gives_variables_of_gateways_and_no_others() -> None:
    usual = tenancy()
    usual.check_variables({"KERNEL_USERNAME": "a", "KERNEL_ID": "b"})
    for name in ("LD_PRELOAD", "PYTHONPATH", "PIP_INDEX_URL", "kernel_id", "A_KERNEL_", ""):
        with pytest.raises(Refused, match="no variables but KERNEL_"):
            usual.check_variables({"KERNEL_ID": "b", name: "x"})


@pytest.mark.parametrize("how", ["unshare", "nothing"])
@pytest.mark.skipif(ways.look().kind == "locks", reason="user namespaces are closed here anyway")
def test_where_walls_cannot_be_built_tenants_get_no_kernels(
    start: Start, tmp_path: Path, how: str
) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text('{"anna": "token-of-anna"}')
    tokens.chmod(0o600)
    wanted = {"server": {"tokens_file": str(tokens)}}
    launch = [sys.executable, str(LAUNCH), json.dumps(wanted)]
    service = start(command=[sys.executable, str(CLOSED), how, "0", *launch])
    with service.client("token-of-anna") as anna:
        for path, body in (
            ("/kernels", {"name": "mine"}),
            ("/kernels", {"name": "mine", "profile": "restrictive"}),
            ("/kernels", {"name": "mine", "profile": "open"}),
            ("/sessions/mine", {}),
            ("/sessions/mine/execute", {"code": "1"}),
            ("/sessions/mine/execute_with_retry", {"code": "1"}),
            ("/api/kernels", {}),
            ("/api/sessions", {"kernel": {"name": "python3"}}),
        ):
            reply = anna.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]) == (403, "WallsMissing"), reply.text
            assert "user namespaces are closed" in reply.json()["message"]
            assert "doctor" in reply.json()["hint"]
        anna.put("/saved/file", content=b"KERNELBOX SESSION 1\n")
        reply = anna.post("/saved/file/load", json={"name": "mine", "trust": True})
        assert (reply.status_code, reply.json()["error"]) == (403, "WallsMissing")
        assert anna.get("/kernels").json() == {"kernels": []}
