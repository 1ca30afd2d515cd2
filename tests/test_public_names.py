"""What `import kernelbox` gives, and what it costs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import kernelbox
from kernelbox import AsyncBox, Box, api

FUNCTIONS = [
    "attach", "branch", "cancel", "checkpoint", "checkpoints", "complete", "destroy", "drop_checkpoint",
    "events", "execute", "execute_many", "execute_with_retry", "get_or_create", "install", "interrupt", "list_kernels",
    "load", "output", "restart", "rewind", "save", "search_output", "status", "stream", "undo", "wipe",
]  # fmt: skip
CLASSES = [
    "AsyncBox", "AttemptSnapshot", "BadInput", "Box", "BoxError", "Checkpoint",
    "CheckpointNotFound", "EpochMismatch", "ErrorInfo", "Event", "ExecutionNotFound",
    "ExecutionResult", "Image",    "KeeperUnavailable", "KernelLost", "KernelNotFound", "KernelRecord", "KeyReused", "Mount", "OutputItem",
    "OutputMatch", "OutputPage", "Profile", "InstallFailed", "InstallReport", "InstalledPackage",
    "SaveReport", "Secret", "Settings", "StartupFailed", "Unsupported",
]  # fmt: skip
TYPES = ["AsyncRepair", "KernelLike", "OnInput", "ProfileLike", "Repair"]
PUBLIC = ["__version__", *FUNCTIONS, *CLASSES, *TYPES]


def fresh_python(program: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return ended.stdout


def test_the_public_names_are_these() -> None:
    assert sorted(kernelbox.__all__) == sorted(PUBLIC)


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    assert sorted(dir(kernelbox)) == sorted(PUBLIC)


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_a_public_name_is_there(name: str) -> None:
    assert getattr(kernelbox, name).__name__ == name


@pytest.mark.parametrize("name", TYPES)
def test_a_type_to_annotate_with_is_there(name: str) -> None:
    assert get_args(getattr(kernelbox, name))


def test_a_name_that_is_not_there_is_missed_as_usual() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        kernelbox.nonsense  # type: ignore[attr-defined]
    assert not hasattr(kernelbox, "nonsense")


def mypy(program: str, folder: Path) -> list[str]:
    """What a strict type checker says to a user's program, a line each."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "program.py"],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(Path(kernelbox.__file__).parent.parent)},
    )
    return done.stdout.splitlines()


def test_a_type_checker_knows_the_public_names_and_no_others(tmp_path: Path) -> None:
    uses = "".join(f"print(kernelbox.{name}, {name})\n" for name in PUBLIC if name[0] != "_")
    misspelt = "kernelbox.exceute\n"
    said = mypy(f"import kernelbox\nfrom kernelbox import *\n{uses}{misspelt}", tmp_path)
    assert len(said) == 1
    assert 'has no attribute "exceute"' in said[0]


def test_everything_can_be_starred() -> None:
    assert "KernelLost" in fresh_python("from kernelbox import *; print(dir())")


HEAVY = [
    "zmq", "IPython", "fastapi", "pydantic", "jupyter_client", "asyncio", "traitlets", "starlette",
    "numpy", "json", "socket", "subprocess",
]  # fmt: skip


def test_the_import_is_light() -> None:
    program = "import kernelbox, sys; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in fresh_python(program).split()}
    bare = {
        name.partition(".")[0] for name in fresh_python("import sys; print(*sys.modules)").split()
    }
    assert loaded & set(HEAVY) - bare == set()
    # typing is the one module we take along
    assert "kernelbox" in loaded


@pytest.mark.parametrize("name", ["execute", "Box", "KernelLost", "ExecutionResult"])
def test_using_a_name_imports_nothing_that_only_kernels_need(name: str) -> None:
    program = f"import sys; from kernelbox import {name}; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in fresh_python(program).split()}
    only_kernels = {"zmq", "IPython", "fastapi", "pydantic", "jupyter_client", "traitlets"}
    assert loaded & only_kernels == set()


@pytest.mark.parametrize("name", ["execute", "Box", "get_or_create"])
def test_the_blocking_entrance_does_not_import_asyncio(name: str) -> None:
    program = f"import sys; from kernelbox import {name}; print('asyncio' in sys.modules)"
    assert fresh_python(program) == "False\n"


