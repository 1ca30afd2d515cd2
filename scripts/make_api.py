"""Write ``src/kernelbox/api.py`` and ``async_box.py``: every method of Box once more, as a function
over one default Box, and awaited.

Real functions and not something made at run time, so that editors, type checkers and ``help`` know
them; written by a program, so that they cannot differ. A test compares the files with what this
writes: ``python scripts/make_api.py`` after a change of Box.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "kernelbox"
Imports = dict[str, set[str]]
"""Names, by the module that has them."""


def box() -> tuple[Imports, list[ast.FunctionDef]]:
    """What ``box.py`` imports, and the methods that are written once more."""
    tree = ast.parse((PACKAGE / "box.py").read_text())
    imports: Imports = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module not in (None, "__future__"):
            imports[str(node.module)] = {alias.name for alias in node.names}
    (cls,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
    return imports, [node for node in methods if node.name[0] != "_" and node.name != "close"]


def import_lines(imports: Imports, text: str) -> str:
    """Imports of what the text uses, sorted as ruff sorts them: ours after Python's."""
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    groups: dict[bool, list[str]] = {False: [], True: []}
    for module, names in sorted(imports.items()):
        if chosen := sorted(names & used):
            ours = module.startswith("kernelbox")
            groups[ours].append(f"from {module} import {', '.join(chosen)}")
    return "\n\n".join("\n".join(lines) for lines in groups.values())


# -- the functions --------------------------------------------------------------------------

API_HEAD = '''\
"""The module-level functions: the methods of :class:`kernelbox.Box`, over one default Box.

Written by ``scripts/make_api.py`` from ``box.py``; change them there.
"""

from __future__ import annotations

import os
'''
API_START = '''\
_boxes: dict[Settings, Box] = {}
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


def api() -> str:
    """What ``api.py`` should be, before it is formatted."""
    imports, methods = box()
    many = {node.name for node in methods if node.decorator_list}
    remark = "  # type: ignore[call-overload,no-any-return]"
    functions = [function(node, remark * (node.name in many)) for node in methods]
    text = "\n\n\n".join([API_START, *functions])
    lines = import_lines({**imports, "kernelbox.box": {"Box"}}, text)
    return f"{API_HEAD}{lines}\n\n{text}\n"


def function(method: ast.FunctionDef, remark: str) -> str:
    """A method as a function that calls it."""
    arguments = method.args
    del arguments.args[0]
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


# -- AsyncBox -------------------------------------------------------------------------------

ASYNC_HEAD = '''\
"""AsyncBox: the methods of :class:`kernelbox.Box`, awaited, over the same calls.

Written by ``scripts/make_api.py`` from ``box.py``; change them there.
"""

from __future__ import annotations

'''
ASYNC_START = '''\
class AsyncBox:
    """The same as :class:`Box`, awaited; the methods are explained there.

    Cancelling a call, or the task that awaits it, interrupts its cell.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """``settings`` default to the environment as it is now."""
        self.settings = settings or Settings.from_environment()
        self._calls = Calls(self.settings, on_disconnect="interrupt")
        self._driver = aio.AsyncDriver()

    async def __aenter__(self) -> AsyncBox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Kernels live on."""
        self._driver.lines.close()
'''
RENAMED = {
    "blocking": "aio",
    "Iterator": "AsyncGenerator",
    "OnInput": "AsyncOnInput",
    "Repair": "AsyncRepair",
}
AWAITED = "self._driver.run"
MORE = {"execute_with_retry": "; ``on_error_fn`` may be a coroutine function"}


def async_box() -> str:
    """What ``async_box.py`` should be, before it is formatted."""
    imports, methods = box()
    plain = {node.name for node in methods if not node.decorator_list and not awaits(node)}
    bodies = [ast.unparse(awaited(node, plain=node.name in plain)) for node in methods]
    text = "\n\n".join([ASYNC_START, *(textwrap.indent(body, "    ") for body in bodies)])
    renamed = {
        module: {RENAMED.get(name, name) for name in names} for module, names in imports.items()
    }
    return f"{ASYNC_HEAD}{import_lines(renamed, text)}\n\n\n{text}\n"


def awaits(method: ast.FunctionDef) -> bool:
    """Whether a method waits for something itself; others return what is waited for."""
    return any(isinstance(n, ast.Call) and ast.unparse(n.func) == AWAITED for n in ast.walk(method))


def awaited(method: ast.FunctionDef, *, plain: bool) -> ast.AST:
    """A method as AsyncBox has it."""
    if not method.decorator_list:
        words = f"See :meth:`Box.{method.name}`{MORE.get(method.name, '')}."
        method.body[0] = ast.Expr(ast.Constant(words))
    changed: ast.FunctionDef = Awaiting().visit(method)
    if plain:
        return changed
    return ast.fix_missing_locations(
        ast.AsyncFunctionDef(**{name: getattr(changed, name) for name in changed._fields})
    )


class Awaiting(ast.NodeTransformer):
    """Awaits what takes time, and calls the types what they are called there."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(RENAMED.get(node.id, node.id))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "AsyncGenerator":
            node.slice = ast.Tuple([node.slice, ast.Constant(None)])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return ast.Await(node) if ast.unparse(node.func) == AWAITED else node


FILES = {"api.py": api, "async_box.py": async_box}

if __name__ == "__main__":
    for name, written in FILES.items():
        path = PACKAGE / name
        path.write_text(written())
        subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(path)], check=True)
