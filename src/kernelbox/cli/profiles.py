"""``kernelbox profile``: which walls there are, and what one of them means."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from kernelbox.cli import exits
from kernelbox.cli.printing import say, say_text
from kernelbox.errors import BadInput
from kernelbox.walls.drivers import cannot_enforce
from kernelbox.walls.profiles import PROFILES, Profile, resolve


def profile(options: Namespace) -> int:
    """All of them, or the one that is named."""
    if len(options.words) > 1:
        raise BadInput(f"one profile at a time, not {len(options.words)}")
    chosen = [resolve(word) for word in options.words] or list(PROFILES.values())
    if options.human:
        say_text("\n\n".join(_for_people(one) for one in chosen) + "\n")
    elif options.words:
        say(_facts(chosen[0]))
    else:
        say({"profiles": [_facts(one) for one in chosen]})
    return exits.DONE


def _facts(profile: Profile) -> dict[str, Any]:
    return {**profile.to_wire(), "explained": profile.explain(), "missing": _missing(profile)}


def _for_people(profile: Profile) -> str:
    missing = _missing(profile)
    return profile.explain() + (f"\nNot to be had here: {missing}." if missing else "")


def _missing(profile: Profile) -> str | None:
    """Why it would be refused here; None if it would not."""
    return (cannot_enforce(profile) or None) if profile.walled else None
