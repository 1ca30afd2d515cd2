"""Shell completion: a small script per shell, which asks ``kernelbox __complete`` what fits."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from kernelbox.cli import exits
from kernelbox.cli.grammar import COMMANDS
from kernelbox.cli.parser import UsageError
from kernelbox.cli.printing import say_text
from kernelbox.errors import BoxError

Candidates = dict[str, str]
"""What a word could become, each with a few words about it."""

_BASH = """\
_kernelbox() {
    local word about
    COMPREPLY=()
    while IFS=$'\\t' read -r word about; do
        COMPREPLY+=("$(printf %q "$word")")
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _kernelbox kernelbox
"""
_ZSH = """\
#compdef kernelbox
_kernelbox() {
    local -a found
    local word about
    while IFS=$'\\t' read -r word about; do
        found+=("${word//:/\\\\:}:$about")
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( $#found )); then
        _describe kernelbox found
    else
        _files
    fi
}
if [ "$funcstack[1]" = _kernelbox ]; then
    _kernelbox "$@"
else
    compdef _kernelbox kernelbox
fi
"""
_FISH = """\
function __kernelbox_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2>/dev/null
end
complete -c kernelbox -f -a '(__kernelbox_complete)'
complete -c kernelbox -s f -l file -r -F
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(options: Namespace) -> int:
    if len(options.words) != 1 or options.words[0] not in SCRIPTS:
        raise UsageError(
            f"kernelbox completion takes the name of a shell: {', '.join(SCRIPTS)}",
            'eval "$(kernelbox completion bash)"',
        )
    say_text(SCRIPTS[options.words[0]])
    return exits.DONE


def answer(words: list[str]) -> int:
    """Print what the last of the words could become. Whatever goes wrong, a shell that completes
    has no place to say it."""
    *before, current = words or [""]
    found = candidates(before, current.replace("\\", "").lstrip("'\""), _kernels)
    say_text("".join(f"{word}\t{about}\n" for word, about in found.items()))
    return exits.DONE


def candidates(
    before: list[str], current: str, kernels: Callable[[], list[tuple[str, str]]]
) -> Candidates:
    """What ``current`` could become after the words ``before`` it; ``kernels``: names and ids."""
    return {
        word: about
        for word, about in _possible(before, current, kernels).items()
        if word.startswith(current)
    }


def _possible(
    before: list[str], current: str, kernels: Callable[[], list[tuple[str, str]]]
) -> Candidates:
    before = [word for word in before if word != "--human"] if before[:1] == ["--human"] else before
    if not before or before == ["help"]:
        commands = {command.name: command.summary for command in COMMANDS.values()}
        flags = {"--help": "all commands and exit codes", "--version": "which version this is"}
        return commands | flags if not before else commands
    command = COMMANDS.get(before[0])
    if command is None:
        return {}
    parser = command.parser()
    last = before[-1]
    if last in ("--name", "--template") and len(before) > 1:
        return dict(kernels())
    if last == "--id":
        return {kernel_id: name for name, kernel_id in kernels()}
    choices = parser.choices(last)
    if choices is not None:
        return dict.fromkeys(choices, "")
    if command.name == "completion":
        return dict.fromkeys(SCRIPTS, "")
    if current and not current.startswith("-"):
        return {}
    repeatable = ("--to", "--tag", "--env")
    return {
        option: about
        for option, about in parser.options().items()
        if option not in before or option in repeatable
    }


def _kernels() -> list[tuple[str, str]]:
    """The kernels here, if somebody knows: completing a word does not start a keeper."""
    from kernelbox.box import Box
    from kernelbox.config import Settings
    from kernelbox.keeper.home import locate
    from kernelbox.keeper.launch import is_listening

    try:
        settings = Settings.from_environment()
        if not is_listening(locate(settings).keeper_address):
            return []
        with Box(settings) as box:
            return [(record.name, record.kernel_id) for record in box.list_kernels()]
    except (BoxError, OSError):
        return []
