"""Libraries that ask whether they are in a notebook get the answer that serves the reader best.

Each story runs in a process of its own, because shells are singletons and libraries remember. This
file, run as a program, is where those processes come from.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from kernelbox.inside.faces import compact, notebook_twin, recolour, wear

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
PNG = "iVBORw0KGgo="
Tell = Callable[..., list[dict[str, Any]]]


def needs(*modules: str) -> None:
    """Skip where a library is missing, without importing it here."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


class Theatre:
    """Plays stories, each in a fork of one process that has loaded IPython and nothing else."""

    def __init__(self, ipython_dir: Path) -> None:
        meant_for_tools = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"}
        kept = os.environ.keys() - meant_for_tools - {"PLOTLY_RENDERER", "MPLBACKEND"}
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: os.environ[name] for name in kept} | {"IPYTHONDIR": str(ipython_dir)},
        )

    def tell(
        self, *cells: tuple[str, str], absent: Sequence[str] = (), preload: str = "", **env: str
    ) -> list[dict[str, Any]]:
        """Run each (face, code) in turn in one fresh interpreter; what each of them showed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        story = {"cells": cells, "absent": absent, "preload": preload, "env": env}
        print(json.dumps(story), file=self.process.stdin, flush=True)
        shown: list[dict[str, Any]] = json.loads(self.process.stdout.readline())
        assert len(shown) == len(cells), "the interpreter ended early"
        for cell in shown:
            assert cell["error"] is None, cell["error"]
        return shown


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    theatre = Theatre(tmp_path_factory.mktemp("ipython"))
    with theatre.process as process:
        yield theatre
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=10) == 0


@pytest.fixture
def tell(theatre: Theatre) -> Tell:
    return theatre.tell


def perform() -> None:
    """The process behind a theatre."""
    importlib.import_module("IPython.core.interactiveshell")
    for line in sys.stdin:
        reading, writing = os.pipe()
        actor = os.fork()
        if not actor:
            with open(writing, "w") as programme:
                json.dump(play(json.loads(line)), programme, default=str)
            os._exit(0)
        os.close(writing)
        with open(reading) as programme:
            print(programme.read() or "[]", flush=True)
        os.waitpid(actor, 0)


def play(story: dict[str, Any]) -> list[dict[str, Any]]:
    """The interpreter of one story."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    bundles: list[dict[str, Any]] = []

    class Publisher(DisplayPublisher):
        def publish(self, data: Any, metadata: Any = None, *_: Any, **__: Any) -> None:
            bundles.append({"data": data, "metadata": metadata or {}})

    class Hook(DisplayHook):
        def write_output_prompt(self) -> None: ...
        def finish_displayhook(self) -> None: ...
        def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
            bundles.append({"data": format_dict, "metadata": md_dict or {}})

    class Shell(InteractiveShell):
        """A shell such as ours, that keeps what is displayed."""

        def enable_gui(self, gui: Any = None) -> None: ...

    os.environ.update(story["env"])
    for name in story["absent"]:
        sys.modules[name] = None  # type: ignore[assignment]
    exec(story["preload"], {})
    shell = Shell.instance(display_pub_class=Publisher, displayhook_class=Hook, colors="NoColor")
    shell.user_ns.update(wear=wear, recolour=recolour)
    shell.user_ns.update(Shell=Shell, InteractiveShell=InteractiveShell)
    shown = []
    for face, code in story["cells"]:
        bundles.clear()
        out, err = io.StringIO(), io.StringIO()
        wear(shell, face)
        with redirect_stdout(out), redirect_stderr(err):
            result: Any = shell.run_cell(code)  # type: ignore[no-untyped-call]
        failure = result.error_before_exec or result.error_in_exec
        shown.append(
            {
                "bundles": list(bundles),
                "stdout": out.getvalue(),
                "stderr": err.getvalue(),
                "error": failure and f"{failure!r}\n{out.getvalue()}",
            }
        )
    return shown


def only(cell: dict[str, Any]) -> dict[str, Any]:
    """The one bundle that a cell displayed."""
    (bundle,) = cell["bundles"]
    data: dict[str, Any] = bundle["data"]
    return data


def read(cell: dict[str, Any]) -> str:
    """The text that our lane gets of the one bundle that a cell displayed."""
    text: str = compact(only(cell), {})[0]["text/plain"]
    return text


# ---------------------------------------------------------------------------------- the identity

