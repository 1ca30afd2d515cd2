"""Packages behind walls: a folder of the host, shown to one sandbox and only to be read."""

from __future__ import annotations

import os
from dataclasses import replace

from kernelbox.walls.plan import Plan

PLACE = "/packages"


def shown_in(plan: Plan, folder: str, *, hidden: str) -> Plan:
    """The plan with ``folder`` at :data:`PLACE`; the host fills it later. ``hidden``: where the
    packages of all families are, which no mount of the profile may bring in."""
    real = os.path.realpath(hidden)
    masked = [real]
    for source, target, _ in plan.mounts:
        if real == source or real.startswith(f"{source.rstrip('/')}/"):
            masked.append(f"{target.rstrip('/')}{real.removeprefix(source.rstrip('/'))}")
    return replace(
        plan,
        mounts=(*plan.mounts, (os.path.realpath(folder), PLACE, False)),
        masked=tuple(dict.fromkeys([*plan.masked, *masked])),
    )
