"""Promise: with raw sockets, code reaches public addresses and nothing nearer: neither this machine, by
whatever name, nor its private networks, whatever it does with its sockets.

Whole sandboxes with pasta, and an Internet of our own for them to reach.
"""

from __future__ import annotations

from collections.abc import Iterator

import internet as network
import pytest
from internet import HERE, PRIVATE, SERVER, Internet
from processes import wait_until

from kernelbox.errors import BadInput
from kernelbox.walls import pasta
from kernelbox.walls.drivers import cannot_enforce
from kernelbox.walls.profiles import Profile

# Services of the host, on all its addresses: what reaches one is told.
SERVICES = """
import socket, struct, threading
reached = []
def serve_tcp():
    with socket.create_server(('', 6767)) as listener:
        while True:
            connection, who = listener.accept()
            reached.append(['tcp', who[0]])
            connection.sendall(b'HELLO FROM THE HOST')
            connection.close()
def serve_udp(port, group):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(('', port))
        if group:
            where = socket.inet_aton(group) + socket.inet_aton(here)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, where)
        while True:
            data, who = sock.recvfrom(100)
            reached.append([port, group, data.decode(), who[0]])
            sock.sendto(b'HELLO FROM THE HOST', who)
for target, given in ((serve_tcp, ()), (serve_udp, (6767, '')), (serve_udp, (5353, '224.0.0.251')),
                      (serve_udp, (1900, '239.255.255.250'))):
    threading.Thread(target=target, args=given, daemon=True).start()
"""
# What code can do with a socket to get its packets onto an interface, routes or no routes.
WAYS = r"""
import errno, os, socket, struct
PATIENCE = 5
LINK = socket.if_nameindex()[-1]
def as_it_is(s): pass
def bound(s): s.setsockopt(socket.SOL_SOCKET, 25, LINK[1].encode())
def unrouted(s): s.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
def bound_unrouted(s): bound(s); unrouted(s)
def multicast_interface(s): s.setsockopt(0, socket.IP_MULTICAST_IF, struct.pack('8xi', LINK[0]))
def unicast_interface(s): s.setsockopt(0, 50, struct.pack('!I', LINK[0]))
def source_routed(s): s.setsockopt(0, 4, b'\x83\x07\x04' + socket.inet_aton('@server@') + b'\0')
def any_source(s): s.setsockopt(0, 15, 1); s.bind(('127.0.0.1', 0))
def from_loopback(s): bound(s); s.bind(('127.0.0.1', 0))
WAYS = [as_it_is, bound, unrouted, bound_unrouted, multicast_interface, unicast_interface,
        source_routed, any_source, from_loopback]
def tcp(way, host, port):
    with socket.socket() as s:
        s.settimeout(PATIENCE)
        try:
            way(s); s.connect((host, port)); s.sendall(b'hello'); return s.recv(100).decode()
        except OSError as error: return errno.errorcode.get(error.errno, str(error))
def udp(way, host, port, ancillary=False):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(PATIENCE)
        try:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            way(s)
            told = [(0, 8, struct.pack('i8x', LINK[0]))] if ancillary else []
            s.sendmsg([b'probe'], told, 0, (host, port))
            return s.recv(100).decode()
        except OSError as error: return errno.errorcode.get(error.errno, str(error))
def attack(host, port):
    answers = {way.__name__: udp(way, host, port) for way in WAYS}
    answers['ancillary'] = udp(as_it_is, host, port, True)
    if port in (6767, 7):
        answers |= {'tcp ' + way.__name__: tcp(way, host, port) for way in WAYS}
    return {way: got for way, got in answers.items() if 'HELLO' in got or 'from ' in got or 'echo' in got}
""".replace("@server@", SERVER)


@pytest.fixture(scope="module", params=["root", "an ordinary user"])
def net(request: pytest.FixtureRequest) -> Iterator[Internet]:
    if words := network.obstacle() or pasta.missing():
        pytest.skip(words)
    uid = 0 if request.param == "root" else 1234
    if network.python_of(uid) is None:
        pytest.skip("there is no Python here that an ordinary user could run")
    with network.internet(uid) as made:
        made.run(SERVICES, here=HERE)
        made.run("box.get_or_create('raw', profile=Profile(name='raw', network='raw'))")
        made.execute("raw", WAYS)
        yield made


def test_public_addresses_are_reached_by_tcp_and_udp(net: Internet) -> None:
    told = net.execute(
        "raw", f"PATIENCE = 5; print(tcp(as_it_is, '{SERVER}', 7), udp(as_it_is, '{SERVER}', 7))"
    )
    assert told["output"] == f"from {HERE}: hello echo probe\n", told


def test_names_are_asked_of_the_hosts_name_server(net: Internet) -> None:
    told = net.execute("raw", "socket.gethostbyname('any.example')")
    assert told["value"] == repr(SERVER), told


