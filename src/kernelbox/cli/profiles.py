"""``kernelbox profile show``: which walls there are, and what one of them means."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from kernelbox.cli import exits
from kernelbox.cli.printing import say, say_text
from kernelbox.errors import BadInput
from kernelbox.walls import locks, ways
from kernelbox.walls.drivers import cannot_enforce
from kernelbox.walls.profiles import PROFILES, Profile, resolve


def profile(options: Namespace) -> int:
    """All of them, or the one that is named; ``show`` may be said or left out."""
    names = options.words[options.words[:1] == ["show"] :]
    if len(names) > 1:
        raise BadInput(f"one profile at a time, not {len(names)}")
    chosen = [resolve(name) for name in names] or list(PROFILES.values())
    if options.human:
        say_text("\n\n".join(_for_people(one) for one in chosen) + "\n")
    elif names:
        say(_facts(chosen[0]))
    else:
        say({"profiles": [_facts(one) for one in chosen]})
    return exits.DONE


def _facts(profile: Profile) -> dict[str, Any]:
    missing = _missing(profile)
    facts = {**profile.to_wire(), "explained": profile.explain(), "missing": missing}
    return {**facts, "way": _way(profile), "leaks": [] if missing else _leaks(profile)}


def _for_people(profile: Profile) -> str:
    missing = _missing(profile)
    if missing:
        return f"{profile.explain()}\nNot to be had here: {missing}."
    leaks = _leaks(profile)
    if not leaks:
        return profile.explain()
    head = (
        "Held here by Landlock and seccomp alone, as user namespaces are closed. That leaves open"
    )
    return "\n".join([profile.explain(), "", head, *(f"- {leak}" for leak in leaks)])


def _missing(profile: Profile) -> str | None:
    """Why it would be refused here; None if it would not."""
    if not profile.walled:
        return None
    way = ways.look()
    words = cannot_enforce(profile) or ways.cannot_offer(profile, way)
    if not words and way.kind == "locks":
        words = locks.attempt()
    return words or None


def _way(profile: Profile) -> str | None:
    return ways.look().kind if profile.walled and profile.driver == "process" else None


def _leaks(profile: Profile) -> list[str]:
    """What the walls that can be had here do not hold."""
    return locks.leaks(disk=profile.disk is not None) if _way(profile) == "locks" else []
