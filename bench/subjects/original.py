"""KernelBox 0.1.2, the original, through the three functions of its public API."""

from __future__ import annotations

from typing import Any

from measures import Reply, serve, with_descendants

from kernelbox import destroy, execute, get_or_create


class Original:
    """Every call goes through the module-level functions, as its README shows."""

    def open(self, name: str) -> Any:
        return get_or_create(name)

    def run(self, kernel: Any, code: str, *, timeout: float) -> Reply:
        result = execute(kernel, code, timeout=timeout)
        return Reply(
            ok=result.status == "success",
            value=result.return_value,
            tail=result.output[-64:],
            problem=result.status,
        )

    def family(self, kernel: Any) -> list[int]:
        # It keeps no process ids, so the kernel is asked for its own.
        return with_descendants(int(self.run(kernel, _OWN_PID, timeout=60).value or 0))

    def close(self, kernel: Any) -> None:
        destroy(kernel.kernel_id)

    def settle(self) -> None:
        """Nothing of it goes on between calls."""

    def branch(self, kernel: Any, name: str) -> Any:
        raise NotImplementedError("0.1.2 has no branch")

    def end(self) -> None:
        """Its kernels were closed one by one; there is nothing else to end."""


_OWN_PID = "import os; os.getpid()"

if __name__ == "__main__":
    serve(Original)
