"""One persistent bash as a conversation without I/O: how to start it, what to send, what it says.

The shell is *interactive*, without a terminal, because only an interactive bash abandons a
command on SIGINT and lives on; a script dies or carries on with its next line. Nothing is typed
at it, its standard input is /dev/null: the loop below is its PROMPT_COMMAND, to which bash comes
back however a command ended. Three private descriptors, which no program started by the shell
inherits, carry the conversation:

- *text*, a memfd that holds the command (bash reads a pipe byte by byte, but a file in blocks);
- *code*, a pipe on which a newline means "look at the text again";
- *status*, a pipe on which the shell says `<number> <exit code> <how>` when it starts a command
  and each time it is idle.

Commands are numbered and a number runs once, so that a wake-up may be repeated. This heals the
one race there is: a late SIGINT swallows a wake-up; the shell, idle again, says so: `Again`.

To interrupt, once `Started` was heard: SIGURG to the shell, and SIGINT to each of the processes
that the command has started. SIGURG is trapped; it makes the shell abandon the command as soon as
the program in the foreground has ended, of whatever, so that a stubborn one may be killed and yet
nothing that follows it runs. Background jobs ignore SIGINT, as bash arranges. A program that was
just being started may miss its SIGINT, so repeat both after a while. SIGINT to the shell itself is
the last resort (it helps where bash hangs in an `open`, of a fifo say): should it come in the few
instructions in which bash 5.2 prepares to wait for a program, bash signals itself for ever.
"""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SNAPSHOT_END: Final = b"# that was all\n"

_WAKE: Final = b"\n"
_STATUS_LINE: Final = re.compile(rb"(\d{1,18}) (\d{1,3}) ([FIRS])")
# Longer commands are not run as one group: bash recurses over its members until the stack is full.
_GROUP_LINES: Final = 1000
# Aliases apply to lines that are read after them, and a group is read before it runs.
_ALIAS: Final = re.compile(r"\balias\s+\S+=")

# The loop *sources* the text, of which only this first line is ever executed: in a sourced file
# bash counts lines from 1 and keeps programs that ended in the foreground out of `jobs`. The detour
# by eval makes its messages say "bash: eval: line 3" and not the path of a descriptor.
_FIRST_LINE: Final = 'builtin eval "$__kb_code"; builtin return\n'

# Runs once, as the PROMPT_COMMAND of the environment. Bash cannot mark a descriptor close-on-exec,
# but its copies of marked ones are marked too; and while `N<&-` is in force for a group, bash keeps
# N in such a copy, the first of them at 10. Of PROMPT_COMMAND we take the second element where bash
# has arrays of them (5.1): a user who assigns to PROMPT_COMMAND sets the first.
_START: Final = """\
command exec 10<&- 11<&- 12<&-
{ command exec 20<&10 21<&11 22>&12; } CODE_FD<&- TEXT_FD<&- STATUS_FD>&-
command exec CODE_FD<&20 TEXT_FD<&21 STATUS_FD>&22 20<&- 21<&- 22>&-
builtin export -n PROMPT_COMMAND PS1
builtin unset PROMPT_COMMAND HISTFILE MAILCHECK
builtin set +o history +o histexpand
builtin trap 'builtin kill -INT "$$"' URG
__kb_n=0 __kb_rc=0 __kb_how=R __kb_opt= __kb_nl=$'\\n'
__kb_end='{ __kb_rc=$? __kb_how=F __kb_opt=$-; unset -f builtin command; '
__kb_end+='builtin trap - DEBUG; builtin set +aeuvx; } >/dev/null 2>&1'
__kb_at=$(( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] > 500 ))
__kb_loop='THE_LOOP'
PS1= PROMPT_COMMAND[__kb_at]=$__kb_loop
command exec <<<""
"""

