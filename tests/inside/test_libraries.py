"""The libraries that people use in cells: figures, progress bars, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kernelbox import Box, ExecutionResult, KernelRecord

Run = Callable[..., ExecutionResult]

for library in ("matplotlib", "numpy", "pandas", "tqdm"):
    pytest.importorskip(library)


@pytest.fixture(scope="module")
def stocked(shared_box: Box) -> Iterator[KernelRecord]:
    """One kernel for all: importing these libraries is what takes the time."""
    record = shared_box.get_or_create("stocked")
    result = shared_box.execute(
        record,
        "import matplotlib.pyplot as plt, numpy as np, pandas as pd\nfrom tqdm import tqdm",
        timeout=60,
    )
    assert result.ok, result.error
    yield record
    shared_box.destroy(record)


@pytest.fixture
def ran(shared_box: Box, stocked: KernelRecord) -> Run:
    def run_well(code: str, **options: object) -> ExecutionResult:
        result = shared_box.execute(stocked, code, **{"timeout": 30, **options})  # type: ignore[arg-type]
        assert result.ok, f"{result.error}\n{result.stderr}"
        return result

    return run_well


def is_png(data: bytes) -> bool:
    return data.startswith(b"\x89PNG\r\n\x1a\n")


def test_a_figure_is_shown_once_at_the_end_of_its_cell(ran: Run) -> None:
    result = ran("_ = plt.plot([1, 2, 3])")
    (picture,) = result.images
    assert picture.mime == "image/png"
    assert is_png(picture.data)
    assert len(picture.data) > 1000
    assert ran("1").images == []


def test_each_figure_is_one_picture(ran: Run) -> None:
    result = ran("for n in range(3):\n    plt.figure(); plt.plot([n])")
    assert len(result.images) == 3
    assert len({picture.data for picture in result.images}) == 3


def test_show_puts_a_figure_where_it_is_called(ran: Run) -> None:
    result = ran("print('before'); plt.plot([1]); plt.show(); print('after')")
    assert [item.kind for item in result.outputs] == ["stream", "display_data", "stream"]
    assert len(result.images) == 1
    assert "Figure" in (result.outputs[1].text or "")


def test_a_figure_as_the_result_is_shown_once(ran: Run) -> None:
    result = ran("figure, axes = plt.subplots(); axes.plot([1, 2]); plt.close(figure); figure")
    assert len(result.images) == 1


def test_a_closed_figure_is_not_shown(ran: Run) -> None:
    assert ran("plt.plot([1]); plt.close('all')").images == []


def test_a_figure_of_a_cell_that_fails_is_not_left_for_the_next(
    shared_box: Box, stocked: KernelRecord, ran: Run
) -> None:
    failed = shared_box.execute(stocked, "plt.plot([1])\n1/0", timeout=30)
    assert failed.status == "error"
    assert len(failed.images) <= 1
    assert ran("1").images == []


def test_savefig_and_another_format(ran: Run, tmp_path) -> None:
    ran(f"plt.plot([1]); plt.savefig({str(tmp_path / 'f.pdf')!r}); plt.close()")
    assert (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")
    svg = ran("%config InlineBackend.figure_formats = ['svg']\nplt.plot([1]); plt.show()").images
    ran("%config InlineBackend.figure_formats = ['png']")
    assert [picture.mime for picture in svg] == ["image/svg+xml"]
    assert b"<svg" in svg[0].data


def test_a_progress_bar_is_one_line(ran: Run) -> None:
    result = ran("for _ in tqdm(range(300), mininterval=0): pass\nprint('done')")
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("100%")
    assert "300/300" in lines[0]
    assert "\r" not in result.stderr
    assert result.output == "done\n"
    assert not result.truncated


def test_tqdm_auto_is_text_here(ran: Run) -> None:
    result = ran("from tqdm.auto import tqdm as auto\nfor _ in auto(range(3)): pass")
    assert "3/3" in result.stderr
    assert [item.kind for item in result.outputs] == ["stream"]


def test_a_table_is_text_and_html(ran: Run) -> None:
    result = ran("pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
    assert result.return_value == "   a  b\n0  1  x\n1  2  y"
    assert "<table" in result.outputs[0].data["text/html"]


def test_a_large_table_is_bounded(ran: Run) -> None:
    result = ran("pd.DataFrame(np.zeros((100_000, 50)))")
    assert result.return_value is not None
    assert len(result.return_value) <= 10_000
    assert "[100000 rows x 50 columns]" in result.return_value


def test_random_numbers_are_not_shared_between_kernels(shared_box: Box) -> None:
    code = "import random, numpy; random.random(), float(numpy.random.rand())"
    values = set()
    for name in ("one", "two"):
        shared_box.get_or_create(name)
        values.add(shared_box.execute(name, code, timeout=30).return_value)
        shared_box.destroy(name)
    assert len(values) == 2
