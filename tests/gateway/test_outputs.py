"""Pictures become files, everything that is shown is kept, and what is redrawn is shown once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"
SVG = "<svg xmlns='http://www.w3.org/2000/svg'><circle r='4'/></svg>"

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"


async def test_a_plot_is_saved_as_png(connected: Any, tmp_path: Path) -> None:
    async with connected(images_dir=tmp_path / "deep" / "down") as client:
        result = await client.execute(PLOT)
    (image,) = result.images
    assert image.parent == tmp_path / "deep" / "down"
    assert image.suffix == ".png"
    assert image.read_bytes().startswith(PNG)
    assert "Figure" in result.text


async def test_images_go_to_images_by_default(
    connected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = f"from IPython.display import SVG\nSVG({SVG!r})"
    async with connected(images_dir=None) as client:
        result = await client.execute(code)
    (image,) = result.images
    assert image.parent == Path("images")
    assert image.is_file()


async def test_jpeg_and_svg_are_saved_too(connected: Any) -> None:
    code = f"""
import io
from IPython.display import SVG, Image, display
from matplotlib import pyplot as plt
buffer = io.BytesIO()
plt.figure().savefig(buffer, format="jpg")
plt.close()
display(Image(buffer.getvalue(), format="jpeg"))
display(SVG({SVG!r}))
"""
    async with connected() as client:
        result = await client.execute(code)
    jpeg, svg = result.images
    assert jpeg.suffix == ".jpg"
    assert jpeg.read_bytes().startswith(JPEG)
    assert svg.suffix == ".svg"
    assert "circle" in svg.read_text()


async def test_several_pictures_come_in_order(connected: Any) -> None:
    code = "\n".join(f"display(SVG(\"<svg id='{n}'/>\"))" for n in range(5))
    async with connected() as client:
        result = await client.execute("from IPython.display import SVG\n" + code)
    assert [
        f"id='{n}'" in path.read_text() or f'id="{n}"' in path.read_text()
        for n, path in enumerate(result.images)
    ] == [True] * 5


async def test_html_markdown_and_json_are_kept(connected: Any) -> None:
    code = """
from IPython.display import HTML, JSON, Markdown, display
display(HTML("<b>bold</b>"), Markdown("**bold**"), JSON({"a": [1]}))
"""
    async with connected() as client:
        outputs = (await client.execute(code)).outputs
    assert outputs[0]["text/html"] == "<b>bold</b>"
    assert outputs[1]["text/markdown"] == "**bold**"
    assert outputs[2]["application/json"] == {"a": [1]}


async def test_a_value_is_among_the_outputs_in_all_its_forms(connected: Any) -> None:
    async with connected() as client:
        result = await client.execute("import pandas as pd\npd.DataFrame({'a': [1]})")
    (output,) = result.outputs
    assert "<table" in output["text/html"]
    assert output["text/plain"].strip() == result.text


async def test_what_is_updated_is_kept_as_it_was_last(connected: Any) -> None:
    code = """
from IPython.display import HTML
handle = display(HTML("<i>one</i>"), display_id="here")
handle.update(HTML("<i>two</i>"))
"""
    async with connected() as client:
        outputs = (await client.execute(code)).outputs
    assert [output["text/html"] for output in outputs] == ["<i>two</i>"]


async def test_cleared_output_is_gone(connected: Any) -> None:
    async with connected() as client:
        clear = "from IPython.display import clear_output\n"
        assert (await client.execute(clear + "print('a'); clear_output(); print('b')")).text == "b"
        code = clear + "print('a'); clear_output(wait=True); print('b')"
        assert (await client.execute(code)).text == "b"
        # Nothing follows, so there is nothing to make room for.
        assert (await client.execute(clear + "print('a'); clear_output(wait=True)")).text == "a"


async def test_a_picture_that_cannot_be_saved_costs_nothing_else(
    connected: Any, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("a file")
    async with connected(images_dir=tmp_path / "taken") as client:
        result = await client.execute("print('text')\n" + PLOT)
    assert result.images == []
    assert result.text.startswith("text")
    assert "could not be saved" in result.notes[0]
    assert "image/png" in result.outputs[0]


async def test_a_broken_picture_is_an_output_and_no_file(connected: Any) -> None:
    async with connected() as client:
        result = await client.execute("display({'image/png': 'no base64!'}, raw=True)")
    assert result.outputs == [{"image/png": "no base64!"}]


async def test_an_error_carries_the_pictures_before_it(connected: Any) -> None:
    from kernelbox.gateway import ExecutionError

    async with connected() as client:
        with pytest.raises(ExecutionError) as caught:
            await client.execute(PLOT + "\n1/0")
    assert len(caught.value.result.images) == 1
