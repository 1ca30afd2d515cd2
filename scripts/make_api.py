"""Write ``src/kernelbox/api.py``: every method of Box as a function, over one default Box.

Real functions and not something made at run time, so that editors, type checkers and ``help`` know
them; written by a program, so that they cannot differ. A test compares the file with what this
writes: ``python scripts/make_api.py`` after a change of Box.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "kernelbox"

HEAD = '''\
"""The module-level functions: the methods of :class:`kernelbox.Box`, over one default Box.

Written by ``scripts/make_api.py`` from ``box.py``; change them there.
"""

from __future__ import annotations

import os
from collections.abc import {abc}
from typing import {typing}

{imports}

_boxes: dict[Settings, Box] = {{}}
_MOST_BOXES = 16


def default_box() -> Box:
    """The Box for the environment and the working directory of now."""
    settings = Settings.from_environment(os.environ)
    box = _boxes.get(settings)
    if box is None:
        while len(_boxes) >= _MOST_BOXES:
            _boxes.pop(next(iter(_boxes))).close()
        box = _boxes[settings] = Box(settings)
    return box
'''

HOMES = {
    "kernelbox.box": ["Box", "KernelKey", "OnInput"],
    "kernelbox.client.calls": ["KernelLike", "ProfileLike"],
    "kernelbox.config": ["Settings"],
    "kernelbox.result": [
        "Checkpoint", "Event", "ExecutionResult", "InstallReport", "KernelRecord", "OutputItem",
        "SaveReport",
    ],
    "kernelbox.retry": ["Repair"],
    "kernelbox.spool": ["OutputMatch", "OutputPage"],
}  # fmt: skip


def functions(source: str) -> list[str]:
    """The source of each function."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    (box,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Box")
    methods = [n for n in box.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
    many = {node.name for node in methods if node.decorator_list}
    return [
        function(
            node, constants, "  # type: ignore[call-overload,no-any-return]" * (node.name in many)
        )
        for node in methods
        if node.name != "close"
    ]


def function(method: ast.FunctionDef, constants: dict[str, ast.expr], remark: str) -> str:
    arguments = method.args
    del arguments.args[0]
    for index, default in enumerate(arguments.kw_defaults):
        if isinstance(default, ast.Name):
            arguments.kw_defaults[index] = constants[default.id]
    assert method.returns is not None
    overloads = [ast.unparse(d) for d in method.decorator_list]
    head = "".join(f"@{name}\n" for name in overloads)
    head += f"def {method.name}({ast.unparse(arguments)}) -> {ast.unparse(method.returns)}:"
    if overloads:
        return f"{head} ..."
    passed = [argument.arg for argument in arguments.args]
    if arguments.vararg is not None:
        passed.append(f"*{arguments.vararg.arg}")
    passed += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    words = textwrap.indent(ast.get_docstring(method) or "", "    ").strip()
    lines = words.splitlines()
    closing = '"""' if len(lines) == 1 else '\n    """'
    body = f"return default_box().{method.name}({remark}\n{', '.join(passed)})"
    return f'{head}\n    """{words}{closing}\n    {body}'


def used(names: list[str], text: str) -> list[str]:
    return [name for name in names if re.search(rf"\b{name}\b", text)]


def written() -> str:
    """What api.py should be, before it is formatted."""
    body = "\n\n\n".join(functions((PACKAGE / "box.py").read_text()))
    rest = body + HEAD.partition("_boxes:")[2]
    imports = []
    for home, names in HOMES.items():
        if chosen := used(names, rest):
            imports.append(f"from {home} import {', '.join(chosen)}")
    head = HEAD.format(
        abc=", ".join(used(["Iterable", "Iterator", "Mapping", "Sequence"], body)),
        typing=", ".join(used(["Any", "TypeVar", "overload"], body)),
        imports="\n".join(imports),
    )
    return f"{head}\n\n{body}\n"


if __name__ == "__main__":
    path = PACKAGE / "api.py"
    path.write_text(written())
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(path)], check=True)
