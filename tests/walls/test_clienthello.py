"""The name in a TLS hello is read, however it is cut; what could be read two ways is refused."""

from __future__ import annotations

import ssl
import struct

import pytest

from kernelbox.walls.clienthello import LIMIT, ClientHello, NotAClientHello, parse


def real_hello(name: str | None = "example.com", **settings: object) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for key, value in settings.items():
        setattr(context, key, value)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def message(data: bytes) -> bytes:
    """The handshake message in one record."""
    assert len(data) == 5 + int.from_bytes(data[3:5], "big")
    return data[5:]


def records(handshake: bytes, size: int = 1 << 14, kind: int = 22) -> bytes:
    pieces = [handshake[at : at + size] for at in range(0, len(handshake), size)]
    return b"".join(struct.pack("!BHH", kind, 0x0301, len(piece)) + piece for piece in pieces)


def vector(width: int, data: bytes) -> bytes:
    return len(data).to_bytes(width, "big") + data


def extension(kind: int, content: bytes) -> bytes:
    return struct.pack("!H", kind) + vector(2, content)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    entries = b"".join(bytes([kind]) + vector(2, name) for name in names)
    return extension(0, vector(2, entries))


def made_hello(*extensions: bytes, after: bytes = b"", session: bytes = b"") -> bytes:
    body = b"\x03\x03" + bytes(32) + vector(1, session) + vector(2, b"\x13\x01") + vector(1, b"\0")
    body += vector(2, b"".join(extensions)) + after
    return b"\x01" + vector(3, body)


def test_the_name_in_a_real_hello_is_read() -> None:
    assert parse(real_hello()) == ClientHello("example.com", encrypted=False)
    assert parse(real_hello("EXAMPLE.com")) == ClientHello("example.com", encrypted=False)
    assert parse(real_hello(None)) == ClientHello(None, encrypted=False)
    old = real_hello(maximum_version=ssl.TLSVersion.TLSv1_2)
    assert parse(old) == ClientHello("example.com", encrypted=False)


def test_every_beginning_of_a_hello_waits_for_more() -> None:
    data = real_hello()
    for length in range(len(data)):
        assert parse(data[:length]) is None
        assert parse(bytearray(data[:length])) is None


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 50, 200])
def test_a_hello_in_many_records_is_read(size: int) -> None:
    data = records(message(real_hello()), size)
    assert parse(data) == ClientHello("example.com", encrypted=False)
    for length in range(len(data)):
        assert parse(data[:length]) is None


def test_what_follows_in_a_record_of_its_own_is_no_matter() -> None:
    early = struct.pack("!BHH", 23, 0x0303, 4) + b"data"
    assert parse(real_hello() + early) == ClientHello("example.com", encrypted=False)


def test_a_hello_without_extensions_has_no_name() -> None:
    body = b"\x03\x03" + bytes(32) + b"\0" + vector(2, b"\x13\x01") + vector(1, b"\0")
    assert parse(records(b"\x01" + vector(3, body))) == ClientHello(None, encrypted=False)


def with_extension(added: bytes) -> bytes:
    """A real hello with one extension more."""
    body = message(real_hello())[4:]
    at = 2 + 32
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    changed = body[:at] + vector(2, body[at + 2 :] + added)
    return records(b"\x01" + vector(3, changed))


@pytest.mark.parametrize(
    ("kind", "content", "encrypted"),
    [
        (
            0xFE0D,
            b"\x00" + b"\x00\x01\x00\x01\x07" + vector(2, b"k" * 32) + vector(2, b"p" * 99),
            True,
        ),
        (0xFE0D, b"\x00", True),
        (0xFE0D, b"\x01", False),
        (0xFE0A, b"anything", True),
        (0xFFCE, b"anything", True),
        (0x4A4A, b"", False),  # what browsers send so that servers stay tolerant
    ],
)
def test_an_encrypted_hello_is_known(kind: int, content: bytes, encrypted: bool) -> None:
    hello = parse(with_extension(extension(kind, content)))
    assert hello == ClientHello("example.com", encrypted=encrypted)