def test_nothing_is_started_or_made_by_an_import(tmp_path: Path) -> None:
    program = "import kernelbox.api, threading; print(threading.active_count())"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    assert ended.stdout == "1\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", [api, Box, AsyncBox])
def test_the_types_of_a_function_can_be_asked_for(where: object) -> None:
    """As frameworks do that make a tool of it."""
    for name in FUNCTIONS:
        assert "return" in get_type_hints(getattr(where, name)), name
    assert kernelbox.Profile in get_args(get_type_hints(api.get_or_create)["profile"])


def parameters(function: object) -> dict[str, tuple[str, object]]:
    found = inspect.signature(function).parameters  # type: ignore[arg-type]
    return {
        name: (parameter.kind.name, parameter.default)
        for name, parameter in found.items()
        if name != "self"
    }


def test_the_four_functions_have_the_signatures_of_seed_002() -> None:
    anywhere, keyword, nothing = "POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY", inspect.Parameter.empty
    assert list(parameters(api.get_or_create).items())[:1] == [("name", (anywhere, nothing))]
    execute = parameters(api.execute)
    assert list(execute)[:2] == ["kernel", "code"]
    assert execute["language"] == (keyword, "python")
    assert execute["timeout"] == (keyword, None)
    assert parameters(api.execute_with_retry) == {
        "kernel": (anywhere, nothing),
        "code": (anywhere, nothing),
        "on_error_fn": (anywhere, nothing),
        "max_attempts": (keyword, None),
        "language": (keyword, "python"),
        "timeout": (keyword, None),
        "atomic": (keyword, False),  # ours
    }
    assert len(parameters(api.destroy)) == 1


@pytest.mark.parametrize("name", ["api.py", "async_box.py"])
def test_what_a_program_writes_from_box_is_up_to_date(name: str) -> None:
    program = Path(__file__).parent.parent / "scripts" / "make_api.py"
    spec = importlib.util.spec_from_file_location("make_api", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    there = (module.PACKAGE / name).read_text()
    written = ast.dump(ast.parse(module.FILES[name]()))
    assert written == ast.dump(ast.parse(there)), "run scripts/make_api.py"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_both_boxes_take_the_same_arguments(name: str) -> None:
    of_function = parameters(getattr(api, name))
    assert parameters(getattr(Box, name)) == of_function
    assert parameters(getattr(AsyncBox, name)) == of_function


def test_both_boxes_have_the_same_methods() -> None:
    def methods(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert methods(Box) == methods(AsyncBox)
    assert set(FUNCTIONS) <= methods(Box)


@pytest.mark.parametrize("cls", [Box, AsyncBox])
def test_options_are_keywords_after_the_third_argument(cls: type) -> None:
    for name, method in vars(cls).items():
        if not name.startswith("_") and callable(method):
            positional = [kind for kind, _ in parameters(method).values() if kind != "KEYWORD_ONLY"]
            assert len(positional) <= 3, name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_explained_in_the_words_of_its_method(name: str) -> None:
    words = inspect.getdoc(getattr(Box, name))
    assert words
    assert inspect.getdoc(getattr(api, name)) == words


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_of_a_function_is_explained(name: str) -> None:
    words = inspect.getdoc(getattr(Box, name)) or ""
    if name in ("stream", "events"):
        assert "those of :func:`execute`" in words
        return
    said_by_their_names = {"kernel", "code", "name"}
    wanted = parameters(getattr(Box, name)).keys() - said_by_their_names
    assert [argument for argument in wanted if f"``{argument}" not in words] == []


@pytest.mark.parametrize(
    "name",
    ["AttemptSnapshot", "ErrorInfo", "ExecutionResult", "Image", "KernelRecord", "OutputItem"],
)
def test_every_field_of_a_result_is_explained(name: str) -> None:
    cls = getattr(kernelbox, name)
    assert [f.name for f in fields(cls) if f"``{f.name}``" not in cls.__doc__] == []


def test_the_example_in_the_help_runs(environment: Path) -> None:
    example = (kernelbox.__doc__ or "").partition("::\n")[2].partition("\nThe functions")[0]
    assert fresh_python(inspect.cleandoc(example)) == "6\n"
