"""Box, which every entrance calls: the kernels of a home.

Here is what can be asked, and what it means; what is asked of whom is in ``client/``. ``api.py``
and ``async_box.py`` are written from this file: ``python scripts/make_api.py`` after a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from kernelbox.client import blocking, creating, executing, kernels
from kernelbox.client.calls import Calls
from kernelbox.client.meaning import KernelKey, KernelLike, OnInput, ProfileLike, Repair
from kernelbox.config import Settings
from kernelbox.result import (
    Checkpoint,
    Event,
    ExecutionResult,
    InstallReport,
    KernelRecord,
    OutputItem,
    OutputMatch,
    OutputPage,
    SaveReport,
)


class Box:
    """A home of named kernels. Safe to share between threads; nothing runs until it is asked.

    A kernel is meant by its record, its name or its id.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """``settings`` default to the environment as it is now.

        ``Settings.from_environment(execution_timeout=5)`` changes one and keeps the rest.
        """
        self.settings = settings or Settings.from_environment()
        self._calls = Calls(self.settings)
        self._driver = blocking.BlockingDriver()

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Kernels live on."""
        self._driver.lines.close()

    def get_or_create(
        self,
        name: str,
        *,
        session_name: str | None = None,
        tags: Mapping[str, Any] | list[str] | None = None,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        template: KernelLike | None = None,
        profile: ProfileLike | None = None,
    ) -> KernelRecord:
        """The live kernel of that name, made if it is not there.

        A kernel that is there is returned as it is: the other arguments are for a new one only. A
        new one starts in ``cwd`` (this process's folder by default) with ``environ``, which
        replaces the whole environment (this process's by default); start from ``dict(os.environ)``
        to add to it. ``tags`` and ``session_name`` mean nothing to us; they come back in the
        record. With a ``template``, the new kernel is a copy of that live kernel, data and all,
        made in milliseconds; it reaches neither the processes nor the sockets of its template.

        ``profile`` puts walls around the kernel: ``"restrictive"`` and its like, a ``Profile`` or a
        file with one (``KERNELBOX_PROFILE`` by default, which is ``"open"``: none). Walls that
        cannot be built are refused with the reason.

        If a kernel of that name ended by itself before, the ``state`` of the new one's record is
        ``"lost"`` and its ``cause`` says why. Raises :class:`StartupFailed` if it does not come up.
        """
        return self._driver.run(
            creating.get_or_create(
                self._calls,
                name,
                session_name=session_name,
                tags=tags,
                cwd=cwd,
                environ=environ,
                template=template,
                profile=profile,
            )
        )

    def execute(
        self,
        kernel: KernelLike,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        execution_id: str | None = None,
        atomic: bool = False,
        on_input: OnInput | None = None,
        on_disconnect: str | None = None,
        idempotency_key: str | None = None,
    ) -> ExecutionResult:
        """Run code in a kernel and wait for its result. Cells that came earlier go first.

        What the code does wrong is in the result: an exception, a crash and a timeout do not raise.
        Only our own failures do, as a :class:`BoxError`. Ctrl-C here interrupts the cell.

        - ``language``: ``"python"``, or ``"bash"`` for the one bash session that each kernel has.
        - ``timeout``: seconds that the cell may run (default: ``KERNELBOX_EXECUTION_TIMEOUT``).
          They count from when it starts; waiting behind other cells is not counted. A cell that is
          late is interrupted and, if that does not help, killed, which loses the variables.
        - ``expect_epoch``: run only if the kernel is at this epoch (see ``result.epoch``). If it is
          not, nothing is run and :class:`EpochMismatch` is raised.
        - ``execution_id``: what to call this execution in :func:`cancel` and :func:`output`
          (letters, digits, ``-``, ``_``, ``.``). By default one is made up; the result has it.
        - ``atomic``: if the cell fails in any way (an exception, a timeout, a crash), the kernel is
          as it was before: ``result.state`` is ``"rewound"``. Files are not; ``result.notes`` names
          those that the cell changed in its folder. It costs a few milliseconds. A session with
          threads that no copy can have raises :class:`Unsupported`, and nothing is run.
        - ``on_input(prompt)`` answers ``input()`` in the code; None, or no such function, makes
          ``input()`` fail.
        - ``on_disconnect``: what becomes of the cell if this process dies meanwhile: it goes on
          (``"continue"``, the default), or is interrupted (``"interrupt"``, the default of
          :class:`AsyncBox`, where a call is easily cancelled).
        - ``idempotency_key``: two calls with the same key and the same request run once, and both
          get that result, whenever the second comes within 24 hours and whatever has happened to
          the kernel's variables since. Another request under the same key raises
          :class:`KeyReused`.
        """
        request = executing.execute_request(
            self._calls,
            code,
            language=language,
            timeout=timeout,
            expect_epoch=expect_epoch,
            execution_id=execution_id,
            atomic=atomic,
            stdin=on_input is not None,
            on_disconnect=on_disconnect,
            idempotency_key=idempotency_key,
        )
        return self._driver.run(executing.execute(self._calls, kernel, request, on_input))

    def stream(
        self,
        kernel: KernelLike,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        execution_id: str | None = None,
        atomic: bool = False,
        on_input: OnInput | None = None,
    ) -> Iterator[OutputItem | ExecutionResult]:
        """Run code and yield what it puts out as it happens, and its result last.

        Each item is an :class:`OutputItem`, but the last is the :class:`ExecutionResult`. The
        arguments are those of :func:`execute`. A piece of text may be part of a line, or many. The
        code is sent when the first item is asked for. Leaving early (closing the iterator)
        interrupts the cell.
        """
        return self._driver.items(
            self.events(
                kernel,
                code,
                language=language,
                timeout=timeout,
                expect_epoch=expect_epoch,
                execution_id=execution_id,
                atomic=atomic,
                on_input=on_input,
            )
        )

    def events(
        self,
        kernel: KernelLike,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        execution_id: str | None = None,
        atomic: bool = False,
        on_input: OnInput | None = None,
        on_disconnect: str | None = None,
        idempotency_key: str | None = None,
    ) -> Iterator[Event]:
        """As :func:`stream`, with numbers, so that who is cut off can come back with
        :func:`attach` and miss nothing.

        The arguments are those of :func:`execute`. Leaving early interrupts the cell, unless
        ``on_disconnect`` is ``"continue"``.
        """
        request = executing.execute_request(
            self._calls,
            code,
            language=language,
            timeout=timeout,
            expect_epoch=expect_epoch,
            execution_id=execution_id,
            atomic=atomic,
            stdin=on_input is not None,
            stream=True,
            on_disconnect=on_disconnect or "interrupt",
            idempotency_key=idempotency_key,
        )
        return self._driver.follow(self._calls, kernel, request, on_input)

    def attach(self, kernel: KernelLike, execution_id: str, *, start: int = 0) -> Iterator[Event]:
        """Come back to the execution ``execution_id``, be it waiting, running or finished: what it
        puts out from event ``start`` on, and its result last.

        Raises :class:`ExecutionNotFound` if it is not kept any more (``KERNELBOX_SPOOL_KEEP``).
        """
        request = executing.attach_request(execution_id, start)
        return self._driver.follow(self._calls, kernel, request, None)

    def execute_with_retry(
        self,
        kernel: KernelLike,
        code: str,
        on_error_fn: Repair,
        *,
        max_attempts: int | None = None,
        language: str = "python",
        timeout: float | None = None,
        atomic: bool = False,
    ) -> ExecutionResult:
        """Run code, and while it fails, let ``on_error_fn(result, attempt)`` repair it.

        That returns new code, or None to run the same again. Errors, crashes and timeouts are
        failures; ``result.state`` says whether the variables are still there. Attempts count from
        1, the first run included, up to ``max_attempts`` (default: ``KERNELBOX_MAX_RETRIES``).
        ``language``, ``timeout`` and ``atomic`` are those of :func:`execute`, for each: with
        ``atomic=True`` every attempt starts from the same clean state. After the last failure
        nobody is asked: the status is ``"max_attempts_exceeded"``, the error is the last one.
        ``result.attempts`` has every try.
        """
        return self._driver.run(
            executing.execute_with_retry(
                self._calls,
                kernel,
                code,
                on_error_fn,
                max_attempts=max_attempts,
                language=language,
                timeout=timeout,
                atomic=atomic,
            )
        )

    def execute_many(
        self,
        cells: Mapping[KernelKey, str],
        *,
        language: str = "python",
        timeout: float | None = None,
        atomic: bool = False,
    ) -> dict[KernelKey, ExecutionResult]:
        """Run code in several kernels at the same time, and wait for all of the results.

        ``cells`` maps kernels to code; the results come back under the same keys. ``language``,
        ``timeout`` and ``atomic`` are those of :func:`execute`. A kernel that is not there is
        noticed before anything is run.
        """
        return self._driver.run(
            executing.execute_many(
                self._calls, cells, language=language, timeout=timeout, atomic=atomic
            )
        )

    def interrupt(self, kernel: KernelLike) -> bool:
        """Interrupt what runs now; False if nothing does.

        Python code gets a KeyboardInterrupt, bash a SIGINT. Variables are kept, and cells that wait
        go on. :func:`cancel` means one execution and no other.
        """
        return self._driver.run(kernels.interrupt(self._calls, kernel))

    def cancel(self, kernel: KernelLike, execution_id: str) -> bool:
        """Take that execution out of the queue, or interrupt it if it runs; no other is touched.

        False if it neither waits nor runs. ``execution_id`` is the one given to :func:`execute`.
        """
        return self._driver.run(kernels.cancel(self._calls, kernel, execution_id))

    def restart(self, kernel: KernelLike) -> KernelRecord:
        """A fresh interpreter under the same name and id; the epoch goes up by one.

        Variables and the bash session are gone. What runs or waits ends with an error at once.
        Startup code is run again; raises :class:`StartupFailed` if it fails.
        """
        return self._driver.run(kernels.restart(self._calls, kernel))

    def status(self, kernel: KernelLike) -> dict[str, Any]:
        """What a kernel is doing now; the answer does not wait for the running cell.

        The dict has ``kernel`` (its record, as a dict), ``running`` (None, or ``execution_id``,
        ``language``, ``code``, ``seconds`` and ``timeout``), ``queued`` (how many wait),
        ``recent`` (the latest executions, the last one first), ``cwd`` (the folder it started in),
        ``processes`` (pid, role, memory, processor time), and ``stack``: where the running Python
        code is, as text.
        """
        return self._driver.run(kernels.status(self._calls, kernel))

    def list_kernels(self, *, refresh: bool = False) -> list[KernelRecord]:
        """The kernels of this home, oldest first.

        ``status``, ``epoch`` and other fields that change are as the keeper was last told.
        ``refresh=True`` asks each kernel; one that does not answer within 5 s is ``"unreachable"``.
        """
        return self._driver.run(kernels.list_kernels(self._calls, refresh=refresh))

    @overload
    def branch(
        self,
        kernel: KernelLike,
        name: str,
        *,
        reseed: bool = False,
        files: str = "share",
        method: str = "auto",
    ) -> KernelRecord: ...

    @overload
    def branch(
        self,
        kernel: KernelLike,
        *,
        names: Sequence[str],
        reseed: bool = False,
        files: str = "share",
        method: str = "auto",
    ) -> list[KernelRecord]: ...

    def branch(
        self,
        kernel: KernelLike,
        name: str | None = None,
        *,
        names: Sequence[str] | None = None,
        reseed: bool = False,
        files: str = "share",
        method: str = "auto",
    ) -> KernelRecord | list[KernelRecord]:
        """A copy of a live kernel under a new name: same variables, separate from now on.

        ``names`` makes many at once, from one and the same moment, and returns a list; all of them
        or none. Folder, environment, random numbers, matplotlib's state and the bash session come
        along; ``record.notes`` says what does not. It waits for the running cell to end, at most
        ``KERNELBOX_FORK_TIMEOUT`` seconds (60), then raises :class:`StartupFailed`.

        - ``reseed``: random numbers of its own, instead of the same as its parent's; also those of
          numpy's generators that are variables
        - ``files``: ``"share"`` the working directory, or give the branch a ``"copy"`` of it, which
          goes with the branch
        - ``method``: ``"fork"`` takes milliseconds and shares memory. Sessions with threads that no
          fork can carry (polars, gRPC, your own) are pickled into a fresh interpreter: ``"copy"``.
          ``"auto"`` decides; ``record.made_by`` and ``record.notes`` say how, and why

        A name that is taken raises :class:`BadInput`; a kernel that is not ours
        (``KERNELBOX_KERNEL_TYPE``) raises :class:`Unsupported`.
        """
        from kernelbox.client import timetravel  # who only executes need not wait for it

        chosen = timetravel.one_or_many(name, names)
        made = self._driver.run(
            timetravel.branch(
                self._calls, kernel, chosen, reseed=reseed, files=files, method=method
            )
        )
        return made[0] if names is None else made

    def checkpoint(self, kernel: KernelLike, label: str | None = None) -> str:
        """Remember a kernel as it is now; the id that comes back is for :func:`rewind`.

        It takes milliseconds, whatever the size of the session: a copy of the interpreter is parked
        and shares its memory until that changes. It waits for the running cell to end, at most
        ``KERNELBOX_FORK_TIMEOUT`` seconds (60). A ``label`` can be used in place of the id. There
        can be ``KERNELBOX_MAX_CHECKPOINTS`` (20); then :class:`BadInput` is raised until one is
        dropped. A session with threads that no copy can have raises :class:`Unsupported`, which
        names them.
        """
        from kernelbox.client import timetravel

        return self._driver.run(timetravel.checkpoint(self._calls, kernel, label))

    def checkpoints(self, kernel: KernelLike) -> list[Checkpoint]:
        """The checkpoints of a kernel, oldest first."""
        from kernelbox.client import timetravel

        return self._driver.run(timetravel.checkpoints(self._calls, kernel))

    def drop_checkpoint(self, kernel: KernelLike, checkpoint: str | Checkpoint) -> None:
        """Forget a ``checkpoint``, meant by its id or label, and free its memory.

        Raises :class:`CheckpointNotFound`.
        """
        from kernelbox.client import timetravel

        return self._driver.run(timetravel.drop_checkpoint(self._calls, kernel, checkpoint))

    def rewind(self, kernel: KernelLike, checkpoint: str | Checkpoint) -> KernelRecord:
        """Bring a kernel back to a ``checkpoint``, as if nothing had been run since.

        It is meant by its id or label, and can be gone back to many times. Back come variables,
        imports, functions, ``_`` and ``Out``, the folder, the environment, random numbers, the
        places in files that are being read, and the bash session's folder, variables and functions.
        Files and everything else outside the kernel stay as they are. Name, id, connection file and
        clients stay; the epoch goes up by one. What runs or waits ends with an error at once.
        Raises :class:`CheckpointNotFound`.
        """
        from kernelbox.client import timetravel

        return self._driver.run(timetravel.rewind(self._calls, kernel, checkpoint))

    def undo(self, kernel: KernelLike, n: int = 1) -> KernelRecord:
        """Go back to before the last ``n`` Python cells, as :func:`rewind` does.

        ``KERNELBOX_UNDO`` says how many cells are kept for it (0: none); it must have been set when
        those cells were run. Sessions so large that this would slow down every cell switch it off,
        and ``result.notes`` says so. Raises :class:`CheckpointNotFound` if there are fewer.
        """
        from kernelbox.client import timetravel

        return self._driver.run(timetravel.undo(self._calls, kernel, n))

    def save(self, kernel: KernelLike, path: str) -> SaveReport:
        """Write a session to a file, for :func:`load` to read in another process or after a reboot.

        In it is every variable that can be pickled (with cloudpickle: functions and classes of
        cells too), what was imported, the folder and the source of all cells. What cannot be saved
        is listed in the report's ``failures`` with the reason. Waits for the running cell to end.
        The file at ``path`` is replaced when the new one is whole. It is signed with a key of this
        home, and holds whatever your variables hold.
        """
        from kernelbox.client import sessions

        return self._driver.run(sessions.save(self._calls, kernel, path))

    def load(self, name: str, path: str, *, trust: bool = False) -> KernelRecord:
        """A new kernel with a session that :func:`save` wrote to ``path``.

        Loading runs code that is in the file, so a file that another home saved, or that was
        changed since, is refused before anything of it is read (:class:`BadInput`), unless you
        ``trust`` it. What could not be saved or loaded is in ``record.notes``, with the reason. The
        Python must be the one that it was saved by, up to the minor version.
        """
        from kernelbox.client import sessions

        return self._driver.run(sessions.load(self._calls, name, path, trust=trust))

    def install(
        self, kernel: KernelLike, *requirements: str, upgrade: bool = False
    ) -> InstallReport:
        """Give a kernel packages, importable at once, also where its network is off.

        ``requirements`` are names with versions if you like: ``"pandas==2.*"``. The host resolves
        and downloads them, under its policy (``KERNELBOX_INSTALL_…``), into a folder that this
        kernel and its branches alone see and that goes with them; no environment on disk changes.
        They outlive restarts and rewinds. What is there already is left as it is unless you
        ``upgrade``. A cell that runs now has them when it asks for them with ``%pip install``; the
        next one in any case. Raises :class:`InstallFailed` with the reason, in one line;
        :class:`Unsupported` where uv is missing (``pip install uv packaging``).
        """
        from kernelbox.client import installing

        return self._driver.run(
            installing.install(self._calls, kernel, requirements, upgrade=upgrade)
        )

    def destroy(self, kernel: KernelLike) -> bool:
        """End a kernel and all its processes, and wait until they are gone.

        False if there was none. Branches of it live on. A kernel made later under that name has
        another id and starts at epoch 1.
        """
        return self._driver.run(kernels.destroy(self._calls, kernel))

    def wipe(self) -> list[str]:
        """Destroy every kernel of this home, whoever made it; their ids are returned."""
        return self._driver.run(kernels.wipe(self._calls))

    def output(
        self,
        kernel: KernelLike,
        execution_id: str,
        *,
        stream: str = "stdout",
        start: int = 0,
        length: int = 10_000,
    ) -> OutputPage:
        """A page of what an execution printed, also of what its result left out.

        ``execution_id`` is in the result. The page has ``length`` characters of ``stream``
        (``"stdout"`` or ``"stderr"``) from character ``start`` on; a negative ``start`` counts from
        the end. Values and displays are not in it: a long value is whole in the kernel, as ``_`` or
        ``Out[n]``. Works while the cell runs. The latest executions are kept
        (``KERNELBOX_SPOOL_KEEP``); an older one raises :class:`KernelNotFound`.
        """
        from kernelbox.client import reading

        return self._driver.run(
            reading.output(
                self._calls, kernel, execution_id, stream=stream, start=start, length=length
            )
        )

    def search_output(
        self,
        kernel: KernelLike,
        execution_id: str,
        pattern: str,
        *,
        stream: str = "stdout",
        limit: int = 20,
    ) -> list[OutputMatch]:
        """The lines that an execution printed and that match, in order.

        ``pattern`` is a regular expression, found anywhere in a line; ``execution_id`` is in the
        result. At most ``limit`` lines come back; if that many do, there may be more. ``stream`` is
        ``"stdout"`` or ``"stderr"``. As in :func:`output`, values and displays are not searched.
        """
        from kernelbox.client import reading

        return self._driver.run(
            reading.search_output(
                self._calls, kernel, execution_id, pattern, stream=stream, limit=limit
            )
        )

    def complete(self, kernel: KernelLike, code: str, *, cursor: int | None = None) -> list[str]:
        """What the word at ``cursor`` (the end of the code by default) could become.

        Asks the live interpreter, so it knows the variables; it waits for the running cell to end.
        """
        return self._driver.run(kernels.complete(self._calls, kernel, code, cursor))