# Runs once per command, and again after each interrupt. `__kb_how` is I from a command's start to
# its end, so that I at the top means "abandoned", and `$?` is the status (130 after SIGINT).
#
# - No loop and no function encloses the command, so that `break`, `declare` and `local` mean what
#   they mean at the top level. What brings bash back here is an empty line, given to it to read.
# - Options that disturb or betray the loop (-e, -x, ...) are off in it, on again for the command.
# - A command that parses as a whole runs as one { group }, for then an unset variable, under
#   `set -u` or in ${x:?}, ends the command, as it ends a script, and not just a line of it. What
#   doesn't parse (a syntax error; extglob, turned on in the line above) runs line by line, as in a
#   terminal.
# - Loss of a private descriptor ends the shell, so that nobody waits for it in vain.
_LOOP: Final = """\
{ __kb_x=$?; unset -f builtin command; builtin trap - DEBUG
[[ $__kb_how != I ]] || __kb_rc=$(( __kb_x == URGED ? 130 : __kb_x )) __kb_opt=$-
builtin set +aeuvx; } >/dev/null 2>&1
command exec </dev/null
builtin printf "%s %s %s\\n" "$__kb_n" "$__kb_rc" "$__kb_how" >&STATUS_FD || builtin exit 125
__kb_how=R
IFS= builtin read -r -t 1000000 -u CODE_FD __kb_x || (( $? > 128 )) || builtin exit 125
while builtin read -t 0 -u CODE_FD; do IFS= builtin read -r -t 1 -u CODE_FD __kb_x || break; done
[[ -r /proc/self/fd/TEXT_FD ]] || builtin exit 125
if { IFS= builtin read -r __kb_x && IFS=" " builtin read -r __kb_x __kb_group &&
IFS= builtin read -r -d "" __kb_code; } </proc/self/fd/TEXT_FD && (( __kb_x > __kb_n )); then
__kb_n=$__kb_x __kb_how=I
builtin printf "%s 0 S\\n" "$__kb_n" >&STATUS_FD
__kb_pre=${__kb_opt//[!aeuvx]}
__kb_pre=${__kb_pre:+"builtin set -$__kb_pre; "}
if (( __kb_group )) &&
builtin eval "if ((0)); then { $__kb_code$__kb_nl$__kb_nl}${__kb_nl}fi" 2>/dev/null; then
(( __kb_rc == 0 )) || __kb_pre+="{ (builtin exit $__kb_rc); } 2>/dev/null || "
__kb_code="$__kb_pre{ $__kb_code$__kb_nl$__kb_nl}; $__kb_end"
else
__kb_code=$__kb_pre$__kb_code
fi
builtin . /proc/self/fd/TEXT_FD
{ __kb_x=$?; unset -f builtin command; builtin trap - DEBUG
[[ $__kb_how == F ]] || __kb_rc=$__kb_x __kb_how=F __kb_opt=$-
builtin set +aeuvx; } >/dev/null 2>&1
fi
builtin unset TMOUT 2>/dev/null
__kb_code= PS1= PROMPT_COMMAND[__kb_at]=$__kb_loop
command exec <<<""
"""

# Options come last, for `set -e` must not meet the rest; aliases late, for they change its parsing.
_SNAPSHOT: Final = """\
( __kb_x=$?; [[ $- != *e* ]] || __kb_x=0
__kb_opt=$(builtin set +o; builtin shopt -p) 2>/dev/null
builtin set +eux
{ builtin printf "builtin cd -- %q\\nOLDPWD=%q\\n" "$PWD" "${OLDPWD-}"
builtin umask -p
builtin shopt -p extglob
while IFS= builtin read -r __kb_v; do case $__kb_v in
_|BASH*|COMP_*|COPROC*|DIRSTACK|EPOCH*|EUID|FUNCNAME|GROUPS|HIST*|LINENO|OLDPWD|OPTIND) ;;
PIPESTATUS|PPID|PROMPT_COMMAND|PS1|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|__kb_*) ;;
*) builtin declare -p "$__kb_v" ;;
esac; done < <(builtin compgen -v)
builtin declare -f
builtin declare -Fx
builtin printf "builtin set --"
(( $# == 0 )) || builtin printf " %q" "$@"
builtin printf "\\n"
builtin alias -p
while IFS= builtin read -r __kb_v; do case $__kb_v in
*login_shell|*restricted_shell|*history|*histexpand) ;;
*) builtin printf "%s\\n" "$__kb_v" ;;
esac; done <<<"$__kb_opt"
builtin printf "%s" SNAPSHOT_END
} >/proc/self/fd/TEXT_FD 2>/dev/null
builtin exit "$__kb_x" )
"""


@dataclass(frozen=True)
class Fds:
    """The private descriptors' numbers in the shell: above what users close; never below 23."""

    code: int = 980
    text: int = 981
    status: int = 982


@dataclass(frozen=True)
class Send:
    """What starts a command: the new content of *text*, and then what to write to *code*."""

    text: bytes
    code: bytes


@dataclass(frozen=True)
class Ready:
    """The shell is up; all it has written so far is bash's remark that it has no terminal."""


@dataclass(frozen=True)
class Started:
    """The shell has taken the command: an interrupt now ends it."""


