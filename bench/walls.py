"""What walls cost, beside other walls: new kernel → first result, memory, and noisy neighbours.

python bench/walls.py            everything; rewrites docs/benchmarks-walls.md and its picture
python bench/walls.py --quick    few rounds and few kernels; prints only

Runs in any environment that has this project, ipykernel and matplotlib (scripts/test makes one:
``.venv-test-*/bin/python bench/walls.py``). Of the programs beside it, those that are installed are
measured (Debian: bubblewrap, runsc, podman, busybox-static).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import machine
from leftovers import sweep

from kernelbox import Box, BoxError, KernelRecord, Settings

DOCS = Path(__file__).resolve().parent.parent / "docs"
PATIENCE = 60.0
SETTLE = 0.1
"""Seconds between two turns: what the last one had is taken down by the kernel in its own time."""
WALLED = "restrictive"
PROFILES = ("open", WALLED, "moderate", "permissive")
MOST_OVER, LEAST_TIMES, MOST_PRIVATE, MOST_SLOWER = 15.0, 6.0, 20.0, 2.0


class Unavailable(Exception):
    """Something cannot be measured here; the message is what the table says instead."""


def middle(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def ms(value: float) -> str:
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.{1 if value < 100 else 0}f} ms"


# New kernel → first result


@dataclass
class Contender:
    """One way to start something behind walls; ``turn`` does it once and gives milliseconds."""

    name: str
    turn: Callable[[], float]
    ours: bool = False
    times: list[float] = field(default_factory=list)
    why_not: str = ""


def profile_turn(box: Box, profile: str) -> float:
    began = time.perf_counter()
    kernel = box.get_or_create("turn", profile=profile)
    try:
        result = box.execute(kernel, "1+1")
        took = (time.perf_counter() - began) * 1000
        if result.return_value != "2":
            raise Unavailable(f"{profile}: {result.error or result.cause}")
        return took
    finally:
        box.destroy(kernel)


def spare_turn(box: Box, profile: str) -> float:
    """A sandbox that was made ahead becomes the kernel; waiting for it is not counted."""
    runtime = Path(box.settings.runtime_dir)
    deadline = time.monotonic() + PATIENCE
    known = {record.kernel_id for record in box.list_kernels()}
    while not {path.name.removeprefix("spool-") for path in runtime.glob("spool-*")} - known:
        if time.monotonic() > deadline:
            raise Unavailable(f"no sandbox ahead within {PATIENCE:.0f} s")
        time.sleep(0.05)
    time.sleep(SETTLE)  # its place is there before its first cell was rehearsed
    return profile_turn(box, profile)


def command_turn(*command: str) -> float:
    """From the start of a program to its end."""
    if shutil.which(command[0]) is None:
        raise Unavailable("not installed")
    began = time.perf_counter()
    # Pipes, never a file: runsc writes to a file from its beginning, whatever is there.
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    took = (time.perf_counter() - began) * 1000
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable((words or [f"exit code {done.returncode}"])[-1][:160])
    return took


def bubblewrap_turn(folder: Path) -> float:
    """ipykernel in bubblewrap. Without a network between them, they talk through sockets in a
    folder. It is asked for a value in the reply itself, as soon as its socket is there: quicker
    than ``wait_for_ready``, which waits for silence first."""
    from jupyter_client.blocking.client import BlockingKernelClient

    if shutil.which("bwrap") is None:
        raise Unavailable("not installed")
    place = Path(tempfile.mkdtemp(dir=folder))
    connection = place / "connection.json"
    facts: dict[str, Any] = {
        "transport": "ipc",
        "ip": str(place / "s"),
        "key": secrets.token_hex(16),
        "signature_scheme": "hmac-sha256",
    }
    names = ("shell", "iopub", "stdin", "control", "hb")
    facts |= {f"{name}_port": number for number, name in enumerate(names, 1)}
    connection.write_text(json.dumps(facts))
    began = time.perf_counter()
    kernel = subprocess.Popen(
        [*bubblewrap(place), sys.executable, "-m", "ipykernel_launcher", "-f", str(connection)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    client = BlockingKernelClient(connection_file=str(connection))
    try:
        while not (place / "s-1").exists():
            if kernel.poll() is not None:
                said = kernel.stderr.read() if kernel.stderr else ""
                raise Unavailable((said.strip().splitlines() or ["it ended"])[-1][:160])
            if time.perf_counter() - began > PATIENCE:
                raise Unavailable(f"no socket within {PATIENCE:.0f} s")
            time.sleep(0.001)
        client.load_connection_file()
        client.start_channels(iopub=False, stdin=False, hb=False, control=False)
        client.execute("", user_expressions={"value": "1+1"})
        reply = client.get_shell_msg(timeout=PATIENCE)
        took = (time.perf_counter() - began) * 1000
        value = reply["content"]["user_expressions"]["value"]["data"]["text/plain"]
        if value != "2":
            raise Unavailable(f"it answered {value}")
        return took
    finally:
        client.stop_channels()
        kernel.kill()
        kernel.communicate()
        shutil.rmtree(place, ignore_errors=True)


def bubblewrap(place: Path) -> list[str]:
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64", "sbin"):
        if os.path.islink(f"/{name}"):
            command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            command += ["--ro-bind", f"/{name}", f"/{name}"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for prefix in sorted({sys.prefix, sys.base_prefix}):
        command += ["--ro-bind", prefix, prefix]
    return [*command, "--bind", str(place), str(place), "--setenv", "HOME", str(place)]


class Image:
    """A container image with one static program, made from nothing and removed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"kernelbox-bench-walls:{secrets.token_hex(4)}"
        self._there = False

    def turn(self) -> float:
        if shutil.which("podman") is None:
            raise Unavailable("not installed")
        self._make()
        limits = [f"--ulimit={name}=1024:1024" for name in ("nofile", "nproc")]
        before = ["--runtime=runc", "--cgroup-manager=cgroupfs"] if os.geteuid() == 0 else []
        options = ["--rm", "--network=none", *limits]
        return command_turn("podman", *before, "run", *options, self._name, "true")

    def remove(self) -> None:
        if self._there:
            with contextlib.suppress(Unavailable):
                command_turn("podman", "rmi", "--force", self._name)

    def _make(self) -> None:
        if self._there:
            return
        busybox = shutil.which("busybox")
        if busybox is None:
            raise Unavailable("no busybox to make an image of")
        archive = self._folder / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(busybox, "bin/true")
        command_turn("podman", "import", "--quiet", str(archive), self._name)
        self._there = True


