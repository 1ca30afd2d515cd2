"""Tree search over live sessions: branch, score, keep the best.

An agent rarely knows which of its ideas is the good one. Here it does not have to: a session holds
a messy table, every idea is a piece of code that changes it, and each idea is tried in a branch of
the session, all at the same time. The best branches are branched again. Nothing is loaded twice,
nothing has to be undone, and an idea that crashes takes nobody along.

    python examples/tree_search.py [picture.svg]

The search is real, the problem is a toy: which steps of cleaning make a plain linear model predict
house prices best? The ideas stand in for what a language model would propose.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from kernelbox import Box, ExecutionResult, KernelRecord, Settings

DATA = """
import numpy as np

rng = np.random.default_rng(7)
n = 600
area = rng.lognormal(4.4, 0.5, n)
rooms = np.clip(np.round(area / 28 + rng.normal(0, 1, n)), 1, None)
age = rng.uniform(0, 90, n)
price = 900 * area ** 1.25 * np.exp(-0.006 * age + rng.normal(0, 0.12, n))
price[rng.choice(n, 12, replace=False)] *= 25            # somebody typed a zero too many
age[rng.choice(n, 90, replace=False)] = np.nan           # nobody knew
X = np.column_stack([area, rooms, age])
y = price.copy()
"""

IDEAS = {
    "fill the gaps": "X = np.where(np.isnan(X), np.nanmedian(X, axis=0), X)",
    "drop rows with gaps": "whole = ~np.isnan(X).any(axis=1); X, y = X[whole], y[whole]",
    "logarithms": "assert y.min() > 40; y = np.log(y); X = np.c_[np.log(X[:, 0]), X[:, 1:]]",
    "drop outliers": "near = y < 8 * np.median(y); X, y = X[near], y[near]",
    "add squares": "X = np.column_stack([X, X ** 2])",
    "scale": "X = (X - X.mean(axis=0)) / X.std(axis=0); assert not np.isnan(X).any(), 'gaps'",
}  # fmt: skip

SCORE = """
def score(X, y, folds=5):
    if np.isnan(X).any():
        X = np.where(np.isnan(X), 0, X)
    parts = np.array_split(np.random.default_rng(0).permutation(len(y)), folds)
    errors = []
    for part in parts:
        rest = np.setdiff1d(np.arange(len(y)), part)
        A = np.column_stack([np.ones(len(rest)), X[rest]])
        w = np.linalg.lstsq(A, y[rest], rcond=None)[0]
        guess = np.column_stack([np.ones(len(part)), X[part]]) @ w
        errors.append(1 - ((y[part] - guess) ** 2).sum() / ((y[part] - y[part].mean()) ** 2).sum())
    return float(np.mean(errors))
