"""Secrets that are bound to domains: code in a sandbox has a placeholder, and the gate puts the
value in its place, in headers, towards that domain and no other.

A :class:`Secret` is a part of a profile and can be printed, compared and stored: it says where the
value comes from and never has it. The value is looked up by the caller's own process
(:func:`values_of`), and travels with the request to the warden, which hands it to the gate.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelbox.errors import BadInput

TLS_PORT = 443
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# What a header can hold: what is visible, and blanks and tabs between.
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
_KEYS = ("name", "domain", "file")
_LEAST, _MOST = 4, 8192
_MOST_BINDINGS = 64
# They decide what a program is, or how it reaches the gate.
_OURS = frozenset(
    {"PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "LD_PRELOAD", "LD_LIBRARY_PATH"}
)
_OUR_STARTS = ("PYTHON", "KERNELBOX_", "LC_")
_OUR_ENDS = ("_PROXY", "_CA_BUNDLE", "_CERT", "_CERT_FILE", "_CAINFO", "_CA_CERTS")


@dataclass(frozen=True, slots=True)
class Secret:
    """The variable ``name`` of a sandbox holds a placeholder, for which the gate sends the value
    to ``domain`` (``api.example.com``, or with another port than 443: ``api.example.com:8443``).

    The value is that of the caller's own variable ``name``, or what ``file`` holds.
    """

    name: str
    domain: str
    file: str | None = None

    def check(self) -> Secret:
        from kernelbox.walls.profiles import check_domain, shown

        name: object = self.name
        domain: object = self.domain
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _bad(f"the name of a secret is like API_TOKEN, a variable's; not {shown(name)}")
        upper = name.upper()
        if upper in _OURS or upper.startswith(_OUR_STARTS) or upper.endswith(_OUR_ENDS):
            raise _bad(f"{self.name} cannot be a secret: programs need its own meaning")
        if not isinstance(domain, str) or "*" in domain:
            raise _bad(
                f"the domain of the secret {self.name} is one domain, like api.example.com, "
                f"because its value is sent there; not {shown(self.domain)}. For several, bind "
                f"{self.name} several times"
            )
        check_domain(self.domain)
        if self.file is not None and not _is_path(self.file):
            raise _bad(
                f"the file of the secret {self.name} is a path from / on, not {shown(self.file)}"
            )
        return self

    @property
    def host(self) -> str:
        return self.domain.partition(":")[0]

    @property
    def port(self) -> int:
        return int(self.domain.partition(":")[2] or TLS_PORT)

    def to_wire(self) -> dict[str, Any]:
        return {"name": self.name, "domain": self.domain, "file": self.file}

    def __str__(self) -> str:
        return f"{self.name} for {self.domain}"


def secrets_from(values: object, *, folder: str | None = None) -> tuple[Secret, ...]:
    """As they travel, or are written down: a list of ``{"name": …, "domain": …, "file": …}``.
    Paths of files begin in ``folder``, if there is one."""
    from kernelbox.walls.profiles import did_you_mean, shown

    if not isinstance(values, list | tuple):
        raise _bad(f"secrets takes a list, not {shown(values)}")
    made = []
    for value in values:
        if isinstance(value, Secret):
            made.append(value)
            continue
        if not isinstance(value, Mapping):
            # Not shown: whoever writes a secret here by mistake does not want it in a log.
            raise _bad("a secret takes name, domain and file, as a table")
        for key in value:
            if key not in _KEYS:
                hint = did_you_mean(key, _KEYS)
                if key == "value":
                    hint = ": a profile never holds values. Put it into a file or a variable"
                raise _bad(f"a secret has no {shown(key)}; it has {', '.join(_KEYS)}{hint}")
        for key in ("name", "domain"):
            if key not in value:
                raise _bad(f"a secret has to say its {key}")
        domain, file = value["domain"], value.get("file")
        if isinstance(file, str) and file and folder is not None:
            file = os.path.normpath(os.path.join(folder, os.path.expanduser(file)))
        domain = domain.lower() if isinstance(domain, str) else domain
        made.append(Secret(value["name"], domain, file))
    return tuple(made)


def check_all(bound: tuple[Secret, ...], *, network: str, allow: Iterable[str]) -> None:
    """Each, and whether they make sense together and with the network of their profile."""
    if not bound:
        return
    if network != "on":
        raise _bad(
            f"secrets are put in place by the gate, and the network is {network!r}: say "
            f"network='on' too"
        )
    if len(bound) > _MOST_BINDINGS:
        raise _bad(f"a profile has up to {_MOST_BINDINGS} secrets, not {len(bound)}")
    allowed = list(allow)
    files: dict[str, str | None] = {}
    for number, secret in enumerate(bound):
        secret.check()
        if files.setdefault(secret.name, secret.file) != secret.file:
            raise _bad(f"the secret {secret.name} has two values: say the same file for both")
        same = (secret.name, secret.host, secret.port)
        if any((other.name, other.host, other.port) == same for other in bound[:number]):
            raise _bad(f"the secret {secret} is there twice: leave out one of them")
        if not any(_covers(pattern, secret) for pattern in allowed):
            raise _bad(
                f"the secret {secret} is for a domain that allow does not name: add "
                f"{secret.domain!r} to it"
            )


def values_of(bound: Iterable[Secret], environ: Mapping[str, str]) -> dict[str, str]:
    """The values, from the caller's environment and files. To be held as shortly as can be, and
    never to be stored, shown or logged."""
    found: dict[str, str] = {}
    for secret in bound:
        if secret.name in found:
            continue
        if secret.file is None:
            where = f"the variable {secret.name}"
            value = environ.get(secret.name)
            if value is None:
                raise _bad(
                    f"there is no value for the secret {secret.name}: the variable {secret.name} "
                    f"is not set. Set it where KernelBox is called, or name a file that holds it"
                )
        else:
            where = f"the file {secret.file}"
            value = _read(secret)
        value = value.strip(" \t\r\n")
        if not _LEAST <= len(value) <= _MOST or not _VALUE.fullmatch(value):
            raise _bad(
                f"{where} holds nothing that a header could carry as the secret {secret.name}: it "
                f"takes one line of {_LEAST} to {_MOST} visible characters"
            )
        found[secret.name] = value
    return found


def placeholders(names: Iterable[str]) -> dict[str, str]:
    """For each name what stands for its value: known from anything else, and never guessed."""
    return {name: f"kbx-secret-{os.urandom(16).hex()}" for name in dict.fromkeys(names)}


def hide(
    environ: Mapping[str, str], values: Mapping[str, str], stand: Mapping[str, str]
) -> dict[str, str]:
    """An environment where the placeholders are, also where a variable of another name has the
    same value, or has it inside."""
    made = dict(environ)
    # The longest first: one may be a part of another.
    for name in sorted(values, key=lambda name: -len(values[name])):
        for variable, text in made.items():
            if values[name] in text:
                made[variable] = text.replace(values[name], stand[name])
    return made | {name: stand[name] for name in values}


def _read(secret: Secret) -> str:
    assert secret.file is not None
    try:
        with open(secret.file, encoding="latin-1") as file:
            return file.read(_MOST + 16)
    except OSError as error:
        raise _bad(
            f"the file {secret.file} of the secret {secret.name} cannot be read: {error.strerror}"
        ) from None


def _covers(pattern: str, secret: Secret) -> bool:
    host, _, port = pattern.partition(":")
    if (int(port) if port else TLS_PORT) != secret.port:
        return False
    return host in ("*", secret.host) or (host[:2] == "*." and secret.host.endswith(host[1:]))


def _is_path(path: object) -> bool:
    return isinstance(path, str) and os.path.isabs(path) and path.isprintable()


def _bad(words: str) -> BadInput:
    return BadInput(words, field="secrets")
