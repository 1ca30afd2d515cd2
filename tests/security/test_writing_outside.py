"""Promise: nothing of the host is changed but what the profile says, and nothing stays behind."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest
from probes import ALL, LOCKED, PROFILES, WITHOUT_CWD, Probe, Sandboxes, bash, controlled, walled

READ_ONLY = ("restrictive",)
OVERLAID = ("moderate", "permissive")

# An ordinary caller's sandbox may write beside what it is shown of a home, in a copy that is thrown
# away; test_host_files.py sees that the host has none of it.
KEPT_OUT_OF_HOMES = ALL if os.geteuid() == 0 else WITHOUT_CWD

_TRY = """
def tries(path):
    for act in (lambda: open(path, 'a').close(), lambda: open(path, 'r+b').close(), lambda: os.truncate(path, 1 << 30),
                lambda: os.chmod(path, 0o777), lambda: os.utime(path), lambda: os.unlink(path)):
        try: act(); return breach(path)
        except OSError as error: denied(error)
"""

PROBES = [
    Probe("a program of the system", _TRY + "tries('/usr/bin/env')", profiles=READ_ONLY, control=None),
    Probe("a folder of the system", "open('/usr/lib/probe-@mark@', 'w'); breach(); os.unlink('/usr/lib/probe-@mark@')", profiles=READ_ONLY),
    bash("the same in bash", "touch /usr/bin/probe-@mark@ && echo BREACH && rm /usr/bin/probe-@mark@", profiles=READ_ONLY),
    Probe("settings of the system", _TRY + "tries('/etc/ld.so.cache'); tries('/etc/profile'); tries('/etc/ssl/openssl.cnf')", profiles=READ_ONLY, control=None),
    Probe("users of its own", _TRY + "tries('/etc/passwd')", profiles=READ_ONLY, control=None),
    Probe("the root", "open('/probe-@mark@', 'w'); breach()", profiles=READ_ONLY, control="open('/tmp/probe-@mark@', 'w'); breach(); os.unlink('/tmp/probe-@mark@')"),
    Probe("the interpreter", "os.utime(os.path.realpath(sys.executable)); open(os.__file__, 'a').close(); breach()", profiles=READ_ONLY,
          control="open(os.__file__, 'a').close(); breach()"),
    Probe("its packages", "import IPython\nopen(IPython.__file__, 'a').close(); breach()", profiles=READ_ONLY),
    Probe("our own code", "import kernelbox\nopen(kernelbox.__file__, 'a').close(); breach()", profiles=READ_ONLY),
    Probe("the caller's folder", "open('@work@/probe', 'w'); breach(); os.unlink('@work@/probe')", profiles=WITHOUT_CWD),
    Probe("beside the caller's folder", "open('@base@/probe', 'w'); breach(); os.unlink('@base@/probe')", profiles=WITHOUT_CWD),
    Probe("above the caller's folder", "open('@work@/../aside/probe', 'w'); breach(); os.unlink('@aside@/probe')"),
    Probe("through a link in the caller's folder", "open('@work@/link', 'a').close(); breach()"),
    Probe("the caller's home", "open('@home@/probe', 'w'); breach(); os.unlink('@home@/probe')", profiles=KEPT_OUT_OF_HOMES),
    bash("the caller's start-up files", "echo 'echo hello' >> @home@/.bashrc && echo BREACH", profiles=KEPT_OUT_OF_HOMES, control="echo '#' >> @home@/.profile && echo BREACH && rm @home@/.profile"),
    Probe("the caller's keys", "open('@home@/.ssh/authorized_keys', 'a').close(); breach(); os.unlink('@home@/.ssh/authorized_keys')"),
    Probe("our own folder in the caller's", "open('@work@/.kernelbox/probe', 'w'); breach(); os.unlink('@work@/.kernelbox/probe')"),
    Probe("taking the cover off our own folder", """
for act in (lambda: os.rename('@work@/.kernelbox', '@work@/moved'), lambda: os.rmdir('@work@/.kernelbox'), lambda: os.chmod('@work@/.kernelbox', 0o777)):
    try: act(); breach()
    except OSError as error: denied(error)
