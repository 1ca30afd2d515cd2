"""Profiles say what they mean, in one table; what cannot be meant or enforced is refused in words."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelbox.errors import BadInput
from kernelbox.walls import profilefiles, profiles, sandboxruntime, trees
from kernelbox.walls.domains import Policy
from kernelbox.walls.profiles import (
    CHOICES,
    GIB,
    MB,
    MIB,
    PROFILES,
    Mount,
    Profile,
    check_domain,
    credential_folders,
    environment_for,
    named,
    resolve,
    secret_names,
    size_in_words,
    table,
)

ROOT = Path(__file__).parent.parent.parent
OPEN, PERMISSIVE, MODERATE, RESTRICTIVE = PROFILES.values()

# The table of issue 6, field by field.
ISSUE = {
    "driver": ("none", "process", "process", "process"),
    "network": ("host", "on", "on", "off"),
    "allow": ((), ("*",), ("*",), ()),
    "cwd": ("host", "rw", "none", "none"),
    "home": ("host", "ro", "none", "none"),
    "environment": ("caller", "filtered", "minimal", "minimal"),
    "root": ("host", "overlay", "overlay", "readonly"),
    "scratch": ("host", "private", "private", "tmpfs"),
    "memory": (None, None, 512_000_000, 256_000_000),
    "soft_memory": (None, None, None, None),
    "cpus": (None, None, 1.0, 0.5),
    "processes": (None, None, 256, 64),
    "file_size": (None, None, None, None),
    "disk": (None, None, 1024**3, 64 * 1024**2),
    "syscalls": ("all", "deny-list", "deny-list", "allow-list"),
    "mounts": ((), (), (), ()),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, and a home, that belong to nobody's interpreter."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return here


# --- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ISSUE)
def test_the_four_profiles_are_those_of_the_issue(field: str) -> None:
    assert tuple(PROFILES) == ("open", "permissive", "moderate", "restrictive")
    assert tuple(getattr(profile, field) for profile in PROFILES.values()) == ISSUE[field]


@pytest.mark.parametrize("name", PROFILES)
def test_every_named_profile_passes_its_own_check(name: str) -> None:
    assert PROFILES[name].check() is PROFILES[name]
    assert PROFILES[name].name == name


def test_what_is_not_said_is_as_in_moderate() -> None:
    assert Profile(name="moderate") == MODERATE
    assert Profile.from_wire({}).differences(MODERATE) == {}
    assert resolve({"security": {}}) == MODERATE


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        PROFILES["open"] = RESTRICTIVE  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        RESTRICTIVE.network = "on"  # type: ignore[misc]


def test_profiles_can_be_keys_and_be_sent_to_other_processes() -> None:
    assert len({*PROFILES.values(), Profile(name="moderate")}) == 4
    assert pickle.loads(pickle.dumps(RESTRICTIVE)) == RESTRICTIVE


def test_the_page_has_the_table_of_the_code() -> None:
    page = (ROOT / "docs" / "profiles.md").read_text()
    found = re.search(
        r"<!-- table of profiles.*?-->\n\n(.*?\n)\n<!-- end of profiles -->", page, re.S
    )
    assert found, "docs/profiles.md has no place for the table"
    assert found[1] == table(), "write profiles.table() into docs/profiles.md"


def test_the_table_has_a_row_for_every_wall() -> None:
    lines = table().splitlines()
    assert lines[0] == "| | open | permissive | moderate | restrictive |"
    assert {line.count("|") for line in lines} == {6}
    assert "| memory | – | – | 512 MB | 256 MB |" in lines
    assert "| network | the host's | on | on | off |" in lines
    # A wall that a named profile has and the table does not show would go unseen.
    shown = len(CHOICES) + 1 + 5
    assert len(lines) == 2 + shown


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_a_name_is_a_profile(name: str) -> None:
    assert named(name) is PROFILES[name]
    assert resolve(name) is PROFILES[name]


@pytest.mark.parametrize(
    "name", ["modrate", "Moderate", "", "strict", "x" * 1000, None, 7, ["open"]]
)
def test_an_unknown_name_is_refused_with_those_that_exist(name: Any) -> None:
    with pytest.raises(BadInput, match="open, permissive, moderate, restrictive") as caught:
        named(name)
    assert len(caught.value.message) < 400


def test_a_near_miss_is_told_what_was_meant() -> None:
    with pytest.raises(BadInput, match="did you mean 'restrictive'"):
        named("restricted")


# --- check ---------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str, str]] = [
    *(({field: "bogus"}, field, "takes one of") for field in CHOICES),
    *(({field: None}, field, "takes one of") for field in CHOICES),
    *(({field: ["on"]}, field, "takes one of") for field in CHOICES),
    ({"driver": "proces"}, "driver", "did you mean 'process'"),
    ({"name": ""}, "name", "printable"),
    ({"name": "a\nb"}, "name", "printable"),
    ({"name": 7}, "name", "printable"),
    ({"memory": 512}, "memory", r"whole number of bytes from 16777216 \(16 MiB\)"),
    ({"memory": "512MB"}, "memory", "whole number of bytes"),
    ({"memory": -1}, "memory", "whole number"),
    ({"memory": 5e8}, "memory", "whole number"),
    ({"memory": True}, "memory", "whole number"),
    ({"memory": 2**70}, "memory", "whole number"),
    ({"soft_memory": 0}, "soft_memory", "whole number"),
    ({"soft_memory": 512 * MB}, "soft_memory", "below memory"),
    ({"cpus": 0}, "cpus", "a number from 0.01"),
    ({"cpus": -1.0}, "cpus", "a number from 0.01"),
    ({"cpus": float("nan")}, "cpus", "a number from 0.01"),
    ({"cpus": float("inf")}, "cpus", "a number from 0.01"),
    ({"cpus": 10**400}, "cpus", "a number from 0.01"),
    ({"cpus": True}, "cpus", "a number from 0.01"),
    ({"cpus": "2"}, "cpus", "a number from 0.01"),
    ({"processes": 0}, "processes", "from 8 on"),
    ({"processes": 2.5}, "processes", "whole number"),
    ({"open_files": 3}, "open_files", "from 1024 on"),
    ({"file_size": 0}, "file_size", "whole number"),
    ({"disk": 1}, "disk", "whole number"),
    ({"allow": "pypi.org"}, "allow", "list of domains"),
    ({"allow": (7,)}, "allow", "list of domains"),
    ({"allow": None}, "allow", "list of domains"),
    ({"allow": ()}, "allow", "names no domain"),
    ({"allow": ("*", "pypi.org")}, "allow", "limits nothing"),
    ({"network": "off", "allow": ("pypi.org",)}, "allow", "say network='on' too"),
    ({"mounts": "/srv"}, "mounts", "list of Mount"),
    ({"mounts": ({"source": "/srv"},)}, "mounts", "list of Mount"),
    ({"mounts": (Mount("/a", "/x"), Mount("/b", "/x"))}, "mounts", "two mounts"),
    # With walls, nothing is the host's; without, everything is.
    ({"network": "host"}, "network", "say 'on', 'raw' or 'off'"),
    ({"cwd": "host"}, "cwd", "say 'rw', 'ro' or 'none'"),
    ({"home": "host"}, "home", "say 'ro' or 'none'"),
    ({"root": "host"}, "root", "say 'overlay' or 'readonly'"),
    ({"scratch": "host"}, "scratch", "say 'private' or 'tmpfs'"),
    ({"driver": "none"}, "network", "needs walls"),
    ({"scratch": "tmpfs", "disk": None}, "disk", "has to be bounded"),
]


@pytest.mark.parametrize(("fields", "field", "words"), BAD)
def test_a_bad_value_is_refused_and_told_what_is_taken(
    fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        Profile(**fields).check()
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"network": "off"}, "network"),
        ({"network": "on"}, "network"),
        ({"cwd": "ro"}, "cwd"),
        ({"home": "none"}, "home"),
        ({"root": "readonly"}, "root"),
        ({"scratch": "tmpfs", "disk": MIB}, "scratch"),
        ({"syscalls": "allow-list"}, "syscalls"),
        ({"mounts": (Mount("/srv", "/srv"),)}, "mounts"),
    ],
)
def test_no_wall_is_promised_where_there_are_none(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=r"driver='none' has none") as caught:
        OPEN.but(**changes)
    assert caught.value.details["field"] == field


GOOD_DOMAINS = [
    "*", "pypi.org", "*.example.com", "example.com:8443", "*.example.com:1", "a.b.c.d.example",
    "xn--bcher-kva.example", "_dmarc.example.com", "intranet", "1.example", "*:8443", "a-b.example:65535",
]  # fmt: skip
BAD_DOMAINS = [
    "", " ", "https://pypi.org", "pypi.org/simple", "pypi.org:", "pypi.org:0", "pypi.org:65536",
    "pypi.org:http", "pypi.org:4 3", "127.0.0.1", "127.0.0.1:80", "2130706433", "0x7f.1", "0x7f000001", "1.1",
    "::1", "[::1]", "[::1]:443", "2001:db8::1", "localhost", "foo.localhost", "localhost:8080", "*.", "*.*",
    "**", "a.*.com", "*example.com", ".example.com", "example..com", "example.com.", "-a.example", "a-.example",
    "bücher.example", "user@example.com", "exa mple.com", "a" * 64 + ".com", ".".join(["abcdefgh"] * 40),
    "pypi.org\n", "pypi.org\0", 7, None, b"pypi.org", ["pypi.org"],
]  # fmt: skip


@pytest.mark.parametrize("pattern", GOOD_DOMAINS)
def test_a_domain_that_a_profile_takes_the_proxy_takes(pattern: str) -> None:
    assert check_domain(pattern) == pattern
    assert Profile(allow=(pattern,)).check().allow == (pattern,)
    assert Policy((pattern,)).allow == (pattern,)


@pytest.mark.parametrize("pattern", BAD_DOMAINS)
def test_what_is_no_domain_is_refused(pattern: Any) -> None:
    with pytest.raises(BadInput) as caught:
        check_domain(pattern)
    assert caught.value.details["field"] == "allow"
    with pytest.raises(BadInput):
        Profile(allow=(pattern,)).check()


def test_domains_have_one_spelling() -> None:
    assert Profile(allow=["PyPI.org", "pypi.org"]).allow == ("pypi.org",)  # type: ignore[arg-type]


BAD_MOUNTS = [
    ("srv", "/srv", "ro"), ("/srv", "srv", "ro"), ("/srv/", "/srv", "ro"), ("/srv/../etc", "/x", "ro"),
    ("/srv", "/x/../etc", "ro"), ("//srv", "/srv", "ro"), ("", "/srv", "ro"), ("/", "/srv", "ro"),
    ("/srv", "/", "ro"), ("/proc", "/srv", "ro"), ("/proc/1/root", "/srv", "ro"), ("/sys", "/srv", "ro"),
    ("/dev", "/srv", "rw"), ("/srv", "/dev/shm", "rw"), ("/srv", "/proc/self", "rw"), ("/srv", "/srv", "rwx"),
    ("/srv", "/srv", None), ("/sr\0v", "/srv", "ro"), ("/sr\nv", "/srv", "ro"), (7, "/srv", "ro"), (None, "/x", "ro"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "mode"), BAD_MOUNTS)
def test_a_bad_mount_is_refused(source: Any, target: Any, mode: Any) -> None:
    with pytest.raises(BadInput) as caught:
        Profile(mounts=(Mount(source, target, mode),)).check()
    assert caught.value.details["field"] == "mounts"


@pytest.mark.parametrize("path", ["/srv", "/home/me/data", "/procession", "/development", "/a b/ü"])
def test_a_good_mount_is_taken(path: str) -> None:
    Profile(mounts=(Mount(path, path, "rw"), Mount(path, "/data"))).check()


# --- on the wire ---------------------------------------------------------------------------------

CUSTOM = Profile(
    name="mine",
    driver="gvisor",
    allow=("pypi.org", "*.example.com:8443"),
    cwd="ro",
    home="ro",
    environment="filtered",
    memory=GIB,
    soft_memory=512 * MIB,
    cpus=2,
    file_size=MIB,
    mounts=(Mount("/srv/data", "/data", "ro"), Mount("/srv/out", "/out", "rw")),
)


@pytest.mark.parametrize("profile", [*PROFILES.values(), CUSTOM], ids=lambda profile: profile.name)
def test_a_profile_survives_the_wire(profile: Profile) -> None:
    plain = json.loads(json.dumps(profile.to_wire()))
    assert Profile.from_wire(plain) == profile
    assert resolve(plain) == profile
    assert set(plain) == {field.name for field in dataclasses.fields(Profile)}


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"gpu": False}, "must not be dropped in silence"),
        ({"memmory": 1}, "did you mean 'memory'"),
        ({"mounts": [{"source": "/a", "target": "/a", "noexec": True}]}, "a mount has no 'noexec'"),
        ({"mounts": [{"target": "/a"}]}, "name its source"),
        ({"mounts": ["/a"]}, "a mount takes"),
        ({"mounts": {"source": "/a"}}, "takes a list"),
        ({"network": "hots"}, "did you mean 'host'"),
        ({"memory": 1.5}, "whole number"),
    ],
)
def test_what_a_newer_version_added_is_refused(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Profile.from_wire({**MODERATE.to_wire(), **extra})


# --- changes -------------------------------------------------------------------------------------


def test_a_changed_profile_says_so_in_its_name_once() -> None:
    changed = MODERATE.but(memory=GIB)
    assert (changed.name, changed.memory) == ("moderate, changed", GIB)
    assert changed.but(cpus=2).name == "moderate, changed"
    assert MODERATE.but(memory=GIB, name="big").name == "big"
    assert MODERATE.but(memory=512 * MB) is MODERATE
    assert MODERATE.memory == 512 * MB


def test_a_long_name_still_fits_when_changed() -> None:
    long = Profile(name="n" * 128).check()
    assert long.but(memory=GIB).check().name.endswith("n, changed")


@pytest.mark.parametrize(
    ("profile", "changes", "network", "allow"),
    [
        (RESTRICTIVE, {"network": "on"}, "on", ("*",)),
        (RESTRICTIVE, {"network": "on", "allow": ["pypi.org"]}, "on", ("pypi.org",)),
        (MODERATE, {"network": "off"}, "off", ()),
        (MODERATE.but(allow=("pypi.org",)), {"network": "off"}, "off", ()),
        (MODERATE.but(allow=("pypi.org",)), {"network": "on"}, "on", ("pypi.org",)),
        (MODERATE, {"allow": ("pypi.org",)}, "on", ("pypi.org",)),
    ],
)
def test_the_list_of_domains_follows_the_switch(
    profile: Profile, changes: dict[str, Any], network: str, allow: tuple[str, ...]
) -> None:
    changed = profile.but(**changes)
    assert (changed.network, changed.allow) == (network, allow)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memroy": 1}, "did you mean 'memory'"),
        ({"memory": 1}, "whole number"),
        ({"driver": "none"}, "needs walls"),
        ({"allow": ()}, "names no domain"),
    ],
)
def test_a_bad_change_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        MODERATE.but(**changes)


def test_differences_name_both_values_and_only_what_differs() -> None:
    assert MODERATE.differences(MODERATE) == {}
    assert MODERATE.differences(MODERATE.but(name="other")) == {}
    changed = MODERATE.but(memory=GIB, network="off")
    assert changed.differences(MODERATE) == {
        "network": ("off", "on"),
        "allow": ((), ("*",)),
        "memory": (GIB, 512 * MB),
    }


# --- in words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (512 * MB, "512 MB"), (512 * MIB, "512 MiB"), (GIB, "1 GiB"), (10**9, "1 GB"), (1536 * MIB, "1536 MiB"),
        (4096, "4 KiB"), (1000, "1 kB"), (1, "1 bytes"), (1234567, "1,234,567 bytes"), (0, "0 bytes"),
    ],
)  # fmt: skip
def test_a_size_is_said_exactly(size: int, words: str) -> None:
    assert size_in_words(size) == words


def test_a_profile_in_one_line() -> None:
    assert str(RESTRICTIVE) == (
        "restrictive: driver process, network off, cwd none, home none, environment minimal, root "
        "readonly, scratch tmpfs, syscalls allow-list, memory 256 MB, CPUs 0.5, processes 64, open "
        "files 1024, disk 64 MiB"
    )
    assert "network on (pypi.org, *.example.com:8443)" in str(CUSTOM)
    assert "mount /srv/data at /data (ro)" in str(CUSTOM)
    assert "\n" not in str(CUSTOM)


SENTENCES = [
    (OPEN, "may", "credentials included"),
    (OPEN, "may", "secrets included"),
    (OPEN, "may", "use all of the memory"),
    (PERMISSIVE, "may", "read and write the folder that it was started in"),
    (PERMISSIVE, "may", "read the caller's home"),
    (PERMISSIVE, "may not", "see the keys and credentials in that home (.ssh"),
    (PERMISSIVE, "may not", "names look like secrets"),
    (PERMISSIVE, "may", "use all of the memory"),
    (MODERATE, "may", "reach every domain"),
    (MODERATE, "may not", "loopback services or Unix sockets"),
    (MODERATE, "may not", "see the caller's home"),
    (MODERATE, "may not", "more than 512 MB of memory: that kills it"),
    (MODERATE, "may not", "the time of 1 processor"),
    (MODERATE, "may", "a copy of its own that is thrown away"),
    (MODERATE, "may", "up to 1 GiB"),
    (RESTRICTIVE, "may not", "reach any network"),
    (RESTRICTIVE, "may not", "change the system's files"),
    (RESTRICTIVE, "may not", "more than 64 processes"),
    (RESTRICTIVE, "may", "in memory, up to 64 MiB"),
    (RESTRICTIVE, "may not", "any system call other than"),
    (CUSTOM, "may", "reach pypi.org, *.example.com:8443"),
    (CUSTOM, "may not", "reach any other domain"),
    (CUSTOM, "may not", "512 MiB of memory in a cell: that raises MemoryError"),
    (CUSTOM, "may not", "a file of more than 1 MiB"),
    (CUSTOM, "may", "read /srv/data of the host, which it sees as /data"),
    (CUSTOM, "may", "read and write /srv/out of the host"),
    (MODERATE.but(syscalls="all"), "may", "every system call"),
    (MODERATE.but(disk=None), "may", "without a limit"),
    (MODERATE.but(environment="caller"), "may", "secrets included"),
]


@pytest.mark.parametrize(("profile", "verb", "words"), SENTENCES)
def test_a_profile_explains_itself(profile: Profile, verb: str, words: str) -> None:
    may, _, may_not = profile.explain().partition("\nCode may not\n")
    assert words in (may if verb == "may" else may_not)
    assert words not in (may_not if verb == "may" else may)
    assert profile.explain().startswith(f"{profile.name}: ")


def test_every_wall_changes_the_explanation() -> None:
    """A wall that the words do not mention is one that nobody knows of."""
    for field, value in {
        "driver": "gvisor", "network": "off", "allow": ("pypi.org",), "cwd": "ro", "home": "ro",
        "environment": "filtered", "root": "readonly", "scratch": "tmpfs", "memory": GIB, "soft_memory": 64 * MIB,
        "cpus": 2, "processes": 9, "open_files": 2048, "file_size": MIB, "disk": MIB, "syscalls": "allow-list",
        "mounts": (Mount("/srv", "/srv"),),
    }.items():  # fmt: skip
        changed = MODERATE.but(**{field: value}, name="moderate")
        assert changed.explain() != MODERATE.explain(), field
        assert str(changed) != str(MODERATE), field


# --- resolve and files ---------------------------------------------------------------------------


def test_nothing_said_is_open() -> None:
    assert resolve(None) is OPEN


def test_a_profile_is_itself_but_checked() -> None:
    assert resolve(CUSTOM) is CUSTOM
    with pytest.raises(BadInput):
        resolve(Profile(memory=1))


@pytest.mark.parametrize("value", [7, True, b"moderate", ["moderate"], object()])
def test_what_is_no_profile_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match="a profile is a name"):
        resolve(value)


TOML = """
[security]
profile = "moderate"
driver = "gvisor"
cwd = "ro"
home = "ro"
environment = "filtered"
root = "readonly"
scratch = "tmpfs"
syscalls = "allow-list"

