"""Jupyter messages as bytes: signed and packed, or verified and taken apart. No I/O."""

from __future__ import annotations

import getpass
import hashlib
import hmac
import json
import math
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

VERSION = "5.4"
DELIMITER = b"<IDS|MSG>"

_SIGNED_PARTS = 4
_REMEMBERED = 1 << 16

Header = dict[str, Any]


class BadMessage(ValueError):
    """What arrived is not a message of somebody who holds the key; it is dropped."""


@dataclass(slots=True)
class Message:
    """A message that a client sent; ``identities`` is the way back to it."""

    identities: list[bytes]
    header: Header
    parent_header: Header
    metadata: dict[str, Any]
    content: dict[str, Any]
    buffers: list[bytes] = field(default_factory=list)
    size: int = 0

    @property
    def msg_type(self) -> str:
        kind: str = self.header["msg_type"]
        return kind


def algorithm_of(scheme: str) -> str:
    """The hash that a connection file's signature scheme names."""
    family, _, algorithm = scheme.partition("-")
    if family != "hmac" or algorithm not in hashlib.algorithms_available:
        raise ValueError(f"the signature scheme {scheme!r} is unknown; use hmac-sha256")
    return algorithm


class Seal:
    """Signs messages with the key of the connection file, and knows its own signature again."""

    def __init__(self, key: bytes, *, scheme: str = "hmac-sha256") -> None:
        """An empty key means no signatures, as everywhere in Jupyter."""
        self._mac = hmac.new(key, digestmod=algorithm_of(scheme)) if key else None
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def sign(self, parts: Sequence[bytes]) -> bytes:
        if self._mac is None:
            return b""
        mac = self._mac.copy()
        for part in parts:
            mac.update(part)
        return mac.hexdigest().encode("ascii")

    def check(self, signature: bytes, parts: Sequence[bytes]) -> None:
        """Raise unless this was signed with our key, and has not been here before."""
        if self._mac is None:
            return
        if not hmac.compare_digest(signature, self.sign(parts)):
            raise BadMessage("wrong signature")
        if signature in self._seen:
            raise BadMessage("a message that was here before")
        self._seen[signature] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)


class Session:
    """Makes the messages of one kernel, and reads those of its clients."""

    def __init__(self, key: bytes, *, scheme: str = "hmac-sha256") -> None:
        self.id = uuid.uuid4().hex
        self._seal = Seal(key, scheme=scheme)
        self._username = _username()

    def header(self, msg_type: str, *, msg_id: str | None = None) -> Header:
        return {
            "msg_id": msg_id or uuid.uuid4().hex,
            "msg_type": msg_type,
            "session": self.id,
            "username": self._username,
            "date": timestamp(),
            "version": VERSION,
        }

    def pack(
        self,
        msg_type: str,
        content: dict[str, Any],
        *,
        parent: Header | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: Sequence[bytes] = (),
        identities: Sequence[bytes] = (),
        msg_id: str | None = None,
    ) -> list[bytes]:
        """A new message, ready to be sent."""
        parts = [
            to_json(self.header(msg_type, msg_id=msg_id)),
            to_json(parent or {}),
            to_json(metadata or {}),
            to_json(content),
        ]
        return [*identities, DELIMITER, self._seal.sign(parts), *parts, *buffers]

    def unpack(self, frames: Sequence[bytes]) -> Message:
        """The message in ``frames``; :class:`BadMessage` if there is none that we may trust."""
        try:
            at = frames.index(DELIMITER)
        except ValueError:
            raise BadMessage("no delimiter") from None
        parts = frames[at + 2 : at + 2 + _SIGNED_PARTS]
        if len(parts) < _SIGNED_PARTS:
            raise BadMessage("too few frames")
        # Nothing is parsed before its signature has proved right.
        self._seal.check(frames[at + 1], parts)
        header, parent, metadata, content = (_object(part) for part in parts)
        for name in ("msg_id", "msg_type"):
            if not isinstance(header.get(name), str):
                raise BadMessage(f"the header has no {name}")
        return Message(
            identities=list(frames[:at]),
            header=header,
            parent_header=parent,
            metadata=metadata,
            content=content,
            buffers=list(frames[at + 2 + _SIGNED_PARTS :]),
            size=sum(len(part) for part in parts),
        )


def to_json(value: Any) -> bytes:
    """JSON that every client can read: no NaN, no half of a surrogate pair."""
    try:
        text = _dumps(value)
    except ValueError:
        text = _dumps(_finite(value))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def timestamp() -> str:
    """Now, as headers write it: ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _dumps(value: Any) -> str:
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str
    )


def _finite(value: Any) -> Any:
    """NaN and the infinities become null, which is what JavaScript makes of them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _object(part: bytes) -> dict[str, Any]:
    try:
        value = json.loads(part)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadMessage(f"an object was expected, not {type(value).__name__}")
    return value


def _username() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "kernelbox"  # a user id that no account goes with, as in many containers
