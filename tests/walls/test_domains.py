"""Which hosts a sandbox may reach is decided the same, however a host is spelled."""

from __future__ import annotations

import pytest

from kernelbox.walls.domains import (
    BadHost,
    Host,
    Policy,
    Refusal,
    decide,
    is_public,
    parse_authority,
    parse_host,
    vet,
)


def verdict(allow: str | tuple[str, ...], target: str, **more: object) -> str:
    policy = Policy((allow,) if isinstance(allow, str) else allow, **more)  # type: ignore[arg-type]
    refusal = decide(policy, *parse_authority(target, default_port=443))
    return refusal.reason if refusal else "yes"


@pytest.mark.parametrize(
    ("spelled", "host"),
    [
        ("example.com", "example.com"),
        ("EXAMPLE.com", "example.com"),
        ("example.com.", "example.com"),
        ("localhost", "localhost"),
        ("my_bucket.s3.example.com", "my_bucket.s3.example.com"),
        ("r3---sn-4g5e.example.com", "r3---sn-4g5e.example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("ＥＸＡＭＰＬＥ。com", "example.com"),
        ("a" * 63 + ".com", "a" * 63 + ".com"),
        ("1e100.net", "1e100.net"),
        ("0x7f.example", "0x7f.example"),
    ],
)
def test_a_name_has_one_spelling(spelled: str, host: str) -> None:
    assert parse_host(spelled) == Host(host)


@pytest.mark.parametrize(
    ("spelled", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("0X7F.1", "127.0.0.1"),
        ("1.0x7f", "1.0.0.127"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("１２７.0.0.1", "127.0.0.1"),
        ("127。0。0。1", "127.0.0.1"),
        ("①②⑦.0.0.1", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("[::1]", "::1"),
        ("[0:0::0:1]", "::1"),
        ("[::ffff:127.0.0.1]", "::ffff:7f00:1"),
        ("[::FFFF:7F00:1]", "::ffff:7f00:1"),
    ],
)
def test_an_address_is_known_in_every_spelling(spelled: str, address: str) -> None:
    host = parse_host(spelled)
    assert host.literal
    assert host.text in (address, "::ffff:127.0.0.1" if "ffff" in address else address)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        ".example.com",
        "example..com",
        "example.com..",
        "exa mple.com",
        "example.com\t",
        "example.com\x00.evil.org",
        "example.com\r\nHost: x",
        "example%2ecom",
        "%65xample.com",
        "user@example.com",
        "example.com/path",
        "example.com\\evil.org",
        "example.com#",
        "example.com?",
        "-example.com",
        "example-.com",
        "*.example.com",
        "exam*ple.com",
        "::1",
        "fe80::1%eth0",
        "[fe80::1%25eth0]",
        "[fe80::1%eth0]",
        "[::1",
        "[::1]x",
        "[127.0.0.1]",
        "[]",
        "1.2.3.4.5",
        "256.256.256.256",
        "example.1",
        "0x",
        "08.0.0.1",
        "a" * 64 + ".com",
        ".".join(["a" * 50] * 6),
        "a" * 100_000,
        "℀.com",  # becomes a/c
        "ex\u2025mple.com",  # becomes two dots
        "faß.de",  # fass.de to some, xn--fa-hia.de to others
        "a\u200db.com",
        "\u0627a.com",  # right-to-left mixed with left-to-right
        "\ud800.com",
    ],
)
def test_what_cannot_be_one_host_is_refused(text: str) -> None:
    with pytest.raises(BadHost):
        parse_host(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("example.com:443", "example.com", 443),
        ("example.com", "example.com", 80),
        ("[2001:db8::1]:8443", "2001:db8::1", 8443),
        ("[2001:db8::1]", "2001:db8::1", 80),
    ],
)
def test_an_authority_is_host_and_port(text: str, host: str, port: int) -> None:
    found, number = parse_authority(text, default_port=80)
    assert (found.text, number) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        *("example.com:", "example.com:0", "example.com:65536", "example.com:-1", ":443", ""),
        *("example.com:+443", "example.com:4 43", "example.com:０443", "example.com:443:443"),
        *("a@example.com:443", "a:b@example.com:443", "::1:443", "example.com:99999999999"),
        *("[::1]:", "x[::1]:443", "[::1][::1]:443"),
    ],
)
def test_an_authority_with_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadHost):
        parse_authority(text, default_port=80)


def test_a_connect_must_name_its_port() -> None:
    with pytest.raises(BadHost, match="names no port"):
        parse_authority("example.com", default_port=None)