"""


@dataclass
class Node:
    """A session in the tree; one that was not kept is only remembered."""

    idea: str
    kernel: KernelRecord | None
    score: float | None = None
    error: str = ""
    kept: bool = False
    children: list[Node] = field(default_factory=list)

    def __iter__(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child


def grow(box: Box, parents: list[Node], level: int) -> list[Node]:
    """Try every idea on every parent, all at once."""
    tried: list[Node] = []
    for number, parent in enumerate(parents):
        assert parent.kernel is not None
        names = [f"{level}.{number}.{index}" for index in range(len(IDEAS))]
        for idea, kernel in zip(IDEAS, box.branch(parent.kernel, names=names), strict=True):
            parent.children.append(Node(idea, kernel))
        tried += parent.children
    code = {node.kernel: f"{IDEAS[node.idea]}\nscore(X, y)" for node in tried if node.kernel}
    for node, result in zip(tried, box.execute_many(code, timeout=30).values(), strict=True):
        judge(node, result)
    return tried


def judge(node: Node, result: ExecutionResult) -> None:
    if result.ok:
        node.score = float(result.return_value or "nan")
    elif result.error is not None:
        node.error = f"{result.error.ename} {result.error.evalue}".strip()


def search(box: Box, root: Node, *, depth: int, width: int) -> Node:
    """Beam search: after each level the best few go on, the rest is destroyed."""
    best, alive = root, [root]
    for level in range(depth):
        tried = grow(box, alive, level)
        ranked = sorted(
            (node for node in tried if node.score is not None),
            key=lambda node: -(node.score or 0),
        )
        alive = []
        for node in ranked:
            # Two ways to the same table are one way too many.
            if len(alive) < width and all(node.score != other.score for other in alive):
                alive.append(node)
                node.kept = True
        for node in tried:
            if not node.kept and node.kernel is not None:
                box.destroy(node.kernel)
                node.kernel = None
        if alive and (alive[0].score or 0) > (best.score or 0):
            best = alive[0]
    return best


def draw(root: Node, best: Node) -> str:
    """The tree of kernels as an SVG."""
    step, row, box_width, box_height = 215, 34, 190, 26
    places: dict[int, tuple[float, float]] = {}
    path = {id(node) for node in root if best in list(node)}
    next_row = 0.0

    def place(node: Node, level: int) -> float:
        nonlocal next_row
        rows = [place(child, level + 1) for child in node.children]
        if rows:
            middle = (rows[0] + rows[-1]) / 2
        else:
            middle, next_row = next_row, next_row + 1
        places[id(node)] = (20 + level * step, 20 + middle * row)
        return middle

    place(root, 0)
    width = max(x for x, _ in places.values()) + box_width + 20
    height = max(y for _, y in places.values()) + box_height + 20
    lines, boxes = [], []
    for node in root:
        x, y = places[id(node)]
        for child in node.children:
            cx, cy = places[id(child)]
            on = id(child) in path
            lines.append(
                f'<path d="M{x + box_width} {y + box_height / 2} C{x + box_width + 14} '
                f"{y + box_height / 2} {cx - 14} {cy + box_height / 2} {cx} {cy + box_height / 2}"
                f'" fill="none" stroke="{"#1a7f37" if on else "#c8ccd1"}" '
                f'stroke-width="{2.5 if on else 1}"/>'
            )
        fill, ink = ("#f3f4f6", "#6e7781")
        if node.error:
            fill, ink = "#ffebe9", "#b62324"
        elif id(node) in path:
            fill, ink = "#dafbe1", "#116329"
        elif node.kept:
            fill, ink = "#ddf4ff", "#0a3069"
        says = node.error.split()[0] if node.error else f"{node.score:.3f}"
        boxes.append(
            f'<rect x="{x}" y="{y}" width="{box_width}" height="{box_height}" rx="6" '
            f'fill="{fill}"/><text x="{x + 8}" y="{y + 17}" fill="{ink}">{escape(node.idea)}</text>'
            f'<text x="{x + box_width - 8}" y="{y + 17}" fill="{ink}" text-anchor="end" '
            f'font-weight="bold">{escape(says)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" font-family="system-ui, sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(lines)}{"".join(boxes)}</svg>\n'
    )


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "tree_search.svg"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        settings = Settings.from_environment(home=home, keeper_linger=1, spares=0)
        with Box(settings) as box:
            kernel = box.get_or_create("start")
            first = box.execute(kernel, DATA + SCORE + "score(X, y)")
            assert first.ok, first.error
            root = Node("the table as it came", kernel, float(first.return_value or 0), kept=True)
            best = search(box, root, depth=3, width=2)
            steps = [node.idea for node in root if best in list(node)][1:]
            print(
                f"{sum(1 for _ in root)} sessions, {sum(bool(n.error) for n in root)} ideas failed"
            )
            print(f"as it came: {root.score:.3f}; best: {best.score:.3f} by {' → '.join(steps)}")
            with open(target, "w") as file:
                file.write(draw(root, best))
            print(f"the tree: {os.path.abspath(target)}")
            box.wipe()


if __name__ == "__main__":
    main()
