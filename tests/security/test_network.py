"""Promise: with the network off there is nobody to talk to but oneself."""

from __future__ import annotations

import pytest
from probes import ALL, LOCKED, Probe, Sandboxes, bash, controlled, walled

_CONNECT = """
s = socket.socket(socket.@family@, socket.SOCK_STREAM)
s.settimeout(2)
s.connect(@where@)
breach(s.recv(100)) if True else None
"""


def _connect(name: str, family: str, where: str, **options: object) -> Probe:
    code = _CONNECT.replace("@family@", family).replace("@where@", where)
    return Probe(name, code, **options)  # type: ignore[arg-type]


PROBES = [
    Probe("an interface other than lo", "others = [name for _, name in socket.if_nameindex() if name != 'lo']\nbreach(others) if others else denied()", control=None),
    Probe("interfaces by /proc", "names = [line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]]\nbreach(names) if set(names) != {'lo'} else denied()", control=None),
    _connect("a service on the host's loopback", "AF_INET", "('127.0.0.1', @tcp@)"),
    _connect("the same by its name", "AF_INET", "('localhost', @tcp@)"),
    _connect("the same by another of its addresses", "AF_INET", "('127.8.8.8', @tcp@)",
             control="s = socket.create_connection(('127.0.0.1', @tcp@), 2); breach(s.recv(100))"),
    _connect("the same by 0.0.0.0", "AF_INET", "('0.0.0.0', @tcp@)"),
    _connect("the same by IPv6", "AF_INET6", "('::ffff:127.0.0.1', @tcp@)"),
    bash("the same by bash", "exec 3<>/dev/tcp/127.0.0.1/@tcp@ && echo BREACH"),
    Probe("an answer by UDP", """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.3)
s.sendto(b'hello', ('127.0.0.1', @udp@))
breach(s.recv(100))
"""),
    Probe("a way to anywhere", """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('192.0.2.1', 9))  # sends nothing
breach(s.getsockname())
""", control=None),
    Probe("a way to the machine's own service for metadata", """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('169.254.169.254', 80))
breach(s.getsockname())
""", control=None),
    Probe("a way by IPv6", "s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\ns.connect(('2001:db8::1', 9))\nbreach()", control=None),
    Probe("broadcast", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\ns.connect(('255.255.255.255', 9))\nbreach()", control=None),
    Probe("a name", "breach(socket.getaddrinfo('example.invalid.test', 80))", control="breach(socket.getaddrinfo('localhost', 80))"),
    _connect("a Unix socket of the host by its path", "AF_UNIX", "'@socket@'"),
    _connect("a Unix socket of the host by its abstract name", "AF_UNIX", "b'\\0' + b'@abstract@'"),
    Probe("names of the host's Unix sockets", "breach() if '@abstract@' in open('/proc/net/unix').read() else denied()"),
    Probe("the keeper's and the wardens' sockets", """
import glob
paths = glob.glob('@sockets@/**/*.sock', recursive=True) or ['@rundir@/keeper.sock']
for path in paths:
    s = socket.socket(socket.AF_UNIX)
    try: s.connect(path); breach(path)
    except OSError as error: denied(error)
"""),
    Probe("Jupyter's ports of a kernel", """
import glob, json
for path in glob.glob('@runtime@/*.json'):
    facts = json.load(open(path))
    s = socket.create_connection(('127.0.0.1', facts['shell_port']), 2); breach(); break
"""),
    Probe("a raw socket", "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP); breach()"),
    Probe("a raw socket by its old name", "socket.socket(socket.AF_INET, 10, socket.htons(3)); breach()"),
    Probe("a packet socket", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); breach()"),
    Probe("a packet socket for datagrams", "socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0); breach()"),
    Probe("netlink, other than for routes", """
for protocol in range(1, 23):
    try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol); breach(protocol)
    except OSError as error: denied(error)
"""),
    Probe("a socket to the machine below", "socket.socket(40, socket.SOCK_STREAM); breach()"),
    Probe("families that nobody needs", """
for family in (3, 4, 5, 9, 15, 17, 21, 29, 31, 38, 39, 40, 43, 44):
    try: socket.socket(family, socket.SOCK_STREAM); breach(family)
    except OSError: pass
    try: socket.socket(family, socket.SOCK_DGRAM); breach(family)
    except OSError: pass
    try: socket.socket(family, socket.SOCK_SEQPACKET); breach(family)
    except OSError: pass
"""),
    Probe("a network of one's own making", """
def act():
    request = struct.pack('16sH22x', b'tun0', 0x1001)
    with open('/dev/net/tun', 'rb+', 0) as tun: fcntl.ioctl(tun, 0x400454ca, request)
    breach()
in_child(act, spare=0x40000000)
"""),
    Probe("the settings of its interface", """
def act():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(s, 0x8916, struct.pack('16sHH4s8x', b'lo', socket.AF_INET, 0, socket.inet_aton('10.9.8.7')))
    breach()
in_child(act, spare=0x40000000)
"""),
    Probe("a descriptor of the host over the lifeline", """
s = socket.socket(fileno=os.dup(500))
s.setblocking(False)
try:
    _, fds, _, _ = socket.recv_fds(s, 1, 8)
    breach(fds) if fds else denied()
finally: s.detach()
""", control=None),
]  # fmt: skip


@pytest.mark.parametrize(("probe", "profile"), walled(PROBES))
def test_nobody_is_reached(sandboxes: Sandboxes, probe: Probe, profile: str) -> None:
    sandboxes.must_fail(probe, profile)


@pytest.mark.parametrize("probe", controlled(PROBES))
def test_without_walls_somebody_is(sandboxes: Sandboxes, probe: Probe) -> None:
    sandboxes.must_succeed(probe)


@pytest.mark.parametrize("profile", ALL)
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX"])
def test_its_own_loopback_works(sandboxes: Sandboxes, profile: str, family: str) -> None:
    where = {"AF_INET": "('127.0.0.1', 0)", "AF_INET6": "('::1', 0)", "AF_UNIX": "'/tmp/own.sock'"}
    result = sandboxes.box.execute(
        sandboxes.kernel(profile),
        "import os, socket, threading\nif os.path.exists('/tmp/own.sock'): os.unlink('/tmp/own.sock')\n"
        f"server = socket.socket(socket.{family})\nserver.bind({where[family]})\nserver.listen()\n"
        "threading.Thread(target=lambda: server.accept()[0].sendall(b'hello')).start()\n"
        f"s = socket.socket(socket.{family})\ns.settimeout(5)\ns.connect(server.getsockname())\n"
        "print(s.recv(10))",
        timeout=20,
    )
    if LOCKED:  # and so there is no socket that one could ask for
        assert result.error is not None
        assert result.error.ename == "PermissionError"
        return
    assert result.output == "b'hello'\n", result


def test_two_sandboxes_do_not_hear_each_other(sandboxes: Sandboxes) -> None:
    listen = (
        "import socket\ns = socket.create_server(('127.0.0.1', 45671))\n"
        "a = socket.socket(socket.AF_UNIX); a.bind(b'\\0between-two'); a.listen()"
    )
    assert sandboxes.box.execute(sandboxes.kernel("moderate"), listen).ok
    for where in ("AF_INET", "AF_UNIX"):
        to = "('127.0.0.1', 45671)" if where == "AF_INET" else "b'\\0between-two'"
        code = f"import socket\nsocket.socket(socket.{where}).connect({to})"
        assert sandboxes.box.execute(sandboxes.kernel("moderate"), code).ok
        result = sandboxes.box.execute(sandboxes.kernel("restrictive"), code)
        assert result.error is not None
        assert result.error.ename == "ConnectionRefusedError"