[resources]
memory = "1GiB"
soft_memory = "512MB"
cpus = 2
processes = 100
open_files = 2048
file_size = "10 MB"
disk = 134217728

[network]
mode = "on"
allow = ["pypi.org", "*.example.com"]

[[mounts]]
source = "data"
target = "/data"

[[mounts]]
source = "~/out"
target = "/out"
mode = "rw"
"""


def written(folder: Path, text: str, name: str = "kernelbox.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def as_path(path: Path) -> Any:
    return path


def as_text(path: Path) -> Any:
    return str(path)


def as_relative(path: Path) -> Any:
    return path.name


@pytest.mark.parametrize("form", [as_path, as_text, as_relative])
@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_file_says_everything(folder: Path, form: Callable[[Path], Any], suffix: str) -> None:
    import tomllib

    text = TOML if suffix == "toml" else json.dumps(tomllib.loads(TOML))
    profile = resolve(form(written(folder, text, f"kernelbox.{suffix}")))
    assert profile == Profile(
        name="moderate, changed",
        driver="gvisor",
        network="on",
        allow=("pypi.org", "*.example.com"),
        cwd="ro",
        home="ro",
        environment="filtered",
        root="readonly",
        scratch="tmpfs",
        memory=GIB,
        soft_memory=512 * MB,
        cpus=2.0,
        processes=100,
        open_files=2048,
        file_size=10 * MB,
        disk=128 * MIB,
        syscalls="allow-list",
        mounts=(
            Mount(str(folder / "data"), "/data", "ro"),
            Mount(os.environ["HOME"] + "/out", "/out", "rw"),
        ),
    )


def test_paths_in_a_file_begin_at_the_file(folder: Path) -> None:
    (folder / "deep").mkdir()
    path = written(folder / "deep", '[[mounts]]\nsource = "../data/"\ntarget = "/data"')
    assert resolve(path).mounts == (Mount(str(folder / "data"), "/data"),)


def test_a_mount_without_a_target_is_seen_where_it_is(folder: Path) -> None:
    profile = resolve({"mounts": [{"source": "data"}]})
    assert profile.mounts == (Mount(str(folder / "data"), str(folder / "data")),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", MODERATE),
        ('[security]\nprofile = "restrictive"', RESTRICTIVE),
        ('[security]\nprofile = "open"', OPEN),
        ("[network]\nmode = 'off'", MODERATE.but(network="off")),
        ("[network]\nallow = ['pypi.org']", MODERATE.but(allow=("pypi.org",))),
        ("[resources]\nmemory = 'none'\ncpus = 'none'", MODERATE.but(memory=None, cpus=None)),
        ("[resources]\ncpus = 0.25", MODERATE.but(cpus=0.25)),
        ("[resources]\nmemory = 100000000", MODERATE.but(memory=100 * MB)),
        ('[security]\nprofile = "open"\n[resources]\nmemory = "1GiB"', OPEN.but(memory=GIB)),
        ("{}", MODERATE),
        ('  {"network": {"mode": "off"}}', MODERATE.but(network="off")),
        ('{"resources": {"memory": null}}', MODERATE.but(memory=None)),
        ('{"profile": "restrictive", "cpus": 1}', RESTRICTIVE.but(cpus=1)),
        ('{"profile": "moderate", "memory": "1GiB"}', MODERATE.but(memory=GIB)),
        ('{"network": "off"}', Profile(network="off")),
        ('{"name": "mine", "disk": "2GB"}', Profile(name="mine", disk=2 * 10**9)),
    ],
)
def test_a_file_changes_what_it_names(folder: Path, text: str, expected: Profile) -> None:
    assert resolve(written(folder, text)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[securty]\n", "no section 'securty'; .*did you mean 'security'"),
        ("[server]\nport = 1", "no section 'server'; it has security, resources, network, mounts"),
        ("[security]\nmemory = 1", r"belongs into \[resources\]"),
        ("[security]\nenviroment = 'minimal'", "did you mean 'environment'"),
        ("[security]\nnetwork = 'off'", r"\[security\] has no key 'network'"),
        ("[security]\nprofile = 'modrate'", "did you mean 'moderate'"),
        ("[security]\nprofile = './other.toml'", "no profile './other.toml'"),
        ("[security]\nprofile = ['open']", "no profile"),
        ("[security]\ndriver = 'docker'", "takes one of none, process, gvisor"),
        ("[security]\nprofile = 'open'\ncwd = 'ro'", "needs walls"),
        ("[resources]\nmemory = '512M'", "'512MB'.*millions"),
        ("[resources]\nmemory = 'lots'", "takes a number of bytes"),
        ("[resources]\nmemory = 512", "16 MiB"),
        ("[resources]\ncpus = '2'", "a number from 0.01"),
        ("[resources]\nmemmory = 1", "did you mean 'memory'"),
        ("[network]\nallow = 'pypi.org'", "list of domains"),
        ("[network]\nallow = [1]", "list of domains"),
        ("[network]\nmode = 'off'\nallow = ['pypi.org']", "say network='on' too"),
        ("[network]\nmod = 'off'", "did you mean 'mode'"),
        ("[[mounts]]\nsource = '/a'\ntarget = '/b'\nmdoe = 'rw'", "did you mean 'mode'"),
        ("[[mounts]]\ntarget = '/b'", "name its source"),
        ("[[mounts]]\nsource = '/'\ntarget = '/b'", "cannot be the source"),
        ("[mounts]\nsource = '/a'", "takes a list"),
        ("security = 'moderate'", r"\[security\] is a section"),
        ("network = 'off'\n[resources]\n", r"\[network\] is a section"),
        ("memory = 1\n[security]\n", r"belongs into \[resources\]"),
        ("[security", "not TOML"),
        ("{", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"memmory": 1}', "no section 'memmory'"),
        ('{"memory": "1GiB", "gpu": 1}', "must not be dropped in silence"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_name(folder: Path, text: str, words: str) -> None:
    path = written(folder, text)
    with pytest.raises(BadInput, match=words) as caught:
        resolve(path)
    assert caught.value.message.startswith(f"{path}: ")


def test_a_list_in_a_file_is_no_profile(folder: Path) -> None:
    with pytest.raises(BadInput, match="a table of sections"):
        resolve(written(folder, "[1]", "profile.json"))


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    (folder / "binary.toml").write_bytes(b"\xff\xfe")
    for name, words in {
        "missing.toml": "No such file",
        "./missing": "No such file",
        "./": "Is a directory",
        "binary.toml": "not UTF-8",
    }.items():
        with pytest.raises(BadInput, match=words):
            resolve(name)


def test_a_door_for_strangers_reads_no_files(folder: Path) -> None:
    path = written(folder, "")
    for value in (str(path), "kernelbox.toml"):
        with pytest.raises(BadInput, match="there is no profile"):
            resolve(value, files=False)
    with pytest.raises(BadInput, match="a profile is a name"):
        resolve(path, files=False)
    assert resolve("moderate", files=False) is MODERATE


def test_a_key_that_is_no_string_is_refused() -> None:
    with pytest.raises(BadInput, match="a key of a profile is a string"):
        resolve({1: 2})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MB", 512 * MB), ("512mb", 512 * MB), (" 512 MB ", 512 * MB), ("1GiB", GIB), ("1.5GiB", 3 * GIB // 2),
        ("0.5 MB", 500_000), ("64 KiB", 65536), ("10kB", 10_000), ("123", 123), ("123 B", 123), ("1TB", 10**12),
        ("1TiB", 2**40), ("0.1kB", 100),
    ],
)  # fmt: skip
def test_a_size_is_read(text: str, size: int) -> None:
    assert profilefiles.size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "512M", "512m", "-1MB", "1e9", "1,000MB", "١MB", "1 M B", "1.MB", "9" * 40]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="512MB"):
        profilefiles.size(text)


# --- sandbox-runtime -----------------------------------------------------------------------------


HERE = (Mount(".", ".", "rw"),)


def srt(**sections: Any) -> Profile:
    return resolve(sections)


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"network": {"allowedDomains": []}}, {}),
        ({"filesystem": {}}, {}),
        ({"filesystem": {"allowWrite": []}}, {}),
        (
            {"network": {"allowedDomains": ["GitHub.com", "*.npmjs.org", "a.example:443"]}},
            {"network": "on", "allow": ("github.com", "*.npmjs.org", "a.example:443")},
        ),
        ({"network": {"allowedDomains": ["*", "a.example"]}}, {"network": "on", "allow": ("*",)}),
        (
            {"network": {"allowedDomains": ["*", "a.example:22"]}},
            {"network": "on", "allow": ("*", "a.example:22")},
        ),
        # What is denied and not allowed is denied.
        (
            {"network": {"allowedDomains": ["a.example"], "deniedDomains": ["b.example", "*.a.org"]}},
            {"network": "on", "allow": ("a.example",)},
        ),
        # What is denied and allowed is denied.
        (
            {"network": {"allowedDomains": ["a.example", "b.a.org"], "deniedDomains": ["*.a.org"]}},
            {"network": "on", "allow": ("a.example",)},
        ),
        ({"network": {"allowedDomains": ["a.example"], "deniedDomains": ["*"]}}, {}),
        ({"network": {"allowedDomains": ["a.example"], "deniedDomains": ["A.example"]}}, {}),
        (
            {"network": {"allowedDomains": ["a.example:443"], "deniedDomains": ["a.example:22"]}},
            {"network": "on", "allow": ("a.example:443",)},
        ),
        ({"network": {"deniedDomains": ["*.example.com"]}}, {}),
        ({"network": {"allowLocalBinding": True, "allowUnixSockets": []}}, {}),
        ({"network": {"allowLocalBinding": False, "strictAllowlist": True}}, {}),
        ({"network": {"allowedDomains": [], "httpProxyPort": None}}, {}),
        ({"filesystem": {"allowWrite": ["."]}}, {"mounts": HERE}),
        ({"filesystem": {"allowWrite": ["./**", "/tmp", "/dev/null"]}}, {"mounts": HERE}),
        ({"filesystem": {"allowRead": ["."]}}, {"mounts": (Mount(".", ".", "ro"),)}),
        ({"filesystem": {"allowRead": ["."], "allowWrite": ["."]}}, {"mounts": HERE}),
        (
            {"filesystem": {"allowWrite": ["/srv/out", "/srv/out/", "/srv/more/**"]}},
            {"mounts": (Mount("/srv/out", "/srv/out", "rw"), Mount("/srv/more", "/srv/more", "rw"))},
        ),
        (
            {"filesystem": {"allowRead": ["/srv/in", "/usr/share"], "allowWrite": ["/srv/out"]}},
            {"mounts": (Mount("/srv/out", "/srv/out", "rw"), Mount("/srv/in", "/srv/in", "ro"))},
        ),
        ({"filesystem": {"allowRead": ["/srv/a"], "allowWrite": ["/srv"]}}, {"mounts": (Mount("/srv", "/srv", "rw"),)}),
        # Nobody sees these anyway.
        ({"filesystem": {"denyRead": ["~/.ssh", "~", "/root", "/etc/shadow", "/etc/passwd", "/var/run"]}}, {}),
        ({"filesystem": {"denyRead": ["**/.env", ".", "secrets/*"]}}, {}),
        ({"filesystem": {"denyRead": ["/etc/ssl/private", "/etc/ssl/private/key.pem"]}}, {}),
        ({"filesystem": {"denyRead": ["~/.ssh"], "allowWrite": ["."]}}, {"mounts": HERE}),
        ({"filesystem": {"denyRead": [".."], "allowRead": ["."], "allowWrite": ["."]}}, {"mounts": HERE}),
        (
            {"filesystem": {"denyRead": ["/srv"], "allowRead": ["/srv/in"]}},
            {"mounts": (Mount("/srv/in", "/srv/in", "ro"),)},
        ),
        ({"filesystem": {"denyWrite": ["/etc", "~/.bashrc", ".env", "**/*.pem"]}}, {}),
        ({"filesystem": {"disabled": False, "allowGitConfig": False}}, {}),
        ({"credentials": {"files": [{"path": "~/.aws", "mode": "deny"}]}}, {}),
        ({"credentials": {"envVars": [{"name": "GH_TOKEN", "mode": "deny"}]}}, {}),
        ({"ignoreViolations": {"*": ["/usr/bin"]}, "filesystem": {}}, {}),
        ({"enableWeakerNestedSandbox": True}, {}),
        ({"ripgrep": {"command": "rg"}, "allowPty": True, "bwrapPath": "/usr/bin/bwrap"}, {}),
    ],
)  # fmt: skip
def test_settings_of_sandbox_runtime_open_restrictive_as_far_as_they_say(
    settings: dict[str, Any], changes: dict[str, Any]
) -> None:
    changes = dict(changes)
    mounts = tuple(
        Mount(os.path.abspath(mount.source), os.path.abspath(mount.target), mount.mode)
        for mount in changes.pop("mounts", ())
    )
    expected = RESTRICTIVE.but(name="sandbox-runtime", mounts=mounts, **changes)
    assert resolve(settings) == expected


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        ({"network": {"allowedDomains": ["*.a.org"], "deniedDomains": ["b.a.org"]}}, "network.deniedDomains", "part of"),
        ({"network": {"allowedDomains": ["*.a.org"], "deniedDomains": ["*.b.a.org"]}}, "network.deniedDomains", "part of"),
        ({"network": {"allowedDomains": ["a.org"], "deniedDomains": ["a.org:22"]}}, "network.deniedDomains", "part of"),
        ({"network": {"allowedDomains": ["a.org"], "deniedDomains": ["*:22"]}}, "network.deniedDomains", "part of"),
        ({"network": {"allowedDomains": ["*"], "deniedDomains": ["a.org"]}}, "network.deniedDomains", "part of"),
        ({"network": {"allowedDomains": ["localhost"]}}, "allow", "loopback of its own"),
        ({"network": {"allowedDomains": ["10.0.0.1"]}}, "allow", "only names are let through"),
        ({"network": {"allowedDomains": "a.org"}}, "network.allowedDomains", "list of strings"),
        ({"network": {"allowedDomains": [7]}}, "network.allowedDomains", "list of strings"),
        ({"network": {"allowUnixSockets": ["/var/run/docker.sock"]}}, "network.allowUnixSockets", "out of reach"),
        ({"network": {"allowAllUnixSockets": True}}, "network.allowAllUnixSockets", "out of reach"),
        ({"network": {"allowedDomains": [], "httpProxyPort": 3128}}, "network.httpProxyPort", "own proxy"),
        ({"network": {"allowedDomains": [], "socksProxyPort": 1080}}, "network.socksProxyPort", "own proxy"),
        ({"network": {"mitmProxy": {"socketPath": "/x", "domains": []}}}, "network.mitmProxy", "own proxy"),
        ({"network": {"parentProxy": {"http": "http://x"}}}, "network.parentProxy", "connects directly"),
        ({"network": {"tlsTerminate": {"excludeDomains": []}}}, "network.tlsTerminate", "encrypted"),
        ({"network": {"allowedDomians": []}, "filesystem": {}}, "network.allowedDomians", "did you mean 'network.allowedDomains'"),
        ({"filesystem": {"denyReed": []}}, "filesystem.denyReed", "did you mean 'filesystem.denyRead'"),
        ({"filesystem": {}, "sandbox": {}}, "sandbox", "must not be dropped in silence"),
        ({"filesystem": {"disabled": True}}, "filesystem.disabled", "profile 'open'"),
        ({"filesystem": {"allowGitConfig": True}}, "filesystem.allowGitConfig", "as a whole"),
        ({"filesystem": {"denyRead": ["/usr/share/doc"]}}, "filesystem.denyRead", "it is in /usr"),
        ({"filesystem": {"denyRead": ["/bin"]}}, "filesystem.denyRead", "it is in /bin|it is in /usr"),
        ({"filesystem": {"denyRead": ["/"]}}, "filesystem.denyRead", "every program needs"),
        ({"filesystem": {"denyRead": ["/**"]}}, "filesystem.denyRead", "every program needs"),
        ({"filesystem": {"denyRead": ["/etc"]}}, "filesystem.denyRead", "every program needs"),
        ({"filesystem": {"denyRead": ["/etc/ssl"]}}, "filesystem.denyRead", "it is in /etc/ssl"),
        ({"filesystem": {"denyRead": [sys.prefix + "/secret"]}}, "filesystem.denyRead", "which the sandbox sees"),
        ({"filesystem": {"denyRead": [".env"], "allowWrite": ["."]}}, "filesystem.denyRead", "which the sandbox sees"),
        ({"filesystem": {"denyRead": ["**/.env"], "allowWrite": ["."]}}, "filesystem.denyRead", "which the sandbox sees"),
        ({"filesystem": {"denyRead": ["/srv/in/x"], "allowRead": ["/srv/in"]}}, "filesystem.denyRead", "which the sandbox sees"),
        ({"filesystem": {"denyRead": ["/srv"], "allowWrite": ["/srv/out"]}}, "filesystem.denyRead", "name it in allowRead too"),
        ({"filesystem": {"denyRead": ["**/.env"], "allowRead": ["in"]}}, "filesystem.denyRead", "as a whole"),
        ({"filesystem": {"denyWrite": [".env"], "allowWrite": ["."]}}, "filesystem.denyWrite", "as a whole"),
        ({"filesystem": {"denyWrite": ["/srv"], "allowWrite": ["/srv/out"]}}, "filesystem.denyWrite", "as a whole"),
        ({"filesystem": {"denyWrite": ["**/*.pem"], "allowWrite": ["./out"]}}, "filesystem.denyWrite", "as a whole"),
        ({"filesystem": {"allowWrite": ["src/*.py"]}}, "filesystem.allowWrite", "not by pattern"),
        ({"filesystem": {"allowRead": ["/srv/[ab]"]}}, "filesystem.allowRead", "not by pattern"),
        ({"filesystem": {"allowWrite": ["/"]}}, "mounts", "cannot be the source"),
        ({"filesystem": {"allowWrite": ["/proc/sys"]}}, "mounts", "cannot be the source"),
        ({"filesystem": {"allowWrite": [""]}}, "filesystem.allowWrite", "list of strings"),
        ({"credentials": {"files": [{"path": "/usr/x", "mode": "deny"}]}}, "filesystem.denyRead", "it is in /usr"),
        ({"credentials": {"files": [{"path": "~/.aws", "mode": "mask"}]}}, "credentials.files", "only the mode 'deny'"),
        ({"credentials": {"envVars": [{"name": "X", "mode": "mask"}]}}, "credentials.envVars", "only the mode 'deny'"),
        ({"credentials": {"envVars": ["X"]}}, "credentials.envVars", "takes a list of tables"),
        ({"credentials": {"files": "x"}}, "credentials.files", "takes a list of tables"),
        ({"credentials": {"awsPairs": [{}]}}, "credentials.awsPairs", "not signed anew"),
        ({"mandatoryDenySearchDepth": 3}, "mandatoryDenySearchDepth", "protected"),
        ({"git": {"safeDirectories": ["/x"]}}, "git", "GIT_CONFIG"),
    ],
)  # fmt: skip
def test_what_of_sandbox_runtime_cannot_be_enforced_is_refused(
    settings: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        resolve(settings)
    assert caught.value.details["field"] == field


def test_a_link_does_not_hide_what_it_leads_to(folder: Path) -> None:
    (folder / "link").symlink_to("/usr/share")
    with pytest.raises(BadInput, match="it is in /usr"):
        srt(filesystem={"denyRead": ["link"]})


@pytest.mark.parametrize("denied", ["denyRead", "denyWrite"])
def test_what_is_denied_is_not_shown_by_way_of_a_link(folder: Path, denied: str) -> None:
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    with pytest.raises(BadInput, match="cannot be enforced"):
        srt(filesystem={denied: ["real/secret"], "allowWrite": ["link"]})


def test_a_kernel_started_elsewhere_does_not_get_that_folder_instead(folder: Path) -> None:
    profile = srt(filesystem={"denyRead": ["~/.ssh"], "allowWrite": ["."]})
    assert profile.cwd == "none"


def test_the_settings_file_of_sandbox_runtime_is_recognised(folder: Path) -> None:
    text = json.dumps(
        {"network": {"allowedDomains": ["pypi.org"]}, "filesystem": {"allowWrite": ["."]}}
    )
    profile = resolve(written(folder, text, ".srt-settings.json"))
    assert (profile.name, profile.allow) == ("sandbox-runtime", ("pypi.org",))
    assert profile.mounts == (Mount(str(folder), str(folder), "rw"),)


@pytest.mark.parametrize(
    ("values", "is_its"),
    [
        ({}, False),
        ({"network": {"mode": "off"}}, False),
        ({"network": {"mode": "off", "allowedDomains": []}}, True),
        ({"network": "off"}, False),
        ({"mounts": []}, False),
        ({"security": {}, "filesystem": {}}, False),
        ({"filesystem": {}}, True),
        ({"network": {"allowedDomains": []}}, True),
        ({"ignoreViolations": {}}, True),
    ],
)
def test_whose_settings_these_are_is_told_by_their_keys(
    values: dict[str, Any], is_its: bool
) -> None:
    assert sandboxruntime.recognises(values) is is_its


def test_both_dialects_at_once_are_refused() -> None:
    with pytest.raises(BadInput, match="no section 'filesystem'"):
        resolve({"security": {}, "filesystem": {}})
    with pytest.raises(BadInput, match=r"network\.mode"):
        resolve({"network": {"mode": "off", "allowedDomains": []}})


def test_every_key_is_enforced_settled_or_refused_and_only_one_of_them() -> None:
    known = sandboxruntime._KNOWN
    assert len(known) == len(set(known))


# --- the environment -----------------------------------------------------------------------------

SECRET = [
    "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AZURE_CLIENT_ID", "GITHUB_TOKEN", "GH_TOKEN", "GITHUBTOKEN",
    "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "openai_api_key", "HF_TOKEN", "API_KEYS", "APIKEY", "X_APIKEY_2",
    "DB_PASSWORD", "PGPASSWORD", "PGPASSFILE", "MYSQL_PWD", "DB_PASS", "SMTP_PASSWD", "SSH_AUTH_SOCK",
    "GPG_AGENT_INFO", "GOOGLE_APPLICATION_CREDENTIALS", "CLIENT_SECRET", "SECRETS_FILE", "SECRET_KEY_BASE",
    "PASSPHRASE", "SENTRY_DSN", "CI_JOB_JWT", "SESSION_COOKIE", "NPM_AUTH", "KUBECONFIG", "XAUTHORITY",
    "OP_SESSION_my", "VAULT_ADDR", "OTEL_EXPORTER_OTLP_HEADERS", "KERNELBOX_API_TOKEN", "GITLAB_PAT",
    "TLS_PRIVATE_KEY", "DATABASE_URL", "CREDENTIALS", "my.password",
]  # fmt: skip
HARMLESS = [
    "PATH", "HOME", "PWD", "OLDPWD", "LANG", "LC_ALL", "TERM", "USER", "SHELL", "EDITOR", "TOKENIZERS_PARALLELISM",
    "PYTHONPATH", "VIRTUAL_ENV", "KEYBOARD_LAYOUT", "OMP_NUM_THREADS", "XDG_SESSION_ID", "AUTHOR", "COMPASS",
    "PATTERN", "CUDA_VISIBLE_DEVICES", "MPLBACKEND", "DISPLAY", "TZ", "AWSOME", "GIT_AUTHOR_NAME", "PASSAGE",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_a_name_that_looks_like_a_secret_is_one(name: str) -> None:
    assert secret_names({name: "x", "PATH": "/bin"}) == {name}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_name_is_no_secret(name: str) -> None:
    assert secret_names({name: "x"}) == set()


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("postgres://me:hunter2@db.example/x", True),
        ("redis://:hunter2@cache", True),
        ("https://example.com/a:b@c", False),
        ("https://example.com:8443/", False),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII", True),
        ("-----BEGIN CERTIFICATE-----", False),
        ("ghp_0123456789abcdefghij0123456789abcdef", True),
        ("sk-ant-" + "x1-" * 10, True),
        ("AKIAIOSFODNN7EXAMPLE", True),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.sig", True),
        ("/usr/bin:/bin", False),
        ("task-force-of-the-year", False),
        ("", False),
    ],
)
def test_a_value_that_plainly_is_a_secret_is_one(value: str, is_one: bool) -> None:
    assert (secret_names({"HARMLESS": value}) == {"HARMLESS"}) is is_one


CALLER = {
    "PATH": "/home/me/bin:/usr/bin",
    "HOME": "/home/me",
    "USER": "me",
    "LOGNAME": "me",
    "SHELL": "/bin/zsh",
    "LANG": "de_DE.UTF-8",
    "LC_TIME": "en_DK.UTF-8",
    "LC_SECRET": "x",
    "TZ": "Europe/Berlin",
    "TERM": "xterm",
    "TMPDIR": "/home/me/tmp",
    "EDITOR": "vi",
    "OPENAI_API_KEY": "sk-1",
    "https_proxy": "http://proxy.example:3128",
    "XDG_RUNTIME_DIR": "/run/user/1000",
}
INSIDE = {"HOME": "/home/sandbox", "PATH": "/usr/bin", "TMPDIR": "/tmp"}
MINIMAL = {
    **INSIDE,
    "LANG": "de_DE.UTF-8",
    "LC_TIME": "en_DK.UTF-8",
    "TZ": "Europe/Berlin",
    "TERM": "xterm",
    "USER": "sandbox",
    "LOGNAME": "sandbox",
    "SHELL": "/bin/bash",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in CALLER.items() if name not in names}


OUT_OF_REACH = ("https_proxy", "XDG_RUNTIME_DIR")


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (OPEN, CALLER),
        (OPEN.but(environment="filtered"), without("OPENAI_API_KEY", "LC_SECRET")),
        (PERMISSIVE, {**without("OPENAI_API_KEY", "LC_SECRET", *OUT_OF_REACH), **INSIDE}),
        (MODERATE.but(environment="caller"), {**without(*OUT_OF_REACH), **INSIDE}),
        (MODERATE, MINIMAL),
        (RESTRICTIVE, MINIMAL),
    ],
    ids=str,
)
def test_the_environment_is_what_the_profile_passes(
    profile: Profile, expected: dict[str, str]
) -> None:
    made = environment_for(profile, CALLER, home="/home/sandbox", path="/usr/bin")
    assert made == expected


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_variable_that_is_given_is_there_whatever_its_name(profile: Profile) -> None:
    given = {"OPENAI_API_KEY": "given", "TZ": "UTC", "https_proxy": "http://127.0.0.1:3128"}
    made = environment_for(profile, CALLER, home="/h", path="/p", given=given)
    assert {name: made[name] for name in given} == given


def test_a_bare_caller_still_makes_a_usable_environment() -> None:
    made = environment_for(MODERATE, {}, home="/h", path="/p")
    assert made == {
        "HOME": "/h", "PATH": "/p", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb",
        "USER": "sandbox", "LOGNAME": "sandbox", "SHELL": "/bin/bash",
    }  # fmt: skip


def test_the_callers_environment_is_left_alone() -> None:
    caller = dict(CALLER)
    environment_for(OPEN, caller, home="/h", path="/p", given={"X": "1"})
    assert caller == CALLER


@pytest.mark.parametrize(
    "path",
    [
        ".ssh", ".gnupg", ".aws", ".azure", ".config/gcloud", ".kube", ".docker", ".netrc", ".git-credentials",
        ".pypirc", ".npmrc", ".config/gh", ".local/share/keyrings", ".mozilla", ".config/google-chrome",
        ".password-store", ".kernelbox",
    ],
)  # fmt: skip
def test_credentials_of_a_home_are_masked(path: str) -> None:
    assert path in credential_folders()


def test_what_is_masked_stays_in_the_home_and_is_named_once() -> None:
    paths = credential_folders()
    assert len(paths) == len(set(paths))
    for path in paths:
        assert not os.path.isabs(path)
        assert os.path.normpath(path) == path
        assert ".." not in path.split("/")


# --- the module ----------------------------------------------------------------------------------


def test_profiles_import_neither_parsers_nor_anything_above() -> None:
    """They are on the way to the first cell."""
    code = (
        "import sys; before = set(sys.modules)\n"  # some sites load much by themselves
        "import kernelbox.walls.profiles\n"
        "print(*sorted(m for m in set(sys.modules) - before if m.startswith('kernelbox') or m in "
        "('json', 'tomllib', 'difflib', 'ipaddress', 'ctypes', 'socket')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "kernelbox", "kernelbox.errors", "kernelbox.walls", "kernelbox.walls.bindings",
        "kernelbox.walls.mounts", "kernelbox.walls.patterns", "kernelbox.walls.profiles",
        "kernelbox.walls.wording",
    ]  # fmt: skip


def toml_blocks() -> list[str]:
    page = (ROOT / "docs" / "profiles.md").read_text()
    return re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)


def test_the_files_on_the_page_are_read(folder: Path) -> None:
    assert toml_blocks()
    for block in toml_blocks():
        assert resolve(written(folder, block)).walled


def test_the_page_names_every_key_of_sandbox_runtime() -> None:
    page = (ROOT / "docs" / "profiles.md").read_text()
    missing = [key for key in sandboxruntime._KNOWN if f"`{key.rpartition('.')[2]}`" not in page]
    assert missing == []


def test_what_is_shown_of_the_host_is_what_the_walls_show() -> None:
    shown = sandboxruntime._shown()
    assert set(trees.SYSTEM) <= set(shown)
    assert any(os.path.realpath(profiles.__file__).startswith(tree) for tree in shown)
