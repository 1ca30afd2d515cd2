"""What somebody asks for, read strictly: names with versions, and nothing that uv could take for an
option, a file or an address."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernelbox.installs.failing import Failed, in_one_line
from kernelbox.installs.policy import Policy, plain_name

MOST = 200
LONGEST = 300
_LONGEST_NAME = 80

_NOT_PLAIN = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One requirement in its one spelling."""

    name: str
    text: str
    extras: bool
    specifier: str


def read_all(texts: Sequence[str], policy: Policy) -> list[Wanted]:
    """What is wanted, each name once; :class:`Failed` names the first that cannot be had."""
    if len(texts) > MOST:
        raise Failed("bad_request", f"at most {MOST} packages can be asked for at once")
    found: dict[str, Wanted] = {}
    for text in texts:
        wanted = read(text)
        if words := policy.refuses(wanted.name, asked_for=True):
            raise Failed("blocked", words)
        before = found.get(wanted.name)
        if before is not None and before != wanted:
            raise Failed(
                "bad_request", f"asked for twice, differently: {before.text} and {wanted.text}"
            )
        found[wanted.name] = wanted
    return list(found.values())


def read(text: object) -> Wanted:
    """One requirement, written again from what it was understood as: nothing else gets through."""
    from packaging.markers import UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement

    if not isinstance(text, str) or not text.strip():
        raise Failed("bad_request", "a requirement is a text like 'pandas' or 'pandas==2.*'")
    shown = repr(in_one_line(text, 100))
    if len(text) > LONGEST or _NOT_PLAIN.search(text):
        raise Failed("bad_request", f"{shown} is no requirement: too long, or not plain text")
    if text.lstrip().startswith("-"):
        raise Failed("bad_request", f"options are not taken: {shown}; the host decides how")
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise Failed("bad_request", _why_not(text, shown)) from None
    if requirement.url is not None:
        raise Failed("bad_request", _why_not("://", shown))
    try:
        applies = requirement.marker is None or requirement.marker.evaluate()
    except UndefinedEnvironmentName:
        applies = False
    if not applies:
        raise Failed("bad_request", f"{shown} does not apply to this Python; leave it out")
    name = plain_name(requirement.name)
    if len(name) > _LONGEST_NAME:
        raise Failed("bad_request", f"{shown}: no package has a name that long")
    extras = ",".join(sorted(map(plain_name, requirement.extras)))
    specifier = ",".join(sorted(map(str, requirement.specifier)))
    written = f"{name}{f'[{extras}]' if extras else ''}{specifier}"
    return Wanted(name, written, bool(extras), specifier)


def _why_not(text: str, shown: str) -> str:
    if "://" in text or text.startswith(("git+", "hg+", "svn+", "bzr+")):
        return f"{shown} is an address; only packages of the index can be installed, by name"
    if text.startswith((".", "/", "~")) or text.endswith((".whl", ".tar.gz", ".zip")):
        return f"{shown} is a path; only packages of the index can be installed, by name"
    return f"{shown} is no requirement; write 'pandas', 'pandas==2.*' or 'pandas[excel]>=2'"
