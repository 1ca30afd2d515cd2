"""What the measurements share: what is asked for, and how figures are read."""

from __future__ import annotations

import statistics

PATIENCE = 60.0
SETTLE = 0.1
"""Seconds between two turns: what the last one had is taken down by the kernel in its own time."""
WALLED = "restrictive"
PROFILES = ("open", WALLED, "moderate", "permissive")
MOST_OVER, LEAST_TIMES, MOST_PRIVATE, MOST_SLOWER = 15.0, 6.0, 20.0, 2.0


class Unavailable(Exception):
    """Something cannot be measured here; the message is what the table says instead."""


def middle(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def ms(value: float) -> str:
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.{1 if value < 100 else 0}f} ms"
