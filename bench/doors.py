"""The command line and the HTTP service beside those of KernelBox 0.1.2, in one run.

python bench/doors.py            everything; rewrites docs/benchmarks-doors.md and its picture
python bench/doors.py --quick    seconds instead of minutes; prints only

Needs wrk (Debian's package of that name).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
from environments import CHECKOUT, FOLDER, Environment, Recipe, enter, prepare
from leftovers import sweep

DOCS = CHECKOUT / "docs"
ARTIST = Recipe("picture", ("matplotlib",))  # whom this program itself runs as
OURS = Recipe("ours-server", (), checkout=CHECKOUT, extra="server")
ORIGINAL = Recipe("original", ("kernelbox==0.1.2", "ipykernel"))
TITLES = {"ours": "this project", "original": "KernelBox 0.1.2"}

# wrk sends each request to the next kernel and sums up in one line of JSON.
SCRIPT = """
local paths = {}
for line in io.lines(os.getenv("BENCH_PATHS")) do paths[#paths + 1] = line end
local body = '{"code": "1+1"}'
local headers = {["Content-Type"] = "application/json"}
local next_one = 0
request = function()
  next_one = next_one % #paths + 1
  return wrk.format("POST", paths[next_one], headers, body)
end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\nBENCH {"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "failed": %d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, e.connect + e.read + e.write + e.status + e.timeout))
end
"""


@dataclass
class Load:
    """What a server did under one load."""

    kernels: int
    concurrency: int
    per_second: float
    p50: float
    p99: float
    failed: int
    memory: float


@dataclass
class Figures:
    """One contender: seconds of a command, loads of its server."""

    command: list[float] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)


def clean_environ(home: Path) -> dict[str, str]:
    """Nobody's settings; bytecode may be written, as it is on people's machines."""
    dropped = ("KERNELBOX_", "PYTHON", "VIRTUAL_ENV")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return {**environ, "KERNELBOX_HOME": str(home)}


# -- the command line ---------------------------------------------------------------------------


def command_times(
    environments: dict[str, Environment], scratch: Path, rounds: int
) -> tuple[dict[str, list[float]], list[float]]:
    """``kernelbox exec`` on a live kernel, and ``python -c pass``, in turns: seconds of each."""
    commands: dict[str, tuple[list[str], dict[str, str]]] = {}
    for key, environment in environments.items():
        home = scratch / f"command-{key}"
        home.mkdir()
        environ = clean_environ(home)
        program = str(environment.python.with_name("kernelbox"))
        run([program, "create", "--name", "bench"], environ)
        commands[key] = ([program, "exec", "--name", "bench", "1+1"], environ)
    plain = clean_environ(scratch)
    floor_command = [str(environments["ours"].python), "-c", "pass"]
    times: dict[str, list[float]] = {key: [] for key in commands}
    floor: list[float] = []
    for _ in range(rounds):
        floor.append(run(floor_command, plain))
        for key, (command, environ) in commands.items():
            times[key].append(run(command, environ))
    for command, environ in commands.values():
        run([command[0], "wipe"], environ)
    return times, floor


def run(command: list[str], environ: dict[str, str]) -> float:
    """Seconds that a command took; it has to succeed."""
    began = time.perf_counter()
    done = subprocess.run(
        command, env=environ, capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.decode()[-500:]}")
    return took


# -- the service --------------------------------------------------------------------------------


@contextmanager
def serving(environment: Environment, home: Path) -> Iterator[tuple[str, int]]:
    """A server of its own; its address and its process."""
    home.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(environment.python), "-m", "uvicorn", "kernelbox.server.app:app"]
    with open(home / "server.log", "w") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--log-level", "warning", "--no-access-log"],
            env=clean_environ(home),
            cwd=home,
            stdout=log,
            stderr=log,
        )
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                ask("GET", f"{base}/health")
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit((home / "server.log").read_text()[-2000:]) from None
                time.sleep(0.05)
        yield base, process.pid
    finally:
        try:
            ask("DELETE", f"{base}/kernels")
        except OSError as error:
            print(f"the kernels could not be ended: {error}", file=sys.stderr)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def server_loads(environment: Environment, home: Path, *, quick: bool) -> list[Load]:
    """One kernel asked by one client, then fifty kernels by fifty and by two hundred."""
    found: list[Load] = []
    plan = [(1, 1), (4, 4), (4, 50)] if quick else [(1, 1), (1, 50), (50, 50), (50, 200)]
    with serving(environment, home) as (base, pid):
        paths: list[str] = []
        for kernels, concurrency in plan:
            while len(paths) < kernels:
                record = ask("POST", f"{base}/kernels", {"name": f"bench-{len(paths)}"})
                record = record.get("kernel", record)
                paths.append(f"/kernels/{record['kernel_id']}/execute")
                ask("POST", base + paths[-1], {"code": "1+1"})
            found.append(load(base, pid, paths[:kernels], concurrency, 3 if quick else 10, home))
            print(f"  {found[-1]}", file=sys.stderr)
    return found


def load(
    base: str, pid: int, paths: list[str], concurrency: int, seconds: int, folder: Path
) -> Load:
    (folder / "paths").write_text("\n".join(paths))
    (folder / "bench.lua").write_text(SCRIPT)
    done = subprocess.run(
        [
            "wrk", "-t", "1", "-c", str(concurrency), "-d", f"{seconds}s", "--timeout", "30s",
            "-s", str(folder / "bench.lua"), base,
        ],
        env={**os.environ, "BENCH_PATHS": str(folder / "paths")},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    line = next(line for line in done.stdout.splitlines() if line.startswith("BENCH "))
    facts = json.loads(line.removeprefix("BENCH "))
    return Load(
        kernels=len(paths),
        concurrency=concurrency,
        per_second=facts["requests"] / facts["seconds"],
        p50=facts["p50"],
        p99=facts["p99"],
        failed=facts["failed"],
        memory=private_memory(pid),
    )


def private_memory(pid: int) -> float:
    """Megabytes that the server alone has."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean", "Private_Dirty")):
            total += int(line.split()[1])
    return total / 1024


