"""Draw docs/benchmarks.svg from a saved run; runs in an environment that has matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
from plan import CONTENDERS
from records import Run
from report import quantity
from rows import Row, rows

PANELS = (
    "first_result/first ever",
    "first_result/from the root",
    "first_result/from a warm spare",
    "round_trip/p50",
    "noticed_death",
    "memory/10",
    "million_lines",
    "hundred_megabytes",
    "import",
)
OURS, THEIRS, INK, PALE = "#0f766e", "#a8b3bf", "#1f2937", "#6b7280"


def draw(run: Run, path: Path) -> None:
    """Small multiples: one panel per row of the table, one bar per contender."""
    by_key = {row.key: row for row in rows(run)}
    panels = [by_key[key] for key in PANELS if key in by_key and _values(by_key[key])]
    columns = 3
    lines = -(-len(panels) // columns)
    plt.rcParams.update(
        {
            "font.family": "sans-serif",
            "font.size": 9,
            "svg.hashsalt": "kernelbox",
            "text.color": INK,
        }
    )
    figure, axes = plt.subplots(
        lines, columns, figsize=(11, 1.9 * lines + 0.7), squeeze=False, facecolor="white"
    )
    for axis, panel in zip(axes.flat, panels, strict=False):
        _bars(axis, panel)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(
        "Shorter is better; logarithmic scale", x=0.01, ha="left", fontsize=9, color=PALE
    )
    figure.tight_layout(rect=(0, 0, 1, 0.99), h_pad=1.6, w_pad=2.2)
    # No date inside: the same figures give the same file.
    figure.savefig(path, format=path.suffix[1:], metadata=_metadata(path), dpi=120)


def _bars(axis: Any, row: Row) -> None:
    shown = [contender for contender in CONTENDERS if row.value(contender.key)]
    values = [row.value(contender.key) or 0.0 for contender in shown]
    axis.barh(
        range(len(shown)),
        values,
        height=0.62,
        color=[OURS if contender.key == "ours" else THEIRS for contender in shown],
    )
    axis.set_xscale("log")
    low, high = min(values), max(values)
    # Bars need a common left end on a scale that has no zero; room on the right is for words.
    axis.set_xlim(low / 3, high * (high / low * 3) ** 0.45)
    axis.set_yticks(range(len(shown)), [_label(row, contender.key) for contender in shown])
    axis.set_ylim(len(CONTENDERS) - 0.5 if len(shown) > 4 else 3.5, -0.5)
    axis.tick_params(axis="both", length=0, labelcolor=INK)
    axis.xaxis.set_visible(False)
    for side in ("top", "right", "bottom", "left"):
        axis.spines[side].set_visible(False)
    for place, (contender, value) in enumerate(zip(shown, values, strict=True)):
        more = ">" if row.cells[contender.key].at_least else ""
        axis.text(
            value * (high / low) ** 0.02,
            place,
            f" {more}{quantity(value, row.unit)}",
            va="center",
            ha="left",
            fontsize=8.5,
            color=OURS if contender.key == "ours" else INK,
            fontweight="bold" if contender.key == "ours" else "normal",
        )
    axis.set_title(row.title.replace("`", ""), loc="left", fontsize=9.5, fontweight="bold")


def _label(row: Row, contender: str) -> str:
    if row.key == "import":
        labels = {"ipykernel": "jupyter_client", "floor": "python -c pass"}
        if contender in labels:
            return labels[contender]
    return next(one.title for one in CONTENDERS if one.key == contender)


def _values(row: Row) -> list[float]:
    return [value for contender in CONTENDERS if (value := row.value(contender.key))]


def _metadata(path: Path) -> dict[str, Any] | None:
    return {"Date": None} if path.suffix == ".svg" else None


if __name__ == "__main__":
    draw(Run.load(Path(sys.argv[1])), Path(sys.argv[2]))
