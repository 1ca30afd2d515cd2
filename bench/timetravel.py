"""What going back costs, beside the only thing others can do: restart and run the cells again.

python bench/timetravel.py            all, 8 GB too; rewrites docs/benchmarks-time-travel.md
python bench/timetravel.py --quick    small sessions only; prints

Runs in an environment of its own, which it makes when it is first run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
from environments import CHECKOUT, Recipe, enter

if TYPE_CHECKING:
    from kernelbox import Box, KernelRecord

DOCS = CHECKOUT / "docs"
OURS = Recipe("ours-time-travel", ("ipykernel", "matplotlib", "numpy"), checkout=CHECKOUT)
PASS = "a += 1"
SMALL_PASS = "for row in a: row[0] += 1"
READ = "float(a.sum())"
SMALL_READ = "sum(row[0] for row in a)"


@dataclass(frozen=True)
class Session:
    """What a session holds, how to make it, and how to read and change all of it."""

    title: str
    cells: tuple[str, ...]
    change: str = PASS
    read: str = READ
    environ: dict[str, str] = field(default_factory=dict)
    rounds: int = 9
    quick: bool = True


def arrays(megabytes: int) -> tuple[str, ...]:
    return ("import numpy as np", f"a = np.ones({megabytes} << 17)")


SMALL_PAGES = {"NUMPY_MADVISE_HUGEPAGE": "0"}
SESSIONS = (
    Session("nothing but a shell", ("a = 1",), change="a += 1", read="a", rounds=25),
    Session("10 MB of arrays", arrays(10), rounds=15),
    Session("1 GB of arrays", arrays(1024)),
    Session("1 GB of arrays, 4 kB pages", arrays(1024), environ=SMALL_PAGES, rounds=5, quick=False),
    Session(
        "1 GB of small Python objects",
        ("a = [[i, float(i), str(i)] for i in range(4_700_000)]",),
        change=SMALL_PASS,
        read=SMALL_READ,
        rounds=5,
        quick=False,
    ),
    Session("8 GB of arrays", arrays(8192), rounds=5, quick=False),
)


@dataclass
class Figures:
    """Medians, in milliseconds."""

    session: str
    memory: float = 0.0
    checkpoint: float = 0.0
    rewind: float = 0.0
    change: float = 0.0
    change_after: float = 0.0
    read: float = 0.0
    read_after: float = 0.0
    checkpoint_changed: float = 0.0
    rewind_changed: float = 0.0
    again: float = 0.0
    ipykernel: float | None = None


def timed(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def measure(box: Box, session: Session) -> Figures:
    figures = Figures(session.title)
    environ = {**os.environ, **session.environ}
    kernel = box.get_or_create("bench", environ=environ)

    def run(code: str) -> None:
        result = box.execute(kernel, code, timeout=600)
        assert result.ok, result.error

    for cell in session.cells:
        run(cell)
    figures.memory = memory(box, kernel)
    run(session.change)
    figures.change = statistics.median(timed(lambda: run(session.change)) for _ in range(3))
    figures.read = statistics.median(timed(lambda: run(session.read)) for _ in range(3))
    checkpoints, rewinds, reads, changes = [], [], [], []
    for _ in range(session.rounds):
        checkpoints.append(timed(lambda: box.checkpoint(kernel, "c")))
        reads.append(timed(lambda: run(session.read)))
        rewinds.append(timed(lambda: box.rewind(kernel, "c")))
        box.drop_checkpoint(kernel, "c")
    figures.checkpoint, figures.rewind = map(statistics.median, (checkpoints, rewinds))
    figures.read_after = statistics.median(reads)
    checkpoints, rewinds = [], []
    for _ in range(min(3, session.rounds)):
        box.checkpoint(kernel, "c")
        changes.append(timed(lambda: run(session.change)))
        rewinds.append(timed(lambda: box.rewind(kernel, "c")))
        box.drop_checkpoint(kernel, "c")
        run(session.change)
        checkpoints.append(timed(lambda: box.checkpoint(kernel, "c")))
        box.drop_checkpoint(kernel, "c")
    figures.change_after = statistics.median(changes)
    figures.checkpoint_changed, figures.rewind_changed = map(
        statistics.median, (checkpoints, rewinds)
    )

    def again() -> None:
        box.restart(kernel)
        for cell in session.cells:
            run(cell)

    figures.again = statistics.median(timed(again) for _ in range(2))
    box.destroy(kernel)
    figures.ipykernel = with_ipykernel(session)
    return figures


def memory(box: Box, kernel: KernelRecord) -> float:
    facts = box.status(kernel)["processes"]
    return sum(fact["rss_kb"] for fact in facts if fact["role"] == "interpreter") / 1024


def with_ipykernel(session: Session) -> float | None:
    try:
        from jupyter_client.manager import start_new_kernel
    except ImportError:
        return None
    manager, client = start_new_kernel(kernel_name="python3", env={**os.environ, **session.environ})
    try:
        for cell in session.cells:
            client.execute_interactive(cell, timeout=600)

        def again() -> None:
            manager.restart_kernel(now=True)
            client.wait_for_ready(timeout=60)
            for cell in session.cells:
                client.execute_interactive(cell, timeout=600)

        return timed(again)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def atomic_cost(box: Box, rounds: int = 60) -> dict[str, float]:
    """One plain and one atomic cell in turn, so that both see the same weather."""
    kernel = box.get_or_create("atomic")
    box.execute(kernel, "x = 1")
    samples: dict[str, list[float]] = {"plain": [], "atomic": [], "undone": [], "failed": []}
    for number in range(rounds):
        samples["plain"].append(timed(lambda: box.execute(kernel, "1+1")))
        samples["atomic"].append(timed(lambda: box.execute(kernel, "1+1", atomic=True)))
        if number % 4 == 0:
            samples["undone"].append(timed(lambda: box.execute(kernel, "1/0", atomic=True)))
            samples["failed"].append(timed(lambda: box.execute(kernel, "1/0")))
    box.destroy(kernel)
    return {name: statistics.median(values) for name, values in samples.items()}


def table(all_figures: list[Figures]) -> list[str]:
    head = (
        "| session | in memory | checkpoint | rewind | restart and run again | … in ipykernel |"
        " times faster |"
    )
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for figures in all_figures:
        peer = "–" if figures.ipykernel is None else ms(figures.ipykernel)
        lines.append(
            f"| {figures.session} | {figures.memory:,.0f} MB | {ms(figures.checkpoint)} |"
            f" {ms(figures.rewind)} | {ms(figures.again)} | {peer} |"
            f" {figures.again / figures.rewind:,.0f}× |"
        )
    head = (
        "| session | read all | … after a checkpoint | change all | … after a checkpoint |"
        " checkpoint of what was changed | rewind from there |"
    )
    lines += [
        "",
        "A parked copy shares all memory, and whoever writes first pays for a page of its own:",
        "",
        head,
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {f.session} | {ms(f.read)} | {ms(f.read_after)} | {ms(f.change)} |"
        f" {ms(f.change_after)} | {ms(f.checkpoint_changed)} | {ms(f.rewind_changed)} |"
        for f in all_figures
    ]
    return lines


def targets(all_figures: list[Figures], atomic: dict[str, float]) -> list[str]:
    lines = ["| target | measured |  |", "| --- | --- | --- |"]
    gigabyte = next((f for f in all_figures if f.session == "1 GB of arrays"), None)
    wanted = [("an atomic cell ≤ 8 ms over a plain one", atomic["atomic"] - atomic["plain"], 8)]
    if gigabyte is not None:
        wanted = [
            ("checkpoint ≤ 15 ms at 1 GB of untouched arrays", gigabyte.checkpoint, 15),
            ("rewind ≤ 30 ms at 1 GB of untouched arrays", gigabyte.rewind, 30),
            *wanted,
        ]
    for words, value, most in wanted:
        lines.append(f"| {words} | {ms(value)} | {'reached' if value <= most else '**missed**'} |")
    return lines


def ms(value: float) -> str:
    return (
        f"{value / 1000:.1f} s" if value >= 10_000 else f"{value:,.{1 if value < 100 else 0}f} ms"
    )


def document(all_figures: list[Figures], atomic: dict[str, float]) -> str:
    about = machine.describe()
    words = (
        f"A cell of a small session takes {ms(atomic['plain'])}, with `atomic=True` "
        f"{ms(atomic['atomic'])}. One that fails takes {ms(atomic['failed'])} (mostly IPython's "
        f"traceback), and {ms(atomic['undone'])} with everything undone."
    )
    return "\n".join(
        [
            "# What going back costs",
            "",
            "Written by `bench/timetravel.py`. Medians, as a caller of `Box` sees them.",
            "",
            "![checkpoint and rewind beside restarting](benchmarks-time-travel.svg)",
            "",
            *table(all_figures),
            "",
            words,
            "",
            "## What was promised",
            "",
            *targets(all_figures, atomic),
            "",
            "## Taken on",
            "",
            *(f"- {name}: {value}" for name, value in about.items()),
            "",
        ]
    )


def draw(all_figures: list[Figures], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kernelbox"
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8.5, 0.75 * len(all_figures) + 1.2))
    names = [f.session for f in all_figures]
    for offset, (title, colour, values) in enumerate(
        (
            ("checkpoint", "#5eead4", [f.checkpoint for f in all_figures]),
            ("rewind", "#0f766e", [f.rewind for f in all_figures]),
            ("restart and run the cells again", "#a8b3bf", [f.again for f in all_figures]),
        )
    ):
        places = [index + (offset - 1) * 0.26 for index in range(len(names))]
        bars = axis.barh(places, values, height=0.24, color=colour, label=title)
        axis.bar_label(bars, [ms(value) for value in values], padding=3, fontsize=8)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(right=max(f.again for f in all_figures) * 4)
    axis.set_xlabel("milliseconds (logarithmic)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sessions only; prints")
    arguments = parser.parse_args()
    enter(OURS)
    from kernelbox import Box, Settings

    sessions = [s for s in SESSIONS if s.quick or not arguments.quick]
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        settings = Settings.from_environment(home=home, spares=0, keeper_linger=1)
        with Box(settings) as box:
            try:
                atomic = atomic_cost(box)
                figures = []
                for session in sessions:
                    print(session.title, file=sys.stderr, flush=True)
                    figures.append(measure(box, session))
            finally:
                box.wipe()
    text = document(figures, atomic)
    print(text)
    if not arguments.quick:
        (DOCS / "benchmarks-time-travel.md").write_text(text)
        draw(figures, DOCS / "benchmarks-time-travel.svg")


if __name__ == "__main__":
    main()
