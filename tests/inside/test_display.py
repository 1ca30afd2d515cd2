"""Results and displays: values, rich bundles, updates, images, and objects that misbehave."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable

import pytest

from kernelbox import ExecutionResult

Run = Callable[..., ExecutionResult]

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
IMPORTS = f"from IPython.display import *\nimport base64\npixel = base64.b64decode('{PIXEL}')\n"


# -- results ------------------------------------------------------------------------------------


def test_the_last_expression_is_the_result(ran: Run) -> None:
    result = ran("x = 40\nx + 2")
    assert result.return_value == "42"
    assert result.execution_count == 1
    assert [item.kind for item in result.outputs] == ["execute_result"]
    assert result.outputs[0].data["text/plain"] == "42"


def test_earlier_results_are_at_hand(ran: Run) -> None:
    ran("'first'")
    ran("'second'")
    assert ran("_, __, _1, Out[2], _i1, In[2]").return_value == (
        "('second', 'first', 'first', 'second', \"'first'\", \"'second'\")"
    )


@pytest.mark.parametrize(
    "code",
    ["42;", "x = 42", "None", "", "\n\n", "# nothing\n"],
    ids=["semicolon", "assignment", "None", "empty", "blank", "comment"],
)
def test_no_result_where_there_is_none(ran: Run, code: str) -> None:
    result = ran(code)
    assert result.return_value is None
    assert result.outputs == []


def test_the_count_goes_up_with_each_cell(ran: Run, run: Run) -> None:
    counts = [ran("1").execution_count, run("1/0").execution_count, ran("2").execution_count]
    assert counts == [1, 2, 3]


def test_a_huge_result_is_cut_and_kept_in_the_kernel(ran: Run) -> None:
    result = ran("'x' * 5_000_000")
    assert result.truncated
    assert result.return_value is not None
    assert len(result.return_value) <= 10_000
    assert ran("len(_)").return_value == "5000000"


def test_a_repr_that_raises_is_told_and_the_cell_goes_on(ran: Run) -> None:
    result = ran("class R:\n    def __repr__(self): raise ValueError('no repr')\nR()")
    assert result.return_value is None
    (item,) = result.outputs
    assert item.kind == "error"
    assert item.text is not None
    assert "no repr" in item.text


def test_a_broken_rich_form_leaves_the_plain_one(ran: Run) -> None:
    result = ran(
        "class R:\n"
        "    def _repr_html_(self): raise ValueError('no html')\n"
        "    def __repr__(self): return 'plain'\n"
        "R()"
    )
    assert result.return_value == "plain"


# -- displays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "mime", "content"),
    [
        ("HTML('<b>bold</b>')", "text/html", "<b>bold</b>"),
        ("JSON({'a': [1, None]})", "application/json", {"a": [1, None]}),
        ("Latex('$x$')", "text/latex", "$x$"),
        ("Markdown('# title')", "text/markdown", "# title"),
        ("Pretty('plain')", "text/plain", "plain"),
    ],
    ids=["html", "json", "latex", "markdown", "plain"],
)
def test_rich_forms_arrive(ran: Run, what: str, mime: str, content: object) -> None:
    (item,) = ran(IMPORTS + f"display({what})").outputs
    assert item.kind == "display_data"
    assert item.data[mime] == content
    assert item.data["text/plain"]
    assert item.text == item.data["text/plain"]


def test_svg_and_image_bytes_are_images(ran: Run) -> None:
    result = ran(
        IMPORTS + "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>'))\n"
        "display({'image/png': pixel, 'text/plain': 'a pixel'}, raw=True)\n"
        "Image(data=pixel)"
    )
    svg, *pictures = result.images
    assert svg.mime == "image/svg+xml"
    assert svg.data.startswith(b"<svg")
    assert [(p.mime, p.data) for p in pictures] == [("image/png", b64decode(PIXEL))] * 2
    assert result.outputs[1].text == "a pixel"


def test_an_object_may_bring_its_own_bundle(ran: Run) -> None:
    result = ran(
        "class Own:\n"
        "    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'text/plain': 'own', 'application/x-own': 'mine'}, {'x': 1}\n"
        "Own()"
    )
    assert result.return_value == "own"
    assert result.outputs[0].data["application/x-own"] == "mine"


def test_displays_are_updated_and_cleared(ran: Run) -> None:
    result = ran(
        IMPORTS + "handle = display('a', display_id=True)\n"
        "handle.update('b')\nclear_output(wait=True)\nclear_output()"
    )
    assert [(item.kind, item.text) for item in result.outputs] == [
        ("display_data", "'a'"),
        ("update_display_data", "'b'"),
        ("clear_output", None),
        ("clear_output", None),
    ]
    assert [item.metadata["wait"] for item in result.outputs[2:]] == [True, False]


def test_a_display_that_cannot_be_sent_is_an_error_and_nothing_after_it_is_held(
    ran: Run, run: Run
) -> None:
    result = run(
        IMPORTS + "print('before')\n"
        "try:\n    display({'application/x-own': {(1, 2): 3}}, raw=True)\n"
        "except TypeError as error:\n    print('refused')\n"
        "print('after')"
    )
    assert result.output == "before\nrefused\nafter\n"
    assert ran("print('later')").output == "later\n"


def test_displays_from_threads_arrive_whole(ran: Run) -> None:
    result = ran(
        IMPORTS + "import threading\n"
        "def show(n):\n    for i in range(40): display(f'{n}:{i}')\n"
        "threads = [threading.Thread(target=show, args=(n,)) for n in range(5)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; None"
    )
    texts = [item.text for item in result.outputs]
    assert len(texts) == 200
    for n in range(5):
        assert [t for t in texts if t and t.startswith(f"'{n}:")] == [
            f"'{n}:{i}'" for i in range(40)
        ]