@pytest.mark.parametrize(
    ("allow", "target", "expected"),
    [
        ("example.com", "example.com", "yes"),
        ("example.com", "EXAMPLE.COM.", "yes"),
        ("Example.COM.", "example.com", "yes"),
        ("bücher.example", "xn--bcher-kva.example", "yes"),
        ("example.com", "example.com:80", "yes"),
        ("example.com", "example.com:8443", "port-not-allowed"),
        ("example.com", "example.com:22", "port-not-allowed"),
        ("example.com", "www.example.com", "domain-not-allowed"),
        ("example.com", "notexample.com", "domain-not-allowed"),
        ("example.com", "example.com.evil.org", "domain-not-allowed"),
        ("example.com", "example.co", "domain-not-allowed"),
        ("*.example.com", "www.example.com", "yes"),
        ("*.example.com", "a.b.c.example.com", "yes"),
        ("*.example.com", "example.com", "domain-not-allowed"),
        ("*.example.com", "wwwexample.com", "domain-not-allowed"),
        ("*.example.com", "www.example.com.evil.org", "domain-not-allowed"),
        ("*", "anything.example.org", "yes"),
        ("*", "anything.example.org:22", "port-not-allowed"),
        ("example.com:8443", "example.com:8443", "yes"),
        ("example.com:8443", "example.com", "port-not-allowed"),
        ("*.example.com:8443", "a.example.com:8443", "yes"),
        ("*:8443", "example.org:8443", "yes"),
        ("*:8443", "example.org", "port-not-allowed"),
        (("example.com:8443", "example.com"), "example.com:443", "yes"),
        (("a.com", "b.com"), "b.com", "yes"),
        ((), "example.com", "domain-not-allowed"),
        ("example.com", "93.184.215.14", "ip-literal"),
        ("example.com", "0x5d.184.215.14", "ip-literal"),
        ("example.com", "[2606:2800::1]:443", "ip-literal"),
        (("*", "example.com"), "93.184.215.14", "ip-literal"),
        ("*", "93.184.215.14", "yes"),
        ("*", "[2606:2800::1]:443", "yes"),
        ("*", "93.184.215.14:22", "port-not-allowed"),
        ("*", "127.0.0.1", "address-not-public"),
        ("*", "0x7f.1", "address-not-public"),
        ("*", "2130706433", "address-not-public"),
        ("*", "169.254.169.254", "address-not-public"),
        ("*", "[::1]:443", "address-not-public"),
        ("*", "[::ffff:8.8.8.8]:443", "address-not-public"),
        ("*", "[64:ff9b::7f00:1]:443", "address-not-public"),
    ],
)
def test_decisions(allow: str | tuple[str, ...], target: str, expected: str) -> None:
    assert verdict(allow, target) == expected


def test_other_ports_can_be_the_usual_ones() -> None:
    assert verdict("example.com", "example.com:9000", ports=frozenset({9000})) == "yes"
    assert verdict("example.com", "example.com", ports=frozenset({9000})) == "port-not-allowed"


def test_a_refusal_says_what_is_allowed() -> None:
    refusal = decide(Policy(("a.com", "*.b.com")), Host("example.org"), 443)
    assert refusal == Refusal(
        "domain-not-allowed",
        "the sandbox's profile does not allow example.org:443; allowed: a.com, *.b.com",
    )
    many = decide(Policy(tuple(f"a{n}.com" for n in range(20))), Host("example.org"), 443)
    assert many is not None
    assert many.words.endswith("a7.com and 12 more")
    none = decide(Policy(()), Host("example.org"), 443)
    assert none is not None
    assert none.words.endswith("allowed: nothing")
    ported = decide(Policy(("a.com", "a.com:8443")), Host("a.com"), 22)
    assert ported is not None
    assert ported.words.endswith("ports allowed there: 80, 443, 8443")


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "*.", "**", "*.*.com", "a.*.com", "*example.com", "http://example.com", "a/b"),
        *("example.com:", "example.com:x", "example.com:0", "127.0.0.1", "0x7f.1", "[::1]", "::1"),
        *("*.1.2.3.4", "exa mple.com", "user@example.com", "faß.de"),
    ],
)
def test_a_pattern_that_means_nothing_is_refused_in_words(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"write|Write|port"):
        Policy((pattern,))


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="no port"):
        Policy(("*",), frozenset({port}))


def test_a_policy_travels() -> None:
    policy = Policy(("Example.com.", "*.b.com:8443"), frozenset({443}), private=True)
    assert policy.allow == ("example.com", "*.b.com:8443")
    assert Policy.from_wire(policy.to_wire()) == policy
    assert Policy.from_wire({"allow": ["*"]}) == Policy(("*",))
    assert Policy(("*",)).everything
    assert not Policy(("*", "a.com")).everything
    assert not Policy(("*:443",)).everything


def test_a_policy_of_unknown_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="deny"):
        Policy.from_wire({"allow": [], "deny": []})
    with pytest.raises(ValueError, match="list"):
        Policy.from_wire({"allow": "example.com"})


PUBLIC = [
    *("8.8.8.8", "1.1.1.1", "93.184.215.14", "172.15.255.255", "172.32.0.0", "100.63.255.255"),
    *("100.128.0.0", "168.63.129.15", "223.255.255.255", "192.0.1.0", "198.20.0.0"),
    *("2606:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2001:200::1"),
]
NOT_PUBLIC = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1"),
    *("127.255.255.254", "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255"),
    *("192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::808:808"),
    *("64:ff9b:1::1", "100::1", "2001::1", "2001:2::1", "2001:20::1", "2001:db8::1"),
    *("2002:7f00:1::", "2002:808:808::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254"),
    *("fe80::1", "fe80::1%1", "2606:4700::1%1", "fec0::1", "ff02::1", "ff0e::1"),
    *("example.com", "", "127.1"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_everything_nearer_is_not_public(address: str) -> None:
    assert not is_public(address)


def test_of_a_names_addresses_only_the_public_ones_are_left() -> None:
    policy, host = Policy(("example.com",)), Host("example.com")
    mixed = ["127.0.0.1", "8.8.8.8", "::1", "8.8.8.8", "2606:4700::1111"]
    assert vet(policy, host, mixed) == ["8.8.8.8", "2606:4700::1111"]
    refusal = vet(policy, host, ["127.0.0.1", "::ffff:8.8.8.8"])
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "address-not-public"
    private = Policy(("example.com",), private=True)
    assert vet(private, host, ["127.0.0.1"]) == ["127.0.0.1"]