ASK = """
ip = get_ipython()
print(type(ip).__name__, type(ip).__module__, "IPKernelApp" in ip.config)
"""


def test_each_face_answers_the_questions_that_libraries_ask(tell: Tell) -> None:
    text, jupyter, again = tell(("text", ASK), ("jupyter", ASK), ("text", ASK))
    assert text["stdout"].split() == again["stdout"].split()
    assert text["stdout"].split()[0] == "Shell"
    assert text["stdout"].split()[2] == "False"
    assert jupyter["stdout"].split() == ["ZMQInteractiveShell", "ipykernel.zmqshell", "True"]


def test_the_shell_is_the_same_singleton_with_all_its_state_in_both_faces(tell: Tell) -> None:
    tell(
        ("text", "x = [1]; shell = get_ipython(); seen = []"),
        ("text", "shell.events.register('pre_run_cell', lambda info: seen.append(info.raw_cell))"),
        ("jupyter", "assert x == [1] and get_ipython() is shell and seen"),
        ("jupyter", "kinds = InteractiveShell, Shell, type(shell); assert len({*kinds}) == 3"),
        ("jupyter", "assert all(kind.initialized() for kind in kinds)"),
        ("jupyter", "assert all(kind.instance() is shell for kind in kinds)"),
        ("jupyter", "%config InteractiveShell.ast_node_interactivity = 'all'"),
        ("text", "assert shell.ast_node_interactivity == 'all' and type(shell) is Shell"),
        ("text", "assert Shell.instance() is InteractiveShell.instance() is shell"),
    )


def test_a_class_has_one_notebook_twin() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    twin = notebook_twin(InteractiveShell)
    assert twin is notebook_twin(InteractiveShell)
    assert issubclass(twin, InteractiveShell)
    assert twin.__name__ == "ZMQInteractiveShell"


def test_a_library_that_merely_looks_does_not_turn_the_text_face_into_a_notebook(
    tell: Tell,
) -> None:
    _, after = tell(("text", "get_ipython().config['IPKernelApp']"), ("text", ASK))
    assert after["stdout"].split()[2] == "False"


def test_wearing_a_face_imports_no_library(tell: Tell) -> None:
    libraries = ("rich", "tqdm", "plotly", "altair", "ipywidgets", "pandas", "ipykernel")
    code = f"import sys; print([name for name in {libraries} if name in sys.modules])"
    for cell in tell(("text", code), ("jupyter", code), ("text", code)):
        assert cell["stdout"].strip() == "[]"


def test_wearing_the_same_face_again_costs_microseconds(tell: Tell) -> None:
    for face in ("text", "jupyter"):
        code = f"import timeit; ip = get_ipython(); wear_it = lambda: wear(ip, {face!r})\n"
        code += "print(min(timeit.repeat(wear_it, number=1000, repeat=5)) / 1000)"
        (cell,) = tell((face, code))
        assert float(cell["stdout"]) < 20e-6


def test_tools_are_asked_for_colours_in_jupyter_only(tell: Tell) -> None:
    code = "import os; print([os.environ.get(n) for n in ('FORCE_COLOR', 'CLICOLOR_FORCE')])"
    text, jupyter, again = tell(("text", code), ("jupyter", code), ("text", code), FORCE_COLOR="3")
    assert text["stdout"] == again["stdout"] == "[None, None]\n"
    assert jupyter["stdout"] == "['3', '1']\n"
    (jupyter,) = tell(("jupyter", code), NO_COLOR="1")
    assert jupyter["stdout"] == "[None, None]\n"


def test_an_environment_that_comes_after_the_face_is_dyed_too(tell: Tell) -> None:
    *_, cell = tell(
        ("text", "import os; os.environ['FORCE_COLOR'] = '1'; recolour()"),
        ("text", "print('FORCE_COLOR' in os.environ)"),
    )
    assert cell["stdout"] == "False\n"


# ------------------------------------------------------------------------------------- libraries

RICH = """
import rich
from rich.table import Table
table = Table("name", "value"); table.add_row("[bold red]one", "1")
rich.print(table)
"""


def test_rich_prints_plain_text_in_the_text_face_and_html_in_jupyter(tell: Tell) -> None:
    needs("rich")
    text, jupyter, again = tell(("text", RICH), ("jupyter", RICH), ("text", RICH), FORCE_COLOR="1")
    for cell in (text, again):
        assert "one" in cell["stdout"]
        assert "\x1b" not in cell["stdout"]
        assert not cell["bundles"]
    assert not jupyter["stdout"]
    assert "<span" in only(jupyter)["text/html"]


