"""What it costs an agent to carry its state in the prompt, counted on a session that is really run.

Ten cells over a table of orders, three ways: in a kernel that keeps the variables; as a script that
the model writes anew, one step longer, each time; and with the variables written into each prompt.
Prints the table that is in ``docs/context.md``. A token is counted as four characters, the usual
rule of thumb: no tokenizer is needed to check it, and it is the ratios that matter.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernelbox import Box, Settings

SIZES = (20, 500, 5_000)
CHARACTERS_PER_TOKEN = 4
SYSTEM = (
    "You analyse orders for a shop. Answer with one cell of Python. "
    "The file orders.csv has the columns id, customer, day, item, price."
)
# The variables that a later cell needs: what has to travel if no process keeps them.
STATE = "{name: globals()[name] for name in ('orders', 'totals', 'by_day') if name in globals()}"
SESSION = """\
import csv
orders = list(csv.DictReader(open('orders.csv')))
len(orders)
# %%
orders[0]
# %%
for order in orders:
    order['price'] = float(order['price'])
max(order['price'] for order in orders)
# %%
orders = [order for order in orders if order['price'] > 0]
len(orders)
# %%
sorted({order['item'] for order in orders})
# %%
totals = {}
for order in orders:
    totals[order['customer']] = totals.get(order['customer'], 0) + order['price']
len(totals)
# %%
sorted(totals.items(), key=lambda pair: -pair[1])[:3]
# %%
by_day = {}
for order in orders:
    by_day.setdefault(order['day'], []).append(order['price'])
{day: round(sum(prices), 2) for day, prices in sorted(by_day.items())[:3]}
# %%
best = max(by_day, key=lambda day: sum(by_day[day]))
best
# %%
round(sum(by_day[best]) / len(by_day[best]), 2)
"""
CELLS = SESSION.split("# %%\n")


@dataclass(frozen=True)
class Step:
    """One cell: what was sent, what came back, and the state it left, as JSON."""

    code: str
    shown: str
    state: str


@dataclass(frozen=True)
class Cost:
    """Characters that the model reads and writes over a whole run, and cells that were run."""

    read: int
    written: int
    cells: int


def orders(rows: int) -> str:
    """A table that is the same every time; one order in twenty is a mistake."""
    items = ("espresso", "cappuccino", "flat white", "tea")
    lines = ["id,customer,day,item,price"]
    for number in range(rows):
        price = -1 if number % 20 == 7 else 2 + number * 7919 % 300 / 100
        customer = f"customer-{number * 31 % max(5, rows // 8)}"
        day = f"2026-05-{1 + number * 17 % 28:02}"
        lines.append(f"{number},{customer},{day},{items[number % 4]},{price:.2f}")
    return "\n".join(lines) + "\n"


def session(box: Box, rows: int) -> list[Step]:
    """Run the cells for real, in one kernel, and note what each showed and left."""
    Path("orders.csv").write_text(orders(rows))
    kernel = box.get_or_create(f"orders-{rows}")
    steps = []
    for code in CELLS:
        result = box.execute(kernel, code)
        assert result.ok, result.error
        # Through a file: a result would cut what is too long for a prompt, which is the point.
        box.execute(kernel, f"import json\njson.dump({STATE}, open('state.json', 'w'))").ok or exit(
            1
        )
        steps.append(Step(code, result.return_value or "", Path("state.json").read_text()))
    box.destroy(kernel)
    return steps


def with_a_kernel(steps: list[Step]) -> Cost:
    """Each turn the model reads the conversation so far, and writes one cell."""
    read = sum(len(SYSTEM) + conversation(steps[:turn]) for turn in range(len(steps)))
    return Cost(read, sum(len(step.code) for step in steps), len(steps))


def with_state_in_the_prompt(steps: list[Step]) -> Cost:
    """The same, and the variables as they stand: once in each prompt, not once for each step."""
    states = sum(len(step.state) for step in steps[:-1])
    plain = with_a_kernel(steps)
    return Cost(plain.read + states, plain.written, plain.cells)


def as_a_growing_script(steps: list[Step]) -> Cost:
    """Each turn the model writes all cells so far once more; only the latest script is kept."""
    read = len(SYSTEM) * len(steps)
    written = 0
    for turn, step in enumerate(steps):
        script = sum(len(earlier.code) for earlier in steps[: turn + 1])
        written += script
        if turn + 1 < len(steps):
            read += script + sum(len(earlier.shown) for earlier in (*steps[:turn], step))
    return Cost(read, written, sum(range(1, len(steps) + 1)))


def conversation(steps: list[Step]) -> int:
    return sum(len(step.code) + len(step.shown) for step in steps)


def tokens(characters: int) -> int:
    return round(characters / CHARACTERS_PER_TOKEN)


def table(sessions: dict[int, list[Step]]) -> str:
    """All of it as one table in Markdown."""
    lines = [
        "| rows | way | tokens read | tokens written | cells run | times the kernel's |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    ways = {
        "kernel": with_a_kernel,
        "growing script": as_a_growing_script,
        "state in the prompt": with_state_in_the_prompt,
    }
    for rows, steps in sessions.items():
        least = with_a_kernel(steps)
        for name, way in ways.items():
            cost = way(steps)
            times = (cost.read + cost.written) / (least.read + least.written)
            lines.append(
                f"| {rows:,} | {name} | {tokens(cost.read):,} | {tokens(cost.written):,} "
                f"| {cost.cells} | {times:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Count in a folder of its own, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="kernelbox-context-") as folder:
        os.chdir(folder)
        home = os.path.join(folder, "home")
        with Box(Settings(home=home, spares=0, keeper_linger=0)) as box:
            print(table({rows: session(box, rows) for rows in SIZES}))
            box.wipe()
        os.chdir("/")


if __name__ == "__main__":
    main()
