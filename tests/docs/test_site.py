"""The documentation site builds without a warning and without the network, and is up to date."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as scripts/docs builds it."""
    made = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=ROOT,
        # A proxy that is not there: whoever asks the network for something fails.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **dict.fromkeys(PROXIES, NOWHERE)},
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return made


PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
NOWHERE = "http://127.0.0.1:9"


class Loads(HTMLParser):
    """What a browser fetches by itself to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(values.get("src") or "")
        elif tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(values.get("href") or "")


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    pages = {page.stem for page in DOCS.glob("*.md")}
    built = {page.stem for page in site.glob("*.html")}
    assert pages <= built
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [name for name in sorted(pages) if f" {name}.md" not in navigation] == []


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        loads = Loads()
        loads.feed(page.read_text())
        assert [place for place in loads.found if re.match(r"(https?:)?//", place)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()), sheet.name


def drawings() -> Iterator[tuple[str, str]]:
    for page in sorted(DOCS.glob("*.md")):
        for drawing in re.findall(r"<svg.*?</svg>", page.read_text(), re.DOTALL):
            yield page.name, drawing


def test_drawings_are_well_formed_and_say_in_words_what_they_show() -> None:
    found = list(drawings())
    assert found
    for name, drawing in found:
        element = ElementTree.fromstring(drawing)
        assert element.get("aria-label"), name
        assert "\n\n" not in drawing, f"{name}: an empty line would end the drawing"


def test_the_configuration_page_is_what_the_code_says() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_configuration.py"))
    text = (DOCS / "configuration.md").read_text()
    assert script["page"](text) == text, "run scripts/make_configuration.py"


def test_the_costs_of_state_in_prompts_are_as_counted() -> None:
    environ = {name: v for name, v in os.environ.items() if not name.startswith("KERNELBOX_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "context_cost.py")],
        capture_output=True,
        text=True,
        timeout=100,
        env=environ,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"\n{done.stdout}\n" in (DOCS / "context.md").read_text(), (
        "put what examples/context_cost.py prints into docs/context.md"
    )


def test_the_errors_page_has_every_error_with_its_status_and_exit_code() -> None:
    from kernelbox import errors
    from kernelbox.cli import exits
    from kernelbox.server.errors import STATUSES

    text = (DOCS / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    written = {name: (int(status), int(code)) for name, status, code in rows}
    true = {
        cls.__name__: (STATUSES[cls], exits.code_of(cls("")))
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.BoxError) and cls is not errors.BoxError
    }
    assert written == true