def test_a_rich_table_displayed_in_the_text_face_is_plain(tell: Tell) -> None:
    needs("rich")
    (cell,) = tell(("text", RICH.replace("rich.print(table)", "table")))
    assert "one" in read(cell)
    assert "\x1b" not in read(cell)


def test_rich_is_as_wide_as_columns_says(tell: Tell) -> None:
    needs("rich")
    code = "import rich; from rich.panel import Panel; rich.print(Panel('x'))"
    (narrow,) = tell(("text", code))
    (wide,) = tell(("text", code), COLUMNS="132")
    assert {len(line) for line in narrow["stdout"].splitlines()} == {80}
    assert {len(line) for line in wide["stdout"].splitlines()} == {132}


def test_a_rich_console_of_the_users_own_stays_as_he_made_it(tell: Tell) -> None:
    needs("rich")
    mine, global_one = tell(
        ("jupyter", "import rich; rich.reconfigure(width=33); from rich.console import Console"),
        ("text", "rich.print('[red]hello'); assert rich.get_console().width == 33"),
    )
    assert not mine["bundles"]
    assert read(global_one) == "hello\n"


TQDM = "from tqdm.auto import tqdm\nfor _ in tqdm(range(3), desc='work'): pass"


def test_tqdm_auto_is_a_text_bar_on_stderr_in_the_text_face(tell: Tell) -> None:
    needs("tqdm")
    for absent in ((), ("ipywidgets",)):
        (cell,) = tell(("text", TQDM), absent=absent)
        assert "work: 100%" in cell["stderr"]
        assert not cell["bundles"]
        assert "IProgress" not in cell["stderr"]


def test_tqdm_auto_is_a_text_bar_in_the_text_face_though_ipykernel_is_loaded(tell: Tell) -> None:
    needs("tqdm", "ipykernel")
    code = TQDM + "\nimport sys; assert 'ipykernel.zmqshell' in sys.modules"
    (cell,) = tell(("text", code), preload="import ipykernel.zmqshell")
    assert "work: 100%" in cell["stderr"]
    assert not cell["bundles"]


def test_tqdm_auto_is_a_widget_in_jupyter(tell: Tell) -> None:
    needs("tqdm", "ipywidgets")
    code = TQDM + "\nimport sys; assert 'ipykernel.zmqshell' not in sys.modules"
    (cell,) = tell(("jupyter", code))
    assert WIDGET in only(cell)
    assert "work" in only(cell)["text/plain"]
    assert not cell["stderr"]


def test_tqdm_auto_without_ipywidgets_is_a_text_bar_in_jupyter_and_does_not_complain(
    tell: Tell,
) -> None:
    needs("tqdm")
    (cell,) = tell(("jupyter", TQDM), absent=("ipywidgets",))
    assert "work: 100%" in cell["stderr"]
    assert "IProgress" not in cell["stderr"]


def test_tqdm_auto_decides_anew_when_it_is_imported_under_the_other_face(tell: Tell) -> None:
    needs("tqdm", "ipywidgets")
    text, jupyter, again, kept = tell(
        ("text", TQDM),
        ("jupyter", TQDM + "\nnotebook = tqdm"),
        ("text", TQDM),
        ("jupyter", "from tqdm.auto import tqdm\nassert tqdm is notebook"),
    )
    assert "100%" in text["stderr"]
    assert "100%" in again["stderr"]
    assert not text["bundles"]
    assert not again["bundles"]
    assert WIDGET in only(jupyter)
    assert not kept["stderr"]


FIGURE = """
import plotly.graph_objects as go
fig = go.Figure([go.Scatter(x=[1, 2], y=[3, 4]), go.Bar(y=[1, 2])])
fig = fig.update_layout(title="sales", xaxis_title="day")
"""
FIGURE_TEXT = "plotly Figure: 2 traces (scatter, bar), title 'sales', x 'day'"


