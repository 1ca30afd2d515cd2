"""Running code: the request for an execution, its result, and what is known of a lost one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from kernelbox.client.calls import NOTICE_PAUSE, NOTICE_TRIES, Calls
from kernelbox.client.conversation import ConnectionLost
from kernelbox.client.effects import Call, Consult, Pause, Together
from kernelbox.client.meaning import (
    AsyncOnInput,
    AsyncRepair,
    KernelKey,
    KernelLike,
    OnInput,
    Repair,
    check_meant,
)
from kernelbox.config.checks import (
    check_choice,
    check_code,
    check_epoch,
    check_flag,
    check_key,
    check_language,
    check_timeout,
    check_whole,
)
from kernelbox.errors import BadInput, BoxError, KernelLost, KernelNotFound, in_short
from kernelbox.result import ErrorInfo, ExecutionResult
from kernelbox.wire import Frame

_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def execute(
    calls: Calls,
    kernel: KernelLike,
    request: Frame,
    on_input: OnInput | AsyncOnInput | None = None,
) -> Call[ExecutionResult]:
    """Have a request of :func:`execute_request` run."""
    try:
        content = yield from calls.converse(
            kernel, request, patience=None, cancel_on_interrupt=True, on_input=on_input
        )
    except ConnectionLost as error:
        return (yield from lost_result(calls, kernel, request, error))
    return ExecutionResult.from_wire(content)


def execute_many(
    calls: Calls,
    cells: Mapping[KernelKey, str],
    *,
    language: str,
    timeout: float | None,
    atomic: bool,
) -> Call[dict[KernelKey, ExecutionResult]]:
    if not isinstance(cells, Mapping):
        raise BadInput(f"cells maps kernels to code: {{kernel: code}}, not {in_short(cells)}")
    # Whatever is wrong with one is noticed before any of them runs.
    requests = [
        execute_request(calls, code, language=language, timeout=timeout, atomic=atomic)
        for code in cells.values()
    ]
    for kernel in cells:
        yield from calls.address(kernel)
    results = yield Together([execute(calls, *cell) for cell in zip(cells, requests, strict=True)])
    return dict(zip(cells, results, strict=True))


def execute_with_retry(
    calls: Calls,
    kernel: KernelLike,
    code: str,
    on_error_fn: Repair | AsyncRepair,
    *,
    max_attempts: int | None,
    language: str,
    timeout: float | None,
    atomic: bool,
) -> Call[ExecutionResult]:
    from kernelbox.retry import Run, attempts, check_repair  # who only executes does not wait

    check_repair(on_error_fn)
    rules = attempts(code, calls.settings.max_retries if max_attempts is None else max_attempts)
    step = next(rules)
    while True:
        if isinstance(step, Run):
            request = execute_request(
                calls, step.code, language=language, timeout=timeout, atomic=atomic
            )
            answer = yield from execute(calls, kernel, request)
        else:
            answer = yield Consult(on_error_fn, (step.result, step.attempt))
        try:
            step = rules.send(answer)
        except StopIteration as end:
            result: ExecutionResult = end.value
            return result


def execute_request(
    calls: Calls,
    code: str,
    *,
    language: str = "python",
    timeout: float | None = None,
    expect_epoch: int | None = None,
    execution_id: str | None = None,
    atomic: bool = False,
    stdin: bool = False,
    stream: bool = False,
    on_disconnect: str | None = None,
    idempotency_key: str | None = None,
) -> Frame:
    """The request for one execution; bad input is refused here, before anything is sent."""
    settings = calls.settings
    limit = settings.execution_timeout if timeout is None else check_timeout(timeout)
    left = on_disconnect or calls.on_disconnect
    request = {
        "op": "execute",
        "execution_id": os.urandom(16).hex() if execution_id is None else _check_id(execution_id),
        "code": check_code(code),
        "language": check_language(language),
        "timeout": limit,
        "limit": settings.output_char_limit,
        "interrupt_grace": settings.interrupt_grace,
        "kill_grace": settings.kill_grace,
        "expect_epoch": check_epoch(expect_epoch),
        "atomic": check_flag("atomic", atomic),
        "undo": settings.undo,
        "undo_cost": settings.undo_cost,
        "most_checkpoints": settings.max_checkpoints,
        "stdin": stdin,
        "stream": stream,
        "on_disconnect": check_choice("on_disconnect", left, ("interrupt", "continue")),
    }
    if idempotency_key is not None:
        request["key"] = check_key(idempotency_key)
        request["fingerprint"] = _fingerprint(request, timeout)
    return request


def attach_request(execution_id: str, start: int) -> Frame:
    """The request to come back to an execution."""
    check_meant(execution_id)
    return {
        "op": "attach",
        "execution_id": execution_id,
        "start": check_whole("start", start, least=0),
    }


def lost_result(
    calls: Calls, kernel: KernelLike, request: Frame, error: ConnectionLost
) -> Call[ExecutionResult]:
    """The warden went away under a running cell: say what is known of it."""
    state, cause, epoch = "unknown", f"the connection to the kernel was lost ({error})", 0
    for _ in range(NOTICE_TRIES):
        try:
            yield from calls.find(kernel)
        except KernelLost as lost:
            state, cause = "lost", str(lost.details.get("cause"))
            epoch = int(lost.details.get("epoch", 0))
            break
        except KernelNotFound:
            state, cause = "lost", "the kernel was destroyed while the code ran"
            break
        except BoxError:
            break
        yield Pause(NOTICE_PAUSE)  # we may have noticed before the keeper did
    words = f"{cause}; the kernel's state is {state}"
    return ExecutionResult(
        status="error",
        error=ErrorInfo("KernelDied", words, [f"KernelDied: {words}"]),
        state=state,
        cause=cause,
        epoch=epoch,
        execution_id=str(request.get("execution_id", "")),
    )


def _check_id(execution_id: object) -> str:
    """An execution's id names a file of the spool, so it is a plain word."""
    if not isinstance(execution_id, str) or not _PLAIN_ID.fullmatch(execution_id):
        raise BadInput(
            "an execution_id is up to 128 letters, digits, '-', '_' and '.', and starts with a "
            f"letter or digit; not {in_short(execution_id)}"
        )
    return execution_id


def _fingerprint(request: Frame, timeout: float | None) -> str:
    """Two requests with the same one ask for the same thing. A timeout that was not given does not
    count: the default may be another after a restart."""
    import hashlib
    import json

    asked = [request[name] for name in ("code", "language", "expect_epoch", "atomic")]
    return hashlib.sha256(json.dumps([*asked, timeout]).encode("ascii")).hexdigest()
