"""Draw docs/benchmarks.svg from a saved run; runs in an environment that has matplotlib."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from plan import CONTENDERS, PEERS, UNCOMPILED
from records import Run
from report import quantity
from rows import STATES, Cell, Row, rows

COLUMNS = 2
OURS, THEIRS, INK, PALE = "#0f766e", "#a8b3bf", "#1f2937", "#6b7280"
TITLES = {contender.key: contender.title for contender in CONTENDERS}


@dataclass(frozen=True)
class Bar:
    """One bar: how long, in which unit, and whose."""

    label: str
    value: float
    words: str
    ours: bool


@dataclass(frozen=True)
class Panel:
    """One comparison; it has a logarithmic scale of its own."""

    title: str
    bars: list[Bar]


def panels(run: Run) -> list[Panel]:
    """The rows worth a picture, those without a figure left out."""
    by_key = {row.key: row for row in rows(run)}
    starts = [by_key[f"first_result/{state}"] for state in STATES]
    first = [
        bar
        for state, row in zip(STATES, starts, strict=True)
        for bar in _bars(row, {"ours": state})
    ]
    first += _bars(starts[0], {peer: TITLES[peer] for peer in PEERS})
    everyone = {contender.key: contender.title for contender in CONTENDERS}
    imports = everyone | {"ipykernel": "jupyter_client", "floor": "python -c pass"}
    memory = [row for key, row in by_key.items() if key.startswith("memory/")]
    found = [
        Panel("new kernel → first result", first),
        Panel("1+1 round trip, p50", _bars(by_key["round_trip/p50"], everyone)),
        Panel("a killed kernel is noticed", _bars(by_key["noticed_death"], everyone)),
        *(Panel(row.title, _bars(row, everyone)) for row in memory[1:2]),
        Panel("a million printed lines", _bars(by_key["million_lines"], everyone)),
        Panel("100 MB of output", _bars(by_key["hundred_megabytes"], everyone)),
        Panel("import", _bars(by_key["import"], imports)),
        Panel(
            "new kernel where no bytecode is cached",
            _bars(by_key[f"first_result/{UNCOMPILED}"], everyone | {"ours": "from the root"}),
        ),
    ]
    return [panel for panel in found if panel.bars]


def draw(run: Run, path: Path) -> None:
    """Small multiples, one panel per comparison, as high as its bars need."""
    mpl.use("svg" if path.suffix == ".svg" else "agg")
    # Text stays text (small, searchable), and the same figures give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "kernelbox", "font.size": 9})
    from matplotlib.figure import Figure

    shown = panels(run)
    lines = [shown[start : start + COLUMNS] for start in range(0, len(shown), COLUMNS)]
    heights = [max(len(panel.bars) for panel in line) + 1.2 for line in lines]
    figure = Figure(figsize=(9.5, 0.27 * sum(heights) + 0.3), facecolor="white")
    grid = figure.add_gridspec(
        len(lines),
        COLUMNS,
        height_ratios=heights,
        left=0.175,
        right=0.99,
        top=0.915,
        bottom=0.01,
        wspace=0.42,
        hspace=0.38,
    )
    for row, line in enumerate(lines):
        most = max(len(panel.bars) for panel in line)
        for column, panel in enumerate(line):
            _draw_panel(figure.add_subplot(grid[row, column]), panel, most)
    legend = (
        "Shorter is better; every panel has a logarithmic scale of its own; green: this project."
    )
    figure.text(0.01, 0.99, legend, va="top", color=PALE)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, dpi=120)


def _draw_panel(axis: Any, panel: Panel, most: int) -> None:
    values = [bar.value for bar in panel.bars]
    colours = [OURS if bar.ours else THEIRS for bar in panel.bars]
    axis.barh(range(len(values)), values, height=0.62, color=colours)
    axis.set_xscale("log")
    # A logarithmic scale has no zero: bars begin a third below the shortest, and the right
    # part is room for the figures.
    low, high = min(values) / 3, max(values)
    axis.set_xlim(low, low * (high / low) ** 1.4)
    axis.set_ylim(most - 0.5, -0.5)
    axis.set_yticks(range(len(values)), [bar.label for bar in panel.bars], color=INK)
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_visible(False)
    axis.spines[:].set_visible(False)
    for place, bar in enumerate(panel.bars):
        axis.annotate(
            bar.words,
            (bar.value, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=OURS if bar.ours else INK,
            fontweight="bold" if bar.ours else "normal",
        )
    axis.set_title(panel.title, loc="left", fontsize=9.5, fontweight="bold", color=INK)


def _bars(row: Row, labels: dict[str, str]) -> list[Bar]:
    found = []
    for contender, label in labels.items():
        cell = row.cells.get(contender, Cell())
        if cell.value:
            words = (">" if cell.at_least else "") + quantity(cell.value, row.unit)
            found.append(Bar(label, cell.value, words, contender == "ours"))
    return found


if __name__ == "__main__":
    draw(Run.load(Path(sys.argv[1])), Path(sys.argv[2]))
