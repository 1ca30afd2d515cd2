"""Promise: no file of the host is read but what the profile shows, whatever road is taken."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from probes import (
    ALL,
    LOCKED,
    PRELUDE,
    PROFILES,
    WITHOUT_CWD,
    Probe,
    Sandboxes,
    bash,
    controlled,
    walled,
)

PROBES = [
    Probe("a secret by its path", "read('@aside@/secret.txt', '@file_word@')"),
    bash("a secret by its path, in bash", "grep -q @file_word@ @aside@/secret.txt && echo BREACH"),
    Probe("a key in the home", "read('@home@/.ssh/id_ed25519', '@key_word@')"),
    Probe("a token in the home", "read('@home@/.config/gh/hosts.yml', '@key_word@')"),
    bash("a key in the home, by ~", "cat ~/.ssh/* | grep -q @key_word@ && echo BREACH",
         control="HOME=@home@; cat ~/.ssh/* | grep -q @key_word@ && echo BREACH"),
    Probe("the home's files", "read('@home@/notes.txt', 'notes')", profiles=WITHOUT_CWD),
    Probe("the caller's folder", "read('@work@/shared.txt', 'shared')", profiles=WITHOUT_CWD),
    Probe("the passwords of the host", "read('/etc/shadow', 'root:')"),
    Probe("the users of the host", "read('/etc/passwd', 'daemon')"),
    Probe("the machine's identity", "os.stat('/etc/machine-id'); breach()",
          control="os.stat('/etc/hostname'); breach()", leak="stat"),
    Probe("where logs are", "os.listdir('/var/log'); breach()"),
    Probe("the host's runtime folder", "breach() if os.listdir('/run') else denied()"),
    Probe("the files of the kernel", "breach() if os.listdir('/boot') else denied()",
          control="os.stat('/boot'); breach()"),
    Probe("/sys", "breach() if os.listdir('/sys') else denied()"),
    Probe("by the root of pid 1", "read('/proc/1/root@aside@/secret.txt', '@file_word@')",
          control="read(f'/proc/{os.getppid()}/root@aside@/secret.txt', '@file_word@')"),
    Probe("by the root of every process", """
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: read(f'/proc/{pid}/root@aside@/secret.txt', '@file_word@')
    except OSError: pass
"""),
    Probe("by .. above the root", """
for start in ('/', '/proc/self/root/', '/proc/self/cwd/'):
    try: read(start + '../' * 40 + '@aside@/secret.txt', '@file_word@')
    except OSError: pass
"""),
    Probe("by a symlink of one's own", """
link = f'/tmp/link-{os.getpid()}'
try:
    os.symlink('@aside@/secret.txt', link)
    read(link, '@file_word@')
finally:
    os.unlink(link)
"""),
    Probe("by a symlink that is in the shared folder", "read('@work@/link', '@file_word@')"),
    Probe("by a hard link", """
link = f'/tmp/hard-{os.getpid()}'
try:
    os.link('@aside@/secret.txt', link)
    read(link, '@file_word@')
finally:
    if os.path.exists(link): os.unlink(link)
"""),
    Probe("by a descriptor that somebody has open", """
held = os.open('@aside@', os.O_RDONLY) if OPEN else -1
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: numbers = os.listdir(f'/proc/{pid}/fd')
    except OSError: continue
    for number in numbers:
        for way in ('/secret.txt', '/aside/secret.txt', '/../aside/secret.txt'):
            try: read(f'/proc/{pid}/fd/{number}{way}', '@file_word@')
            except OSError: pass
"""),
    Probe("by the working folder of a process", """
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: read(f'/proc/{pid}/cwd/../aside/secret.txt', '@file_word@')
    except OSError: pass
"""),
    Probe("by the root's descriptor, out of a chroot", """
def act():
    os.makedirs('/tmp/jail', exist_ok=True)
    root = os.open('/', os.O_RDONLY)
    os.chroot('/tmp/jail')
    os.fchdir(root)
    for _ in range(20): os.chdir('..')
    os.chroot('.')
    read('@aside@/secret.txt', '@file_word@')
in_child(act)
"""),
    Probe("by a file handle", """
handle = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128))
ident = ctypes.c_int()
done, error = call('name_to_handle_at', -100, b'/', handle, ctypes.byref(ident), 0)
breach() if done == 0 else denied(error)
""", control="""
handle = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128))
done, error = call('name_to_handle_at', -100, b'@aside@', handle, ctypes.byref(ctypes.c_int()), 0)
breach(error) if done == 0 or error in (errno.EOPNOTSUPP, errno.EOVERFLOW) else denied(error)
"""),
    Probe("by mounting the disk", """