# -- what came out ------------------------------------------------------------------------------


def ratio(ours: float, theirs: float) -> str:
    return f"{theirs / ours:.1f}×"


def tables(figures: dict[str, Figures], floor: list[float]) -> list[str]:
    ours, original = figures["ours"], figures["original"]
    own, other = (statistics.median(each.command) * 1000 for each in (ours, original))
    base = statistics.median(floor) * 1000
    lines = [
        "| `kernelbox exec` on a live kernel | this project | KernelBox 0.1.2 | `python -c pass` |",
        "| --- | --- | --- | --- |",
        (
            f"| median | {own:.0f} ms | {other:.0f} ms · {ratio(own, other)} "
            f"| {base:.1f} ms · {base / own:.2f}× |"
        ),
        "",
        "| executes over HTTP | per second | p50 | p99 | failed | the server's memory |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for key in figures:
        for one in figures[key].loads:
            what = f"{one.kernels} kernel{'s' * (one.kernels > 1)}, {one.concurrency} at once"
            lines.append(
                f"| {TITLES[key]}, {what} | {one.per_second:,.0f} | {one.p50:.1f} ms "
                f"| {one.p99:.1f} ms | {one.failed} | {one.memory:.0f} MB |"
            )
    return lines


def targets(figures: dict[str, Figures], floor: list[float]) -> list[str]:
    ours, original = figures["ours"], figures["original"]
    own, other = (statistics.median(each.command) for each in (ours, original))
    rows = [
        ("exec ≤ 4× `python -c pass`", own / statistics.median(floor), "≤", 4.0),
        ("exec ≥ 6× faster than 0.1.2's", other / own, "≥", 6.0),
    ]
    for mine, theirs in zip(ours.loads, original.loads, strict=True):
        what = f"{mine.kernels} kernels, {mine.concurrency} at once"
        rows.append(
            (
                f"≥ 6× 0.1.2's throughput, {what}",
                mine.per_second / max(theirs.per_second, 0.1),
                "≥",
                6.0,
            )
        )
    lines = ["| target | measured |  |", "| --- | --- | --- |"]
    for name, value, sign, bound in rows:
        reached = value <= bound if sign == "≤" else value >= bound
        lines.append(f"| {name} | {value:.1f}× | {'reached' if reached else '**missed**'} |")
    failed = sum(one.failed for one in ours.loads)
    verdict = "reached" if not failed else "**missed**"
    lines.append(f"| no error at 200 concurrent requests | {failed} | {verdict} |")
    return lines


def document(figures: dict[str, Figures], floor: list[float]) -> str:
    facts = " · ".join(machine.describe().values())
    return "\n".join(
        [
            "# Benchmarks: the command line and the HTTP service",
            "",
            (
                "Written by `bench/doors.py`; every figure comes from one run on one machine. Do "
                "not edit it by hand, run it again."
            ),
            "",
            "![executes per second, ours and theirs](benchmarks-doors.svg)",
            "",
            *tables(figures, floor),
            "",
            (
                'wrk (one thread, keep-alive) posts `{"code": "1+1"}` to the kernels in turn; the '
                "server is `uvicorn kernelbox.server.app:app`, one process, for both. Load, server "
                "and kernels share the processors. Memory is what the server's process alone has, "
                "after the load."
            ),
            "",
            "## What was promised",
            "",
            *targets(figures, floor),
            "",
            f"Machine: {facts}.",
            "",
        ]
    )


def draw(figures: dict[str, Figures], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kernelbox"
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 3.2))
    labels = [f"{one.kernels} × {one.concurrency}" for one in figures["ours"].loads]
    for offset, (key, colour) in enumerate((("ours", "#0f766e"), ("original", "#a8b3bf"))):
        values = [one.per_second for one in figures[key].loads]
        places = [index + 0.38 * offset for index in range(len(values))]
        bars = axis.bar(places, values, width=0.36, color=colour, label=TITLES[key])
        axis.bar_label(bars, [f"{value:,.0f}" for value in values], fontsize=8)
    axis.set_xticks([index + 0.19 for index in range(len(labels))], labels)
    axis.set_xlabel("kernels × requests at once")
    axis.set_ylabel("executes per second")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="seconds; prints only")
    quick = parser.parse_args().quick
    enter(ARTIST)
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    environments = {
        key: prepare(recipe, FOLDER) for key, recipe in (("ours", OURS), ("original", ORIGINAL))
    }
    figures = {key: Figures() for key in environments}
    with tempfile.TemporaryDirectory(prefix="kernelbox-doors-") as folder:
        scratch = Path(folder)
        print("the command line", file=sys.stderr)
        times, floor = command_times(environments, scratch, 7 if quick else 31)
        for key, environment in environments.items():
            print(f"the service: {TITLES[key]}", file=sys.stderr)
            figures[key].command = times[key]
            figures[key].loads = server_loads(environment, scratch / key, quick=quick)
        sweep(folder, patience=10)
    print("\n".join([*tables(figures, floor), "", *targets(figures, floor)]))
    if not quick:
        (DOCS / "benchmarks-doors.md").write_text(document(figures, floor))
        draw(figures, DOCS / "benchmarks-doors.svg")


if __name__ == "__main__":
    main()
