"""One virtual environment per subject, made once and kept until what it should hold changes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("KERNELBOX_BENCH_DIR") or CHECKOUT / ".bench").resolve()


@dataclass(frozen=True)
class Recipe:
    """What an environment holds: packages by name, perhaps a checkout, and their bytecode."""

    name: str
    packages: tuple[str, ...]
    checkout: Path | None = None
    extra: str = ""
    compiled: bool = True

    def without_bytecode(self) -> Recipe:
        """The same packages as they are where nobody may write bytecode beside them."""
        return replace(self, name=f"{self.name}-uncompiled", compiled=False)

    def fingerprint(self) -> str:
        """Changes when the environment has to be made again."""
        parts = [sys.version, *self.packages, self.extra]
        if self.checkout is not None:
            parts.append((self.checkout / "pyproject.toml").read_text())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Environment:
    """A ready environment and the versions it ended up with."""

    name: str
    python: Path
    versions: dict[str, str]


class EnvironmentFailed(Exception):
    """An environment could not be made; the message is the installer's last words."""


def prepare(recipe: Recipe, folder: Path) -> Environment:
    """Return the environment of this recipe, making it if it is not there or out of date."""
    if recipe.checkout is not None and not (recipe.checkout / "pyproject.toml").exists():
        raise EnvironmentFailed("the checkout has no pyproject.toml yet")
    place = folder / recipe.name
    stamp = place / "bench-recipe"
    python = place / "bin" / "python"
    wanted = recipe.fingerprint()
    if not stamp.exists() or stamp.read_text() != wanted:
        # A half-made environment is worse than none, hence the stamp last.
        shutil.rmtree(place, ignore_errors=True)
        _make(recipe, place, python)
        stamp.write_text(wanted)
    return Environment(name=recipe.name, python=python, versions=_versions(python))


def enter(recipe: Recipe) -> None:
    """Go on in this environment: unless it is ours already, this program starts anew in it, so that
    any Python can start it."""
    if Path(sys.prefix).resolve() == FOLDER / recipe.name:
        return
    ignore(FOLDER)
    python = str(prepare(recipe, FOLDER).python)
    os.execv(python, [python, *sys.argv])


def ignore(folder: Path) -> None:
    """Make a folder that git does not see, whatever the repository's own rules say."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")


def _make(recipe: Recipe, place: Path, python: Path) -> None:
    what = [*recipe.packages]
    if recipe.checkout is not None:
        what += [
            "-e",
            f"{recipe.checkout}[{recipe.extra}]" if recipe.extra else str(recipe.checkout),
        ]
    uv = shutil.which("uv") or _beside_this_python("uv")
    if uv is not None:
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(place)])
        _run([uv, "pip", "install", "--quiet", "--python", str(python), *what])
    else:
        _run([sys.executable, "-m", "venv", str(place)])
        _run([str(python), "-m", "pip", "install", "--quiet", *what])
    packages = place / "lib"
    if recipe.compiled:
        # pip does this and uv does not: whoever installed would otherwise decide the result.
        command = [str(python), "-m", "compileall", "-q", str(packages)]
        subprocess.run(command, check=False, capture_output=True)
    else:
        for bytecode in packages.rglob("*.pyc"):
            bytecode.unlink()


def _beside_this_python(program: str) -> str | None:
    path = Path(sys.executable).with_name(program)
    return str(path) if path.exists() else None


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise EnvironmentFailed(" ".join(words[-3:]) or f"exit code {done.returncode}")


def _versions(python: Path) -> dict[str, str]:
    program = (
        "import json; from importlib.metadata import distributions;"
        "names = {d.name.lower().replace('_', '-'): d.version for d in distributions()};"
        "print(json.dumps(names))"
    )
    # -B: looking must not leave bytecode in an environment that is to have none.
    command = [str(python), "-B", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions
