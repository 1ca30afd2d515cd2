"""The short cut for plain Python takes nothing away: every cell becomes what IPython makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kernelbox import ExecutionResult

Run = Callable[..., ExecutionResult]

COMPARE = """
from IPython.core.interactiveshell import InteractiveShell as _Original
_ip = get_ipython()
def _differing(cells):
    found = []
    for cell in cells:
        results = []
        for transform in (_ip.transform_cell, lambda c: _Original.transform_cell(_ip, c)):
            try:
                results.append(transform(cell))
            except Exception as error:
                results.append(repr(error))
        if results[0] != results[1]:
            found.append((cell, *results))
    return found
"""

CELLS = [
    *("", "\n", " ", "1+1", "1+1\n", "1+1\n\n", "\n1+1", "  1+1", "\t1\n\t2", "x = 1\ny = 2"),
    *("ls", "pwd", "cd /", "exit", "quit()", "ls = 1", "who", "print (1)", "f x", "'ls'", "(ls)"),
    *("%time 1", "x = %pwd", "!ls", "x = !ls", "!!ls", "?len", "len?", "len??", "a\nlen?\nb"),
    *(",f a b", ";f a b", "/f a b", "if 1:\n    ,f a", "if 1:\n    /f a", "if 1:\n    %pwd"),
    *(">>> 1\n... 2", "1\n>>> 2", "  >>> 1", "...", "x = ...", "...\n1", "... 1", "In [1]: 1"),
    *("   ...: 1", "1\n   ...: 2", "[ins] In [1]: 1", "%%bash\nls", "1\n%%bash", "a\\\n%b"),
    *("'''\n%pwd\n'''", "'''\n/a\n'''", "# !x", "x != 1", "5 % 3", "f'{x!r}'", "x[\n,1]", "@d\ndef f(): 0"),
    *("1\r\n2", "1\x0c2", "1\x0b\n2", "1\x1c2", "a\u20282", "\ufeff1", "\xa01", "x = 1;", "λ = 1"),
    *("1\\n  ", "1\\n  \\n2", 'x = """\\n  \\n"""', "1 "),
    *("1 if x else\\\n2", "(", "'", '"""', "def f(:", "await x", "$x", "\\", "-ls", "~1", "+ls", "{ls}"),
]  # fmt: skip

PIECES = [
    *("x", "ls", "pwd", "exit", "1", "'a'", "def f(x):", "if x:", "return", "for", "print(x)"),
    *(" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\\\n", ":", "=", "==", "!=", "(", ")", "[", "]"),
    *("%", "%%", "!", "?", "??", ",", ";", "/", ">>> ", "... ", "...: ", "In [1]: ", "#", '"""', "'''"),
    *("{", "}", "@", "$", ".", "...", "-", "~", "\x0c", "λ"),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_any_cell_becomes_what_ipython_makes_of_it(ran: Run, seed: int) -> None:
    chance = random.Random(seed)
    made = ["".join(chance.choices(PIECES, k=chance.randint(1, 9))) for _ in range(3000)]
    ran(COMPARE)
    assert ran(f"_differing({[*CELLS, *made]!r})").return_value == "[]"


def test_a_transformer_that_a_cell_adds_sees_every_cell(ran: Run) -> None:
    ran(
        "get_ipython().input_transformers_post.append("
        "lambda lines: [line.replace('six', '6') for line in lines])"
    )
    assert ran("six").return_value == "6"
    assert ran("1 + six").return_value == "7"
    ran("get_ipython().input_transformers_post.clear()")
    ran(
        "get_ipython().input_transformer_manager.cleanup_transforms.append("
        "lambda lines: [line.replace('seven', '7') for line in lines])"
    )
    assert ran("1 + seven").return_value == "8"


def test_a_semicolon_still_silences_a_result(ran: Run) -> None:
    assert ran("5;").return_value is None
    assert ran("5; # why").return_value is None
    assert ran("';'").return_value == "';'"
    assert ran("5").return_value == "5"