@pytest.mark.parametrize("content", [b"", b"\x02", b"\x01x"])
def test_an_encrypted_hello_of_no_kind_is_refused(content: bytes) -> None:
    with pytest.raises(NotAClientHello):
        parse(with_extension(extension(0xFE0D, content)))


GOOD = server_name(b"example.com")


@pytest.mark.parametrize(
    "handshake",
    [
        pytest.param(made_hello(GOOD, server_name(b"evil.org")), id="two server_name extensions"),
        pytest.param(made_hello(GOOD, GOOD), id="the same twice"),
        pytest.param(made_hello(server_name(b"example.com", b"evil.org")), id="two names"),
        pytest.param(made_hello(server_name()), id="an empty list"),
        pytest.param(made_hello(server_name(b"")), id="an empty name"),
        pytest.param(made_hello(server_name(b"example.com", kind=1)), id="another kind of name"),
        pytest.param(made_hello(server_name("bücher.example".encode())), id="not ASCII"),
        pytest.param(made_hello(extension(0, b"")), id="an empty extension"),
        pytest.param(
            made_hello(extension(0, vector(2, b"\0" + vector(2, b"a.com")) + b"x")), id="left over"
        ),
        pytest.param(made_hello(GOOD, after=b"x"), id="bytes after the extensions"),
        pytest.param(made_hello(GOOD + b"\0"), id="half an extension"),
        pytest.param(made_hello(b"\0\0\xff\xff"), id="an extension that is too long"),
        pytest.param(made_hello(GOOD, session=b"s" * 33), id="a long session"),
        pytest.param(made_hello(GOOD) + b"\x01", id="a second message in the record"),
        pytest.param(b"\x01" + vector(3, b"\x03\x03"), id="only a version"),
        pytest.param(b"\x02" + vector(3, b"hello"), id="a server's hello"),
        pytest.param(b"\x01\xff\xff\xff", id="sixteen megabytes"),
    ],
)
def test_a_hello_that_can_be_read_two_ways_is_refused(handshake: bytes) -> None:
    with pytest.raises(NotAClientHello):
        parse(records(handshake))


@pytest.mark.parametrize(
    "data",
    [
        *(b"GET / HTTP/1.1\r\n", b"G", b"SSH-2.0-OpenSSH\r\n", b"\x80\x2e\x01\x03\x01", b"\0"),
        *(b"\x16\x02", b"\x16\x03\x01\x00\x00", b"\x16\x03\x01\x40\x01", b"\x17\x03\x03"),
        *(b"\x16\x03\x01\x00\x05\x02", b"\x15\x03\x01\x00\x02\x02\x28"),
    ],
)
def test_another_protocol_is_refused_at_its_first_byte_that_differs(data: bytes) -> None:
    with pytest.raises(NotAClientHello):
        parse(data)


def test_another_kind_of_record_within_a_hello_is_refused() -> None:
    handshake = message(real_hello())
    with pytest.raises(NotAClientHello):
        parse(records(handshake[:10]) + records(b"\x01", kind=20) + records(handshake[10:]))


def test_the_longest_hello_that_is_read() -> None:
    fixed = len(made_hello(GOOD, extension(21, b"")))
    fits = made_hello(GOOD, extension(21, bytes(LIMIT - fixed)))
    assert len(fits) == LIMIT
    assert parse(records(fits)) == ClientHello("example.com", encrypted=False)
    with pytest.raises(NotAClientHello, match="too long"):
        parse(records(made_hello(GOOD, extension(21, bytes(LIMIT - fixed + 1)))))


def test_no_damage_to_a_hello_is_more_than_a_refusal() -> None:
    data = real_hello()
    for at in range(len(data)):
        for value in (0, 1, 0x7F, 0xFF, data[at] ^ 1):
            changed = bytearray(data)
            changed[at] = value
            try:
                hello = parse(changed)
            except NotAClientHello:
                continue
            assert hello is None or hello.server_name is None or hello.server_name.isascii()
