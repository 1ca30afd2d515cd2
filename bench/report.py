"""The words around the figures: the aligned table for a terminal, and docs/benchmarks.md."""

from __future__ import annotations

import statistics
import unicodedata

from plan import CONTENDERS
from records import OUT_OF_TIME, Run, percentile
from rows import Cell, Row, crowd_samples, rows
from targets import verdicts

INTRODUCTION = (
    "Written by `bench/compare.py`; every figure below comes from one run on one machine. "
    "Do not edit it by hand, run it again."
)
GROWTH = (
    "Every execute in the same kernel (*one*), and going round all that are alive (*all*): "
    "the second also pays for caches that the other kernels have emptied, which is the "
    "processor's cost, not a search through a list. One kernel is measured before and after "
    "the crowd. *Proportional* memory (PSS) charges shared pages to those who share them."
)
COMMANDS = (
    "```text\npython bench/compare.py            # everything, under 12 minutes; writes this page\n"
    "python bench/compare.py --quick    # fewer samples, under 3 minutes; prints only\n```"
)
METHOD = (
    "Every subject lives in a virtual environment of its own under `.bench/` (or "
    "`$KERNELBOX_BENCH_DIR`), made on the first run with uv if it is there and with pip "
    "otherwise. Subjects take turns in every round (A B C A B C), so that a slow minute of "
    "the machine falls on all of them. Each is used the way its own documentation shows: "
    "KernelBox 0.1.2 through its functions, ipykernel and xeus-python with one connected "
    "`BlockingKernelClient` per kernel, this project through `Box`."
)
MARKS = {True: "reached", False: "**missed**", None: "not measured"}


def terminal(run: Run) -> str:
    """The table and the verdicts, aligned for a terminal."""
    header, body = _table(run)
    parts = [_aligned(header, [[cell.replace("`", "") for cell in line] for line in body])]
    parts.append("n×: that figure divided by this project's; above 1, this project is better.")
    parts += [f"{title}: not measured, {why}" for title, why in _missing(run)]
    parts.append("")
    lines = [
        [MARKS[verdict.kept].strip("*"), verdict.promise.replace("`", ""), verdict.measured]
        for verdict in verdicts(run)
    ]
    parts.append(_aligned(["target", "", "measured"], lines))
    notes = _notes(run)
    return "\n".join([*parts, *(["", *notes] if notes else [])])


