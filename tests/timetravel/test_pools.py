"""Thread pools at a fork: sessions that have used them go on computing, on both sides."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

import pytest

from kernelbox import Box, KernelRecord, Unsupported

Waiting = Callable[..., None]


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    shared_box.get_or_create("anchor")


SAFE = {
    "numpy": (
        "import numpy as np; a = np.ones((600, 600))",
        "float((a @ a).sum())",
    ),
    "pandas": (
        "import numpy as np, pandas as pd\nd = pd.DataFrame({'k': np.arange(10**5) % 7, 'v': 1.0})",
        "float(d.groupby('k').v.sum().sum())",
    ),
    "pyarrow": (
        "import pyarrow as pa, pyarrow.compute; t = pa.table({'k': [i % 7 for i in range(10**5)], 'v': [1.0] * 10**5})",
        "t.group_by('k').aggregate([('v', 'sum')]).num_rows, pa.cpu_count()",
    ),
    "duckdb": (
        "import duckdb; c = duckdb.connect(); c.execute('create table t as select i % 7 k, i v from range(300000) r(i)')",
        "c.sql('select sum(v) from (select k, sum(v) v from t group by k)').fetchall()",
    ),
    "sklearn": (
        "import numpy as np; from sklearn.cluster import KMeans; from sklearn.ensemble import HistGradientBoostingRegressor as H; X = np.random.RandomState(0).rand(3000, 4)",
        "round(KMeans(4, n_init=1, random_state=0).fit(X).inertia_, 6), round(float(H(max_iter=5).fit(X, X[:, 0]).predict(X[:1])[0]), 6)",
    ),
    "a ThreadPoolExecutor": (
        "from concurrent.futures import ThreadPoolExecutor; e = ThreadPoolExecutor(4)",
        "sum(e.map(abs, range(50)))",
    ),
    "the loop's executor": (
        "import asyncio",
        "await asyncio.get_running_loop().run_in_executor(None, sum, [1, 2, 3])",
    ),
    "tqdm": (
        "from tqdm import tqdm",
        "import os, sys\nsum(tqdm(range(10), file=open(os.devnull, 'w')))",
    ),
    "torch": ("import torch; a = torch.ones(500, 500)", "float((a @ a).sum())"),
}  # fmt: skip


@pytest.mark.parametrize("what", SAFE)
def test_a_session_that_has_used_it_goes_on_on_both_sides(
    shared_box: Box, kernel: KernelRecord, what: str
) -> None:
    if what == "torch" and not os.environ.get("KERNELBOX_SOAK"):
        pytest.skip("torch is large: scripts/soak has it")
    setup, work = SAFE[what]
    box = shared_box

    def value(target: KernelRecord | str) -> str | None:
        result = box.execute(target, work, timeout=30)
        assert result.ok, result.error
        return result.return_value

    done = box.execute(kernel, setup, timeout=60)
    assert done.ok, done.error
    expected = value(kernel)
    name = f"branch of {what}"
    box.branch(kernel, name)
    try:
        for target in (name, kernel, name, kernel):
            assert value(target) == expected
        assert box.get_or_create(name).made_by == "fork"
    finally:
        box.destroy(name)
    point = box.checkpoint(kernel)
    for _ in range(2):
        assert value(kernel) == expected
        box.rewind(kernel, point)
        assert value(kernel) == expected
    box.drop_checkpoint(kernel, point)
    failing = box.execute(kernel, f"{setup}\nx = {work.splitlines()[-1]}\n1/0", atomic=True)
    assert failing.state == "rewound", failing.error
    assert value(kernel) == expected


POLARS = (
    "import polars as pl\n"
    "d = pl.DataFrame({'k': [i % 7 for i in range(10**5)], 'v': [1.0] * 10**5})\n"
    "d.group_by('k').agg(pl.col('v').sum())['v'].sum()"
)


@pytest.mark.skipif(importlib.util.find_spec("polars") is None, reason="polars is not installed")
def test_polars_is_known_by_name_and_copied(shared_box: Box, kernel: KernelRecord) -> None:
    box = shared_box
    box.execute(kernel, POLARS, timeout=60)
    with pytest.raises(Unsupported, match="polars"):
        box.checkpoint(kernel)
    with pytest.raises(Unsupported, match=r"not run.*polars"):
        box.execute(kernel, "1", atomic=True)
    forked = box.branch(kernel, "by fork", method="fork")  # who insists gets what he asked for
    assert (forked.made_by, "polars" in forked.notes[0]) == ("fork", True)
    box.destroy(forked)
    copy = box.branch(kernel, "by copy")
    try:
        assert copy.made_by == "copy"
        assert any("polars" in note for note in copy.notes)
        work = "d.group_by('k').agg(pl.col('v').sum())['v'].sum()"
        for target in (copy, kernel, copy):
            result = box.execute(target, work, timeout=30)
            assert result.return_value == "100000.0", result.error
    finally:
        box.destroy("by copy")


def test_an_executor_at_work_makes_a_copy(shared_box: Box, kernel: KernelRecord) -> None:
    box = shared_box
    box.execute(
        kernel,
        "import time, threading\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "e = ThreadPoolExecutor(2); go = threading.Event(); f = e.submit(go.wait); x = [1]",
    )
    copy = box.branch(kernel, "while at work")
    try:
        assert copy.made_by == "copy"
        assert any("at work" in note for note in copy.notes)
        assert any(note.startswith("not carried: e (") for note in copy.notes)
        assert box.execute(copy, "x").return_value == "[1]"
    finally:
        box.destroy(copy)
    box.execute(kernel, "go.set(); f.result()")
    copy = box.branch(kernel, "at rest")
    assert copy.made_by == "fork"
    assert box.execute(copy, "e.submit(sum, [1, 2]).result()", timeout=10).return_value == "3"
    box.destroy(copy)
