"""The figures of one run as a page, its tables and its picture."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import machine

from walled.crowd import Crowd
from walled.figures import (
    LEAST_TIMES,
    MOST_OVER,
    MOST_PRIVATE,
    MOST_SLOWER,
    WALLED,
    middle,
    ms,
    percentile,
)
from walled.noise import UNITS, Noise
from walled.starts import Contender


@dataclass
class Figures:
    """All of one run."""

    starts: list[Contender]
    crowd: Crowd
    noise: dict[str, Noise]

    def start(self, name: str) -> Contender:
        return next(each for each in self.starts if name in each.name)

    def slower(self, what: str, neighbour: str, share: float = 0.5) -> float:
        calm = percentile(self.noise["nothing"].times[neighbour], share)
        return percentile(self.noise[what].times[neighbour], share) / calm


def start_table(figures: Figures) -> list[str]:
    walled = figures.start(f"`{WALLED}`").times
    lines = [f"|  | median | best | beside `{WALLED}` |", "| --- | --- | --- | --- |"]
    for each in figures.starts:
        if not each.times:
            lines.append(f"| {each.name} | – | – | {each.why_not} |")
            continue
        times = f"{middle(each.times) / middle(walled):.2f}×" if walled else "–"
        lines.append(
            f"| {each.name} | {ms(middle(each.times))} | {ms(min(each.times))} | {times} |"
        )
    return lines


def crowd_table(crowd: Crowd) -> list[str]:
    lines = [f"| {crowd.wanted} `{WALLED}` kernels alive at once |  |", "| --- | --- |"]
    if crowd.why_not:
        lines.append(f"| not all of it was measured | {crowd.why_not} |")
    if crowd.private:
        lines += [
            f"| private memory of each, mean | {statistics.mean(crowd.private):.1f} MB |",
            f"| … most | {max(crowd.private):.1f} MB |",
        ]
        lines += [
            f"| … of it `{name}` | {size / 1024 / len(crowd.private):.1f} MB |"
            for name, size in crowd.by_name.most_common()
        ]
        each = crowd.took * 1000 / crowd.wanted
        lines.append(f"| started one after another, each | {ms(each)} |")
        lines.append(f"| of all, answered at the end | {crowd.answered} |")
    return lines


def noise_table(figures: Figures) -> list[str]:
    lines = [
        f"| next door | open: p50 | p99 | `{WALLED}`: p50 | p99 | it came to |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for what, noise in figures.noise.items():
        cells = []
        for neighbour, times in noise.times.items():
            for share in (0.5, 0.99):
                ratio = figures.slower(what, neighbour, share)
                beside = "" if what == "nothing" else f" · {ratio:.2f}×"
                cells.append(ms(percentile(times, share)) + beside)
        came = [f"{noise.hits:,} {UNITS[what]}"] if what in UNITS else ["–"]
        came += [f"{count}× {words}" for words, count in noise.lost.items()]
        lines.append(f"| {what} | {' | '.join(cells)} | {', '.join(came)} |")
    return lines


def targets(figures: Figures) -> list[str]:
    lines = ["| target | measured |  |", "| --- | --- | --- |"]

    def add(words: str, measured: str, reached: bool) -> None:
        lines.append(f"| {words} | {measured} | {'reached' if reached else '**missed**'} |")

    opened, walled = (figures.start(f"`{name}`").times for name in ("open", WALLED))
    over = middle(walled) - middle(opened) if opened and walled else float("inf")
    add(f"`{WALLED}` ≤ {MOST_OVER:.0f} ms over `open`, from the root", ms(over), over <= MOST_OVER)
    runsc = [middle(each.times) for each in figures.starts if "runsc" in each.name and each.times]
    words = f"≥ {LEAST_TIMES:.0f}× faster than `runsc do true`"
    if runsc and walled:
        times = min(runsc) / middle(walled)
        measured = f"{times:.1f}× (its quickest), {max(runsc) / middle(walled):.1f}× (its slowest)"
        add(words, measured, times >= LEAST_TIMES)
    else:
        lines.append(f"| {words} | not measured |  |")
    crowd = figures.crowd
    most = max(crowd.private, default=float("inf"))
    held = crowd.answered == crowd.wanted and most <= MOST_PRIVATE
    words = f"{crowd.wanted} alive at once, ≤ {MOST_PRIVATE:.0f} MB private each"
    add(words, f"{crowd.answered} of {crowd.wanted} answer, at most {most:.1f} MB", held)
    beside = [(what, neighbour) for what in UNITS for neighbour in ("open", WALLED)]
    worst, what, neighbour = max((figures.slower(*pair), *pair) for pair in beside)
    rarely = max(figures.slower(*pair, share=0.99) for pair in beside)
    measured = (
        f"at most {worst:.2f}× (`{neighbour}`, beside {what}); one in a hundred waits longer: p99 "
        f"at most {rarely:.2f}×"
    )
    add(f"neighbours' p50 within {MOST_SLOWER:.0f}×", measured, worst <= MOST_SLOWER)
    return lines


def document(figures: Figures, load: str) -> str:
    rounds = max(len(each.times) for each in figures.starts)
    samples = len(figures.noise["nothing"].times["open"])
    facts = machine.describe() | {"load when it began": load}
    parts = [
        "# Benchmarks: walls",
        (
            "Written by `bench/walls.py`; every figure comes from one run on one machine. Do not "
            "edit it by hand, run it again."
        ),
        "![walls: first results, and noisy neighbours](benchmarks-walls.svg)",
        "## New kernel → first result",
        "\n".join(start_table(figures)),
        (
            f"{rounds} times, in turns. Ours start without a spare, but for one: a kernel is "
            "forked from the warm interpreter, walks into its walls and answers `1+1`. (With "
            "spares, which is the default, the next sandbox of a kind that shows no folder of the "
            "caller's stands already.) So does ipykernel in bubblewrap, which has no limits on "
            "memory, processors or processes. The others start no Python at all: it is `true` "
            "that they run."
        ),
        "## Many at once",
        "\n".join(crowd_table(figures.crowd)),
        "All processes of a kernel are counted, on both sides of its walls.",
        "## Noisy neighbours",
        "\n".join(noise_table(figures)),
        (
            f"A round trip of `1+1` in two kernels, {samples} times each, while a third, "
            f"`{WALLED}` one does its worst; beside it, how many times that is of the round trip "
            "next to nothing."
        ),
        "## What was promised",
        "\n".join(targets(figures)),
        f"Machine: {' · '.join(facts.values())} (load average when it began).",
    ]
    return "\n\n".join(parts) + "\n"


def draw(figures: Figures, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kernelbox"
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 2))
    shown = [each for each in figures.starts if each.times]
    values = [middle(each.times) for each in shown]
    colours = ["#0f766e" if each.ours else "#a8b3bf" for each in shown]
    bars = left.barh([each.name.replace("`", "") for each in shown], values, color=colours)
    left.bar_label(bars, [ms(value) for value in values], padding=3, fontsize=8)
    left.set_title("new → first result", fontsize=9)
    left.set_xlim(0, max(values) * 1.25)
    for offset, (neighbour, colour) in enumerate((("open", "#5eead4"), (WALLED, "#0f766e"))):
        places = [index + (offset - 0.5) * 0.36 for index in range(len(UNITS))]
        ratios = [figures.slower(what, neighbour) for what in UNITS]
        bars = right.barh(places, ratios, height=0.34, color=colour, label=neighbour)
        right.bar_label(bars, [f"{ratio:.2f}×" for ratio in ratios], padding=3, fontsize=8)
    right.axvline(1, color="#334155", linewidth=0.8)
    right.set_yticks(range(len(UNITS)), list(UNITS))
    right.set_title("p50 of a neighbour (1: in silence)", fontsize=9)
    right.set_xlim(0, max(right.get_xlim()[1] * 1.2, MOST_SLOWER))
    right.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2)
    for axis in (left, right):
        axis.invert_yaxis()
        axis.set_xticks([])
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
