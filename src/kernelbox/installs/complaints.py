"""What uv says when it fails, as one line that an agent can act on."""

from __future__ import annotations

import re
import sys

from kernelbox.installs.failing import Failed, in_one_line

_HINT = re.compile(r"^hint:.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_MISSING = re.compile(
    r"(?:Because )?([A-Za-z0-9._-]+) was not found in the (?:package registry|provided)"
)
_NO_VERSION = re.compile(r"there is no version of (\S+?)(?:,| and|$)")
_WHEELS = re.compile(r"Wheels are required for `([^`]+)`")
_OTHER_WHEELS = re.compile(r"([A-Za-z0-9._-]+)\S* ha(?:s|ve) no wheels with a matching")
_STEP = "we can conclude that"
_LONGEST_PROOF = 300
_UNREACHABLE = (
    "error sending request",
    "Failed to fetch",
    "Request failed",
    "Network connectivity is disabled",
    "network was disabled",
    "dns error",
    "operation timed out",
)


def understood(said: str, *, earlier: list[str]) -> Failed:
    """The failure that uv's words mean. ``earlier``: what the kernel has asked for before, which
    may be what the new does not go with."""
    if "No space left on device" in said or "os error 28" in said or "os error 27" in said:
        return Failed(
            "disk_full",
            "the host's disk is full, or a file is larger than allowed; nothing was installed. "
            "Make room (KERNELBOX_INSTALL_CACHE names the folder), then ask again",
        )
    if re.search(r"\b40[13]\b", said) and "HTTP status" in said:
        return Failed("unreachable", "the index refuses the host: its credentials are wrong")
    if match := _MISSING.search(said):
        return Failed(
            "not_found", f"the index has no package {match[1]!r}; check how its name is spelled"
        )
    if any(words in said for words in _UNREACHABLE):
        return Failed(
            "unreachable",
            f"the index cannot be reached from the host ({_last_cause(said)}); ask again later, "
            "or do without",
        )
    proof, end = _proof(said)
    # A hint about wheels may be beside the point: some version has none, and would not do either.
    conflict = "depend" in end or end.count("you require") > 1
    no_wheel = None if conflict else _WHEELS.search(said) or _OTHER_WHEELS.search(said)
    if (match := no_wheel) is not None:
        version = ".".join(map(str, sys.version_info[:2]))
        return Failed(
            "no_wheel",
            f"{match[1]} has no wheel for Python {version} on this machine in a version that was "
            "asked for, and building from source is off (KERNELBOX_INSTALL_SOURCE). Ask for "
            "another version, or another package",
        )
    if match := _NO_VERSION.search(said):
        return Failed(
            "no_version", f"there is no version {match[1]}; ask without one, or for a range"
        )
    if "No solution found" in said:
        before = f" (asked for before in this kernel: {', '.join(earlier)})" if earlier else ""
        return Failed("conflict", f"these do not go together: {proof}{before}")
    return Failed("failed", f"uv failed: {_last_cause(said)}")


def _proof(said: str) -> tuple[str, str]:
    """uv proves step by step that there is no solution: all of it, or of a long one the end; and
    the end, which names what was asked for, and what that runs into."""
    whole = " ".join(_HINT.sub("", said).split("cause:", 1)[-1].split())
    *steps, _ = whole.split(_STEP) if _STEP in whole else (whole, "")
    shown = [step.strip().rstrip(",").removeprefix("Because ") for step in steps]
    end = shown[-1].replace(". And because ", "; and ")
    proof = ", so ".join(shown).replace(". And because ", "; and ")
    return in_one_line(proof if len(proof) < _LONGEST_PROOF else end, 400), end


def _last_cause(said: str) -> str:
    lines = [line.strip() for line in _HINT.sub("", said).splitlines() if line.strip()]
    last = lines[-1] if lines else "it gave no reason"
    return in_one_line(last.removeprefix("cause:").removeprefix("error:").strip(), 200)