def contenders(box: Box, with_spares: Box, folder: Path, image: Image) -> list[Contender]:
    found = [
        Contender(f"this project, `{name}`", partial(profile_turn, box, name), ours=True)
        for name in PROFILES
    ]
    warm = f"this project, `{WALLED}`, from a warm spare"
    found.append(Contender(warm, partial(spare_turn, with_spares, WALLED), ours=True))
    found.append(Contender("bubblewrap + ipykernel", partial(bubblewrap_turn, folder)))
    rows: list[tuple[str, ...]] = [("--rootless", "--network=none")]
    if os.geteuid() == 0:
        rows += [("--network=none",), ("--network=none", "--ignore-cgroups")]
    for options in rows:
        name = f"`runsc {' '.join(options)} do true`"
        found.append(Contender(name, partial(command_turn, "runsc", *options, "do", "true")))
    found.append(Contender("`podman run --rm --network=none … true`", image.turn))
    return found


def race(field_: list[Contender], rounds: int) -> None:
    """In turns; the first turn of each is not counted: it finds files that are in no cache yet."""
    for number in range(rounds + 1):
        for contender in field_:
            if contender.why_not:
                continue
            try:
                took = contender.turn()
            except (Unavailable, BoxError, subprocess.TimeoutExpired) as error:
                contender.why_not = str(error)
                continue
            if number:
                contender.times.append(took)
            time.sleep(SETTLE)
        print(f"  round {number} of {rounds}", file=sys.stderr, flush=True)