@dataclass(frozen=True)
class Finished:
    """The command ran to its end, and its output is in the pipes."""

    exit_code: int


@dataclass(frozen=True)
class Interrupted:
    """The command was abandoned; the shell lives. Bash ended its stderr with a newline."""

    exit_code: int


@dataclass(frozen=True)
class Again:
    """An interrupt may have swallowed the wake-up: write these bytes to *code* once more."""

    code: bytes = _WAKE


Event = Ready | Started | Finished | Interrupted | Again


def command(bash: str = "bash") -> list[str]:
    """The argv of the shell; it needs `environment`, its own session, no other descriptors."""
    return [bash, "--noprofile", "--norc", "--noediting", "-i"]


def environment(base: Mapping[str, str], fds: Fds) -> dict[str, str]:
    """`base` plus what starts the conversation, minus what sets options in every new bash."""
    start = _START.replace("THE_LOOP", _LOOP)
    for name, number in (
        ("CODE_FD", fds.code),
        ("TEXT_FD", fds.text),
        ("STATUS_FD", fds.status),
        ("URGED", 128 + signal.SIGURG),  # what `wait` returns when SIGURG ends it
    ):
        start = start.replace(name, str(number))
    unwanted = {"BASHOPTS", "BASH_XTRACEFD", "SHELLOPTS", "TMOUT"}
    kept = {name: value for name, value in base.items() if name not in unwanted}
    return {**kept, "PROMPT_COMMAND": start, "PS1": "", "HISTFILE": ""}


def snapshot_code(fds: Fds) -> str:
    """Code that replaces the content of *text* by what makes a new shell take over from this one.

    Directory, umask, variables, functions, positional parameters, aliases and options are carried,
    and `$?` stays what it was. Not carried: jobs, open descriptors, and traps (the EXIT traps of
    two shells would clean up twice). The content is complete when it ends with `SNAPSHOT_END`.
    """
    end = f"$'{SNAPSHOT_END.decode().rstrip()}\\n'"
    return _SNAPSHOT.replace("TEXT_FD", str(fds.text)).replace("SNAPSHOT_END", end)


class BashTalk:
    """One conversation with one shell; that the shell has ended is for its parent to say."""

    def __init__(self) -> None:
        self._unread = b""
        self._ready = False
        self._number = 0
        self._running = False

    @property
    def idle(self) -> bool:
        """Whether a command may begin: the shell is up and has ended the one before."""
        return self._ready and not self._running

    def begin(self, code: str | bytes) -> Send:
        """Number `code` and say how to start it; ValueError if bash could not even read it.

        Bytes are run line by line: that is for snapshots, which may hold any byte but NUL.
        """
        if not self.idle:
            raise RuntimeError("the shell is not idle; wait for Ready, Finished or Interrupted")
        if isinstance(code, bytes):
            body, group = code.replace(b"\0", b""), False
        else:
            body, group = _readable(code)
        self._number += 1
        self._running = True
        # The NUL says that the text is complete: a stale wake-up may find it half written.
        text = b"%s%d %d\n%s\0" % (_FIRST_LINE.encode(), self._number, group, body)
        return Send(text=text, code=_WAKE)

    def feed(self, data: bytes) -> list[Event]:
        """The events in what was read from *status*; an incomplete line waits for its rest."""
        *lines, unread = (self._unread + data).split(b"\n")
        # User code that finds this descriptor may confuse its own shell, but not fill our memory.
        self._unread = unread[-64:]
        events = [self._event(line) for line in lines]
        return [event for event in events if event is not None]

    def _event(self, line: bytes) -> Event | None:
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            return None
        number, exit_code, how = int(match[1]), int(match[2]), match[3]
        if not self._ready:
            self._ready = True
            return Ready()
        if not self._running or number > self._number:
            return None
        if number < self._number:
            return Again()
        if how == b"S":
            return Started()
        self._running = False
        return Interrupted(exit_code) if how == b"I" else Finished(exit_code)


def _readable(code: str) -> tuple[bytes, bool]:
    """The bytes of a command, and whether it may run as one group."""
    if "\0" in code:
        raise ValueError("bash code cannot contain NUL characters; remove them and try again")
    try:
        body = code.encode()
    except UnicodeEncodeError as error:
        message = f"bash code must be Unicode text; character {error.start} is a lone surrogate"
        raise ValueError(message) from None
    return body, code.count("\n") < _GROUP_LINES and not _ALIAS.search(code)
