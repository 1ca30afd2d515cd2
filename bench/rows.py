"""From records to the rows of the table: one figure per contender, and how they compare."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from plan import CONTENDERS, PEERS, UNCOMPILED
from records import OUT_OF_TIME, Record, Run, percentile


@dataclass(frozen=True)
class Cell:
    """One figure: seconds or bytes, or words where there is no figure."""

    value: float | None = None
    words: str = ""
    at_least: bool = False


@dataclass(frozen=True)
class Row:
    """One line of the table. `explanation` says what exactly was done."""

    key: str
    title: str
    unit: str
    cells: dict[str, Cell] = field(default_factory=dict)
    explanation: str = ""

    def value(self, contender: str) -> float | None:
        return self.cells.get(contender, Cell()).value

    def times(self, contender: str) -> float | None:
        """How many times ours this contender's figure is."""
        ours, theirs = self.value("ours"), self.value(contender)
        return theirs / ours if ours and theirs else None


STATES = ("first ever", "from the root", "from a warm spare")


def rows(run: Run) -> list[Row]:
    """Every row of the table, in its order."""
    return [
        *_first_results(run),
        *_round_trips(run),
        _plain(
            run,
            "million_lines",
            "a million printed lines",
            "`for i in range(1_000_000): print(i)`, until the result is there.",
        ),
        _plain(
            run,
            "hundred_megabytes",
            "100 MB of output",
            "a hundred lines of a million characters, until the result is there.",
        ),
        _plain(
            run,
            "noticed_death",
            "a killed kernel is noticed",
            "`kill -9` of the interpreter "
            "while `time.sleep(60)` runs in it: from the kill to the return of the call.",
        ),
        *_imports(run),
        *_memory(run),
        *_crowds(run),
        *_branch(run),
    ]


def _first_results(run: Run) -> list[Row]:
    explanations = {
        "first ever": "no keeper, no root: the very first call on a machine (imports are done). "
        "The peers know one way to start, so their figure is the same in these three rows.",
        "from the root": "spares turned off, the root is warm.",
        "from a warm spare": "the default; spares were refilled before each sample.",
    }
    found = []
    for state in STATES:
        cells = {peer: _cell(run.record("first_result", peer)) for peer in PEERS}
        cells["ours"] = _cell(run.record("first_result", f"ours/{state}"))
        title = f"new kernel → first result, {state}"
        found.append(Row(f"first_result/{state}", title, "s", cells, explanations[state]))
    contenders = ("ours", *PEERS)
    uncompiled = {
        key: _cell(run.record("first_result", f"{key}/{UNCOMPILED}")) for key in contenders
    }
    found.append(
        Row(
            f"first_result/{UNCOMPILED}",
            "… from the root, no bytecode cached",
            "s",
            uncompiled,
            "the same where packages were installed without bytecode and Python may not write "
            "any (PYTHONDONTWRITEBYTECODE, read-only images, uv's default): every new interpreter "
            "compiles its imports again, a fork does not. In all other rows bytecode is there.",
        )
    )
    return found


def _round_trips(run: Run) -> list[Row]:
    meanings = {
        "p50": "the caller's time for one execute in a live kernel; floor: the same cell in "
        "`InteractiveShell.run_cell`, in the caller's own process.",
        "p99": "the slowest one in a hundred of the same samples.",
    }
    found = []
    for name, meaning in meanings.items():
        share = int(name[1:]) / 100
        cells = {}
        for contender in CONTENDERS:
            record = run.record("round_trip", contender.key)
            cells[contender.key] = _cell(record, record.percentile(share))
        title = f"`1+1` round trip, {name}"
        found.append(Row(f"round_trip/{name}", title, "s", cells, meaning))
    return found


def _imports(run: Run) -> list[Row]:
    importers = [contender.key for contender in CONTENDERS if contender.module]
    cells = {key: _cell(run.record("import", key)) for key in importers}
    cells["floor"] = _cell(run.record("import", "ours/pass"))
    if cells["floor"].value is None:
        cells["floor"] = _cell(run.record("import", "floor/pass"))
    names = {key: _cell(run.record("import", f"{key}/names")) for key in ("ours", "original")}
    return [
        Row(
            "import",
            "`import kernelbox`",
            "s",
            cells,
            "a whole `python -c`, its start included; ipykernel: `import jupyter_client`; floor: "
            "`python -c pass`.",
        ),
        Row(
            "import/names",
            "`from kernelbox import get_or_create, execute`",
            "s",
            names | {"floor": cells["floor"]},
            "the same with the names a caller needs, which a lazy package loads only then.",
        ),
    ]


def _memory(run: Run) -> list[Row]:
    sizes = _sizes(run)
    return [
        Row(
            f"memory/{size}",
            f"private memory per idle kernel, {size} live",
            "B",
            {key: Cell(_over_levels(run, key, size, "private")) for key in ("ours", *PEERS)},
            "Private_Clean + Private_Dirty of all its processes, summed, after one `1+1`."
            if size == sizes[0]
            else "",
        )
        for size in sizes
        if size in (1, 5, 10, 50, 100)
    ]


def _crowds(run: Run) -> list[Row]:
    sizes = _sizes(run)
    found = []
    for size in sizes:
        cells = {}
        for key in ("ours", *PEERS):
            samples = crowd_samples(run, key, size, "one")
            cells[key] = Cell(statistics.median(samples) if samples else None)
        explanation = "`1+1` p50 in one kernel while that many are alive."
        title = f"`1+1` with {size} kernel{'s' if size > 1 else ''} live"
        found.append(Row(f"crowd/{size}", title, "s", cells, explanation if size == 1 else ""))
    return found


def _branch(run: Run) -> list[Row]:
    record = run.record("branch", "ours")
    until = percentile(record.until_result, 0.5)
    unable = {peer: Cell(words="cannot") for peer in PEERS}
    return [
        Row(
            "branch",
            "branch of a session with 1 GB",
            "s",
            {"ours": _cell(record), **unable},
            "a live session that holds a 1 GiB numpy array, all of it touched, until `branch` "
            "returns.",
        ),
        Row(
            "branch/result",
            "… until the branch's first result",
            "s",
            {"ours": Cell(until), **unable},
            "the same, until a cell has read the array in the branch.",
        ),
    ]


def _plain(run: Run, key: str, title: str, explanation: str) -> Row:
    cells = {contender: _cell(run.record(key, contender)) for contender in ("ours", *PEERS)}
    return Row(key, title, "s", cells, explanation)


def _cell(record: Record, figure: float | None = None) -> Cell:
    """The given figure or else the median; words where there is none."""
    value = record.median() if figure is None else figure
    if value is not None:
        return Cell(value)
    if record.capped is not None:
        return Cell(record.capped, at_least=True)
    if OUT_OF_TIME in record.problems:
        return Cell(words="out of time")
    return Cell(words="failed" if record.problems else "")


def _sizes(run: Run) -> list[int]:
    lanes = run.records.get("crowd", {}).values()
    return sorted({level["kernels"] for record in lanes for level in record.levels})


def _over_levels(run: Run, contender: str, size: int, field_name: str) -> float | None:
    levels = run.record("crowd", contender).at(size)
    # The first: a kernel that ran hundreds of cells since is no longer a fresh idle one.
    return float(levels[0][field_name]) if levels else None


def crowd_samples(run: Run, contender: str, size: int, which: str) -> list[float]:
    """Samples of `1+1` with this many kernels alive, in "one" of them or round "all"."""
    return [sample for level in run.record("crowd", contender).at(size) for sample in level[which]]
