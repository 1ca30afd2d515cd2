"""A short story about one kernel: it remembers, stumbles, is repaired, and goes two ways at once.

Run it with ``scripts/demo``. It lives in a temporary folder and leaves nothing behind.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from kernelbox import (
    branch,
    destroy,
    execute,
    execute_with_retry,
    get_or_create,
    list_kernels,
    status,
    stream,
)
from kernelbox.result import ExecutionResult

SALES = """\
day,drink,cups,price
Mon,espresso,41,2.40
Mon,cappuccino,28,3.60
Tue,espresso,37,2.40
Tue,flat white,19,3.80 EUR
Wed,espresso,44,2.40
Wed,cappuccino,31,3.60
"""

CONVERT = "sales['price'] = sales.price.astype(float)\n"
INCOME = "print(f'{(sales.cups * sales.price).sum():.2f} EUR')"

ANOTHER_PROCESS = """\
from kernelbox import execute
print(execute("barista", "int(sales.cups.sum())").return_value)
"""


def main() -> None:
    """Play the story in a folder of its own, and tidy up whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="kernelbox-demo-"))
    os.chdir(folder)
    os.environ["KERNELBOX_HOME"] = str(folder / "home")
    # The keeper would stay warm for a minute; a demo should be gone when it ends.
    os.environ["KERNELBOX_KEEPER_LINGER"] = "0"
    Path("sales.csv").write_text(SALES)
    try:
        tell()
    finally:
        for kernel in list_kernels():
            destroy(kernel.name)
        os.chdir("/")
        remove(folder)


def remove(folder: Path) -> None:
    """Delete the folder; the keeper may still write its last word into it while we do."""
    deadline = time.monotonic() + 5
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)


def tell() -> None:
    """The chapters, in order."""
    say(bold("KernelBox: a Python that never forgets"))

    chapter("A kernel is made")
    began = time.perf_counter()
    barista = get_or_create("barista")
    say(f'get_or_create("barista")  {measured(began)}')
    note("The very first one also starts the keeper; the next ones are quicker.")

    chapter("It loads some data")
    cell("barista", "import pandas as pd\nsales = pd.read_csv('sales.csv')\nsales.head(4)")

    chapter("It remembers, also for somebody else")
    note("This question comes from another process, which knows nothing but the name:")
    asked = [sys.executable, "-c", ANOTHER_PROCESS]
    answer = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    prompt("int(sales.cups.sum())")
    say(f"  {answer}")

    chapter("It stumbles")
    failed = execute(barista, CONVERT + INCOME)
    prompt(CONVERT + INCOME)
    if failed.error is None:
        raise SystemExit("The story needs an error here, and there was none.")
    say(red(f"  {failed.error.ename}: {failed.error.evalue}"))
    note(f"An error is an answer, not an exception. The kernel's state: {failed.state}.")

    chapter("And is repaired")
    note("execute_with_retry asks you (or your model) for better code:")
    repaired = execute_with_retry(barista, CONVERT + INCOME, repair)
    for attempt in repaired.attempts:
        say(f"  attempt {attempt.attempt}: {attempt.status}")
    show(repaired)

    chapter("Watch it work")
    for item in stream(barista, "for day in sales.day.unique():\n    print(day, 'is counted')"):
        if not isinstance(item, ExecutionResult) and item.text:
            say("  " + dim(item.text.rstrip("\n").replace("\n", "\n  ")))

    chapter("One session, two futures")
    began = time.perf_counter()
    branch(barista, "what-if")
    say(f'branch("barista", "what-if")  {measured(began)}')
    note("The copy has every variable. What happens to one does not happen to the other:")
    cell("what-if", "sales['price'] += 0.50\n" + INCOME)
    cell("barista", INCOME)

    chapter("The numbers, on this machine")
    numbers()
    say()
    say("That was all. Everything it started has been ended again.")


def repair(result: ExecutionResult, attempt: int) -> str:
    """Play the part of the model: read the error, return code that should work."""
    evalue = result.error.evalue if result.error else "?"
    say(f"  after attempt {attempt} you read: {dim(evalue)}")
    return CONVERT.replace("sales.price", "sales.price.str.removesuffix(' EUR')") + INCOME


def numbers() -> None:
    """Measure while the story's kernels are still there."""
    births = []
    for number in range(5):
        began = time.perf_counter()
        newcomer = get_or_create(f"newcomer-{number}")
        execute(newcomer, "1 + 1")
        births.append(time.perf_counter() - began)
    # Two are kept ready by default; those after them are forked while two more are made ready.
    row("a new kernel with its first result", milliseconds(statistics.median(births[:2])))
    row("… the next ones, asked for at once", milliseconds(statistics.median(births[2:])))

    trips = []
    for _ in range(200):
        began = time.perf_counter()
        execute("barista", "1 + 1")
        trips.append(time.perf_counter() - began)
    row("a round trip (median of 200)", milliseconds(statistics.median(trips)))

    execute("barista", "import numpy\nballast = numpy.ones(25_000_000)")
    began = time.perf_counter()
    branch("barista", "heavy")
    row("a branch that carries 200 MB more", milliseconds(time.perf_counter() - began))

    private = sum(process["private_kb"] for process in status("newcomer-0")["processes"])
    row("memory of a new kernel, all its processes", f"{private / 1024:.1f} MB")
    row("kernels alive right now", str(len(list_kernels())))


def cell(kernel: str, code: str) -> None:
    """Run code and show it the way a reader expects to see it."""
    prompt(code, kernel)
    show(execute(kernel, code))


def show(result: ExecutionResult) -> None:
    """The answer, indented; the story ends here when it is not a good one."""
    if not result.ok:
        raise SystemExit(f"This should have worked: {result.error} ({result.state})")
    text = (result.output + (result.return_value or "")).rstrip()
    if text:
        say(textwrap.indent(text, "  "))


def prompt(code: str, kernel: str = "barista") -> None:
    """Code as it is typed."""
    for number, line in enumerate(code.splitlines()):
        say(f"{cyan(f'{kernel}>' if number == 0 else ' ' * len(kernel) + '>')} {line}")


def chapter(title: str) -> None:
    """A heading."""
    say()
    say(bold(f"— {title}"))


def note(text: str) -> None:
    """An aside, wrapped for a narrow window."""
    say(dim(textwrap.fill(text, 72)))


def row(label: str, value: str) -> None:
    """One line of the table."""
    say(f"  {label:<44}{bold(f'{value:>12}')}")


def measured(began: float) -> str:
    """How long it has been, as a figure that stands out."""
    return bold(milliseconds(time.perf_counter() - began))


def milliseconds(seconds: float) -> str:
    """Seconds as a person reads them."""
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"


def say(text: str = "") -> None:
    """One line, at once."""
    print(text, flush=True)


def _paint(code: str, text: str) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"


def bold(text: str) -> str:
    """For headings and figures."""
    return _paint("1", text)


def dim(text: str) -> str:
    """For asides."""
    return _paint("2", text)


def red(text: str) -> str:
    """For errors."""
    return _paint("31", text)


def cyan(text: str) -> str:
    """For prompts."""
    return _paint("36", text)


if __name__ == "__main__":
    main()
