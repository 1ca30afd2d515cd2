"""``%pip install`` and ``!pip install``: lines that people and models write by habit, understood as
what they want of the host.

This runs next to user code and decides nothing: it only finds out what is asked for.
"""

from __future__ import annotations

import os
import re
import shlex
import sys

from kernelbox.inside import packages
from kernelbox.inside.packages import InstallFailed

_OPERATORS = frozenset("|&;<>()")
_FILTERS = {"tail", "head", "grep", "cat", "tee"}
_PYTHONS = re.compile(r"(.*/)?python(\d+(\.\d+)?)?")
_PIPS = re.compile(r"(.*/)?pip(\d+(\.\d+)?)?")

_VERSIONS = re.compile(r"(>=|<=?)\d[\w.,*=<>]*")

_QUIET = {"-q", "-qq", "-qqq", "--quiet"}
_UPGRADES = {"-U", "--upgrade", "--force-reinstall", "--ignore-installed", "-I"}
# They change nothing here: there is no cache of pip's, no user site, and wheels are what there is.
_NO_MATTER = {
    "-v",
    "--verbose",
    "-y",
    "--yes",
    "--user",
    "--system",
    "--no-cache-dir",
    "--no-cache",
    "--no-input",
    "--break-system-packages",
    "--disable-pip-version-check",
    "--no-warn-script-location",
    "--root-user-action=ignore",
    "--progress-bar=off",
    "--prefer-binary",
    "--only-binary=:all:",
    "--no-python-version-warning",
}
_NO_MATTER_WITH_VALUE = {"--progress-bar", "--root-user-action", "--only-binary", "--timeout"}
_FILES = {"-r", "--requirement", "--requirements"}


def magic(line: str) -> None:
    """``%pip …``"""
    words = shlex.split(line)
    if words[:1] != ["install"]:
        _plain([sys.executable, "-m", "pip", *words])
    else:
        run(words[1:], raising=True)


def uv_magic(line: str) -> None:
    """``%uv …``"""
    words = shlex.split(line)
    if words[:2] == ["pip", "install"]:
        run(words[2:], raising=True)
    else:
        _plain(["uv", *words])


def _plain(command: list[str]) -> None:
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    assert shell is not None
    shell.system(shlex.join(command).replace("{", "{{").replace("}", "}}"))


def of_shell(line: str) -> list[str] | None:
    """The words after ``pip install`` of a shell's line; None if it does anything else, too."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return None
    before, rest = _split(words)
    if rest is None:
        return None
    return _after_install(before)


def _split(words: list[str]) -> tuple[list[str], list[str] | None]:
    """The command, and what becomes of its output; None instead of that if it is more than a way to
    show less of it."""
    for index, word in enumerate(words):
        if _OPERATORS.issuperset(word):
            before, rest = words[:index], words[index:]
            if before and rest[1:2] and _VERSIONS.fullmatch(f"{word}{rest[1]}"):
                # A shell would take it for a file; nobody who writes this means one.
                return _split([*before[:-1], f"{before[-1]}{word}{rest[1]}", *rest[2:]])
            if word in (">", ">>", "&>", ">&") and rest[1:2]:
                if before and before[-1] in ("1", "2"):
                    before = before[:-1]
                _, more = _split(rest[2:])
                return before, more
            if word == "|" and rest[1:2] and rest[1] in _FILTERS:
                return before, rest
            return before, None
    return words, []


def _after_install(words: list[str]) -> list[str] | None:
    if words[:1] == ["sudo"]:
        words = words[1:]
    if not words:
        return None
    if _PYTHONS.fullmatch(words[0]) and words[1:3] == ["-m", "pip"]:
        words = words[2:]
    elif os.path.basename(words[0]) == "uv" and words[1:2] == ["pip"]:
        words = words[1:]
    if _PIPS.fullmatch(words[0]) and words[1:2] == ["install"]:
        return words[2:]
    return None


def run(words: list[str], *, raising: bool = False) -> bool:
    """Ask the host, and print what it says; whether it worked."""
    try:
        if text := _asked(words):
            print(text)
    except InstallFailed as failure:
        if raising:
            raise
        print(f"pip install: {failure}", file=sys.stderr)
        return False
    return True


def said(words: list[str]) -> str:
    """The same, for who wants to read it."""
    try:
        return _asked(words)
    except InstallFailed as failure:
        return f"pip install: {failure}"


def _asked(words: list[str]) -> str:
    requirements, upgrade, quiet = understood(words)
    text = packages.ask(requirements, upgrade=upgrade)
    return "" if quiet else text


def understood(words: list[str]) -> tuple[list[str], bool, bool]:
    """Requirements, whether newer ones are wanted, and whether to be quiet about it."""
    requirements: list[str] = []
    upgrade = quiet = False
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in _FILES and rest:
            requirements += _lines_of(rest.pop(0))
        elif word.startswith(("-r", "--requirement=")) and not word.startswith("--root"):
            requirements += _lines_of(word.partition("=")[2] or word[2:])
        elif word in _QUIET:
            quiet = True
        elif word in _UPGRADES:
            upgrade = True
        elif word in _NO_MATTER_WITH_VALUE and rest:
            rest.pop(0)
        elif word in _NO_MATTER or word.startswith("--timeout="):
            pass
        elif word.startswith("-"):
            raise InstallFailed(
                f"the option {word} is not taken: the host decides where packages come from and "
                "how. Write only their names, like: pip install 'pandas==2.*'"
            )
        else:
            requirements.append(word)
    if not requirements:
        raise InstallFailed("name the packages to install, like: pip install pandas")
    return requirements, upgrade, quiet


def _lines_of(path: str) -> list[str]:
    """A file of requirements, as plain as most are."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.split(" #")[0].strip() for line in file.read(1 << 20).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InstallFailed(f"{path} cannot be read: {error}") from None
    return [line for line in lines if line and not line.startswith("#")]
