"""The interpreter: one thread that reads requests from its lifeline and runs them."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import random
import resource
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from kernelbox.inside import forking, linux, reaping
from kernelbox.inside.changes import Folder, copy_folder
from kernelbox.inside.channel import open_channel
from kernelbox.inside.comms import Comms
from kernelbox.inside.eventloop import UserLoop
from kernelbox.inside.faces import recolour, wear
from kernelbox.inside.interrupts import Interrupts
from kernelbox.inside.lifeline import Lifeline, LifelineClosed
from kernelbox.inside.outlets import Outlets, Stream
from kernelbox.inside.pools import threads_at_work, track_executors
from kernelbox.inside.questions import answer
from kernelbox.inside.shell import KernelFacade, Shell, outbox
from kernelbox.inside.workingset import Lesson, WorkingSet, make_room
from kernelbox.wire import Decoder, Frame, GarbledFrame, encode

DUMP_SIGNAL = signal.SIGRTMAX - 2
"""Makes faulthandler write every thread's stack to the dump pipe, whoever holds the GIL."""

LIFELINE, STDOUT, STDERR, DUMP = range(4)
_PRIVATE_FDS_FROM = 500
_MOST_FAILURES = 20
_LONGEST_HOOKS = 10.0


class Interpreter:
    """A shell, its lifeline and its pipes. Made in the root; attached after the fork."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.interrupts = Interrupts()
        self.user_loop = UserLoop()
        self.comms = Comms()
        self.pid = 0
        self.pages = WorkingSet()
        self.hooks_matter = False
        """Whether modules that we do not know may want to hear of a fork."""
        self.preload: tuple[str, ...] = ()
        """What has been imported ahead: another that is to be like this one needs it, too."""
        self.soft_memory = 0
        """Bytes at which a cell gets a MemoryError; 0: when the system says so."""
        self._private: list[int] = []
        self._alarm: Any = None
        self.forking = False
        shell.kernel = KernelFacade(self.comms)
        shell.loop_runner = self.user_loop.run
        shell.loop_runner_map["asyncio"] = (self.user_loop.run, True)

    def install(self) -> None:
        """What can be done once, in the root, for every interpreter that is forked from it."""
        self.user_loop.install()
        track_executors()
        reaping.install()
        self.comms.install()
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_in_parent,
            after_in_child=self._after_fork_in_child,
        )
        warnings.filterwarnings("ignore", message="To exit: use", category=UserWarning)

    def attach(self, fds: list[int], token: str) -> None:
        """Take over the far ends that the warden made: lifeline, both pipes, the dump pipe."""
        self.pid = os.getpid()
        # High numbers, so that a cell that closes "all" descriptors up to 100 or so misses them.
        self._private = [
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _PRIVATE_FDS_FROM + i)
            for i, fd in enumerate(fds)
        ]
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(self._private[STDOUT], 1)
        os.dup2(self._private[STDERR], 2)
        for fd in {*fds, null} - {0, 1, 2}:
            os.close(fd)
        fds.clear()
        self.outlets = Outlets(self._private[STDOUT], self._private[STDERR], token)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=self._private[LIFELINE])
        self.lifeline = Lifeline(sock, self.outlets, self.interrupts)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = Stream(self.outlets, 0)  # type: ignore[misc, assignment]
        sys.stderr = sys.__stderr__ = Stream(self.outlets, 1)  # type: ignore[misc, assignment]
        outbox.lifeline = self.lifeline
        self.comms.attach(self.lifeline)
        self.interrupts.install()
        faulthandler.enable(file=self._private[STDERR])
        faulthandler.register(DUMP_SIGNAL, file=self._private[DUMP], all_threads=True)
        self.lifeline.send({"op": "hello", "pid": self.pid})

    def descriptors(self) -> set[int]:
        """Those that are ours and not the session's."""
        return {*self._private, *self.user_loop.descriptors()}

    def leave_channel(self) -> None:
        """In a copy: the original's lifeline and pipes are none of its business."""
        faulthandler.disable()
        faulthandler.unregister(DUMP_SIGNAL)
        self.lifeline.detach()
        for fd in self._private[STDOUT:]:
            os.close(fd)
        self._private = []

    def be_silent(self) -> None:
        """In a copy that is parked: nothing it may still print goes anywhere."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)

    def settle(self, frame: Frame) -> None:
        """In a copy that becomes a kernel of its own: what it is to have of its own."""
        if frame.get("environ"):
            _take_environment(frame["environ"])
        if folder := frame.get("workspace"):
            copy_folder(os.getcwd(), folder)
        if folder := folder or frame.get("cwd"):
            with contextlib.suppress(OSError):
                os.chdir(folder)
        if frame.get("reseed"):
            reseed(self.shell.user_ns)

    def run(self) -> None:
        """Serve requests until the warden is gone."""
        try:
            while True:
                frame, fds = self._next_frame()
                self._handle(frame, fds)
        except LifelineClosed:
            linux.flush_c_buffers()
            os._exit(0)

    def _next_frame(self) -> tuple[Frame, list[int]]:
        failures = 0
        while not self.lifeline.has_frame:
            try:
                reaping.collect_until(lambda: self.lifeline.wait(reaping.PAUSE))
                # A loop that a cell has broken for good must not keep us from our requests.
                if self.user_loop.wanted and failures < _MOST_FAILURES:
                    self.user_loop.run_until_readable(self.lifeline.fileno())
                else:
                    self.lifeline.wait()
                break
            except KeyboardInterrupt:
                continue
            except BaseException:
                # asyncio lets SystemExit of a task through, and a signal handler of the user's
                # (an alarm) may raise anything while we wait; neither may end the interpreter.
                failures += 1
                words = f"raised while no cell was running:\n{traceback.format_exc()}"
                print(words, end="", file=sys.stderr)
        return self.lifeline.receive()

    def _handle(self, frame: Frame, fds: list[int]) -> None:
        match frame["op"]:
            case "run":
                if fds and not self._guarded(frame, fds):
                    return
                self._run_cell(frame)
            case "ask":
                frame["busy"] = self.user_loop.busy or threads_at_work()
                content = answer(self.shell, self.comms, frame, self.interrupts, fds)
                said = {"op": "answer", "turn": frame.get("turn")}
                try:
                    self.lifeline.send({**said, "content": content})
                except GarbledFrame:
                    words = "the answer is too large to be sent"
                    failure = {"status": "error", "ename": "ValueError", "evalue": words}
                    self.lifeline.send({**said, "content": failure})
            case "begin":
                self._begin(frame)
                self.lifeline.send({"op": "begun"})
            case "prime":
                self._prime()
                self.lifeline.send({"op": "primed"})
            case "branch":
                forking.branch(self, frame, fds)
            case "checkpoint":
                forking.checkpoint(self, frame, fds)
            case "packages" | "installed":
                self._take_packages(frame.get("folder"))
            case _:
                pass  # an input reply that came after the cell stopped waiting for it

    def _take_packages(self, folder: str | None) -> None:
        """The host has installed something, or had before this interpreter came."""
        from kernelbox.inside import packages

        if folder:
            with contextlib.suppress(Exception):  # a cell may have made anything of sys.path
                packages.take(folder)

    def _guarded(self, frame: Frame, fds: list[int]) -> bool:
        """Park a copy before a cell that may have to be undone. False: it must not be run, here
        or at all."""
        try:
            facts = forking.park(self, fds, watch=_watched(frame))
        except Exception as error:
            words = str(error) if isinstance(error, forking.Refused) else repr(error)
            facts = {"refused": words}
        if facts is None:
            return False  # the successor: for it, the cell has never been
        self.lifeline.send({"op": "guarded", "turn": frame.get("turn"), **facts})
        return "refused" not in facts or not frame.get("atomic")

    def _run_cell(self, frame: Frame) -> None:
        shell = self.shell
        face = frame.get("face", "text")
        wear(shell, face)
        outbox.face = face
        outbox.stdin_allowed = bool(frame.get("stdin"))
        outbox.error = None
        shell.kernel.parent = frame.get("parent") or {}
        for name in ("stdout", "stderr"):
            # IPython itself writes there: without, no cell would run ever again.
            if not hasattr(getattr(sys, name, None), "write"):
                setattr(sys, name, getattr(sys, f"__{name}__"))
        self.user_loop.before_cell()
        count = shell.execution_count
        silent = bool(frame.get("silent"))
        turn = outbox.turn = frame.get("turn")
        reply: dict[str, Any] = {"op": "done", "turn": turn, "execution_count": count}
        try:
            with self.interrupts.cell():
                # An interrupt that comes before this word would be taken for a late one.
                self.lifeline.send({"op": "running", "turn": turn})
                with self._soft_memory():
                    result = shell.run_cell(
                        frame["code"],
                        store_history=bool(frame.get("store_history", True)) and not silent,
                        silent=silent,
                    )
                reply["ok"] = bool(result.success)
                if result.success and frame.get("user_expressions"):
                    reply["user_expressions"] = shell.user_expressions(frame["user_expressions"])
                failure = result.error_before_exec or result.error_in_exec
        except BaseException as error:
            # An interrupt between IPython's own lines, or a failure of IPython itself.
            self.interrupts.stop()
            reply["ok"] = False
            failure = KeyboardInterrupt() if self.interrupts.struck else error
        if os.getpid() != self.pid:
            # os.fork() in the cell: the copy must not come back as a second interpreter.
            linux.flush_c_buffers()
            os._exit(_exit_code(failure))
        if failure is not None:
            reply["error"] = outbox.error_of(failure)
            if isinstance(failure, MemoryError) and self.soft_memory:
                reply["error"] = self._name_limit(reply["error"])
        outbox.stdin_allowed = False
        if shell.payload_manager is not None:
            reply["payload"] = shell.payload_manager.read_payload()
            shell.payload_manager.clear_payload()
        linux.flush_c_buffers()
        self.outlets.repair()
        self.lifeline.send(reply)

    @contextlib.contextmanager
    def _soft_memory(self) -> Iterator[None]:
        """While a cell runs, and not longer: our own code must be able to tell of it."""
        if not self.soft_memory:
            yield
            return
        from kernelbox.walls import rlimits

        rlimits.soft_memory(self.soft_memory)
        try:
            yield
        finally:
            rlimits.lift_soft_memory()

    def _name_limit(self, error: dict[str, Any]) -> dict[str, Any]:
        words = (
            f"this sandbox has {self.soft_memory >> 20:,} MiB for a cell (soft_memory of its "
            "profile); variables are kept: delete some, or work in pieces"
        )
        told = f"{error['evalue']}; {words}" if error["evalue"] else words
        return {
            **error,
            "evalue": told,
            "traceback": [*error["traceback"], f"MemoryError: {words}"],
        }

    def _begin(self, frame: Frame) -> None:
        """Become the caller's kernel: their folder, their environment, a seed of our own."""
        _take_environment(frame["environ"])
        recolour()
        with contextlib.suppress(OSError):  # the warden has noted why
            os.chdir(frame["cwd"])
        self.shell.user_ns["_dh"][:] = [os.getcwd()]  # where `%cd -` leads back to
        _lower_open_files(frame.get("open_files"))
        self.soft_memory = frame.get("soft_memory") or 0
        if sys.path[:1] != [""]:
            sys.path.insert(0, "")
        sys.argv = [""]
        reseed()

    def lesson(self) -> Lesson:
        """In the root: which pages a fork writes to until its first result."""

        channel = open_channel()

        def play() -> None:
            self.attach(channel.far, channel.token)
            self.run()

        def direct() -> None:
            decoder = Decoder()
            channel.lifeline.sendall(
                encode({"op": "begin", "environ": dict(os.environ), "cwd": "/"})
                + encode({"op": "run", "code": "1+1"})
            )
            while not any(
                frame["op"] == "done" for frame in decoder.feed(channel.lifeline.recv(1 << 16))
            ):
                pass

        try:
            return Lesson(play, direct)
        finally:
            channel.close_far()
            channel.close_near()

    def _prime(self) -> None:
        """Pay the price of a first cell ahead: the pages it writes to become our own."""
        lifeline = self.lifeline
        self.lifeline = outbox.lifeline = _Sink()  # type: ignore[assignment]
        try:
            with _silence():
                self._begin({"environ": dict(os.environ), "cwd": "/"})
                for code in FIRST_CELL:
                    self._run_cell({"code": code})
        finally:
            self.lifeline = outbox.lifeline = lifeline
            _forget_cells(self.shell)
        make_room()

    def _limit_hooks(self) -> None:
        """In a copy, before hooks of the user's have their turn: one that hangs must not stay for
        ever. (It must not end with its parent: the moment is to outlive it.)"""
        self._alarm = signal.getsignal(signal.SIGALRM)
        if self._alarm is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, _LONGEST_HOOKS)

    def hooks_are_over(self) -> None:
        if self._alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._alarm)

    def _before_fork(self) -> None:
        if self.pid:
            self.outlets.lock.acquire()

    def _after_fork_in_parent(self) -> None:
        if self.pid:
            self.outlets.lock.release()

    def _after_fork_in_child(self) -> None:
        if self.pid:
            self.outlets.lock.release()
            if self.forking:
                self._limit_hooks()
            else:
                # A child that user code forked: no lifeline, no marks; stdout is plain fd 1.
                self.lifeline.detach()
                self.outlets.marking = False