# Many at once


@dataclass
class Crowd:
    """So many kernels alive at once; kilobytes of each that nothing shares, by kind of process."""

    wanted: int
    private: list[float] = field(default_factory=list)
    by_name: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    took: float = 0.0
    why_not: str = ""


def crowd(box: Box, count: int) -> Crowd:
    found = Crowd(count)
    kernels: list[KernelRecord] = []
    try:
        began = time.perf_counter()
        for number in range(count):
            kernel = box.get_or_create(f"crowd-{number}", profile=WALLED)
            kernels.append(kernel)
            box.execute(kernel, "1+1")
        found.took = time.perf_counter() - began
        known = [{fact["pid"] for fact in box.status(each)["processes"]} for each in kernels]
        children = whose_children()
        for pids in known:
            sizes = [private_kb(pid) for pid in family(pids, children)]
            found.private.append(sum(size for _, size in sizes) / 1024)
            for name, size in sizes:
                found.by_name[name] += size
        for kernel in kernels:
            found.answered += box.execute(kernel, "1+1").return_value == "2"
    except (BoxError, OSError) as error:
        found.why_not = f"after {len(kernels)}: {error}"
    finally:
        for kernel in kernels:
            with contextlib.suppress(BoxError):
                box.destroy(kernel)
    return found


def whose_children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold spaces and parentheses of its own.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    return children


def family(pids: set[int], children: dict[int, list[int]]) -> set[int]:
    """What the warden knows of, and all that is below: pid 1 of the sandbox is no secret here."""
    found = set(pids)
    while below := {child for pid in found for child in children.get(pid, ())} - found:
        found |= below
    return found


def private_kb(pid: int) -> tuple[str, int]:
    """What it calls itself, and what it alone has in memory."""
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1])
    return name, total


# Noisy neighbours

# Each is one cell that lasts SECONDS and returns how often it ran into its limit. What forks is a
# program of its own: it is the sandbox that has to bound it, not the session.
FORKS = """
import os, sys, time
end, refused = time.monotonic() + SECONDS, 0
first = os.getpid()
while time.monotonic() < end:
    try:
        os.fork()
    except OSError:
        refused += 1
if os.getpid() == first:
    print(refused, flush=True)
os._exit(0)
"""
HOARD = """
import mmap
hoard = []
while True:
    hoard.append(mmap.mmap(-1, 4 << 20))
    hoard[-1].write(b"x" * (4 << 20))
"""
SPIN = """
import time
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    pass
"""
LOUD = {
    "nothing": "",
    "a fork bomb": f"""
import subprocess, sys
done = subprocess.run([sys.executable, "-c", {FORKS!r}], capture_output=True, text=True)
int(done.stdout or 0)
""",
    "a memory bomb, again and again": f"""
import subprocess, sys, time
end, times = time.monotonic() + SECONDS, 0
while time.monotonic() < end:
    done = subprocess.run([sys.executable, "-c", {HOARD!r}], capture_output=True)
    times += done.returncode != 0
times
""",
    "a disk filler": """
import os, time
end, times = time.monotonic() + SECONDS, 0
while time.monotonic() < end:
    try:
        with open("filler", "wb", buffering=0) as file:
            while file.write(bytes(1 << 20)) == 1 << 20:
                pass
    except OSError:
        pass
    times += 1
    os.unlink("filler")
times
""",
    "two busy processes": f"""
import subprocess, sys
busy = [subprocess.Popen([sys.executable, "-c", {SPIN!r}]) for _ in range(2)]
sum(process.wait() == 0 for process in busy)
""",
}
UNITS = {
    "a fork bomb": "forks refused",
    "a memory bomb, again and again": "times out of memory",
    "a disk filler": "times full",
    "two busy processes": "ended",
}
SLICE = 1.5


