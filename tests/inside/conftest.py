"""What the tests of the interpreter share: a kernel of their own, and a short way to run a cell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelbox import Box, ExecutionResult, KernelRecord

Run = Callable[..., ExecutionResult]


@pytest.fixture
def run(shared_box: Box, kernel: KernelRecord) -> Run:
    """Run a cell in this test's kernel; ten seconds are plenty for any of them."""

    def run_cell(code: str, **options: object) -> ExecutionResult:
        return shared_box.execute(kernel, code, **{"timeout": 10, **options})  # type: ignore[arg-type]

    return run_cell


@pytest.fixture
def ran(run: Run) -> Run:
    """The same, and the cell must succeed."""

    def run_well(code: str, **options: object) -> ExecutionResult:
        result = run(code, **options)
        assert result.ok, f"{result.error}\n{result.stderr}"
        assert result.state == "kept"
        return result

    return run_well
