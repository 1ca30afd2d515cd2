"""Retirement: a kernel that nobody has used for long ends, unless something still goes on in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelbox.warden.jobs import Question

if TYPE_CHECKING:
    from kernelbox.warden.kernel import Kernel


def propose(
    kernel: Kernel,
    idle: float,
    *,
    is_parent: bool,
    answer: Callable[[dict[str, Any]], None],
    retire: Callable[[str], None],
) -> None:
    """Decided here, atomically: nobody can use it meanwhile. ``answer`` is called once, with what
    the keeper is to hear, and then ``retire``, if it is so, with the cause. ``is_parent``: of a
    branch that lives."""

    def unused() -> bool:
        return time.time() - kernel.last_used_at >= idle

    def answered(content: dict[str, Any] | None) -> None:
        # The question itself is what runs now; nothing may wait behind it.
        if content is None or content.get("background") or kernel.queue or not unused():
            answer({"retired": False})
            return
        answer({"retired": True})
        retire(f"idle for {idle:g} s (KERNELBOX_KERNEL_IDLE_TIMEOUT)")

    if kernel.busy or not unused() or is_parent or kernel.background_work():
        answer({"retired": False, "last_used_at": kernel.last_used_at})
        return
    kernel.submit(Question("background", {}, answered, is_use=False))
