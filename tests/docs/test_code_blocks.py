"""Every code block of README and docs runs as printed, and prints what the page says.

- ``python``: a program of its own. What a ``print(…)`` prints stands behind it in a comment.
- ``bash``: a page's blocks are one session, in an empty folder. A block below one that has
  ``<!-- prints -->`` above it is what that one prints.
- A block that cannot be run has ``<!-- not run: reason -->`` directly above it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from processes import below, living, such, wait_until

import kernelbox
from kernelbox import Box, Settings
from kernelbox.keeper.home import locate

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
RUN = {"python", "bash"}
SHOWN = {"json", "text"}  # what a program prints, and drawings

_BLOCK = re.compile(
    r"""
    (?:^[ ]*<!--\s*(?P<remark>(?:(?!-->).)*?)\s*-->[ ]*\n+)?   # about the block, directly above it
    ^(?P<indent>[ ]*)```(?P<language>[\w+-]*)[^\n]*\n
    (?P<body>.*?)
    ^(?P=indent)```[ ]*$
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_PRINT = re.compile(r"^ *print\(.*$", re.MULTILINE)
_SAID = re.compile(r"\)  # (.+)$")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    body: str
    remark: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def why_not_run(self) -> str | None:
        found = re.fullmatch(r"not run:\s*(.+)", self.remark, re.DOTALL)
        return found[1] if found else None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start("body")),
            found["language"],
            textwrap.dedent(found["body"]) if found["indent"] else found["body"],
            found["remark"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PROGRAMS = [block for block in BLOCKS if block.language == "python" and not block.why_not_run]
SESSIONS = [
    page
    for page in PAGES
    if any(block.language == "bash" and not block.why_not_run for block in blocks_of(page))
]


def test_every_block_is_run_or_says_why_not() -> None:
    strange = [
        f"{block.place} ({block.language})"
        for block in BLOCKS
        if block.language not in RUN | SHOWN | {""} and not block.why_not_run
    ]
    assert strange == [], "neither run nor marked <!-- not run: reason -->"
    unlabelled = [block.place for block in BLOCKS if not block.language and not block.why_not_run]
    assert unlabelled == [], f"say what these are, text or a language: {unlabelled}"


def test_what_is_not_run_is_counted() -> None:
    """Raise the number only with a reason that a reader would accept."""
    left_out = [block for block in BLOCKS if block.language in RUN and block.why_not_run]
    assert len(left_out) <= 17, [f"{block.place}: {block.why_not_run}" for block in left_out]
    assert len(PROGRAMS) >= 20


def said(program: str) -> list[str]:
    """The lines that the comments behind ``print(…)`` promise, in order.

    ``# this, then that`` is two lines of a loop; ``# this; because`` goes on to explain.
    """
    lines: list[str] = []
    for call in _PRINT.findall(program):
        comment = _SAID.search(call)
        assert comment, f"the page does not say what this prints: {call.strip()}"
        lines += comment[1].partition("; ")[0].split(", then ")
    return lines


def libraries(program: str) -> set[str]:
    """What a program imports besides us and Python's own."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"kernelbox"}


def absent(program: str) -> list[str]:
    return sorted(name for name in libraries(program) if importlib.util.find_spec(name) is None)


def clean_environment() -> dict[str, str]:
    """This one, without anybody's settings, and with the programs of this environment first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELBOX_")}
    path = os.pathsep.join((str(Path(sys.executable).parent), kept["PATH"]))
    return {**kept, "PATH": path}


@contextlib.contextmanager
def emptied(home: Path) -> Iterator[None]:
    """Whatever happens, nothing is left running of this home."""
    settings = Settings(home=str(home), spares=0, keeper_linger=0.0)
    place = locate(settings)
    try:
        yield
    finally:
        if any(Path(place.rundir).glob("*.sock")):
            with Box(settings) as box:
                box.wipe()

        def processes() -> list[psutil.Process]:
            found = such(lambda process: place.rundir in " ".join(process.cmdline()))
            return living({*found, *(child for one in found for child in below(one.pid))})

        wait_until(lambda: not processes(), what=f"processes of {home} to end")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all programs, since each leaves it as it was; so only the first waits for a start."""
    made = tmp_path_factory.mktemp("programs") / "home"
    with emptied(made):
        yield made


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.place)
def test_a_program_prints_what_it_says(
    block: Block, home: Path, fake_model: dict[str, str], tmp_path: Path
) -> None:
    if missing := absent(block.body):
        pytest.skip(f"not installed: {', '.join(missing)}")
    environ = {**clean_environment(), **fake_model, "KERNELBOX_HOME": str(home)}
    program = tmp_path / "program.py"
    program.write_text(block.body)
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**environ, "KERNELBOX_SPARES": "0"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == said(block.body)
    with Box(Settings(home=str(home), spares=0)) as box:
        left = [kernel.name for kernel in box.list_kernels()]
        box.wipe()
    assert left == [], "a program of a page cleans up after itself"


def test_the_programs_pass_a_type_checker(tmp_path: Path) -> None:
    names = []
    foreign: set[str] = set()
    for block in PROGRAMS:
        names.append(f"{block.page.stem.replace('-', '_')}_{block.line}.py")
        (tmp_path / names[-1]).write_text(block.body)
        foreign |= libraries(block.body)
    # Reading the whole of each library takes most of a minute; whether we are called right does not.
    skipped = "".join(
        f"[mypy-{name}.*]\nfollow_imports = skip\nignore_missing_imports = True\n"
        for name in sorted(foreign)
    )
    (tmp_path / "mypy.ini").write_text(f"[mypy]\ncheck_untyped_defs = True\n{skipped}")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *names],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(kernelbox.__file__).parent.parent)},
    )
    assert done.stdout == ""
    assert done.returncode == 0, done.stderr


MARK = "\x1e"


def session_of(page: Path) -> tuple[str, list[tuple[Block, str]]]:
    """The bash of a page as one script that marks its output, and what each part must print."""
    script = ["set -e -o pipefail"]
    promised: list[tuple[Block, str]] = []
    last: Block | None = None
    for block in blocks_of(page):
        if block.language == "bash" and not block.why_not_run:
            script.append(
                f"printf '{MARK}%s\\n' {block.line}; printf '{MARK}%s\\n' {block.line} >&2"
            )
            script.append(block.body)
            last = block
        elif block.remark == "prints":
            assert last is not None, f"{block.place}: nothing has been run yet"
            promised.append((last, block.body))
    return "\n".join(script), promised


def parts_of(output: str) -> dict[int, str]:
    """What each block printed, by the line that it begins in."""
    _, *parts = output.split(MARK)
    return {int(line): rest for line, _, rest in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_the_shell_commands_of_a_page_work_in_order(page: Path, tmp_path: Path) -> None:
    script, promised = session_of(page)
    folder = tmp_path / "empty"
    folder.mkdir()
    environ = {**clean_environment(), "KERNELBOX_SPARES": "0"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(emptied(folder / ".kernelbox"))
        if "127.0.0.1:8080" in script or "localhost:8080" in script:
            port = stack.enter_context(service(tmp_path / "served", environ))
            stack.enter_context(emptied(tmp_path / "served" / ".kernelbox"))
            script = re.sub(r"(127\.0\.0\.1|localhost):8080", f"127.0.0.1:{port}", script)
        done = subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=110,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
        )
    last = max(parts_of(done.stderr) or {0: ""})
    assert done.returncode == 0, f"{page.name}:{last} failed\n{done.stdout}\n{done.stderr}"
    printed = parts_of(done.stdout)
    for block, words in promised:
        assert printed[block.line].strip() == words.strip(), block.place


@contextlib.contextmanager
def service(folder: Path, environ: dict[str, str]) -> Iterator[int]:
    """``kernelbox serve`` in a folder of its own, on a free port."""
    folder.mkdir()
    log = folder / "service.log"
    with log.open("w") as words:
        serving = subprocess.Popen(
            ["kernelbox", "serve", "--port", "0"],
            stdout=words,
            stderr=words,
            cwd=folder,
            env=environ,
        )
    listens = re.compile(r"listens on http://127\.0\.0\.1:(\d+)")
    try:
        wait_until(
            lambda: serving.poll() is not None or listens.search(log.read_text()),
            what="the service to listen",
            seconds=60,
        )
        found = listens.search(log.read_text())
        assert found, log.read_text()
        yield int(found[1])
    finally:
        serving.terminate()
        try:
            serving.wait(30)
        finally:
            serving.kill()
