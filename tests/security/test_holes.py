"""Ways through the walls that were found, one reproduction each; those that are still open are marked
as holes, and the mark must go with the hole."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest
from probes import PROFILES, Probe, Sandboxes, hole

from kernelbox import Box, BoxError, KernelRecord
from kernelbox.walls.filelock import can_deny_sockets


def test_keys_behind_a_symlink_of_the_home_are_hidden(
    sandboxes: Sandboxes, host: dict[str, str]
) -> None:
    """As whoever keeps dotfiles in a repository has it."""
    home = Path(host["home"])
    (home / "dotfiles" / "aws").mkdir(parents=True)
    (home / "dotfiles" / "aws" / "credentials").write_text(host["key_word"])
    (home / ".aws").symlink_to("dotfiles/aws")
    kernel = sandboxes.box.get_or_create(
        "dotfiles", cwd=sandboxes.folder, profile=PROFILES["permissive"]
    )
    sandboxes.must_fail(
        Probe("dotfiles", "read('@home@/.aws/credentials', '@key_word@')"),
        "permissive",
        kernel=kernel.name,
    )


@pytest.mark.parametrize(
    "where",
    [
        "home/.gnupg",
        "home/.netrc",
        pytest.param(
            "work/sub/.kernelbox", marks=hole("the caller's folder is shown as it is, and will be")
        ),
    ],
)
def test_keys_that_come_later_are_hidden(
    sandboxes: Sandboxes, host: dict[str, str], where: str
) -> None:
    sandboxes.kernel("permissive")
    place, _, rest = where.partition("/")
    path = Path(host[place]) / rest
    if path.name != ".netrc":
        path.mkdir(parents=True)
        path = path / "secret"
    path.write_text(host["key_word"])
    sandboxes.must_fail(Probe("late", f"read('{path}', '@key_word@')"), "permissive")


@pytest.mark.parametrize("name", [".git-credentials", ".pypirc"])
def test_keys_that_the_host_rewrites_stay_hidden(
    sandboxes: Sandboxes, host: dict[str, str], name: str
) -> None:
    """Nearly every program writes its settings so: a new file, moved over the old one."""
    path = Path(host["home"]) / name
    path.write_text("before")
    kernel = sandboxes.box.get_or_create(
        f"rewritten{name}", cwd=sandboxes.folder, profile=PROFILES["permissive"]
    )
    probe = Probe("rewritten", f"read('{path}', '@key_word@')")
    sandboxes.must_fail(probe, "permissive", kernel=kernel.name)
    (path.parent / "new").write_text(host["key_word"])
    os.rename(path.parent / "new", path)
    sandboxes.must_fail(probe, "permissive", kernel=kernel.name)


def test_our_home_inside_the_callers_folder_is_out_of_reach(box: Box, tmp_path: Path) -> None:
    """It is ``home`` in the caller's folder here, and open kernels of it have keys in there."""
    try:
        kernel = box.get_or_create("walled", cwd=str(tmp_path), profile=PROFILES["permissive"])
    except BoxError:
        return  # refused in words
    taken = box.execute(
        kernel,
        "import os\nos.rename('home', 'moved')\nos.makedirs('home/runtime')",
    )
    opened = box.get_or_create("open")
    seen = box.execute(kernel, "import os; print(os.listdir('home/runtime'))")
    box.destroy(opened)
    box.destroy(kernel)
    if (tmp_path / "moved").exists():
        shutil.rmtree(tmp_path / "home")
        os.rename(tmp_path / "moved", tmp_path / "home")
        shutil.rmtree(tmp_path / "home" / "runtime")
    assert taken.error is not None
    assert "kernel-" not in seen.output


def test_our_folder_is_hidden_in_every_folder_of_the_home(
    sandboxes: Sandboxes, host: dict[str, str]
) -> None:
    private = Path(host["home"]) / "project" / ".kernelbox"
    private.mkdir(parents=True)
    (private / "registry.json").write_text(host["key_word"])
    kernel = sandboxes.box.get_or_create(
        "nested", cwd=sandboxes.folder, profile=PROFILES["permissive"]
    )
    probe = Probe("nested", f"read('{private}/registry.json', '@key_word@')")
    sandboxes.must_fail(probe, "permissive", kernel=kernel.name)


@pytest.mark.parametrize(
    "place",
    [
        "home",
        pytest.param(
            "work",
            marks=()
            if can_deny_sockets()
            else hole("Landlock has no rule for it before version 9"),
        ),
    ],
)
def test_unix_sockets_that_come_later_are_out_of_reach(
    sandboxes: Sandboxes, host: dict[str, str], place: str
) -> None:
    """Those that were there before are in test_unix_sockets.py."""
    sandboxes.kernel("permissive")
    path = f"{host[place]}/service.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        probe = Probe("socket", f"socket.socket(socket.AF_UNIX).connect('{path}'); breach()")
        try:
            sandboxes.must_fail(probe, "permissive")
        finally:
            os.unlink(path)


@pytest.mark.parametrize(("first", "then"), [(None, "restrictive"), ("moderate", "restrictive")])
def test_who_asks_for_walls_never_gets_a_kernel_with_others(
    sandboxes: Sandboxes, first: str | None, then: str
) -> None:
    name = f"was-{first}"
    sandboxes.box.get_or_create(name, profile=PROFILES[first] if first else None)
    try:
        record = sandboxes.box.get_or_create(name, profile=then)
    except BoxError:
        return
    assert record.profile == then


def test_a_walled_kernel_that_was_saved_is_loaded_behind_walls(
    sandboxes: Sandboxes, tmp_path: Path
) -> None:
    box = sandboxes.box
    escaped = tmp_path / "escaped"
    kernel = box.get_or_create("saved", profile="restrictive")
    box.execute(
        kernel,
        f"class Trap:\n    def __reduce__(self): return (open, ({str(escaped)!r}, 'w'))\nx = Trap()",
    )
    box.save(kernel, str(tmp_path / "saved"))
    try:
        loaded = box.load("loaded", str(tmp_path / "saved"))
    except BoxError:
        return  # refused in words
    box.execute(loaded, "x")
    assert not escaped.exists()
    assert loaded.profile == "restrictive"


@pytest.mark.parametrize("cwd", ["/", "/etc", "/root", "/var", "/usr"])
def test_a_folder_of_the_system_is_nobodys_working_folder(sandboxes: Sandboxes, cwd: str) -> None:
    """Refused in words, or without that folder. (Mount.check() refuses the worst of these.)"""
    try:
        kernel = sandboxes.box.get_or_create(
            f"in{cwd.replace('/', '-')}", cwd=cwd, profile=PROFILES["permissive"]
        )
    except BoxError:
        return
    try:
        found = sandboxes.box.execute(
            kernel,
            "import os\nwritable = [line.split()[4] for line in open('/proc/self/mountinfo')"
            f" if line.split()[4] == {cwd!r} and line.split()[5].startswith('rw') and line.split()[3] == {cwd!r}]\n"
            "print(writable, os.path.exists('/etc/shadow'))",
        )
        assert found.output == "[] False\n"
    finally:
        sandboxes.box.destroy(kernel)


def test_a_working_folder_behind_a_symlink_can_be_had(
    sandboxes: Sandboxes, host: dict[str, str]
) -> None:
    link = Path(host["base"]) / "link-to-work"
    link.symlink_to(host["work"])
    kernel: KernelRecord | None = None
    try:
        kernel = sandboxes.box.get_or_create(
            "linked", cwd=str(link), profile=PROFILES["permissive"]
        )
    except BoxError as error:
        raise AssertionError(str(error)) from None
    assert sandboxes.box.execute(kernel, "open('shared.txt').read()").return_value == "'shared'"


def test_no_pipe_of_the_root_comes_along(box: Box) -> None:
    """While a new root learns, for a moment, it has descriptors that are for itself."""
    for number in range(12):
        kernel = box.get_or_create(f"k{number}", profile="restrictive")
        result = box.execute(
            kernel,
            "import os\nfor n in os.listdir('/proc/self/fd'):\n"
            "    try: link = os.readlink(f'/proc/self/fd/{n}')\n    except OSError: continue\n"
            "    if 2 < int(n) < 500 and link.startswith('pipe:'): print(n, link)",
        )
        assert result.output == ""