def test_there_is_no_proxy_and_none_is_needed(net: Internet) -> None:
    told = net.execute(
        "raw",
        "import os, urllib.request\n"
        "print([name for name in os.environ if 'proxy' in name.lower()],\n"
        "      urllib.request.urlopen('http://any.example/', timeout=10).status)",
    )
    assert told["output"] == "[] 200\n", told


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("127.0.0.1", 6767),
        ("127.255.255.254", 6767),
        ("0.0.0.0", 6767),
        (HERE, 6767),
        (HERE.rpartition(".")[0] + ".255", 6767),
        ("255.255.255.255", 6767),
        ("198.18.99.1", 6767),
        ("198.18.99.3", 6767),
        ("198.18.99.5", 6767),
        ("198.18.99.6", 6767),
        ("224.0.0.251", 5353),
        ("239.255.255.250", 1900),
    ],
)
def test_the_host_is_not_reached(net: Internet, host: str, port: int) -> None:
    net.run("reached.clear()")
    told = net.execute("raw", f"PATIENCE = 0.1; print(attack({host!r}, {port}))")
    assert told["output"] == "{}\n", told
    assert net.run("result = reached") == []


def test_a_private_network_is_not_reached(net: Internet) -> None:
    """Though the host itself reaches it."""
    reached = net.run(
        "import socket\ns = socket.create_connection((private, 7), 5)\ns.sendall(b'x')\n"
        "result = s.recv(100).decode()",
        private=PRIVATE,
    )
    assert reached == f"from {HERE}: x"
    assert net.execute("raw", f"PATIENCE = 0.1; print(attack('{PRIVATE}', 7))")["output"] == "{}\n"


def test_the_attacks_reach_what_may_be_reached(net: Internet) -> None:
    """Or they would prove nothing."""
    told = net.execute("raw", f"PATIENCE = 1; print(sorted(attack('{SERVER}', 7)))")["output"]
    for way in ("as_it_is", "bound", "unicast_interface", "tcp as_it_is", "tcp bound", "ancillary"):
        assert f"'{way}'" in told, told


@pytest.mark.parametrize(
    "code",
    [
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)",
        "os.open('/dev/net/tun', os.O_RDWR)",
        "import fcntl; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH22x', b'kb0', 0))",
        "import fcntl; fcntl.ioctl(socket.socket(), 0x890B, bytes(200))",
        "open('/proc/sys/net/ipv4/ip_forward', 'w')",
    ],
    ids=["raw", "packet", "tun", "interface", "route", "forwarding"],
)
def test_its_network_cannot_be_changed(net: Internet, code: str) -> None:
    error = net.execute("raw", code)["error"]
    assert "PermissionError" in error or "OSError" in error or "FileNotFound" in error, error


def test_the_host_and_other_sandboxes_do_not_reach_it(net: Internet) -> None:
    net.execute("raw", "listener = socket.create_server(('', 4321))")
    for address in ("127.0.0.1", HERE, "198.18.99.2"):
        with pytest.raises(AssertionError, match=r"Refused|timed out|Unreachable|unreachable"):
            net.run("socket.create_connection((address, 4321), 0.5)", address=address)
    net.run("box.get_or_create('other', profile=Profile(name='raw', network='raw'))")
    try:
        net.execute("other", WAYS)
        for address in ("198.18.99.2", HERE):
            assert (
                "E"
                in net.execute("other", f"PATIENCE = 0.5; print(tcp(bound, '{address}', 4321))")[
                    "output"
                ]
            )
    finally:
        net.run("box.destroy('other')")


PASTAS = """
result = 0
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        words = open(f'/proc/{pid}/cmdline').read()
        same = os.readlink(f'/proc/{pid}/ns/net') == os.readlink('/proc/self/ns/net')
        result += 'pasta' in words and 'kb-out' in words and same
    except OSError: pass
"""


def test_nothing_is_left_of_it(net: Internet) -> None:
    before = net.run(PASTAS)
    net.run("box.get_or_create('brief', profile=Profile(name='raw', network='raw'))")
    net.run("box.destroy('brief')")
    wait_until(lambda: net.run(PASTAS) == before, what="pasta to end with its sandbox")
    net.run(
        "import signal\n"
        "box.get_or_create('killed', profile=Profile(name='raw', network='raw'))\n"
        "for process in box.status('killed')['processes']:\n"
        "    if process['role'] in ('warden', 'stub'): os.kill(process['pid'], signal.SIGKILL)"
    )
    wait_until(lambda: net.run(PASTAS) == before, what="pasta to end though nobody ended it")


# -- refusals ---------------------------------------------------------------------------------


def test_without_pasta_it_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pasta, "_PATH", "/nonexistent")
    words = cannot_enforce(Profile(network="raw").check())
    assert "install the package passt" in words


def test_a_list_of_domains_cannot_be_had_with_it() -> None:
    with pytest.raises(BadInput, match="cannot be seen"):
        Profile(network="raw", allow=("pypi.org",)).check()
    assert Profile(network="raw").allow == ()


def test_it_says_what_it_is() -> None:
    profile = Profile(network="raw").check()
    assert Profile.from_wire(profile.to_wire()) == profile
    assert "every public address by TCP and UDP" in profile.explain()
