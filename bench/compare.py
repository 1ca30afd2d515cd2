"""Measure this project beside its peers, in one run on one machine, and write down what came out.

python bench/compare.py            everything; rewrites docs/benchmarks.md and its picture
python bench/compare.py --quick    fewer samples; prints only
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import machine
import report
from conversation import HERE, Conversation, SubjectFailed
from environments import CHECKOUT, FOLDER, Environment, EnvironmentFailed, Recipe, ignore, prepare
from imports import time_imports
from leftovers import sweep, wait
from plan import CONTENDERS, PEERS, Contender, Lane, Measurement, measurements
from records import OUT_OF_TIME, Record, Run

PICTURE = "benchmarks.svg"
# By --quick: past the first no further rounds are begun, what is still to be measured gets one;
# past the second nothing is, and what runs is cut off. Both in seconds.
PATIENCE = {True: (90.0, 155.0), False: (480.0, 680.0)}


@dataclass
class Bench:
    """The ready environments, the scratch folder, and the clock that bounds the run."""

    environments: dict[str, Environment]
    folder: Path
    scratch: Path
    quick: bool
    began: float = field(default_factory=time.monotonic)
    homes: int = 0

    @property
    def late(self) -> bool:
        return time.monotonic() - self.began > PATIENCE[self.quick][0]

    @property
    def left(self) -> float:
        """Seconds until the run has to be over."""
        return self.began + PATIENCE[self.quick][1] - time.monotonic()

    def env(self, contender: Contender | None, lane: Lane | None = None) -> dict[str, str]:
        """An environment with nobody's settings but the lane's, and a home of its own."""
        self.homes += 1
        home = self.scratch / str(self.homes)
        home.mkdir()
        hidden = ("KERNELBOX_", "JUPYTER_", "IPYTHON", "PYTHON", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return kept | {
            "TMPDIR": str(home),
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(home / "jupyter"),
            "JUPYTER_DATA_DIR": str(home / "jupyter-data"),
            "JUPYTER_PREFER_ENV_PATH": "1",
            "KERNELBOX_HOME": str(home / "kernelbox"),
            **(contender.env if contender else {}),
            **(lane.env if lane else {}),
        }

    def converse(self, lane: Lane) -> Conversation:
        contender = next(one for one in CONTENDERS if one.key == lane.contender)
        python = self.environments[lane.contender].python
        if not lane.compiled:
            python = prepare(contender.recipe.without_bytecode(), self.folder).python
        return Conversation(
            python,
            contender.program,
            arguments=contender.arguments,
            env=self.env(contender, lane),
        )

    def measure(self, measurement: Measurement) -> dict[str, Record]:
        """All rounds of one measurement, its lanes taking turns."""
        lanes = [lane for lane in measurement.lanes if lane.contender in self.environments]
        records = {lane.key: Record() for lane in lanes}
        with ExitStack() as open_ones:
            conversations: dict[str, Conversation] = {}
            for number in range(measurement.rounds):
                for lane in lanes:
                    record = records[lane.key]
                    if record.finished or (self.late and number > 0):
                        continue
                    if self.left <= 0:
                        record.add({"problem": OUT_OF_TIME})
                        continue
                    say(f"{measurement.key} {number + 1}/{measurement.rounds} {lane.key}")
                    try:
                        if lane.new_process:
                            with self.converse(lane) as conversation:
                                self._ask(conversation, measurement, lane, record)
                            # What it has started in the background must not run beside the next.
                            wait(str(conversation.home), patience=5)
                            continue
                        if lane.key not in conversations:
                            conversations[lane.key] = open_ones.enter_context(self.converse(lane))
                            if lane.ask_first is not None:
                                conversations[lane.key].ask(
                                    measurement.question,
                                    timeout=measurement.timeout,
                                    **lane.ask_first,
                                )
                        self._ask(conversations[lane.key], measurement, lane, record)
                    except SubjectFailed as failure:
                        record.add({"problem": str(failure)})
                    if measurement.rounds == 1 and lane.key in conversations:
                        # Nothing of this lane may run beside the next one.
                        open_ones.close()
                        conversations.clear()
        return records

    def _ask(
        self, conversation: Conversation, measurement: Measurement, lane: Lane, record: Record
    ) -> None:
        details = {**measurement.details, **lane.details}
        timeout = min(measurement.timeout, max(5.0, self.left))
        record.add(conversation.ask(measurement.question, timeout=timeout, **details))

    def measure_imports(self, *, rounds: int) -> dict[str, Record]:
        """Imports need no subject: every sample is an interpreter of its own."""
        programs: dict[str, tuple[Path, str]] = {}
        for contender in CONTENDERS:
            if contender.key in self.environments:
                python = self.environments[contender.key].python
                if contender.key in ("ours", "floor"):
                    programs[f"{contender.key}/pass"] = (python, "pass")
                if contender.module:
                    programs[contender.key] = (python, f"import {contender.module}")
                if contender.module == "kernelbox":
                    program = "from kernelbox import execute, get_or_create"
                    programs[f"{contender.key}/names"] = (python, program)
        say(f"imports, {rounds} rounds")
        return time_imports(programs, rounds=rounds, env=self.env(None))


def main(arguments: list[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    ignore(FOLDER)
    whole = not (options.quick or options.only or options.peers is not None)
    saved = FOLDER / ("whole.json" if whole else "partial.json")
    if options.redraw:
        run = Run.load(saved)
    else:
        run = _run(options, FOLDER)
        run.save(saved)
    say("")
    print(report.terminal(run))
    docs = options.docs or (CHECKOUT / "docs" if whole else None)
    if docs is not None:
        _write(run, docs, FOLDER, saved=saved)
    else:
        print("\nA partial run: no page was written (name a folder with --docs to have one).")
    return 0


def _run(options: argparse.Namespace, folder: Path) -> Run:
    wanted = {"ours", "floor", *(PEERS if options.peers is None else options.peers)}
    environments, missing = _prepare(wanted, folder)
    scratch = Path(tempfile.mkdtemp(prefix="kbbench-"))
    bench = Bench(environments, folder, scratch, quick=options.quick)
    run = Run(
        taken_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        seconds=0,
        quick=options.quick,
        machine=machine.describe(),
        cores=os.cpu_count() or 1,
        versions=_versions(environments),
        missing=missing,
    )
    try:
        if not options.only or "import" in options.only:
            run.records["import"] = bench.measure_imports(rounds=20 if options.quick else 30)
        for measurement in measurements(quick=options.quick):
            if not options.only or measurement.key in options.only:
                run.records[measurement.key] = bench.measure(measurement)
    finally:
        # Keepers linger for a second, by design; what is there after five was left behind.
        run.left_behind = sweep(str(scratch), patience=5)
        shutil.rmtree(scratch, ignore_errors=True)
    run.machine["load when it ended"] = machine.load()
    run.seconds = time.monotonic() - bench.began
    return run


def _prepare(wanted: set[str], folder: Path) -> tuple[dict[str, Environment], dict[str, str]]:
    """The environments that could be made and could be used, and why the others could not."""
    environments: dict[str, Environment] = {}
    missing: dict[str, str] = {}
    for contender in CONTENDERS:
        if contender.key not in wanted:
            continue
        say(f"environment of {contender.title}")
        try:
            environment = prepare(contender.recipe, folder)
            if contender.key != "floor":
                prepare(contender.recipe.without_bytecode(), folder)
        except (EnvironmentFailed, subprocess.SubprocessError) as failure:
            missing[contender.key] = f"its environment could not be made: {failure}"
            continue
        if problem := _unusable(contender, environment):
            missing[contender.key] = f"it cannot be used: {problem}"
        else:
            environments[contender.key] = environment
    return environments, missing


def _unusable(contender: Contender, environment: Environment) -> str:
    """Why its imports fail, or nothing."""
    probe = f"import {contender.module or 'sys'}"
    if contender.key == "ours":
        probe = "from kernelbox import Box; Box()"
    with tempfile.TemporaryDirectory() as home:
        tried = subprocess.run(
            [str(environment.python), "-c", probe],
            capture_output=True,
            text=True,
            cwd=home,
            env=os.environ | {"KERNELBOX_HOME": home},
            timeout=60,
            check=False,
        )
    if tried.returncode == 0:
        return ""
    return (tried.stderr.strip().splitlines() or ["it ended without a word"])[-1]


def _versions(environments: dict[str, Environment]) -> dict[str, str]:
    found = {}
    for contender in CONTENDERS:
        if contender.key in environments:
            versions = environments[contender.key].versions
            beside = ("ipykernel", "jupyter-client", "ipython")
            others = [
                f"{name} {versions[name]}"
                for name in beside
                if name in versions and name != contender.package
            ]
            own = f"{contender.package} {versions.get(contender.package, '?')}"
            found[contender.title] = ", ".join([own, *others])
    return found


def _write(run: Run, docs: Path, folder: Path, *, saved: Path) -> None:
    """The page, then its picture: without matplotlib the page still says everything."""
    docs.mkdir(parents=True, exist_ok=True)
    page = docs / "benchmarks.md"
    page.write_text(report.document(run, picture=PICTURE))
    print(f"\nwrote {page}")
    try:
        artist = prepare(Recipe("picture", ("matplotlib",)), folder)
    except EnvironmentFailed as failure:
        print(f"no picture: {failure}", file=sys.stderr)
        return
    picture = docs / PICTURE
    subprocess.run(
        [str(artist.python), str(HERE / "picture.py"), str(saved), str(picture)],
        check=True,
    )
    print(f"wrote {picture}")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    keys = ["import", *(measurement.key for measurement in measurements(quick=False))]
    parser.add_argument("--quick", action="store_true", help="fewer samples, under 3 minutes")
    parser.add_argument("--only", nargs="+", choices=keys, help="only these measurements")
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="only these peers (or none)")
    parser.add_argument("--docs", type=Path, help="write the page and its picture here")
    parser.add_argument("--redraw", action="store_true", help="report the last run once more")
    return parser


def say(words: str) -> None:
    """Progress, on one line of a terminal that rewrites itself."""
    if sys.stderr.isatty():
        print(f"\r\033[K{words}", end="", file=sys.stderr, flush=True)
    elif words:
        print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
