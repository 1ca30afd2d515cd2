"""Jupyter messages: what is signed, what is believed, and what JSON goes out."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import datetime, timedelta

import pytest

from kernelbox.warden.lanes.messages import DELIMITER, BadMessage, Seal, Session, to_json

KEY = b"0123456789abcdef"


@pytest.fixture
def session() -> Session:
    return Session(KEY)


def frames(session: Session, **content: object) -> list[bytes]:
    return session.pack("execute_request", dict(content), identities=[b"client"])


def test_a_message_comes_back_as_it_was_packed(session: Session) -> None:
    parent = session.header("status")
    packed = session.pack(
        "comm_msg",
        {"data": {"ü": 1}},
        parent=parent,
        metadata={"version": "2.1"},
        buffers=[b"\x00\xff", b""],
        identities=[b"a", b"b"],
    )
    message = Session(KEY).unpack(packed)
    assert message.msg_type == "comm_msg"
    assert message.identities == [b"a", b"b"]
    assert message.content == {"data": {"ü": 1}}
    assert message.metadata == {"version": "2.1"}
    assert message.parent_header == parent
    assert message.buffers == [b"\x00\xff", b""]
    assert message.header["version"] == "5.4"
    assert message.header["session"] == session.id


def test_the_signature_is_the_hmac_of_the_four_parts(session: Session) -> None:
    packed = frames(session, code="1")
    at = packed.index(DELIMITER)
    expected = hmac.new(KEY, b"".join(packed[at + 2 :]), hashlib.sha256).hexdigest()
    assert packed[at + 1] == expected.encode()


def test_other_schemes_of_the_connection_file_are_followed() -> None:
    packed = Session(KEY, scheme="hmac-sha512").pack("status", {})
    assert len(packed[1]) == 128
    assert Session(KEY, scheme="hmac-sha512").unpack(packed).msg_type == "status"
    with pytest.raises(BadMessage, match="signature"):
        Session(KEY).unpack(packed)


@pytest.mark.parametrize("scheme", ["", "sha256", "hmac-", "hmac-rot13", "rsa-sha256"])
def test_an_unknown_scheme_is_refused_with_its_name(scheme: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        Seal(KEY, scheme=scheme)


def test_a_message_signed_with_another_key_is_not_believed(session: Session) -> None:
    with pytest.raises(BadMessage, match="signature"):
        session.unpack(frames(Session(b"another key"), code="1"))


@pytest.mark.parametrize("part", range(4))
def test_no_part_can_be_changed_after_signing(session: Session, part: int) -> None:
    packed = frames(session, code="1")
    packed[packed.index(DELIMITER) + 2 + part] += b" "
    with pytest.raises(BadMessage, match="signature"):
        session.unpack(packed)


def test_a_message_is_believed_only_once(session: Session) -> None:
    packed = frames(session, code="1")
    session.unpack(packed)
    with pytest.raises(BadMessage, match="before"):
        session.unpack(packed)


def test_a_forged_message_does_not_use_up_the_real_one(session: Session) -> None:
    packed = frames(session, code="1")
    forged = [*packed[:-1], b"{}"]
    with pytest.raises(BadMessage):
        session.unpack(forged)
    assert session.unpack(packed).content == {"code": "1"}


def test_the_memory_of_signatures_is_bounded() -> None:
    seal = Seal(KEY)
    for number in range((1 << 16) + 10):
        parts = [str(number).encode()]
        seal.check(seal.sign(parts), parts)
    assert len(seal._seen) == 1 << 16


def test_without_a_key_nothing_is_signed_and_everything_is_believed() -> None:
    open_session = Session(b"")
    packed = frames(open_session, code="1")
    assert packed[2] == b""
    assert open_session.unpack(packed).content == {"code": "1"}
    assert open_session.unpack(packed).content == {"code": "1"}


def signed(*parts: bytes) -> list[bytes]:
    return [DELIMITER, Seal(KEY).sign(parts), *parts]


HEADER = b'{"msg_id":"1","msg_type":"x"}'


@pytest.mark.parametrize(
    "garbage",
    [
        [],
        [b""],
        [b"id", b"no delimiter"],
        [DELIMITER],
        [DELIMITER, b"signature"],
        [DELIMITER, b"", HEADER, b"{}", b"{}", b"{}"],
        [DELIMITER, "ü".encode(), HEADER, b"{}", b"{}", b"{}"],
        signed(HEADER, b"{}", b"{}"),
        signed(b"", b"{}", b"{}", b"{}"),
        signed(b"{}", b"{}", b"{}", b"{}"),
        signed(b'{"msg_id":1,"msg_type":"x"}', b"{}", b"{}", b"{}"),
        signed(HEADER, b"[]", b"{}", b"{}"),
        signed(HEADER, b"{}", b"{}", b"null"),
        signed(HEADER, b"{}", b"{}", b"\xff\xfe"),
        signed(HEADER, b"{}", b"{}", b"[" * 200_000),
    ],
)
def test_garbage_is_told_from_a_message(session: Session, garbage: list[bytes]) -> None:
    with pytest.raises(BadMessage):
        session.unpack(garbage)


def test_what_is_no_number_in_json_becomes_null() -> None:
    value = {"a": float("nan"), "b": [float("inf"), 1.5, (float("-inf"),)], "c": {"d": "NaN"}}
    assert json.loads(to_json(value)) == {"a": None, "b": [None, 1.5, [None]], "c": {"d": "NaN"}}


def test_half_a_surrogate_pair_does_not_spoil_the_json() -> None:
    packed = to_json({"text": "a\ud800b", "face": "😀"})
    assert json.loads(packed.decode("utf-8")) == {"text": "a?b", "face": "😀"}


def test_dates_are_utc_and_of_now(session: Session) -> None:
    date = session.header("status")["date"]
    assert date.endswith("Z")
    age = datetime.now().astimezone() - datetime.fromisoformat(date)
    assert timedelta(0) <= age < timedelta(minutes=1)


def test_every_message_has_an_id_of_its_own(session: Session) -> None:
    assert len({session.header("status")["msg_id"] for _ in range(1000)}) == 1000
