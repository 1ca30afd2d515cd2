"""Write the tables of ``docs/configuration.md`` from the tables that the settings are read by.

A test compares the page with what this writes: ``python scripts/make_configuration.py`` after a
change of a setting (``scripts/docs`` runs it too).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from kernelbox import config
from kernelbox.config.variables import Variable
from kernelbox.server import settings as server

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
TABLES = {"kernels": config.VARIABLES, "service": server.VARIABLES}
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def table(variables: Iterable[Variable]) -> str:
    """One row for each variable."""
    head = "| variable | default | it takes | meaning |\n|---|---|---|---|\n"
    return head + "".join(row(variable) for variable in variables)


def row(variable: Variable) -> str:
    default = f"`{variable.default}`{in_words(variable.default)}" if variable.default else "–"
    cells = (f"`{variable.name}`", default, variable.kind.takes, variable.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def in_words(default: str) -> str:
    """Bytes as a person would say them."""
    for size, unit in _UNITS:
        if default.isdecimal() and int(default) >= size and int(default) % size == 0:
            return f" ({int(default) // size} {unit})"
    return ""


def page(text: str) -> str:
    """The page with every table as the code has it; what stands around them stays."""
    for name, variables in TABLES.items():
        begin, end = f"<!-- table of {name}: written by a script -->\n", f"<!-- end of {name} -->"
        before, begun, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (begun and ended):
            raise SystemExit(f"{PAGE.name} has no place for the table of {name}")
        text = f"{before}{begin}\n{table(variables)}\n{end}{after}"
    return text


def main() -> int:
    """Write the page if it is not as it should be."""
    before = PAGE.read_text()
    after = page(before)
    if after != before:
        PAGE.write_text(after)
        print(f"{PAGE.name} has been brought up to date", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