def document(run: Run, *, picture: str) -> str:
    """docs/benchmarks.md."""
    header, body = _table(run)
    explained = [f"- **{row.title}**: {row.explanation}" for row in rows(run) if row.explanation]
    machine = [[name, value] for name, value in run.machine.items()]
    versions = [[name, value] for name, value in run.versions.items()]
    promised = [
        [verdict.promise, verdict.measured, MARKS[verdict.kept]] for verdict in verdicts(run)
    ]
    missing = [f"**{title}** was not measured: {why}" for title, why in _missing(run)]
    notes = [f"- {note}" for note in _notes(run)]
    sections = [
        "# Benchmarks",
        INTRODUCTION,
        f"![Bars on a logarithmic scale, the same figures as in the table]({picture})",
        _markdown(header, body),
        "Medians. *n×* is that figure divided by this project's: above 1, this project is better.",
        *missing,
        "## What was promised",
        _markdown(["target", "measured", ""], promised),
        "## What each row means",
        "\n".join(explained),
        *(["What went wrong or deserves a word in this run:", "\n".join(notes)] if notes else []),
        "## Growth with the number of kernels",
        GROWTH,
        _markdown(*_growth(run)),
        "## The spread",
        _markdown(*_spread(run)),
        "## Where, with what, and how to repeat it",
        _markdown(["machine", ""], machine),
        _markdown(["subject", "version"], versions),
        f"Taken {run.taken_at} in {run.seconds / 60:.1f} minutes"
        + (", the quick variant (fewer samples)." if run.quick else "."),
        COMMANDS,
        METHOD,
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _table(run: Run) -> tuple[list[str], list[list[str]]]:
    header = ["", *(contender.title for contender in CONTENDERS)]
    body = [
        [row.title, *(_figure(row, contender.key) for contender in CONTENDERS)] for row in rows(run)
    ]
    return header, body


def _figure(row: Row, contender: str) -> str:
    cell = row.cells.get(contender, Cell(words="–"))
    if cell.value is None:
        return cell.words or ("not measured" if contender == "ours" else "–")
    text = (">" if cell.at_least else "") + quantity(cell.value, row.unit)
    times = row.times(contender)
    if contender == "ours" or times is None:
        return text
    ratio = f"{times:,.0f}×" if times >= 10 else f"{times:.1f}×"
    return f"{text} · {'>' if cell.at_least else ''}{ratio}"


def quantity(value: float, unit: str) -> str:
    """Seconds or bytes, in the unit a reader expects, to three figures."""
    if unit == "B":
        return f"{value / 1e6:.1f} MB"
    if value >= 10:
        return f"{value:.0f} s"
    if value >= 2:
        return f"{value:.1f} s"
    milliseconds = value * 1000
    return f"{milliseconds:,.{0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2}f} ms"


def _growth(run: Run) -> tuple[list[str], list[list[str]]]:
    header = [
        "subject",
        "live",
        "one: p50",
        "all: p50",
        "private each",
        "proportional each",
        "processes each",
    ]
    body = []
    for contender in CONTENDERS:
        levels = run.record("crowd", contender.key).levels
        for size in sorted({level["kernels"] for level in levels}):
            level = run.record("crowd", contender.key).at(size)[0]
            medians = [
                quantity(statistics.median(samples), "s") if samples else "–"
                for samples in (
                    crowd_samples(run, contender.key, size, which) for which in ("one", "all")
                )
            ]
            weights = [quantity(level[field], "B") for field in ("private", "proportional")]
            body.append(
                [contender.title, str(size), *medians, *weights, f"{level['processes']:.1f}"]
            )
    return header, body


def _spread(run: Run) -> tuple[list[str], list[list[str]]]:
    body = []
    for measurement, lanes in run.records.items():
        for lane, record in lanes.items():
            if record.samples:
                figures = [
                    quantity(figure, "s")
                    for figure in (
                        min(record.samples),
                        statistics.median(record.samples),
                        percentile(record.samples, 0.99) or 0.0,
                        max(record.samples),
                    )
                ]
                name = measurement.replace("_", " ")
                body.append([name, lane, str(len(record.samples)), *figures])
    return ["measurement", "subject", "samples", "min", "p50", "p99", "max"], body


def _missing(run: Run) -> list[tuple[str, str]]:
    titles = {contender.key: contender.title for contender in CONTENDERS}
    return [(titles[key], why) for key, why in run.missing.items()]


def _notes(run: Run) -> list[str]:
    titles = {contender.key: contender.title for contender in CONTENDERS}
    notes = []
    for measurement, lanes in run.records.items():
        for lane, record in lanes.items():
            contender, _, state = lane.partition("/")
            where = f"{titles[contender]}{', ' + state if state else ''}, "
            where += measurement.replace("_", " ")
            problems = [problem for problem in record.problems if problem != OUT_OF_TIME]
            notes += [f"{where}: {problem}" for problem in problems]
            failures = record.failures + sum(level["failures"] for level in record.levels)
            if failures:
                notes.append(f"{where}: {failures} executes of `1+1` did not answer 2")
    busiest = max(float(value) for name, value in run.machine.items() if name.startswith("load"))
    if busiest > run.cores:
        notes.append(
            f"the machine was busy (load {busiest}, {run.cores} cores): on a quiet one every "
            "figure is lower, and those of programs with several processes most"
        )
    if run.left_behind:
        notes.append(f"processes left behind and ended by the script: {len(run.left_behind)}")
    return notes


def _aligned(header: list[str], body: list[list[str]]) -> str:
    widths = [max(map(_width, column)) for column in zip(header, *body, strict=True)]
    lines = [header, ["─" * width for width in widths], *body]
    return "\n".join(
        "  ".join(
            cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _markdown(header: list[str], body: list[list[str]]) -> str:
    if not body:
        return "Not measured."
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