def act():
    os.makedirs('/tmp/mounted', exist_ok=True)
    done = _libc.mount(b'tmpfs', b'/tmp/mounted', b'tmpfs', 0, None)
    breach() if done == 0 else denied()
in_child(act, spare=0x20000)
"""),
    Probe("by a bind mount", """
def act():
    os.makedirs('/tmp/bound', exist_ok=True)
    done = _libc.mount(b'/', b'/tmp/bound', None, ctypes.c_ulong(4096), None)
    breach() if done == 0 else denied()
in_child(act, spare=0x20000)
"""),
    Probe("by taking away what covers a folder", """
def act():
    for path in (b'/proc', b'/tmp', b'/workspace', b'/dev', b'@work@/.kernelbox', b'/'):
        if _libc.umount2(path, 2) == 0: return breach(path)
in_child(act, spare=0x20000)
"""),
    Probe("by making a mount writable", """
def act():
    flags = ctypes.c_ulong(32 | 4096)
    for path in (b'/', b'/usr', b'/proc/sys'):
        if _libc.mount(b'none', path, None, flags, None) == 0: return breach(path)
in_child(act, spare=0x20000)
""", control="""
def act():
    _libc.mount(b'none', b'/proc', None, ctypes.c_ulong(32), None) == 0 and breach()
in_child(act, spare=0x20000)
"""),
    Probe("by the new mount calls", """
def act():
    attempt('fsopen', b'tmpfs', 0)
    attempt('open_tree', -100, b'/', 1)
    attempt('fspick', -100, b'/', 0)
    attempt('move_mount', -100, b'/tmp', -100, b'/tmp', 0)
in_child(act, spare=0x20000)
"""),
    Probe("by another root", """
def act():
    os.makedirs('/tmp/root/old', exist_ok=True)
    attempt('pivot_root', b'/tmp/root', b'/tmp/root/old')
in_child(act, spare=0x20000)
"""),
    Probe("our own folder in the caller's", "read('@work@/.kernelbox/private', '@key_word@')"),
    Probe("our runtime folder", "breach(os.listdir('@runtime@')) if os.listdir('@runtime@') else denied()"),
    Probe("our sockets' folder", "breach(os.listdir('@sockets@')) if os.listdir('@sockets@') else denied()"),
    bash("our folders, by looking for them",
         "find / -xdev -name '*.sock' 2>/dev/null | grep -q . && echo BREACH; "
         "ls -A @rundir@ 2>/dev/null | grep -q . && echo BREACH",
         control="ls -A @rundir@ | grep -q . && echo BREACH"),
    Probe("the caller's variables, by os.environ", "breach() if 'CALLERS_SECRET' in os.environ else denied()"),
    Probe("the caller's plain variables", "breach() if 'CALLERS_PLAIN' in os.environ else denied()",
          profiles=WITHOUT_CWD),
    bash("the caller's variables, in bash", "env | grep -q @variable_word@ && echo BREACH"),
    Probe("the variables that processes were started with", """
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ('environ', 'cmdline'):
        try: read(f'/proc/{pid}/{name}', '@process_word@')
        except OSError: pass
"""),
]  # fmt: skip


@pytest.mark.parametrize(("probe", "profile"), walled(PROBES))
def test_no_road_leads_to_a_file_of_the_host(
    sandboxes: Sandboxes, probe: Probe, profile: str
) -> None:
    sandboxes.must_fail(probe, profile)


@pytest.mark.parametrize("probe", controlled(PROBES))
def test_without_walls_the_road_is_one(sandboxes: Sandboxes, probe: Probe) -> None:
    sandboxes.must_succeed(probe)


SCAN = (
    PRELUDE.replace("@open@", "False")
    + r"""
def scan(parts):
    '''Look for a word, which is never whole in our own memory, in all memory there is.'''
    import re
    # Not one object of ours may hold the word: it is compared in two halves.
    first, second = (bytes.fromhex(part) for part in parts)
    found = []
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
        for line in maps:
            where, rights, *_, name = line.split(None, 5) + ['']
            if 'r' not in rights or '[v' in line: continue
            low, high = (int(end, 16) for end in where.split('-'))
            for start in range(low, high, 1 << 22):
                try:
                    memory.seek(start)
                    piece = memory.read(min(1 << 22, high - start) + 0)
                except OSError: break
                place = piece.find(first)
                while place >= 0:
                    if piece[place + len(first):place + len(first) + len(second)] == second:
                        found.append(line.strip())
                    place = piece.find(first, place + 1)
                del piece
    return found
"""
)


def scan_from_outside(pid: int, word: str) -> bool:
    """The same, where a process cannot even look at itself."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            where, rights = line.split()[:2]
            if "r" not in rights or "[v" in line:
                continue
            low, high = (int(end, 16) for end in where.split("-"))
            try:
                memory.seek(low)
                if word.encode() in memory.read(high - low):
                    return True
            except OSError:
                continue
    return False


