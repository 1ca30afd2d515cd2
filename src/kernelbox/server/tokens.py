"""Who may come in: one token, or a file of tenants with a token each."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import stat
from dataclasses import dataclass

from kernelbox.errors import BadInput
from kernelbox.server.settings import ServerSettings

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who a token belongs to; ``tenant`` is None where there is one token for all."""

    tenant: str | None


class Tokens:
    """The tokens that are known, as digests: comparing them takes the same time for all."""

    def __init__(self, known: dict[str, Holder], *, tenants: bool) -> None:
        self._known = [(_digest(token), holder) for token, holder in known.items()]
        self.tenants = tenants

    def __bool__(self) -> bool:
        return bool(self._known)

    def holder(self, token: bytes) -> Holder | None:
        """Who this token belongs to. All are compared, so that the time says nothing."""
        given = hashlib.sha256(token).digest()
        found = None
        for digest, holder in self._known:
            if hmac.compare_digest(given, digest):
                found = holder
        return found


def read_tokens(settings: ServerSettings) -> Tokens:
    """The tokens that the settings name."""
    if settings.tokens_file is None:
        known = {settings.api_token: Holder(None)} if settings.api_token else {}
        return Tokens(known, tenants=False)
    if settings.api_token:
        raise BadInput(
            "there is both a token for all (KERNELBOX_API_TOKEN) and a file of tenants "
            f"({settings.tokens_file!r}); unset one of them"
        )
    return Tokens(_read_file(settings.tokens_file), tenants=True)


def _read_file(path: str) -> dict[str, Holder]:
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                logging.getLogger("kernelbox.server").warning(
                    "others on this machine may read the tokens in %s; chmod 600 it", path
                )
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the tokens file {path!r} cannot be read: {error}") from None
    pairs = _json_pairs(path, text) if text.lstrip().startswith("{") else _line_pairs(path, text)
    known: dict[str, Holder] = {}
    for name, token in pairs:
        if not _TENANT.fullmatch(name):
            raise BadInput(
                f"the tokens file {path!r} names a tenant {name!r}; a name has up to 32 letters, "
                "digits, '-' and '_'"
            )
        if not (token.isascii() and token.isprintable() and token and " " not in token):
            raise BadInput(
                f"the token of {name!r} in {path!r} is not printable ASCII without spaces"
            )
        if token in known:
            raise BadInput(f"two tenants in {path!r} have the same token, {name!r} is one of them")
        known[token] = Holder(name)
    if not known:
        raise BadInput(f"the tokens file {path!r} is empty; it has one name:token per line")
    if len({holder.tenant for holder in known.values()}) < len(known):
        raise BadInput(f"a tenant appears twice in {path!r}")
    return known


def _line_pairs(path: str, text: str) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, token = line.partition(":")
        if not colon:
            raise BadInput(f"line {number} of {path!r} is not name:token")
        pairs.append((name.strip(), token.strip()))
    return pairs


def _json_pairs(path: str, text: str) -> list[tuple[str, str]]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise BadInput(f"the tokens file {path!r} is no JSON: {error}") from None
    if not all(isinstance(token, str) for token in values.values()):
        raise BadInput(f"the tokens file {path!r} maps names to tokens, both strings")
    return list(values.items())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("ascii")).digest()
