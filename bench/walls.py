"""What walls cost, beside other walls: new kernel → first result, memory, and noisy neighbours.

python bench/walls.py            everything; rewrites docs/benchmarks-walls.md and its picture
python bench/walls.py --quick    few rounds and few kernels; prints only

Runs in an environment of its own, which it makes when it is first run. Of the programs beside it,
those that are installed are measured (Debian: bubblewrap, runsc, podman, busybox-static).
"""

from __future__ import annotations

import argparse

from environments import CHECKOUT, Recipe, enter

OURS = Recipe("ours-walls", ("ipykernel", "matplotlib"), checkout=CHECKOUT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few rounds; prints only")
    quick = parser.parse_args().quick
    enter(OURS)
    from walled.run import run

    run(CHECKOUT / "docs", quick=quick)


if __name__ == "__main__":
    main()
