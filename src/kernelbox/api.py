"""The module-level functions: the methods of :class:`kernelbox.Box`, over one default Box.

Written by ``scripts/make_api.py`` from ``box.py``; change them there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from kernelbox.box import Box
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

_boxes: dict[Settings, Box] = {}
_MOST_BOXES = 16


def default_box() -> Box:
    """The Box for the environment and the working directory of now."""
    settings = Settings.from_environment(os.environ)
    box = _boxes.get(settings)
    if box is None:
        while len(_boxes) >= _MOST_BOXES:
            _boxes.pop(next(iter(_boxes))).close()
        box = _boxes[settings] = Box(settings)
    return box


def get_or_create(
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
    return default_box().get_or_create(
        name,
        session_name=session_name,
        tags=tags,
        cwd=cwd,
        environ=environ,
        template=template,
        profile=profile,
    )


def execute(
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
    return default_box().execute(
        kernel,
        code,
        language=language,
        timeout=timeout,
        expect_epoch=expect_epoch,
        execution_id=execution_id,
        atomic=atomic,
        on_input=on_input,
        on_disconnect=on_disconnect,
        idempotency_key=idempotency_key,
    )


def stream(
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
    return default_box().stream(
        kernel,
        code,
        language=language,
        timeout=timeout,
        expect_epoch=expect_epoch,
        execution_id=execution_id,
        atomic=atomic,
        on_input=on_input,
    )


def events(
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
    return default_box().events(
        kernel,
        code,
        language=language,
        timeout=timeout,
        expect_epoch=expect_epoch,
        execution_id=execution_id,
        atomic=atomic,
        on_input=on_input,
        on_disconnect=on_disconnect,
        idempotency_key=idempotency_key,
    )


def attach(kernel: KernelLike, execution_id: str, *, start: int = 0) -> Iterator[Event]:
    """Come back to the execution ``execution_id``, be it waiting, running or finished: what it
    puts out from event ``start`` on, and its result last.

    Raises :class:`ExecutionNotFound` if it is not kept any more (``KERNELBOX_SPOOL_KEEP``).
    """
    return default_box().attach(kernel, execution_id, start=start)


def execute_with_retry(
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
    return default_box().execute_with_retry(
        kernel,
        code,
        on_error_fn,
        max_attempts=max_attempts,
        language=language,
        timeout=timeout,
        atomic=atomic,
    )


def execute_many(
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
    return default_box().execute_many(cells, language=language, timeout=timeout, atomic=atomic)


def interrupt(kernel: KernelLike) -> bool:
    """Interrupt what runs now; False if nothing does.

    Python code gets a KeyboardInterrupt, bash a SIGINT. Variables are kept, and cells that wait
    go on. :func:`cancel` means one execution and no other.
    """
    return default_box().interrupt(kernel)


def cancel(kernel: KernelLike, execution_id: str) -> bool:
    """Take that execution out of the queue, or interrupt it if it runs; no other is touched.

    False if it neither waits nor runs. ``execution_id`` is the one given to :func:`execute`.
    """
    return default_box().cancel(kernel, execution_id)


def restart(kernel: KernelLike) -> KernelRecord:
    """A fresh interpreter under the same name and id; the epoch goes up by one.

    Variables and the bash session are gone. What runs or waits ends with an error at once.
    Startup code is run again; raises :class:`StartupFailed` if it fails.
    """
    return default_box().restart(kernel)


def status(kernel: KernelLike) -> dict[str, Any]:
    """What a kernel is doing now; the answer does not wait for the running cell.

    The dict has ``kernel`` (its record, as a dict), ``running`` (None, or ``execution_id``,
    ``language``, ``code``, ``seconds`` and ``timeout``), ``queued`` (how many wait),
    ``recent`` (the latest executions, the last one first), ``cwd`` (the folder it started in),
    ``processes`` (pid, role, memory, processor time), and ``stack``: where the running Python
    code is, as text.
    """
    return default_box().status(kernel)


def list_kernels(*, refresh: bool = False) -> list[KernelRecord]:
    """The kernels of this home, oldest first.

    ``status``, ``epoch`` and other fields that change are as the keeper was last told.
    ``refresh=True`` asks each kernel; one that does not answer within 5 s is ``"unreachable"``.
    """
    return default_box().list_kernels(refresh=refresh)


@overload
def branch(
    kernel: KernelLike,
    name: str,
    *,
    reseed: bool = False,
    files: str = "share",
    method: str = "auto",
) -> KernelRecord: ...


@overload
def branch(
    kernel: KernelLike,
    *,
    names: Sequence[str],
    reseed: bool = False,
    files: str = "share",
    method: str = "auto",
) -> list[KernelRecord]: ...


def branch(
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
    return default_box().branch(  # type: ignore[call-overload,no-any-return]
        kernel, name, names=names, reseed=reseed, files=files, method=method
    )


def checkpoint(kernel: KernelLike, label: str | None = None) -> str:
    """Remember a kernel as it is now; the id that comes back is for :func:`rewind`.

    It takes milliseconds, whatever the size of the session: a copy of the interpreter is parked
    and shares its memory until that changes. It waits for the running cell to end, at most
    ``KERNELBOX_FORK_TIMEOUT`` seconds (60). A ``label`` can be used in place of the id. There
    can be ``KERNELBOX_MAX_CHECKPOINTS`` (20); then :class:`BadInput` is raised until one is
    dropped. A session with threads that no copy can have raises :class:`Unsupported`, which
    names them.
    """
    return default_box().checkpoint(kernel, label)


def checkpoints(kernel: KernelLike) -> list[Checkpoint]:
    """The checkpoints of a kernel, oldest first."""
    return default_box().checkpoints(kernel)


def drop_checkpoint(kernel: KernelLike, checkpoint: str | Checkpoint) -> None:
    """Forget a ``checkpoint``, meant by its id or label, and free its memory.

    Raises :class:`CheckpointNotFound`.
    """
    return default_box().drop_checkpoint(kernel, checkpoint)


def rewind(kernel: KernelLike, checkpoint: str | Checkpoint) -> KernelRecord:
    """Bring a kernel back to a ``checkpoint``, as if nothing had been run since.

    It is meant by its id or label, and can be gone back to many times. Back come variables,
    imports, functions, ``_`` and ``Out``, the folder, the environment, random numbers, the
    places in files that are being read, and the bash session's folder, variables and functions.
    Files and everything else outside the kernel stay as they are. Name, id, connection file and
    clients stay; the epoch goes up by one. What runs or waits ends with an error at once.
    Raises :class:`CheckpointNotFound`.
    """
    return default_box().rewind(kernel, checkpoint)


def undo(kernel: KernelLike, n: int = 1) -> KernelRecord:
    """Go back to before the last ``n`` Python cells, as :func:`rewind` does.

    ``KERNELBOX_UNDO`` says how many cells are kept for it (0: none); it must have been set when
    those cells were run. Sessions so large that this would slow down every cell switch it off,
    and ``result.notes`` says so. Raises :class:`CheckpointNotFound` if there are fewer.
    """
    return default_box().undo(kernel, n)


def save(kernel: KernelLike, path: str) -> SaveReport:
    """Write a session to a file, for :func:`load` to read in another process or after a reboot.

    In it is every variable that can be pickled (with cloudpickle: functions and classes of
    cells too), what was imported, the folder and the source of all cells. What cannot be saved
    is listed in the report's ``failures`` with the reason. Waits for the running cell to end.
    The file at ``path`` is replaced when the new one is whole. It is signed with a key of this
    home, and holds whatever your variables hold.
    """
    return default_box().save(kernel, path)


def load(name: str, path: str, *, trust: bool = False) -> KernelRecord:
    """A new kernel with a session that :func:`save` wrote to ``path``.

    Loading runs code that is in the file, so a file that another home saved, or that was
    changed since, is refused before anything of it is read (:class:`BadInput`), unless you
    ``trust`` it. What could not be saved or loaded is in ``record.notes``, with the reason. The
    Python must be the one that it was saved by, up to the minor version.
    """
    return default_box().load(name, path, trust=trust)


def install(kernel: KernelLike, *requirements: str, upgrade: bool = False) -> InstallReport:
    """Give a kernel packages, importable at once, also where its network is off.

    ``requirements`` are names with versions if you like: ``"pandas==2.*"``. The host resolves
    and downloads them, under its policy (``KERNELBOX_INSTALL_…``), into a folder that this
    kernel and its branches alone see and that goes with them; no environment on disk changes.
    They outlive restarts and rewinds. What is there already is left as it is unless you
    ``upgrade``. A cell that runs now has them when it asks for them with ``%pip install``; the
    next one in any case. Raises :class:`InstallFailed` with the reason, in one line;
    :class:`Unsupported` where uv is missing (``pip install uv packaging``).
    """
    return default_box().install(kernel, *requirements, upgrade=upgrade)


def destroy(kernel: KernelLike) -> bool:
    """End a kernel and all its processes, and wait until they are gone.

    False if there was none. Branches of it live on. A kernel made later under that name has
    another id and starts at epoch 1.
    """
    return default_box().destroy(kernel)


def wipe() -> list[str]:
    """Destroy every kernel of this home, whoever made it; their ids are returned."""
    return default_box().wipe()


def output(
    kernel: KernelLike,
    execution_id: str,
    *,
    stream: str = "stdout",
    start: int = 0,
    length: int = 10000,
) -> OutputPage:
    """A page of what an execution printed, also of what its result left out.

    ``execution_id`` is in the result. The page has ``length`` characters of ``stream``
    (``"stdout"`` or ``"stderr"``) from character ``start`` on; a negative ``start`` counts from
    the end. Values and displays are not in it: a long value is whole in the kernel, as ``_`` or
    ``Out[n]``. Works while the cell runs. The latest executions are kept
    (``KERNELBOX_SPOOL_KEEP``); an older one raises :class:`KernelNotFound`.
    """
    return default_box().output(kernel, execution_id, stream=stream, start=start, length=length)


def search_output(
    kernel: KernelLike, execution_id: str, pattern: str, *, stream: str = "stdout", limit: int = 20
) -> list[OutputMatch]:
    """The lines that an execution printed and that match, in order.

    ``pattern`` is a regular expression, found anywhere in a line; ``execution_id`` is in the
    result. At most ``limit`` lines come back; if that many do, there may be more. ``stream`` is
    ``"stdout"`` or ``"stderr"``. As in :func:`output`, values and displays are not searched.
    """
    return default_box().search_output(kernel, execution_id, pattern, stream=stream, limit=limit)


def complete(kernel: KernelLike, code: str, *, cursor: int | None = None) -> list[str]:
    """What the word at ``cursor`` (the end of the code by default) could become.

    Asks the live interpreter, so it knows the variables; it waits for the running cell to end.
    """
    return default_box().complete(kernel, code, cursor=cursor)