""", control="os.rename('@work@/.kernelbox', '@work@/moved'); breach(); os.rename('@work@/moved', '@work@/.kernelbox')"),
    Probe("our runtime folder", "open('@runtime@/probe', 'w'); breach(); os.unlink('@runtime@/probe')"),
    Probe("our sockets' folder", "open('@rundir@/probe', 'w'); breach(); os.unlink('@rundir@/probe')"),
    Probe("a crontab", "open('/etc/cron.d/probe', 'w'); breach()", profiles=READ_ONLY, control=None),
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def mark(sandboxes: Sandboxes) -> str:
    sandboxes.words["mark"] = uuid.uuid4().hex[:12]
    return sandboxes.words["mark"]


@pytest.mark.parametrize(("probe", "profile"), walled(PROBES))
def test_it_cannot_be_written_to(sandboxes: Sandboxes, probe: Probe, profile: str) -> None:
    sandboxes.must_fail(probe, profile)


@pytest.mark.parametrize("probe", controlled(PROBES))
def test_without_walls_it_can(sandboxes: Sandboxes, probe: Probe) -> None:
    sandboxes.must_succeed(probe)


@pytest.mark.parametrize("profile", ALL)
def test_all_that_it_wrote_is_gone_with_it(sandboxes: Sandboxes, profile: str, mark: str) -> None:
    """Everywhere it can: its own folders, the system's root, the interpreter in its copy."""
    box = sandboxes.box
    name = f"mark-{mark}-{profile}"
    site = next(path for path in sys.path if path.endswith("site-packages"))
    kernel = box.get_or_create(f"writes-{profile}", profile=PROFILES[profile], cwd=sandboxes.folder)
    here = "os.getcwd()" if LOCKED else "'/workspace'"
    mine = f"os.environ['TMPDIR'], {here}, os.environ['HOME']"
    own = eval(box.execute(kernel, f"import os; print(({mine}))").output)
    places = [
        *own,
        "/tmp",
        "/dev/shm",
        "/",
        "/etc",
        "/var",
        "/root",
        "/usr/lib",
        "/usr/local/bin",
        site,
    ]
    written = box.execute(
        kernel,
        f"import os\ndone = []\nfor place in {places!r}:\n"
        f"    try: open(os.path.join(place, {name!r}), 'w').close(); done.append(place)\n"
        "    except OSError: pass\nprint(*done)",
    ).output.split()
    if LOCKED:
        assert set(written) == set(own), "and nowhere else"
        places = [place for place in places if place not in own]  # which are on the host
    else:
        assert {*own, "/tmp", "/dev/shm"} <= set(written)
    # What is root's is out of an ordinary caller's reach, in a copy too.
    for place in ("/", "/usr/lib") if os.geteuid() == 0 else ("/",):
        assert (place in written) == (profile in OVERLAID)
    for place in places:
        assert not os.path.lexists(os.path.join(place, name)), "while it runs"
    # Another sandbox sees none of it either, and neither does its own successor.
    other = box.execute(
        sandboxes.kernel("restrictive"),
        f"import os; print([p for p in {places!r} if os.path.exists(p + '/' + {name!r})])",
    )
    assert other.output == "[]\n"
    box.destroy(kernel)
    again = box.get_or_create(f"writes-{profile}", profile=PROFILES[profile], cwd=sandboxes.folder)
    seen = box.execute(
        again, f"import os; print([p for p in {places!r} if os.path.exists(p + '/' + {name!r})])"
    )
    box.destroy(again)
    assert seen.output == "[]\n"
    for place in (*places, *own):
        assert not os.path.lexists(os.path.join(place, name)), "afterwards"


def test_what_the_profile_lets_it_write_belongs_to_the_caller(
    sandboxes: Sandboxes, host: dict[str, str]
) -> None:
    sandboxes.box.execute(sandboxes.kernel("permissive"), "open('made', 'w').write('yes')")
    made = Path(host["work"]) / "made"
    assert made.read_text() == "yes"
    assert made.stat().st_uid == os.getuid()
    made.unlink()


@pytest.mark.parametrize(
    "how",
    [
        "open('suid', 'w').close(); os.chmod('suid', 0o6755)",
        "os.close(os.open('suid', os.O_CREAT | os.O_WRONLY, 0o6755))",
        "os.mknod('suid', stat.S_IFREG | 0o6755)",
        "open('suid', 'w').close(); os.chmod(os.open('suid', os.O_RDONLY), 0o4755)",
        "open('suid', 'w').close(); call('fchmodat', -100, b'suid', 0o4755)",
        "open('suid', 'w').close(); call('fchmodat2', -100, b'suid', 0o4755, 0)",
        "open('suid', 'w').close(); call('chmod', b'suid', 0o4755 | (1 << 40))",
        "call('creat', b'suid', 0o4755)",
        "call('openat', -100, b'suid', os.O_CREAT | os.O_RDWR, 0o4755)",
        "call('openat2', -100, b'suid', ctypes.create_string_buffer(struct.pack('QQQ', os.O_CREAT | os.O_RDWR, 0o4755, 0)), 24)",
        "fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o4755); call('linkat', -100, f'/proc/self/fd/{fd}'.encode(), -100, b'suid', 0x400)",
        "os.mkdir('suid', 0o777); os.chmod('suid', 0o2777)",
    ],
)
def test_no_set_uid_program_of_the_caller_can_be_made_in_the_callers_folder(
    sandboxes: Sandboxes, host: dict[str, str], how: str
) -> None:
    made = Path(host["work"]) / "suid"
    try:
        sandboxes.run(Probe("suid", how), "permissive")
        assert not made.exists() or not made.stat().st_mode & 0o6000
        if made.is_dir():
            made.rmdir()
        made.unlink(missing_ok=True)
        sandboxes.run(Probe("suid", how), "open")
        assert made.stat().st_mode & 0o6000, "without walls it can be"
    finally:
        if made.is_dir():
            made.rmdir()
        made.unlink(missing_ok=True)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="hole: in an ordinary user's overlay root's files stay root's"
)
def test_the_systems_files_can_be_changed_in_a_copy_where_the_profile_says_so(
    sandboxes: Sandboxes,
) -> None:
    """`root = overlay`: "change the system's files, in a copy of its own that is thrown away"."""
    result = sandboxes.box.execute(
        sandboxes.kernel("moderate"), "touch /usr/local/bin/mine && echo done", language="bash"
    )
    assert result.output == "done\n"
