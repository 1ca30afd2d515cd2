"""One persistent bash as a conversation without I/O: how to start it, what to send, what it said.

The shell is *interactive* without a terminal, because only an interactive bash abandons a command on
SIGINT and lives on; a script either dies or carries on with the next line. Nothing is ever typed at it:
the loop below runs as PROMPT_COMMAND, the one thing bash comes back to however a command ended, and its
standard input is /dev/null. Three private descriptors, made close-on-exec by the shell itself, carry the
conversation:

- *text*, a memfd that holds the command (a file, because bash reads pipes byte by byte);
- *code*, a pipe on which a newline means "look at the text again";
- *status*, a pipe on which the shell says, whenever it becomes idle, `<number> <exit code> <how>`.

Commands are numbered and a number runs once, so a wake-up may be repeated at will. That is what heals
the only race there is: a late SIGINT may swallow a wake-up, and then the idle shell says so (`Again`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
import re
from typing import Final

SNAPSHOT_END = "x"
_SNAPSHOT = ""
# The largest command that is run as one compound command; see `_LOOP`.
_WHOLE_LINES: Final = 1000
_WAKE: Final = b"\n"
# The first line of every text. The loop *sources* the text, and this line is all that is ever read of it:
# inside a sourced file bash counts lines from 1 and keeps finished commands out of `jobs`; by way of eval its
# messages say "bash: eval: line 3" and not the path of a descriptor.
_FIRST_LINE: Final = 'builtin eval "$__kb_code"; builtin return\n'
_STATUS_LINE: Final = re.compile(rb"(\d{1,18}) (\d{1,3}) ([FIR])")

# Runs once. A descriptor cannot be marked close-on-exec from within bash, except by copying one that is: while
# a redirection is in force bash keeps the original in such a copy, the first of them at 10.
_START: Final = """\
{ command exec 20<&10 21<&11 22>&12; } CODE_FD<&- TEXT_FD<&- STATUS_FD>&-
command exec CODE_FD<&20 TEXT_FD<&21 STATUS_FD>&22 20<&- 21<&- 22>&-
builtin export -n PROMPT_COMMAND PS1
builtin unset HISTFILE MAILCHECK
builtin set +o history +o histexpand
builtin trap 'builtin kill -INT "$$"' URG
__kb_n=0 __kb_rc=0 __kb_how=R __kb_opt= __kb_nl=$'\\n'
__kb_tail='{ __kb_rc=$? __kb_how=F __kb_opt=$-; builtin trap - DEBUG; builtin set +aeuvx; } >/dev/null 2>&1'
__kb_at=$(( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] > 500 ))
__kb_loop='LOOP'
builtin unset PROMPT_COMMAND
PROMPT_COMMAND[__kb_at]=$__kb_loop PS1=
command exec <<<''
"""

# Runs once per command, and again after each interrupt. `__kb_how` is I from the start of a command to its end, so
# finding I at the top means that the command was abandoned, and `$?` says why (130 for SIGINT).
#
# - Options that would disturb or betray the loop (-e, -x …) are off in it and set again for the command.
# - A command that parses as a whole runs as one { group }: an unset variable under `set -u`, or ${x:?}, then ends
#   the command, as in a script, instead of only its line. What doesn't parse as a whole (a syntax error, extglob
#   turned on in the line above) runs line by line, as in a terminal. Very long lists overflow bash's stack as a group.
# - No loop and no function encloses the command, so `break`, `declare` and `local` mean what they mean at top level.
#   Instead, bash is given an empty line to read, and comes back here.
# - Whatever else goes wrong with the private descriptors ends the shell, so that nobody waits for it.
_LOOP: Final = """\
{ __kb_x=$?; builtin trap - DEBUG; [[ $__kb_how != I ]] || __kb_rc=$__kb_x __kb_opt=$-; builtin set +aeuvx
} >/dev/null 2>&1
command exec </dev/null
builtin printf "%s %s %s\\n" "$__kb_n" "$__kb_rc" "$__kb_how" >&STATUS_FD || builtin exit 125
__kb_how=R
IFS= builtin read -r -t 1000000 -u CODE_FD __kb_x || (( $? > 128 )) || builtin exit 125
while builtin read -t 0 -u CODE_FD; do IFS= builtin read -r -t 1 -u CODE_FD __kb_x || break; done
[[ -r /proc/self/fd/TEXT_FD ]] || builtin exit 125
if { IFS= builtin read -r __kb_x && IFS=" " builtin read -r __kb_x __kb_whole &&
IFS= builtin read -r -d "" __kb_code; } </proc/self/fd/TEXT_FD && (( __kb_x > __kb_n )); then
__kb_n=$__kb_x __kb_how=I
__kb_pre=${__kb_opt//[!aeuvx]}
__kb_pre=${__kb_pre:+"builtin set -$__kb_pre; "}
if (( __kb_whole )) &&
builtin eval "if ((0)); then { $__kb_code$__kb_nl$__kb_nl}${__kb_nl}fi" 2>/dev/null; then
(( __kb_rc == 0 )) || __kb_pre+="{ (builtin exit $__kb_rc); } 2>/dev/null || "
__kb_code="$__kb_pre{ $__kb_code$__kb_nl$__kb_nl}$__kb_nl$__kb_tail"
else
__kb_code=$__kb_pre$__kb_code
fi
builtin . /proc/self/fd/TEXT_FD
{ __kb_x=$?; builtin trap - DEBUG
[[ $__kb_how == F ]] || __kb_rc=$__kb_x __kb_how=F __kb_opt=$-; builtin set +aeuvx; } >/dev/null 2>&1
fi
builtin unset TMOUT 2>/dev/null
__kb_code= PS1= PROMPT_COMMAND[__kb_at]=$__kb_loop
command exec <<<""
"""


@dataclass(frozen=True)
class Fds:
    """The numbers of the private descriptors in the shell: high, out of the way of `exec 3>file`."""

    code: int = 980
    text: int = 981
    status: int = 982


@dataclass(frozen=True)
class Send:
    """What starts a command: the whole content of the text file, and then what to write to *code*."""

    text: bytes
    code: bytes


@dataclass(frozen=True)
class Ready:
    """The shell is up. What came out of it before this is bash's remark that it has no terminal."""


@dataclass(frozen=True)
class Finished:
    """The command ran to its end; its output is in the pipes already."""

    exit_code: int


@dataclass(frozen=True)
class Interrupted:
    """SIGINT ended the command; the shell has its state and waits for the next one."""

    exit_code: int = 130


@dataclass(frozen=True)
class Again:
    """An interrupt may have swallowed the wake-up: write these bytes to *code* once more."""

    code: bytes = _WAKE


Event = Ready | Finished | Interrupted | Again


def command(bash: str = "bash") -> list[str]:
    """The argv of the shell; it does nothing useful without `environment`."""
    return [bash, "--noprofile", "--norc", "--noediting", "-i"]


def environment(base: Mapping[str, str], fds: Fds) -> dict[str, str]:
    """`base` with what starts the conversation, and without what would switch options on in a fresh shell."""
    loop = _LOOP.replace("'", "'\\''")
    start = _START.replace("LOOP", loop)
    for name, fd in (("CODE_FD", fds.code), ("TEXT_FD", fds.text), ("STATUS_FD", fds.status)):
        start = start.replace(name, str(fd))
    kept = {k: v for k, v in base.items() if k not in ("SHELLOPTS", "BASHOPTS", "BASH_XTRACEFD", "TMOUT")}
    return {**kept, "PROMPT_COMMAND": start, "PS1": "", "HISTFILE": ""}


class BashTalk:
    """One conversation with one shell, from its start to its end."""

    def __init__(self) -> None:
        self._buffer = b""
        self._number = 0
        self._running = False
        self._ready = False

    @property
    def ready(self) -> bool:
        """Whether the shell has come up."""
        return self._ready

    @property
    def running(self) -> bool:
        """Whether a command was begun that has not ended."""
        return self._running

    def begin(self, code: str) -> Send:
        """Start `code`; a ValueError says why bash could not even be given it, before anything ran."""
        if self._running:
            raise RuntimeError("this shell is still running a command; wait for its end")
        if "\0" in code:
            raise ValueError("bash code cannot hold a NUL character; write it as $'\\\\0' or use printf")
        try:
            body = code.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"bash code must be valid Unicode; character {error.start} is a lone surrogate"
            ) from None
        # An alias takes effect on the next line that is *read*, so a group would not see it.
        whole = code.count("\n") < _WHOLE_LINES and "alias" not in code
        self._number += 1
        self._running = True
        head = f"{_FIRST_LINE}{self._number} {whole:d}\n".encode()
        # The NUL ends what bash reads. A text without one is not complete, so that a stale wake-up which finds
        # the text half written runs nothing.
        return Send(text=head + body + b"\0", code=_WAKE)

    def feed(self, data: bytes) -> list[Event]:
        """The events in what was read from *status*; parts of lines wait for the rest."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        # A command can write here if it tries (it *is* the shell); it may confuse itself, but not fill our memory.
        self._buffer = self._buffer[-64:]
        events = (self._event(line) for line in lines)
        return [event for event in events if event is not None]

    def _event(self, line: bytes) -> Event | None:
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            return None
        number, exit_code, how = int(match[1]), int(match[2]), match[3]
        if not self._ready:
            self._ready = True
            return Ready()
        if not self._running:
            return None
        if number < self._number:
            return Again()
        self._running = False
        if how == b"I":
            return Interrupted(exit_code)
        return Finished(exit_code)


def snapshot_code(fds: Fds) -> str:
    """Code that writes to the *text* file what a new shell runs to take over this one's state.

    Carried: directory, umask, options, aliases, variables, functions, positional parameters; `$?` stays as it was.
    Not carried: jobs, open descriptors, and traps (an EXIT trap of two shells would clean up twice). The text is
    complete when it ends with `SNAPSHOT_END`.
    """
    return _SNAPSHOT.replace("TEXT_FD", str(fds.text))
