"""All of it, in a folder of its own, of which nothing is left."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import machine
from leftovers import sweep

from kernelbox import Box, Settings
from walled.crowd import crowd
from walled.figures import WALLED
from walled.noise import neighbours
from walled.page import Figures, document, draw
from walled.starts import Image, contenders, race


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


def run(docs: Path, *, quick: bool) -> None:
    """Measure and print; a whole run also rewrites the page in ``docs``."""
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
        (docs / "benchmarks-walls.md").write_text(text)
        draw(figures, docs / "benchmarks-walls.svg")
