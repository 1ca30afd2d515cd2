"""The gateway and its client beside ipybox's, in one run.

python bench/gateway.py            everything; rewrites docs/benchmarks-gateway.md and its picture
python bench/gateway.py --quick    fewer rounds; prints only

Each lives in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import machine
from environments import CHECKOUT, FOLDER, Environment, Recipe, enter, prepare
from leftovers import sweep

DOCS = CHECKOUT / "docs"
ARTIST = Recipe("picture", ("matplotlib",))  # whom this program itself runs as
OURS = Recipe("ours-server", (), checkout=CHECKOUT, extra="server")
IPYBOX = Recipe("ipybox", ("ipybox", "mcp<2"))
TITLES = {"ours": "this project", "ipybox": "ipybox"}
MODULES = {
    "ours": ("kernelbox.gateway", "kernelbox.gateway"),
    "ipybox": ("ipybox.kernel_mgr.server", "ipybox.kernel_mgr.client"),
}
TARGET = 10.0

# The same program for both: they have the same classes. A port is asked for and given back, since
# ipybox cannot say which one it took.
PROGRAM = """
import asyncio, importlib, json, socket, sys, time
server, client, cells = sys.argv[1], sys.argv[2], int(sys.argv[3])
KernelGateway = importlib.import_module(server).KernelGateway
KernelClient = importlib.import_module(client).KernelClient
ExecutionResult = importlib.import_module(client).ExecutionResult
CHUNKS = "for n in range(1000): print(n, flush=True)"

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

async def main():
    port = free_port()
    began = time.perf_counter()
    async with KernelGateway(host="localhost", port=port) as gateway:
        started = time.perf_counter()
        async with KernelClient(host="localhost", port=port) as client:
            await client.execute("1+1")
            first = time.perf_counter() - began
            trips, lost = [], 0
            for _ in range(cells):
                before = time.perf_counter()
                result = await client.execute("1+1")
                trips.append(time.perf_counter() - before)
                lost += result.text != "2"
            before = time.perf_counter()
            async for item in client.stream(CHUNKS):
                if isinstance(item, ExecutionResult):
                    text = item.text or ""
            streamed = time.perf_counter() - before
            missing = 1000 - len(text.split())
    print("BENCH " + json.dumps({
        "first": first, "started": started - began, "trips": trips, "lost": lost,
        "streamed": streamed, "missing": missing,
    }))