@pytest.mark.parametrize("absent", [(), ("nbformat",)], ids=["with-nbformat", "without-nbformat"])
def test_plotly_shows_its_json_and_no_script_in_both_faces(
    tell: Tell, absent: tuple[str, ...]
) -> None:
    needs("plotly")
    cells = tell(
        ("text", FIGURE + "fig"),
        ("text", "fig.show()"),
        ("jupyter", "fig"),
        ("jupyter", "fig.show()"),
        absent=absent,
    )
    for cell in cells:
        assert PLOTLY in only(cell)
        assert "text/html" not in only(cell)
        assert read(cell) == FIGURE_TEXT
    (first,) = tell(("jupyter", FIGURE + "fig.show()"), absent=absent)
    assert only(first).keys() == {PLOTLY}


def test_plotly_that_was_loaded_before_the_shell_shows_figures_all_the_same(tell: Tell) -> None:
    needs("plotly")
    (cell,) = tell(("text", FIGURE + "fig"), preload="import plotly.io as pio; pio.renderers")
    assert read(cell) == FIGURE_TEXT


def test_a_plotly_renderer_chosen_by_the_user_stays(tell: Tell) -> None:
    needs("plotly")
    code = "import plotly.io as pio; print(pio.renderers.default)"
    _, *cells = tell(
        ("text", "import plotly.io as pio; pio.renderers.default = 'plotly_mimetype+notebook'"),
        ("text", code),
        ("jupyter", code),
        ("text", code),
    )
    assert {cell["stdout"] for cell in cells} == {"plotly_mimetype+notebook\n"}
    (cell,) = tell(("text", code), PLOTLY_RENDERER="json")
    assert cell["stdout"] == "json\n"


CHART = """
import altair as alt
data = alt.Data(values=[{"a": 1, "b": 2}, {"a": 2, "b": 3}, {"a": 3, "b": 5}])
chart = alt.Chart(data).mark_bar().encode(x="a:Q", y="sum(b):Q")
"""
CHART_TEXT = "Vega-Lite chart: bar (x=a, y=sum(b)), 3 rows"


def test_altair_gives_its_specification_to_text_and_html_to_jupyter(tell: Tell) -> None:
    needs("altair")
    text, jupyter, again = tell(("text", CHART + "chart"), ("jupyter", "chart"), ("text", "chart"))
    for cell in (text, again):
        assert read(cell) == CHART_TEXT
        assert any("vegalite" in mime for mime in compact(only(cell), {})[0])
    assert "<script" in only(jupyter)["text/html"]
    (first,) = tell(("jupyter", CHART + "chart"))
    assert "text/html" in only(first)


def test_an_altair_renderer_chosen_by_the_user_stays(tell: Tell) -> None:
    needs("altair")
    choice = "import altair as alt; alt.renderers.enable('json')"
    code = "print(alt.renderers.active)"
    _, *cells = tell(("text", choice), ("text", code), ("jupyter", code), ("text", code))
    assert {cell["stdout"] for cell in cells} == {"json\n"}


def test_a_watched_library_is_loaded_by_its_own_loader(tell: Tell) -> None:
    needs("altair")
    tell(
        ("text", "import altair, inspect, importlib.machinery"),
        ("text", "assert type(altair.__loader__) is importlib.machinery.SourceFileLoader"),
        ("text", "assert altair.__loader__ is altair.__spec__.loader"),
        ("text", "assert inspect.getsource(altair)"),
        ("text", "importlib.reload(altair); assert altair.renderers.active == 'mimetype'"),
    )


def test_widgets_are_views_in_jupyter_and_say_their_value_in_text(tell: Tell) -> None:
    needs("ipywidgets")
    code = "import ipywidgets; ipywidgets.IntSlider(value=3)"
    text, jupyter = tell(("text", code), ("jupyter", code))
    assert WIDGET in only(jupyter)
    assert read(text) == "IntSlider(value=3)"


def test_a_data_frame_is_text_and_html_in_both_faces(tell: Tell) -> None:
    needs("pandas")
    code = "import pandas; pandas.DataFrame({'a': [1, 2]})"
    for cell in tell(("text", code), ("jupyter", code)):
        data, _ = compact(only(cell), {})
        assert data["text/plain"] == "   a\n0  1\n1  2"
        assert "<table" in data["text/html"]


def test_polars_is_asked_as_a_notebook_in_jupyter_only(tell: Tell) -> None:
    needs("polars")
    code = "import polars; from polars._utils.various import _in_notebook; print(_in_notebook())"
    text, jupyter = tell(("text", code), ("jupyter", code))
    assert (text["stdout"], jupyter["stdout"]) == ("False\n", "True\n")


