"""The persistent bash, spoken to by a harness that plays stub (fork, exec, reap) and warden."""

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelbox.inside.bash import (
    SNAPSHOT_END,
    Again,
    BashTalk,
    Event,
    Fds,
    Finished,
    Interrupted,
    Ready,
    Started,
    command,
    environment,
    snapshot_code,
)

DEADLINE = 20.0
FDS = Fds()
# Says "up" once SIGINT no longer reaches it.
STUBBORN = (
    f"{sys.executable} -c 'import signal, time; signal.signal(2, signal.SIG_IGN);"
    ' print("up", flush=True); time.sleep(300)\''
)


@dataclass(frozen=True)
class Exited:
    """The shell's process has ended."""

    code: int


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what came out of it."""

    end: Event | Exited
    out: str
    err: str


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            found |= {child} | descendants(child)
    return found


def session(leader: int) -> set[int]:
    """The living members of a session, orphans included."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if int(stat[3]) == leader and stat[0] not in "ZX":
                found.add(int(name))
    return found


class Shell:
    """One real bash with the far ends of its pipes."""

    def __init__(self, cwd: Path, **more_environment: str) -> None:
        code_far, self.code = os.pipe()
        self.status, status_far = os.pipe()
        self.out, out_far = os.pipe()
        self.err, err_far = os.pipe()
        self.text = os.memfd_create("text")
        pairs = ((code_far, FDS.code), (self.text, FDS.text), (status_far, FDS.status))
        for ours, theirs in pairs:
            os.dup2(ours, theirs)
        self.process = subprocess.Popen(
            command(),
            stdin=subprocess.DEVNULL,
            stdout=out_far,
            stderr=err_far,
            pass_fds=[theirs for _, theirs in pairs],
            env=environment({**os.environ, "LC_ALL": "C.UTF-8", **more_environment}, FDS),
            cwd=cwd,
            start_new_session=True,
        )
        for fd in (code_far, status_far, out_far, err_far, *(theirs for _, theirs in pairs)):
            os.close(fd)
        self.talk = BashTalk()
        self.read: dict[int, bytes] = {self.out: b"", self.err: b""}
        self.before: set[int] = set()
        self.started = False
        self.agains = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def begin(self, code: str) -> None:
        self.before = descendants(self.pid)
        self.started = False
        send = self.talk.begin(code)
        os.ftruncate(self.text, 0)
        os.pwrite(self.text, send.text, 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(self.code, send.code)

    def end(self, seconds: float = DEADLINE) -> Outcome | None:
        """The end of the command, or None if it has not come in time."""
        last = time.monotonic() + seconds
        while time.monotonic() < last:
            gone = self.process.poll() is not None
            for event in self._turn():
                self._turn()
                return self._outcome(event)
            if gone:
                return self._outcome(Exited(self.process.returncode))
        return None

    def run(self, code: str) -> Outcome:
        self.begin(code)
        outcome = self.end()
        assert outcome is not None, f"{code[:200]!r} hangs"
        return outcome

    def seen(self, text: str) -> None:
        """Wait until the running command has written `text`."""
        last = time.monotonic() + DEADLINE
        while text.encode() not in self.read[self.out]:
            assert time.monotonic() < last, f"{text!r} was never written"
            assert not self._turn(), f"ended before it wrote {text!r}"

    def interrupt(self) -> None:
        last = time.monotonic() + DEADLINE
        while not self.started:
            assert time.monotonic() < last
            assert not self._turn()
        os.kill(self.pid, signal.SIGURG)
        for pid in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    def kill_foreground(self) -> None:
        os.kill(self.pid, signal.SIGURG)
        for pid in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def children(self) -> set[int]:
        """What the running command started, as opposed to the jobs of those before it."""
        return descendants(self.pid) - self.before

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        while rest := (descendants(self.pid) | session(self.pid)) - {self.pid}:
            for pid in rest:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process.poll() is None and not session(self.pid) - {self.pid}:
                break  # zombies of the stopped shell
        self.process.kill()
        self.process.wait(DEADLINE)
        for fd in (self.code, self.status, self.out, self.err, self.text):
            os.close(fd)

    def _turn(self) -> list[Event]:
        events: list[Event] = []
        fds = [self.status, self.out, self.err]
        while ready := select.select(fds, [], [], 0 if events else 0.01)[0]:
            for fd in ready:
                data = os.read(fd, 1 << 16)
                if not data:
                    fds.remove(fd)
                elif fd == self.status:
                    events += self._heard(data)
                else:
                    self.read[fd] += data
        return events

    def _heard(self, data: bytes) -> list[Event]:
        ends: list[Event] = []
        for event in self.talk.feed(data):
            match event:
                case Again():
                    self.agains += 1
                    os.write(self.code, event.code)
                case Started():
                    self.started = True
                case _:
                    ends.append(event)
        return ends

    def _outcome(self, end: Event | Exited) -> Outcome:
        out, err = (self.read[fd].decode() for fd in (self.out, self.err))
        self.read = {self.out: b"", self.err: b""}
        return Outcome(end, out, err)


Start = Callable[..., Shell]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts shells, and ends them with all they have started."""
    shells: list[Shell] = []

    def start(**more_environment: str) -> Shell:
        shell = Shell(tmp_path, **more_environment)
        shells.append(shell)
        up = shell.end()
        assert up is not None
        assert up.end == Ready()
        return shell

    yield start
    for shell in shells:
        shell.close()


@pytest.fixture
def shell(start: Start) -> Shell:
    return start()


# State


def test_directory_exports_functions_and_variables_survive(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    shell.run("cd there; x=5; export Y=6; greet() { echo hello $1; }; a=(1 '2 3'); set -- p q")
    outcome = shell.run('pwd; echo $x; sh -c "echo \\$Y"; greet you; echo "${a[1]}" $2')
    assert outcome == Outcome(Finished(0), f"{tmp_path}/there\n5\n6\nhello you\n2 3 q\n", "")


def test_declare_is_global_and_break_breaks_nothing_of_ours(shell: Shell) -> None:
    assert shell.run("declare x=1; break; continue 2; echo on").out == "on\n"
    assert shell.run("echo $x; local y=1").out == "1\n"


def test_the_exit_code_of_the_last_command_is_the_exit_code(shell: Shell) -> None:
    assert shell.run("true; false").end == Finished(1)
    assert shell.run("(exit 42)").end == Finished(42)
    assert shell.run("nothing-of-this-name").end == Finished(127)
    assert shell.run("false\ntrue").end == Finished(0)


def test_the_status_of_the_previous_command_is_visible(shell: Shell) -> None:
    shell.run("(exit 42)")
    assert shell.run("echo $?").out == "42\n"
    assert shell.run("echo $?").out == "0\n"


@pytest.mark.parametrize("option", ["e", "u", "x", "a", "f", "o pipefail", "o posix"])
def test_options_survive_and_do_not_show_our_own_code(shell: Shell, option: str) -> None:
    shell.run(f"set -{option}")
    outcome = shell.run("echo hi; (exit 3) || echo $?")
    assert (outcome.end, outcome.out) == (Finished(0), "hi\n3\n")
    assert "__kb" not in outcome.err
    name = {"e": "errexit", "u": "nounset", "x": "xtrace", "a": "allexport", "f": "noglob"}
    assert shell.run(f"shopt -qo {name.get(option, option[2:])}").end == Finished(0)


def test_background_jobs_survive_and_can_be_waited_for(shell: Shell) -> None:
    started = shell.run("sleep 300 & echo $!")
    assert started.err == ""
    assert shell.run("true; /bin/true; jobs -p").out == started.out
    assert "Running" in shell.run("jobs").out
    assert shell.run("kill %1; wait %1").end == Finished(143)
    shell.run("(sleep 0.05; exit 9) &")
    assert shell.run("wait $!").end == Finished(9)


def test_programs_that_ended_are_not_jobs(shell: Shell) -> None:
    assert shell.run("/bin/true; /bin/false; jobs").out == ""
    assert shell.run("sleep 300 & jobs | cut -c 1-3; kill %1").out == "[1]\n"


# Standard input and descriptors


def test_cat_ends_at_once_and_eats_nothing(shell: Shell) -> None:
    assert shell.run("cat; echo after").out == "after\n"
    assert shell.run("read x; echo $?").out == "1\n"
    assert shell.run("exec </etc/passwd; head -c 4").out == "root"
    assert shell.run("cat").out == ""
    assert shell.run("exec <&-").end == Finished(0)
    assert shell.run("cat").end == Finished(0)


def test_children_do_not_inherit_private_descriptors(shell: Shell) -> None:
    listing = shell.run("ls /proc/self/fd; exec 7</dev/null; ls /proc/self/fd").out.split()
    assert sorted(set(listing), key=int) == ["0", "1", "2", "3", "7"]
    assert shell.run("bash -c 'ls /proc/$$/fd' | cat").out.split() == ["0", "1", "2", "3", "7"]


def test_private_descriptors_survive_the_closing_of_the_low_ones(shell: Shell) -> None:
    assert shell.run("for i in {3..255}; do eval exec $i'<&-'; done").end == Finished(0)
    assert shell.run("exec 10>/dev/null 11<&1 3<&-; echo on").out == "on\n"


def test_redirections_of_the_shell_itself_last(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("exec 2>errors; nothing-of-this-name").err == ""
    assert shell.run("echo $?").out == "127\n"
    assert "nothing-of-this-name" in (tmp_path / "errors").read_text()
    assert shell.run("exec >&-; echo lost").end == Finished(1)
    assert shell.run("true").end == Finished(0)


@pytest.mark.parametrize("fd", [FDS.code, FDS.text, FDS.status])
def test_loss_of_a_private_descriptor_ends_the_shell(shell: Shell, fd: int) -> None:
    outcome = shell.run(f"exec {fd}<&-")
    if outcome.end == Finished(0):
        outcome = shell.run("echo never")
    assert outcome.end == Exited(125)
    assert outcome.out == ""


def test_all_output_is_there_when_the_end_is_reported(shell: Shell) -> None:
    for size in (1, 70_000, 3_000_000):
        assert len(shell.run(f"head -c {size} /dev/zero | tr '\\0' x").out) == size


# Texts


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ("", ""),
        ("\n\n", ""),
        ("# nothing", ""),
        ("echo a # remark", "a\n"),
        ("echo a \\", "a\n"),
        ("echo a\necho b\n", "a\nb\n"),
        ("cat <<E\nx $((1+1))\nE", "x 2\n"),
        ("cat <<'E'\n$x\nE\n", "$x\n"),
        ("if true\nthen echo '}'\nfi", "}\n"),
        ("echo $LINENO\n\necho $LINENO", "1\n3\n"),
        ("echo héllo 日本 🎉", "héllo 日本 🎉\n"),
        ("shopt -s extglob\necho $'x' | grep -c x; [[ ab == a!(c) ]] && echo y", "1\ny\n"),
        ("alias hi='echo hi'\nhi there", "hi there\n"),
        ("return 0\necho no", ""),
        ("echo ${BASH_VERSION:0:1}$'\\t'!", "5\t!\n"),
    ],
)
def test_texts_of_all_kinds_run_as_written(shell: Shell, code: str, out: str) -> None:
    assert shell.run(code) == Outcome(Finished(0), out, "")


def test_an_alias_is_known_to_the_next_command(shell: Shell) -> None:
    shell.run("alias hi='echo hi'")
    assert shell.run("hi there").out == "hi there\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("echo a\n)", 2, "bash: eval: line 2: syntax error near unexpected token `)'"),
        ("true\necho 'abc", 2, "bash: eval: line 2: unexpected EOF"),
        ("for x in 1; do", 2, "bash: eval: line 2: syntax error: unexpected end of file"),
        ("cat <<E\nabc", 0, "bash: warning: here-document at line 1 delimited by end-of-file"),
        ("nothing-of-this-name", 127, "bash: nothing-of-this-name: command not found"),
        ("cd /nowhere", 1, "bash: cd: /nowhere: No such file or directory"),
        ("echo ${x:?missing}\necho no", 1, "bash: x: missing"),
        ("set -u\necho $nope\necho no", 1, "bash: nope: unbound variable"),
        ("echo $((1/0))\necho no", 1, "bash: 1/0: division by 0"),
        ("return 3", 3, ""),
    ],
)
def test_mistakes_end_the_command_and_not_the_shell(
    shell: Shell, code: str, exit_code: int, said: str
) -> None:
    shell.run("x=; unset x; kept=1")
    outcome = shell.run(code)
    assert outcome.end == Finished(exit_code)
    assert outcome.err.startswith(said)
    assert "no" not in outcome.out
    assert "/proc" not in outcome.err
    assert shell.run("echo $? $kept").out == f"{exit_code} 1\n"


def test_ten_megabytes_of_code_run(shell: Shell) -> None:
    lines = "x=1 # " + "y" * 90 + "\n"
    assert shell.run(lines * 100_000 + "echo end").out == "end\n"
    data = ("z" * 99 + "\n") * 100_000
    assert shell.run(f"wc -c <<E\n{data}E\necho end").out == "10000000\nend\n"


@pytest.mark.parametrize("code", ["a\0b", "echo \ud800"])
def test_what_bash_cannot_read_is_refused_before_anything_runs(shell: Shell, code: str) -> None:
    with pytest.raises(ValueError, match="bash code"):
        shell.talk.begin(code)
    assert shell.run("echo on").out == "on\n"


# Ends of the shell


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("exit 7", 7),
        ("set -e; false; echo no", 1),
        ("exec sh -c 'exit 5'", 5),
        ("trap 'echo bye' EXIT; exit 3", 3),
        ("kill -9 $$", -9),
    ],
)
def test_the_end_of_the_shell_is_its_exit(shell: Shell, code: str, exit_code: int) -> None:
    outcome = shell.run(code)
    assert outcome.end == Exited(exit_code)
    assert outcome.out == ("bye\n" if "bye" in code else "")


def test_errexit_spares_what_it_spares_in_a_script(shell: Shell) -> None:
    assert shell.run("set -e; false || echo spared; false && true").end == Finished(1)
    assert shell.run("echo $?").out == "1\n"


def test_the_end_of_the_other_side_ends_the_shell(start: Start) -> None:
    shell = start()
    spare, shell.code = shell.code, os.open(os.devnull, os.O_WRONLY)
    os.close(spare)
    outcome = shell.end()
    assert outcome is not None
    assert outcome.end == Exited(125)


# Interrupts


@pytest.mark.parametrize(
    "code",
    [
        "while :; do :; done",
        "for i in 1 2 3; do sleep 300; done",
        "sleep 300",
        "sleep 300; echo no",
        "sleep 300 | cat",
        "(sleep 300)",
        "y=$(sleep 300)",
        "f() { while :; do sleep 1; done; }; f",
        "sleep 300 & wait",
        "sleep 300 & wait $!; echo no",
        "read y < <(sleep 300)",
        "timeout 200 sleep 300; echo no",
        "bash -c 'while :; do sleep 1; done'",
        "set -e; sleep 300",
        "set -x; sleep 300",
        "set -m; sleep 300",
        "mapfile y < <(sleep 300)",
        "mkfifo pipe; exec 5<>pipe; read y <&5",
        f"while :; do {sys.executable} -c 'import time; time.sleep(300)' 2>/dev/null; done",
    ],
)
def test_an_interrupt_ends_the_command_and_the_shell_lives(shell: Shell, code: str) -> None:
    shell.run("x=kept")
    shell.begin(f"echo up\n{code}\necho no")
    shell.seen("up")
    shell.interrupt()
    while (outcome := shell.end(0.5)) is None:  # it came before the program was started
        shell.interrupt()
    assert outcome.end == Interrupted(130)
    assert outcome.out == "up\n"
    assert shell.run("set +exm; echo $?").end == Finished(0)
    assert shell.run("echo $x").out == "kept\n"


def test_the_status_of_an_interrupted_command_is_130(shell: Shell) -> None:
    shell.begin("echo up; while :; do :; done")
    shell.seen("up")
    shell.interrupt()
    assert shell.end() is not None
    assert shell.run("echo $?").out == "130\n"


def test_background_jobs_survive_an_interrupt(shell: Shell) -> None:
    job = shell.run("sleep 300 & echo $!").out
    shell.begin("sleep 300 & echo up; sleep 300")
    shell.seen("up")
    while shell.end(0.2) is None:
        shell.interrupt()
    assert job in shell.run("jobs -rp").out
    assert len(shell.run("jobs -rp").out.split()) == 2


def test_an_interrupt_of_an_idle_shell_does_nothing(shell: Shell) -> None:
    for number in (signal.SIGINT, signal.SIGURG) * 5:
        os.kill(shell.pid, number)
        assert shell.run("echo on").out == "on\n"


def test_an_interrupt_right_after_the_start_ends_the_command(shell: Shell) -> None:
    for code in ("while :; do :; done", "sleep 300", "x=1\n" * 900 + "sleep 300") * 30:
        shell.begin(code)
        shell.interrupt()
        while (outcome := shell.end(0.1)) is None:  # it came before the program was started
            shell.interrupt()
        assert outcome.end == Interrupted(130)


def test_a_graceful_program_ends_the_command_with_it(shell: Shell) -> None:
    """Bash alone would carry on, for the program didn't die of the signal."""
    graceful = "import time\ntry: print('up', flush=True); time.sleep(300)\n"
    graceful += "except KeyboardInterrupt: print('bye')"
    shell.begin(f'{sys.executable} -c "{graceful}"; echo no')
    shell.seen("up")
    shell.interrupt()
    outcome = shell.end()
    assert outcome is not None
    assert (outcome.end, outcome.out) == (Interrupted(130), "up\nbye\n")


def test_a_shell_that_hangs_itself_is_interrupted_directly(shell: Shell) -> None:
    shell.begin("mkfifo pipe; echo up; read y <pipe; echo no")
    shell.seen("up")
    shell.interrupt()
    assert shell.end(0.2) is None
    os.kill(shell.pid, signal.SIGINT)
    outcome = shell.end()
    assert outcome is not None
    assert (outcome.end, outcome.out) == (Interrupted(130), "up\n")


def test_interrupts_at_the_worst_moment_neither_hang_nor_hit_the_next(shell: Shell) -> None:
    chance = random.Random(7)

    def interrupt() -> None:
        os.kill(shell.pid, signal.SIGURG)
        for pid in shell.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    codes = ["true", "false", "/bin/true", "sleep 0.003", "x=$(echo hi)", "(exit 3)", ""]
    expected = [0, 1, 0, 0, 0, 3, 0]
    for turn in range(300):
        late = turn % 2 == 0
        if late:  # meant for the command before, which has just ended
            interrupt()
        shell.begin(f"n={turn}; {codes[turn % 7]}")
        if not late:
            time.sleep(chance.random() * 0.004)
            interrupt()
        outcome = shell.end()
        assert outcome is not None
        if late:
            assert outcome.end == Finished(expected[turn % 7])
    assert shell.run("echo $n").out == "299\n"
    assert shell.agains > 0


@pytest.mark.parametrize(
    "code",
    [
        STUBBORN,
        f"{STUBBORN}; echo no",
        f"for i in 1 2 3; do {STUBBORN}; done",
        f"{STUBBORN} | cat; echo no",
        f"({STUBBORN}); echo no",
        f"y=$({STUBBORN} | tee /proc/$$/fd/1); echo no",
    ],
)
def test_a_program_that_ignores_interrupts_is_killed_and_the_shell_lives(
    shell: Shell, code: str
) -> None:
    job = shell.run("x=kept; sleep 300 & echo $!").out
    shell.begin(f"{code}\necho no")
    shell.seen("up")
    shell.interrupt()
    assert shell.end(0.2) is None
    shell.kill_foreground()
    outcome = shell.end()
    assert outcome is not None
    assert isinstance(outcome.end, Interrupted)
    assert outcome.end.exit_code in (130, 137)
    assert outcome.out == "up\n"
    assert shell.run("echo $x; jobs -rp").out == f"kept\n{job}"


def test_a_shell_that_ignores_interrupts_can_still_lose_its_program(shell: Shell) -> None:
    shell.begin("trap '' INT; echo up; sleep 300; echo after")
    shell.seen("up")
    shell.interrupt()
    assert shell.end(0.2) is None
    shell.kill_foreground()
    outcome = shell.end()
    assert outcome is not None
    assert outcome.end == Finished(0)
    assert outcome.out == "up\nafter\n"


def test_a_trap_of_the_user_is_run(shell: Shell) -> None:
    shell.begin("trap 'echo caught' INT; echo up; while :; do :; done")
    shell.seen("up")
    shell.interrupt()
    shell.seen("caught")
    os.kill(shell.pid, signal.SIGKILL)
    outcome = shell.end()
    assert outcome is not None
    assert outcome.end == Exited(-9)


# What users do to the parts we use


@pytest.mark.parametrize(
    "code",
    [
        "unset PROMPT_COMMAND",
        "PROMPT_COMMAND=true",
        "PROMPT_COMMAND=(true true)",
        "PS1='prompt> '; PS2='more> '; PS4='trace> '",
        "IFS=0123456789",
        "TMOUT=1; sleep 1.1",
        "printf() { echo fake; }; read() { echo fake; }; exec() { echo fake; }",
        "builtin() { echo fake; }; command() { echo fake; }",
        "shopt -s nocasematch failglob nullglob",
        "trap 'echo debug' DEBUG >/dev/null; :",
        "set -v",
        "ulimit -n 20",
        "unset LINENO BASH_SOURCE 2>/dev/null; :",
    ],
)
def test_tampering_does_not_disturb_the_conversation(shell: Shell, code: str) -> None:
    assert shell.run(f"{{ {code}; }} >/dev/null").end == Finished(0)
    assert shell.run("echo on; builtin :; (exit 3)") == Outcome(Finished(3), "on\n", "")
    assert shell.run('echo "$?"') == Outcome(Finished(0), "3\n", "")


def test_the_environment_of_the_caller_cannot_set_the_shell_up(start: Start) -> None:
    shell = start(
        PROMPT_COMMAND="echo prompt", PS1="> ", SHELLOPTS="xtrace", TMOUT="1", HISTFILE="h", K="v"
    )
    assert shell.run("sleep 1.1; echo $K; env | grep -c -e ^PROMPT -e ^PS1 -e ^__kb") == Outcome(
        Finished(1), "v\n0\n", ""
    )


def test_nothing_is_written_to_a_history(start: Start, tmp_path: Path) -> None:
    shell = start(HOME=str(tmp_path))
    shell.run("echo !!; history")
    assert shell.run("exit").end == Exited(0)
    assert list(tmp_path.iterdir()) == []


# Snapshots


def test_a_snapshot_makes_a_new_shell_take_over(start: Start, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    old, new = start(), start()
    old.run(
        "cd there; umask 027; x=$'a b\\nc'; declare -A m=([k 1]='v w'); export E=é; set -- p 'q r'"
    )
    old.run("f() { echo \"f $1\"; }; export -f f; alias hi='echo hi'; shopt -s extglob")
    old.run("g() { [[ $1 == +(a) ]] && echo plus; }; readonly R=7; set -o pipefail; (exit 4)")
    assert old.run(snapshot_code(FDS)) == Outcome(Finished(4), "", "")
    text = os.pread(old.text, 1 << 20, 0)
    assert text.endswith(SNAPSHOT_END)
    assert new.run(text.decode()) == Outcome(Finished(0), "", "")
    asked = new.run(
        'pwd; echo "$x" "${m[k 1]}" $E "$2" $R; f 1; hi 2; g aa; umask; bash -c "f 3"; false | true'
    )
    expected = f"{tmp_path}/there\na b\nc v w é q r 7\nf 1\nhi 2\nplus\n0027\nf 3\n"
    assert asked == Outcome(Finished(1), expected, "")
    assert old.run("echo $?; echo $x").out == "4\na b c\n"


# The parser of what the shell says


def test_reports_are_understood_in_pieces() -> None:
    talk = BashTalk()
    assert talk.feed(b"0 0 ") == []
    assert talk.feed(b"R") == []
    assert talk.feed(b"\n") == [Ready()]
    assert talk.idle
    talk.begin("true")
    assert [event for byte in b"1 42 F\n" for event in talk.feed(bytes([byte]))] == [Finished(42)]
    talk.begin("true")
    assert talk.feed(b"1 42 R\n") == [Again()]
    assert talk.feed(b"2 0 S\n2 130 I\n2 130 R\n") == [Started(), Interrupted(130)]
    assert talk.idle


def test_forged_reports_are_ignored() -> None:
    talk = BashTalk()
    talk.feed(b"0 0 R\n")
    talk.begin("true")
    assert talk.feed(b"9 0 F\nnonsense\n1 0 X\n\n1 0\n" + b"x" * 100_000) == []
    assert talk.feed(b"\n1 3 F\n") == [Finished(3)]
    assert talk.feed(b"1 0 F\n") == []


def test_a_second_command_is_refused_while_one_runs() -> None:
    talk = BashTalk()
    with pytest.raises(RuntimeError, match="not idle"):
        talk.begin("true")
    talk.feed(b"0 0 R\n")
    talk.begin("true")
    with pytest.raises(RuntimeError, match="not idle"):
        talk.begin("true")