asyncio.run(main())
"""


@dataclass
class Figures:
    """One contender, over all rounds: seconds, and how often something was missing."""

    first: list[float] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)
    streamed: list[float] = field(default_factory=list)
    cells: int = 0
    lost: int = 0
    missing: int = 0

    def add(self, facts: dict[str, object]) -> None:
        self.first.append(float(str(facts["first"])))
        trips = facts["trips"]
        assert isinstance(trips, list)
        self.trips.extend(trips)
        self.streamed.append(float(str(facts["streamed"])))
        self.cells += len(trips)
        self.lost += int(str(facts["lost"]))
        self.missing += int(str(facts["missing"]))


def measure(key: str, environment: Environment, cells: int, folder: Path) -> dict[str, object]:
    """One gateway, from its start to its end, in a process of its own."""
    dropped = ("KERNELBOX_", "PYTHON", "VIRTUAL_ENV")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    path = f"{environment.python.parent}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(
        [str(environment.python), "-c", PROGRAM, *MODULES[key], str(cells)],
        env={**environ, "TMPDIR": str(folder), "PATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("BENCH "):
            facts: dict[str, object] = json.loads(line.removeprefix("BENCH "))
            return facts
    raise SystemExit(f"{TITLES[key]}: {done.stderr[-2000:]}")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def tables(figures: dict[str, Figures]) -> list[str]:
    ours, theirs = figures["ours"], figures["ipybox"]
    lines = ["|  | this project | ipybox |", "| --- | --- | --- |"]
    rows = [
        ("gateway start → first result, median", _middle(ours.first), _middle(theirs.first)),
        ("… best", min(ours.first), min(theirs.first)),
        ("round trip of `1+1`, p50", _middle(ours.trips), _middle(theirs.trips)),
        ("… p99", percentile(ours.trips, 0.99), percentile(theirs.trips, 0.99)),
        ("1,000 chunks streamed, median", _middle(ours.streamed), _middle(theirs.streamed)),
    ]
    for name, mine, other in rows:
        lines.append(f"| {name} | {_time(mine)} | {_time(other)} · {other / mine:.1f}× |")
    lost = [f"{each.lost:,} of {each.cells:,}" for each in (ours, theirs)]
    lines.append(f"| cells without their output | {lost[0]} | {lost[1]} |")
    rounds = len(ours.first)
    missing = [f"{each.missing:,} of {1000 * rounds:,}" for each in (ours, theirs)]
    lines.append(f"| streamed lines that are missing | {missing[0]} | {missing[1]} |")
    return lines


def targets(figures: dict[str, Figures]) -> list[str]:
    ours, theirs = figures["ours"], figures["ipybox"]
    rows = [
        ("≥ 10× faster start → first result", _middle(theirs.first) / _middle(ours.first)),
        ("≥ 10× faster round trip", _middle(theirs.trips) / _middle(ours.trips)),
    ]
    lines = ["| target | measured |  |", "| --- | --- | --- |"]
    for name, value in rows:
        verdict = "reached" if value >= TARGET else "**missed**"
        lines.append(f"| {name} | {value:.1f}× | {verdict} |")
    verdict = "reached" if not ours.lost and not ours.missing else "**missed**"
    lines.append(f"| no output lost | {ours.lost + ours.missing} | {verdict} |")
    return lines


def document(figures: dict[str, Figures], environments: dict[str, Environment], load: str) -> str:
    facts = machine.describe() | {"load when it began": load}
    version = environments["ipybox"].versions.get("ipybox", "?")
    return "\n".join(
        [
            "# Benchmarks: the gateway",
            "",
            (
                "Written by `bench/gateway.py`; every figure comes from one run on one machine. Do "
                "not edit it by hand, run it again."
            ),
            "",
            "![times of the gateway, ours and ipybox's](benchmarks-gateway.svg)",
            "",
            *tables(figures),
            "",
            (
                f"Both run the same program, {len(figures['ours'].first)} times in turns, each in "
                f"an environment of its own (ipybox {version}, mcp<2): start a gateway, connect, "
                "execute `1+1`, execute it again and again, stream 1,000 lines that are flushed "
                "one by one. Nothing of ours is running before: the first result includes the "
                "start of the service, of the keeper and of the interpreter that kernels are "
                "forked from. Imports of the calling program are not counted."
            ),
            "",
            "## What was promised",
            "",
            *targets(figures),
            "",
            f"Machine: {' · '.join(facts.values())} (load average when it began).",
            "",
        ]
    )


def draw(figures: dict[str, Figures], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kernelbox"
    import matplotlib.pyplot as plt

    names = ("start → first result", "round trip", "1,000 chunks")
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.6))
    for axis, name, pick in zip(axes, names, ("first", "trips", "streamed"), strict=True):
        values = [_middle(getattr(figures[key], pick)) * 1000 for key in ("ours", "ipybox")]
        labels = [TITLES["ours"], TITLES["ipybox"]]
        bars = axis.barh(labels, values, color=["#0f766e", "#a8b3bf"], height=0.6)
        axis.bar_label(bars, [_time(value / 1000) for value in values], fontsize=8, padding=2)
        axis.set_title(name, fontsize=9)
        axis.set_xticks([])
        axis.set_xlim(0, max(values) * 1.35)
        axis.invert_yaxis()
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _middle(values: list[float]) -> float:
    return statistics.median(values)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; prints only")
    quick = parser.parse_args().quick
    enter(ARTIST)
    load = machine.load()
    environments = {
        key: prepare(recipe, FOLDER) for key, recipe in (("ours", OURS), ("ipybox", IPYBOX))
    }
    figures = {key: Figures() for key in environments}
    with tempfile.TemporaryDirectory(prefix="kernelbox-gateway-bench-") as folder:
        for number in range(2 if quick else 8):
            for key, environment in environments.items():
                facts = measure(key, environment, 50 if quick else 100, Path(folder))
                if number or quick:  # the first round finds files that are in no cache yet
                    figures[key].add(facts)
                print(f"  {TITLES[key]}: {facts['first']:.3f} s", file=sys.stderr)
        sweep(folder, patience=10)
    print("\n".join([*tables(figures), "", *targets(figures)]))
    if not quick:
        (DOCS / "benchmarks-gateway.md").write_text(document(figures, environments, load))
        draw(figures, DOCS / "benchmarks-gateway.svg")


if __name__ == "__main__":
    main()
