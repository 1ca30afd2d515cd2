"""What the project promised, and whether this run shows it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from plan import UNCOMPILED
from records import Run
from rows import Row, crowd_samples, rows

MEGABYTE = 1_000_000
FLAT = 1.25


@dataclass(frozen=True)
class Verdict:
    """One promise: what was measured, and whether it holds (None: not measured)."""

    promise: str
    measured: str
    kept: bool | None


def verdicts(run: Run) -> list[Verdict]:
    """Every promise, in the order of the issue."""
    by_key = {row.key: row for row in rows(run)}
    return [
        _times(
            "from the root",
            by_key["first_result/from the root"],
            at_least=55,
            beside=by_key[f"first_result/{UNCOMPILED}"],
        ),
        _times("from a warm spare", by_key["first_result/from a warm spare"], at_least=150),
        _times("`1+1` round trip", by_key["round_trip/p50"], at_least=8),
        _over_floor("`1+1` round trip ≤ 3× the in-process floor", by_key["round_trip/p50"], 3),
        _at_most(
            "a killed kernel noticed in ≤ 10 ms", by_key["noticed_death"].value("ours"), limit=0.010
        ),
        *_memory(by_key),
        _over_floor("`import kernelbox` ≤ 2× `python -c pass`", by_key["import"], 2),
        _flat(run),
        _at_most(
            "branch of a session with a 1 GB array ≤ 20 ms",
            by_key["branch"].value("ours"),
            limit=0.020,
        ),
    ]


def _times(what: str, row: Row, *, at_least: float, beside: Row | None = None) -> Verdict:
    promise = f"{what} ≥ {at_least:g}× faster than 0.1.2"
    times = row.times("original")
    if times is None:
        return _unknown(promise)
    measured = f"{times:.1f}×"
    if beside is not None and (other := beside.times("original")) is not None:
        measured += f" ({other:.0f}× where no bytecode is cached)"
    return Verdict(promise, measured, times >= at_least)


def _over_floor(promise: str, row: Row, limit: float) -> Verdict:
    ours, floor = row.value("ours"), row.value("floor")
    if not ours or not floor:
        return _unknown(promise)
    return Verdict(promise, f"{ours / floor:.2f}×", ours / floor <= limit)


def _at_most(promise: str, value: float | None, *, limit: float) -> Verdict:
    if value is None:
        return _unknown(promise)
    return Verdict(promise, f"{value * 1000:.1f} ms", value <= limit)


def _memory(by_key: dict[str, Row]) -> list[Verdict]:
    found = []
    for key, row in by_key.items():
        value = row.value("ours")
        if key.startswith("memory/") and value is not None:
            size = key.partition("/")[2]
            promise = f"≤ 12 MB private per idle kernel, {size} live"
            measured = f"{value / MEGABYTE:.2f} MB"
            found.append(Verdict(promise, measured, value <= 12 * MEGABYTE))
    return found or [_unknown("≤ 12 MB private per idle kernel")]


def _flat(run: Run) -> Verdict:
    sizes = sorted({level["kernels"] for level in run.record("crowd", "ours").levels})
    promise = "cost of an execute flat in the number of kernels"
    if len(sizes) < 2:
        return _unknown(promise)
    few, many = sizes[0], sizes[-1]
    quiet, busy = (crowd_samples(run, "ours", size, "one") for size in (few, many))
    alone, crowded = statistics.median(quiet), statistics.median(busy)
    promise += f" (p50 with {many} live ≤ {FLAT}× that with {few})"
    # The fastest of each are beside it: neighbours on the machine can only add to a sample.
    measured = f"{crowded / alone:.2f}× (the fastest: {min(busy) / min(quiet):.2f}×)"
    return Verdict(promise, measured, crowded <= FLAT * alone)


def _unknown(promise: str) -> Verdict:
    return Verdict(promise, "not measured", None)