def halves(word: str) -> str:
    middle = len(word) // 2
    return repr([part.encode().hex() for part in (word[:middle], word[middle:])])


@pytest.mark.parametrize("profile", ALL)
def test_no_secret_of_the_caller_or_of_another_kernel_is_in_its_memory(
    sandboxes: Sandboxes, host: dict[str, str], profile: str
) -> None:
    box = sandboxes.box
    other = f"word-{uuid.uuid4().hex}"
    box.execute(sandboxes.kernel("open"), f"mine = {other!r}")
    box.execute(box.get_or_create("neighbour", profile="restrictive"), f"mine = {other!r}")
    made = box.get_or_create(f"scanned-{profile}", cwd=sandboxes.folder,
                             profile=PROFILES[profile])  # fmt: skip
    try:
        if LOCKED:
            box.execute(made, "1")
            (pid,) = [p["pid"] for p in box.status(made)["processes"] if p["role"] == "interpreter"]
            for word in (host["variable_word"], other):
                assert not scan_from_outside(pid, word)
            box.execute(made, f"mine = {other!r}")
            assert scan_from_outside(pid, other), "the scan finds what is there"
            return
        box.execute(made, SCAN)
        for word in (host["variable_word"], other):
            result = box.execute(made, f"print(scan({halves(word)}))", timeout=30)
            assert result.output == "[]\n", result
        box.execute(made, f"mine = {other!r}")
        result = box.execute(made, f"print(bool(scan({halves(other)})))", timeout=30)
        assert result.output == "True\n", "the scan finds what is there"
    finally:
        box.destroy(made)
        box.destroy("neighbour")


@pytest.mark.parametrize("profile", ALL)
def test_it_has_no_descriptor_but_those_that_lead_to_its_own_warden(
    sandboxes: Sandboxes, profile: str
) -> None:
    """Standard streams, the lifeline, its pipes, and what an event loop of its own has opened."""
    name = f"descriptors-{profile}"
    box = sandboxes.box
    made = box.get_or_create(name, cwd=sandboxes.folder, profile=PROFILES[profile])
    try:
        result = box.execute(
            made,
            "import os\nlinks = {}\nfor n in os.listdir('/proc/self/fd'):\n"
            "    try: links[int(n)] = os.readlink(f'/proc/self/fd/{n}')\n"
            "    except OSError: pass\n"
            "print({n: link for n, link in links.items() if not (\n"
            "    n <= 2 or 500 <= n < 520 or link.startswith(('anon_inode:[eventpoll]',)))})",
        )
        left = eval(result.output)
        pipes = {n: link for n, link in left.items() if not link.startswith("socket:")}
        assert pipes == {}, "descriptors that it has inherited, and that are somebody else's"
        assert len(left) <= 2, "a socket pair, with which an event loop wakes itself"
        ends = box.execute(
            made,
            f"import socket\nfor n in {list(left)!r}:\n"
            "    s = socket.socket(fileno=os.dup(n))\n    print(s.family.name, s.getpeername())",
        )
        assert set(ends.output.splitlines()) <= {"AF_UNIX ", "AF_UNIX b''"}, ends
    finally:
        box.destroy(made)


def test_a_file_that_is_shown_read_only_stays_as_it_is(
    sandboxes: Sandboxes, host: dict[str, str]
) -> None:
    probe = Probe(
        "writes to the home",
        "for flags in (os.O_WRONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_APPEND):\n"
        "    try: os.open('@home@/notes.txt', flags); breach()\n"
        "    except OSError: denied()\n"
        "for act in (lambda: os.unlink('@home@/notes.txt'),\n"
        "            lambda: os.chmod('@home@/notes.txt', 0), lambda: os.truncate('@home@/notes.txt', 0),\n"
        "            lambda: os.rename('@home@/notes.txt', '@home@/moved'), lambda: os.utime('@home@/notes.txt', (0, 0)),\n"
        "            lambda: os.setxattr('@home@/notes.txt', 'user.x', b'1'), lambda: os.link('@home@/notes.txt', '@work@/notes')):\n"
        "    try: act(); breach()\n"
        "    except OSError: denied()\n",
    )  # fmt: skip
    sandboxes.must_fail(probe, "permissive")
    # What is made beside it is made in a copy of the sandbox's own, if at all.
    sandboxes.box.execute(
        sandboxes.kernel("permissive"), f"import os; os.mkdir('{host['home']}/new')"
    )
    assert not os.path.exists(f"{host['home']}/new")
    notes = Path(host["home"]) / "notes.txt"
    assert notes.read_text() == "notes"
    assert not os.path.exists(f"{host['work']}/notes")