@dataclass
class Noise:
    """Latencies of the neighbours (ms), by profile, while one kernel does this; and how far that
    one came."""

    times: dict[str, list[float]] = field(default_factory=lambda: {"open": [], WALLED: []})
    hits: int = 0
    lost: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def making_noise(box: Box, what: str, noise: Noise) -> Iterator[None]:
    """A kernel that does it over and over until the end of the block, begun when this returns."""
    if not LOUD[what]:
        yield
        return
    kernel = box.get_or_create("noisy", profile=WALLED)
    begun, over = threading.Event(), threading.Event()
    code = LOUD[what].replace("SECONDS", str(SLICE))

    def repeat() -> None:
        try:
            while not over.is_set():
                result = box.execute(kernel, code, timeout=PATIENCE)
                if result.ok:
                    noise.hits += int(result.return_value or 0)
                else:
                    noise.lost[in_short(result.cause or result.error)] += 1
                begun.set()
        except BoxError as error:
            noise.lost[in_short(error)] += 1
        finally:
            begun.set()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        begun.wait(PATIENCE)
        yield
    finally:
        over.set()
        thread.join(PATIENCE)
        with contextlib.suppress(BoxError):
            box.destroy(kernel)


def in_short(words: object) -> str:
    return (str(words).strip().splitlines() or ["it failed"])[-1][:120]


def neighbours(box: Box, rounds: int, samples: int) -> dict[str, Noise]:
    found = {what: Noise() for what in LOUD}
    quiet = {name: box.get_or_create(f"quiet-{name}", profile=name) for name in ("open", WALLED)}
    for number in range(rounds):
        for what, noise in found.items():
            with making_noise(box, what, noise):
                for _ in range(samples):
                    for name, kernel in quiet.items():
                        began = time.perf_counter()
                        box.execute(kernel, "1+1", timeout=PATIENCE)
                        noise.times[name].append((time.perf_counter() - began) * 1000)
                        time.sleep(0.005)  # a caller that thinks, however little
            time.sleep(SETTLE)
        print(f"  neighbours {number + 1} of {rounds}", file=sys.stderr, flush=True)
    for kernel in quiet.values():
        box.destroy(kernel)
    return found


# What is said of it


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
    worst, what, neighbour = max(
        (figures.slower(what, neighbour), what, neighbour)
        for what in UNITS
        for neighbour in ("open", WALLED)
    )
    measured = f"at most {worst:.2f}× (`{neighbour}`, beside {what})"
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


def measure(folder: Path, *, quick: bool) -> Figures:
    settings = {"keeper_linger": 1, "profile": "open"}
    alone = Settings.from_environment(home=str(folder / "home"), spares=0, **settings)
    ahead = Settings.from_environment(home=str(folder / "ahead"), spares=1, **settings)
    image = Image(folder)
    with Box(alone) as box:
        try:
            box.execute(box.get_or_create("held"), "1+1")  # keeper and root are warm, and stay so
            with Box(ahead) as with_spares:
                with_spares.execute(with_spares.get_or_create("held", profile=WALLED), "1+1")
                starts = contenders(box, with_spares, folder, image)
                race(starts, 3 if quick else 30)
                with_spares.wipe()
            noise = neighbours(box, *((1, 30) if quick else (5, 100)))
            return Figures(starts, crowd(box, 10 if quick else 200), noise)
        finally:
            box.wipe()
            image.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few rounds; prints only")
    quick = parser.parse_args().quick
    load = machine.load()
    before, environment = os.getcwd(), os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="kernelbox-walls-bench-") as name:
        os.environ["TMPDIR"] = name  # by which what is left over can be told
        os.chdir(name)
        try:
            figures = measure(Path(name), quick=quick)
        finally:
            os.chdir(before)
            os.environ.pop("TMPDIR")
            if environment is not None:
                os.environ["TMPDIR"] = environment
            sweep(name, patience=10)
    text = document(figures, load)
    print(text)
    if not quick:
        (DOCS / "benchmarks-walls.md").write_text(text)
        draw(figures, DOCS / "benchmarks-walls.svg")


if __name__ == "__main__":
    main()
