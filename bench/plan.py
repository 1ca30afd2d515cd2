"""Who is asked what, how often: the subjects, the measurements and their sizes, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from environments import CHECKOUT, Recipe

LINES = "for i in range(1_000_000): print(i)"
MEGABYTES = 'for _ in range(100): print("x"*1_000_000)'


@dataclass(frozen=True)
class Contender:
    """A column of the table: its environment and the program that drives it."""

    key: str
    title: str
    recipe: Recipe
    program: str
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    package: str = ""
    module: str = ""


CONTENDERS = (
    Contender(
        key="ours",
        title="this project",
        recipe=Recipe("ours", ("numpy",), checkout=CHECKOUT),
        program="ours",
        # The keeper of a finished measurement should be gone before the next one is timed.
        env={"KERNELBOX_KEEPER_LINGER": "1"},
        package="kernelbox",
        module="kernelbox",
    ),
    Contender(
        key="original",
        title="KernelBox 0.1.2",
        recipe=Recipe("original", ("kernelbox==0.1.2", "ipykernel")),
        program="original",
        # No cut, so that the end of a long output can be checked; ours keeps head and tail.
        env={"KERNELBOX_OUTPUT_CHAR_LIMIT": "0"},
        package="kernelbox",
        module="kernelbox",
    ),
    Contender(
        key="ipykernel",
        title="ipykernel",
        recipe=Recipe("ipykernel", ("ipykernel", "jupyter_client")),
        program="jupyter_kernels",
        arguments=("python3",),
        package="ipykernel",
        module="jupyter_client",
    ),
    Contender(
        key="xeus",
        title="xeus-python",
        recipe=Recipe("xeus", ("xeus-python", "jupyter_client")),
        program="jupyter_kernels",
        arguments=("xpython",),
        package="xeus-python",
    ),
    Contender(
        key="floor",
        title="in-process floor",
        recipe=Recipe("floor", ("ipython",)),
        program="floor",
        package="ipython",
    ),
)


@dataclass(frozen=True)
class Lane:
    """One contender in one measurement, perhaps in one of several states of readiness."""

    contender: str
    state: str = ""
    env: dict[str, str] = field(default_factory=dict)
    ask_first: dict[str, Any] | None = None
    new_process: bool = False
    compiled: bool = True
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.contender}/{self.state}" if self.state else self.contender


@dataclass(frozen=True)
class Measurement:
    """One question to several lanes, in rounds that go A B C A B C."""

    key: str
    question: str
    lanes: tuple[Lane, ...]
    rounds: int
    timeout: float
    details: dict[str, Any] = field(default_factory=dict)


PEERS = ("original", "ipykernel", "xeus")
UNCOMPILED = "no bytecode"


def measurements(*, quick: bool) -> tuple[Measurement, ...]:
    """Everything that is asked of a running subject; imports are timed apart."""
    peers = tuple(Lane(peer) for peer in PEERS)
    everyone = (Lane("ours"), *peers)
    flood_cap = 12.0 if quick else 30.0
    death_cap = 3.0 if quick else 20.0
    peer_crowd = {"counts": [1, 5] if quick else [1, 10, 20]}
    our_crowd = {"counts": [1, 10, 50] if quick else [1, 10, 20, 100, 300]}
    warmed = {"samples": 1, "hold": True}
    no_spares = {"KERNELBOX_SPARES": "0"}
    no_bytecode = {"PYTHONDONTWRITEBYTECODE": "1"}
    return (
        Measurement(
            key="first_result",
            question="first_result",
            lanes=(
                Lane("ours", "first ever", new_process=True),
                Lane(
                    "ours",
                    "from the root",
                    env=no_spares,
                    ask_first=warmed,
                    details={"samples": 5},
                ),
                Lane("ours", "from a warm spare", ask_first=warmed, details={"samples": 3}),
                *peers,
                Lane(
                    "ours",
                    UNCOMPILED,
                    env=no_spares | no_bytecode,
                    compiled=False,
                    ask_first=warmed,
                ),
                *(Lane(peer, UNCOMPILED, env=no_bytecode, compiled=False) for peer in PEERS),
            ),
            rounds=3 if quick else 7,
            timeout=120,
            details={"samples": 1},
        ),
        Measurement(
            key="round_trip",
            question="round_trips",
            lanes=(*everyone, Lane("floor")),
            rounds=4 if quick else 6,
            timeout=120,
            # Below the 1,000 results at which IPython starts to flush its output cache.
            details={"samples": 125, "warm_up": 10},
        ),
        Measurement(
            key="million_lines",
            question="flood",
            lanes=everyone,
            rounds=1 if quick else 3,
            timeout=flood_cap + 30,
            details={"code": LINES, "tail": "999999\n", "cap": flood_cap},
        ),
        Measurement(
            key="hundred_megabytes",
            question="flood",
            lanes=everyone,
            rounds=1 if quick else 3,
            timeout=flood_cap + 30,
            details={"code": MEGABYTES, "tail": "x\n", "cap": flood_cap},
        ),
        Measurement(
            key="noticed_death",
            question="noticed_death",
            lanes=everyone,
            rounds=3 if quick else 7,
            timeout=death_cap + 120,
            details={"cap": death_cap},
        ),
        Measurement(
            key="crowd",
            question="crowd",
            lanes=(
                Lane("ours", env=no_spares, details=our_crowd),
                *(Lane(peer, details=peer_crowd) for peer in PEERS),
            ),
            rounds=1,
            timeout=240,
            details={"samples": 60 if quick else 150},
        ),
        Measurement(
            key="branch",
            question="branches",
            lanes=(Lane("ours"),),
            rounds=1 if quick else 2,
            timeout=60,
            details={"samples": 10, "mebibytes": 1024},
        ),
    )