def test_a_matplotlib_figure_is_an_image_in_both_faces(tell: Tell) -> None:
    needs("matplotlib", "matplotlib_inline")
    code = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()"
    for cell in tell(("text", code), ("jupyter", code)):
        data, _ = compact(only(cell), {})
        assert data["text/plain"].startswith("<Figure size")
        assert data["image/png"]


# --------------------------------------------------------------------------------------- compact

VEGALITE = "application/vnd.vegalite.v6.json"
BIG = "x" * 300_000
SCRIPT = f"<div><script>{'plotly();' * 500_000}</script></div>"
OPAQUE = "<IPython.core.display.HTML object>"


@pytest.mark.parametrize(
    ("data", "text", "kept"),
    [
        pytest.param({"text/plain": "1"}, "1", set(), id="text"),
        pytest.param({"text/plain": BIG}, BIG, set(), id="long text is not cut here"),
        pytest.param({"text/plain": "\x1b[1;31mred\x1b[0m"}, "red", set(), id="escape codes"),
        pytest.param(
            {"text/plain": "\x1b]8;;http://x\x1b\\link\x1b]8;;\x07"}, "link", set(), id="links"
        ),
        pytest.param(
            {"text/plain": "df", "text/html": "<table></table>"}, "df", {"text/html"}, id="table"
        ),
        pytest.param(
            {"text/plain": OPAQUE, "text/html": "<h1>Hi</h1><p>a&amp;b</p>"},
            "Hi\na&b",
            {"text/html"},
            id="html is read",
        ),
        pytest.param(
            {"text/html": "<table><tr><th>a<th>b</tr><tr><td>1<td>2</table>"},
            "a  b\n  1  2",
            {"text/html"},
            id="a table is read by rows",
        ),
        pytest.param(
            {"text/html": "<pre>a   b\n  c</pre>"}, "a   b\n  c", {"text/html"}, id="verbatim"
        ),
        pytest.param(
            {"text/html": "<style>p {}</style>shown<SCRIPT>hidden()</SCRIPT>"},
            "shown",
            set(),
            id="html with a script",
        ),
        pytest.param(
            {"text/plain": "map", "text/html": '<iframe srcdoc="&lt;script&gt;"></iframe>'},
            "map",
            set(),
            id="a script in a frame",
        ),
        pytest.param({"text/plain": "t", "text/html": BIG}, "t", set(), id="huge html"),
        pytest.param(
            {"text/plain": "<a.B at 0x7f31>", "text/html": "<iframe src='u'></iframe>"},
            "HTML without text: iframe",
            {"text/html"},
            id="a frame",
        ),
        pytest.param(
            {"text/plain": OPAQUE, "text/html": "<audio><source src='x'>Get a browser!</audio>"},
            "HTML without text: audio",
            {"text/html"},
            id="a sound",
        ),
        pytest.param(
            {"text/plain": "<a.B at 0x7f31>", "text/html": "<div></div>"},
            "<a.B at 0x7f31>",
            {"text/html"},
            id="nothing better to say",
        ),
        pytest.param(
            {PLOTLY: {"data": [{"type": "bar"}], "layout": {}}, "text/html": SCRIPT},
            "plotly Figure: 1 trace (bar)",
            {PLOTLY},
            id="plotly",
        ),
        pytest.param(
            {
                PLOTLY: {
                    "data": [{"name": str(n), "y": [0] * 50_000} for n in range(40)],
                    "layout": {"title": "old style", "yaxis": {"title": {"text": "€"}}},
                    "frames": [{}],
                }
            },
            "plotly Figure: 40 traces (scatter ×40), named '0', '1', '2', '3', '4', '5', '6', '7'"
            " and 32 more, title 'old style', y '€', 1 frame",
            set(),
            id="a plotly figure that is too big",
        ),
        pytest.param(
            {VEGALITE: {"layer": [{"mark": "line"}, {"mark": {"type": "point"}}, {}]}},
            "Vega-Lite chart: line, point, no mark",
            {VEGALITE},
            id="layers",
        ),
        pytest.param(
            {
                "text/plain": "<VegaLite 6 object>\n\nIf you see this message, it means trouble.",
                VEGALITE: {
                    "mark": "rect",
                    "encoding": {
                        "x": {"field": "d", "timeUnit": "month"},
                        "y": {"aggregate": "count"},
                        "color": {"value": "red"},
                    },
                    "title": {"text": "T"},
                    "datasets": {"one": [{"d": 1}]},
                },
            },
            "Vega-Lite chart: rect (x=month(d), y=count()), 1 row, title 'T'",
            {VEGALITE},
            id="vega-lite",
        ),
        pytest.param(
            {"application/vnd.vega.v5+json": {"marks": [{"type": "arc"}]}},
            "Vega chart: arc",
            {"application/vnd.vega.v5+json"},
            id="vega",
        ),
        pytest.param({PLOTLY: "junk"}, "plotly Figure: 0 traces", {PLOTLY}, id="no figure"),
        pytest.param(
            {VEGALITE: {"layer": 3, "encoding": [], "title": 1}},
            "Vega-Lite chart: no mark, title '1'",
            {VEGALITE},
            id="no chart",
        ),
        pytest.param({"image/png": PNG}, "image/png of 0.0 kB", {"image/png"}, id="an image alone"),
        pytest.param(
            {"text/plain": "f", "image/svg+xml": BIG, "image/gif": BIG, "image/webp": BIG},
            "f",
            {"image/svg+xml", "image/gif", "image/webp"},
            id="images stay whatever their size",
        ),
        pytest.param(
            {"text/plain": "slider", WIDGET: {"model_id": "1"}}, "slider", {WIDGET}, id="widget"
        ),
        pytest.param(
            {"text/plain": OPAQUE, "text/markdown": "# x"}, "# x", {"text/markdown"}, id="markdown"
        ),
        pytest.param({"text/latex": "$x$"}, "$x$", {"text/latex"}, id="latex"),
        pytest.param(
            {"text/plain": OPAQUE, "application/json": {"a": [1, None]}},
            '{"a": [1, null]}',
            {"application/json"},
            id="json",
        ),
        pytest.param(
            {"application/json": {"a": BIG}}, "JSON object with 1 key: a", set(), id="huge json"
        ),
        pytest.param(
            {"application/geo+json": {}}, "{}", {"application/geo+json"}, id="a kind of json"
        ),
        pytest.param(
            {"text/plain": OPAQUE, "application/javascript": "alert(1)"},
            "JavaScript of 8 characters, not run here",
            set(),
            id="javascript",
        ),
        pytest.param(
            {"application/javascript": BIG, "application/vnd.bokehjs_exec.v0+json": ""},
            "bokeh plot, drawn by JavaScript in a browser",
            set(),
            id="bokeh",
        ),
        pytest.param(
            {"application/x-thing": b"1"},
            "an object shown as application/x-thing",
            {"application/x-thing"},
            id="unknown",
        ),
    ],
)
def test_a_reader_of_text_gets(data: dict[str, Any], text: str, kept: set[str]) -> None:
    before = dict(data)
    short, _ = compact(data, {})
    assert short == {"text/plain": text, **{mime: data[mime] for mime in kept}}
    assert data == before
    assert compact(short, {})[0] == short


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"text/html": SCRIPT}, id="plotly loads itself"),
        pytest.param({"text/html": "<div id='1'></div>"}, id="a place for a plot"),
        pytest.param(
            {"application/javascript": BIG, "application/vnd.bokehjs_load.v0+json": BIG},
            id="bokeh loads itself",
        ),
        pytest.param(
            {"text/html": SCRIPT, "application/vnd.holoviews_exec.v0+json": ""}, id="holoviews"
        ),
    ],
)
def test_what_only_prepares_a_page_is_not_shown(data: dict[str, Any]) -> None:
    assert compact(data, {"text/html": {"isolated": True}}) == ({}, {})


def test_metadata_stays_with_what_stays() -> None:
    _, metadata = compact(
        {"text/plain": "f", "image/png": PNG, "text/html": SCRIPT},
        {"image/png": {"width": 5}, "text/html": {"isolated": True}, "needs_background": "light"},
    )
    assert metadata == {"image/png": {"width": 5}, "needs_background": "light"}


def test_a_long_page_is_read_only_so_far() -> None:
    short, _ = compact({"text/html": "<p>word " * 100_000}, {})
    assert len(short["text/plain"]) < 2_100
    assert short["text/plain"].endswith("more characters)")


def test_a_huge_bundle_is_compacted_in_no_time() -> None:
    figure = {"data": [{"y": list(range(1_000_000))} for _ in range(10)], "layout": {}}
    bundle = {PLOTLY: figure, "text/html": SCRIPT, "application/json": figure}
    assert timeit.timeit(lambda: compact(bundle, {}), number=1) < 1


if __name__ == "__main__":
    perform()
