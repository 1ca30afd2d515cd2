"""Command lines that cannot be understood, and the help that says how they can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelbox import errors
from kernelbox.cli import entry, exits
from kernelbox.cli.grammar import COMMANDS


def usage_error(words: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> dict[str, str]:
    assert entry.main(words) == exits.USAGE
    out, err = capfdbinary.readouterr()
    assert out == b""
    (line,) = err.splitlines()
    error: dict[str, str] = json.loads(line)
    assert set(error) == {"error", "message", "hint"}
    return error


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["crate"], "no command 'crate'", "kernelbox create"),
        (["--bogus"], "no option '--bogus'", "kernelbox --help"),
        (["create"], "needs --name or --id", "kernelbox create --name NAME"),
        (["load"], "needs --name", "kernelbox load --name NAME"),
        (["create", "foo"], "reserved for sandboxes", "kernelbox create --name foo"),
        (["destroy", "a b"], "reserved for sandboxes", "kernelbox destroy --name 'a b'"),
        (["status", "--name", "a", "b"], "reserved for sandboxes", "--name b"),
        (["exec", "foo", "1 + 1"], "reserved for sandboxes", "exec --name foo '1 + 1'"),
        (["exec", "1 + 1"], "which kernel?", "kernelbox exec --name NAME"),
        (["exec", "--name", "a", "b", "c"], "one piece of code", "quotes"),
        (["exec", "--name", "a", "-f", "x", "1"], "not both", "kernelbox exec --help"),
        (["exec", "--name", "a", "--tiemout", "5", "1"], "no option --tiemout", "--timeout"),
        (["exec", "--name", "a", "--timeout", "soon", "1"], "'soon'", "kernelbox exec --help"),
        (["exec", "--name"], "--name", "kernelbox exec --help"),
        (["status", "--name", "a", "--id", "b"], "not both", "leave out one"),
        (["list", "foo"], "takes no 'foo'", "kernelbox list --help"),
        (["list", "--ref"], "no option --ref", "--refresh"),
        (["branch", "--name", "a"], "needs --to", "kernelbox branch --help"),
        (["branch", "--name", "a", "--to", "b", "--files", "x"], "'x'", "branch --help"),
        (["rewind", "--name", "a"], "needs --to", "kernelbox rewind --help"),
        (["save", "--name", "a"], "needs -f FILE", "kernelbox save --help"),
        (["checkpoint", "--name", "a", "--label", "x", "--drop", "y"], "not both", "--help"),
        (["logs", "--execution", "x"], "which one?", "--name NAME --execution"),
        (["completion", "tcsh"], "bash, zsh, fish", "completion bash"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_usage_error_is_one_json_object_with_a_hint(
    words: list[str], message: str, hint: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    error = usage_error(words, capfdbinary)
    assert error["error"] == "UsageError"
    assert message in error["message"]
    assert hint in error["hint"]


def test_alone_it_shows_the_commands(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert entry.main([]) == 0
    out, err = capfdbinary.readouterr()
    assert err == b""
    assert all(name in out.decode() for name in COMMANDS)


def test_help_documents_every_exit_code(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert entry.main(["--help"]) == 0
    out = capfdbinary.readouterr().out.decode()
    for code, meaning in exits.MEANINGS.items():
        assert f"{code:>3}  {meaning}" in out


def test_the_page_documents_every_exit_code_and_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for code, meaning in exits.MEANINGS.items():
        assert f"| {code} | {meaning} |" in page
    for name, command in COMMANDS.items():
        assert f"kernelbox {name}" in page
        for option in command.parser().options():
            if option.startswith("--") and option not in ("--help", "--file", "--id"):
                assert option in page, f"{option} of {name} is not documented"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(
    name: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    said = []
    for words in ([name, "--help"], ["help", name]):
        assert entry.main(words) == 0
        said.append(capfdbinary.readouterr().out.decode())
    assert said[0] == said[1]
    assert f"usage: kernelbox {name}" in said[0]
    assert "examples:" in said[0]
    assert f"kernelbox {name}" in said[0].partition("examples:")[2]


def test_every_example_is_understood(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    import shlex

    from kernelbox.cli.commands import understood

    for command in COMMANDS.values():
        for example in command.examples:
            if "$(" in example:
                continue
            words = shlex.split(example.partition(">")[0])
            words = words[len(words) - words[::-1].index("kernelbox") :]
            assert understood(words[: words.index("|")] if "|" in words else words)


def test_the_version_is_the_packages(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    import kernelbox

    assert entry.main(["--version"]) == 0
    assert capfdbinary.readouterr().out.decode() == f"kernelbox {kernelbox.__version__}\n"


def test_every_error_of_ours_has_a_code_and_a_hint() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.BoxError)
    ]
    codes = {kind.__name__: exits.code_of(kind("words")) for kind in kinds}
    assert codes["KernelLost"] != codes["KernelNotFound"]
    assert [name for name, code in codes.items() if code == exits.FAILED] == ["BoxError"]
    assert set(codes.values()) <= set(exits.MEANINGS)
    for kind in kinds:
        assert exits.hint_for(kind("words"), command="exec", name=None)


def test_a_plain_command_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from kernelbox.cli import commands, kernels, execution; "
        "print([name for name in ('rich', 'asyncio', 'prompt_toolkit', 'IPython', 'zmq', "
        "'fastapi') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