def _watched(frame: Frame) -> Folder | None:
    if not frame.get("atomic"):
        return None
    return Folder(besides=frame.get("not_watched") or ())


def _take_environment(environ: dict[str, str]) -> None:
    wanted = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
    here = dict(os.environb)
    for variable in here.keys() - wanted.keys():
        del os.environb[variable]
    for variable, value in wanted.items() - here.items():
        os.environb[variable] = value
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    for pager in ("PAGER", "GIT_PAGER"):
        os.environ[pager] = "cat"  # nobody turns the pages
    if "TZ" in os.environ:
        time.tzset()


def _exit_code(failure: BaseException | None) -> int:
    """What a process that ended with this exception tells its parent."""
    code = failure.code if isinstance(failure, SystemExit) else failure and 1
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def reseed(namespace: dict[str, Any] | None = None) -> None:
    """A new kernel's random numbers are its own, not its siblings'; nor are those of the generators
    that are variables of it."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return
    numpy_random.seed()
    for value in list((namespace or {}).values()):
        if isinstance(value, numpy_random.Generator):
            value.bit_generator.state = type(value.bit_generator)().state
        elif isinstance(value, numpy_random.RandomState):
            value.seed()


def _lower_open_files(limits: list[int] | None) -> None:
    if limits:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        soft = min(limits[0], hard)
        # Never below our own private descriptors.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _PRIVATE_FDS_FROM + 24), hard))


FIRST_CELL = ("1+1", "print(1)")
LATER_CELLS = ("1/0", "import asyncio\nawait asyncio.sleep(0)")


def warm_up(shell: Shell, cells: Sequence[str]) -> None:
    """Run what a kernel's cells run, and leave no trace of it."""
    with _silence():
        for code in cells:
            shell.run_cell(code, store_history=True)
    _forget_cells(shell)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with (
        open(os.devnull, "w") as sink,
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        yield


def _forget_cells(shell: Shell) -> None:
    shell.reset(new_session=True)
    shell.execution_count = 1
    if shell.history_manager is not None:
        shell.history_manager.reset(new_session=True)
    outbox.error = None


class _Sink:
    """A lifeline that leads nowhere, for cells that are run for practice."""

    open = True

    def send(self, frame: Frame) -> None:
        encode(frame)
