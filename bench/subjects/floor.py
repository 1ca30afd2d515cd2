"""The floor: IPython's shell called in this very process, with nothing in between."""

from __future__ import annotations

from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from measures import Reply, serve
from traitlets.config import Config


class Floor:
    """One shell, no processes, no messages: what no kernel can be faster than."""

    def open(self, name: str) -> Any:
        # Without the thread that saves history to a database: the lower of the two floors, and
        # what the kernels beside it do too.
        config = Config()
        config.HistoryManager.enabled = False
        return InteractiveShell.instance(config=config)

    def run(self, kernel: Any, code: str, *, timeout: float) -> Reply:
        outcome = kernel.run_cell(code, store_history=True)
        return Reply(ok=outcome.success, value=repr(outcome.result))

    def family(self, kernel: Any) -> list[int]:
        raise NotImplementedError("the floor is the caller's own process")

    def close(self, kernel: Any) -> None:
        """The shell ends with the process."""

    def settle(self) -> None:
        """Nothing goes on between calls."""

    def branch(self, kernel: Any, name: str) -> Any:
        raise NotImplementedError("the floor has no branch")

    def end(self) -> None:
        """The shell ends with the process."""


if __name__ == "__main__":
    serve(Floor)
