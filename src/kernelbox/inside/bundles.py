"""What a reader of text gets of a mime bundle: words that say something, images, what is small."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from html.parser import HTMLParser
from typing import Any

LIMIT = 256 * 1024
"""The most that HTML, or any structured part of a bundle, may weigh to stay in it (characters)."""
TEXT_LIMIT = 2_000
"""The longest text that is made up here for an object that brings none of its own."""

PLOTLY = "application/vnd.plotly.v1+json"
_HTML = re.compile(r"text/html|application/xhtml\+xml")
_LOADER = re.compile(r"application/vnd\.\w+_load\.v\d+\+json")
_EXECUTOR = re.compile(r"application/vnd\.(bokeh|holoviews)\w*_exec\.v\d+\+json")
_JAVASCRIPT = re.compile(r"(application|text)/(javascript|ecmascript)")
_SCRIPT = re.compile(f"{_JAVASCRIPT.pattern}|{_LOADER.pattern}|{_EXECUTOR.pattern}")
_VEGA = re.compile(r"application/vnd\.(vega|vegalite)\.v[\d.]+[.+]json")
# Also inside the srcdoc of an iframe, where it is escaped, perhaps twice.
_SCRIPT_TAG = re.compile(r"(?:<|&(?:amp;)?(?:lt|#60|#x3c);)script\b", re.IGNORECASE)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# What Python says of an object that has nothing to say, and what altair says to the wrong client.
_OPAQUE = re.compile(
    r"<[\w.]+ object>|<[\w.]+(?: object)? at 0x[0-9a-fA-F]+>|<Vega(?:Lite)? \d+ object>.*",
    re.DOTALL,
)


def compact(
    data: Mapping[str, Any], metadata: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reduce a bundle to what fits a context window and still serves an interface.

    ``text/plain`` is always there, without escape codes, and is never cut here: its length is the
    business of the output limit. Images stay, whatever their size. HTML stays if it is small and
    has no script; scripts go; other parts stay if they are small. Of a bundle that only prepares
    a page for later ones (bokeh and plotly load their library that way) nothing is left.
    """
    kept = {mime: value for mime, value in data.items() if _stays(mime, value)}
    text = _text(data)
    if text is None and not any(mime.startswith("image/") for mime in kept):
        return {}, {}
    if text is not None:
        kept = {"text/plain": text, **kept}
    gone = data.keys() - kept.keys()
    return kept, {key: value for key, value in metadata.items() if key not in gone}


def plain(text: str) -> str:
    """``text`` without terminal escape codes."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def _stays(mime: str, value: Any) -> bool:
    if mime.startswith("image/"):
        return True
    if mime == "text/plain" or _SCRIPT.fullmatch(mime) or not weighs_at_most(value, LIMIT):
        return False
    return not _HTML.fullmatch(mime) or not _SCRIPT_TAG.search(str(value))


def weighs_at_most(value: Any, limit: int) -> bool:
    """Is ``value`` about ``limit`` characters of JSON or less? Looks no further than it must."""
    left = limit
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str | bytes | bytearray | memoryview):
            left -= len(item) + 2
        elif isinstance(item, Mapping):
            left -= 2 + 2 * len(item)
            if left >= 0:
                pending.extend(item.keys())
                pending.extend(item.values())
        elif isinstance(item, list | tuple):
            left -= 2 + len(item)
            if left >= 0:
                pending.extend(item)
        else:
            left -= 8
        if left < 0:
            return False
    return True


def _text(data: Mapping[str, Any]) -> str | None:
    """The text of a bundle: its own if that says something, or what can be read from the rest."""
    own = plain(str(data.get("text/plain", "")))
    if own.strip() and not _OPAQUE.fullmatch(own.strip()):
        return own
    if not data or any(_LOADER.fullmatch(mime) for mime in data):
        return None
    for described, describe in _DESCRIPTIONS:
        for mime, value in data.items():
            if described.fullmatch(mime):
                text = describe(mime, value)
                if text:
                    return text
    if own.strip():
        return own
    silent = {"text/html", "text/plain", *filter(_EXECUTOR.fullmatch, data)}
    return None if data.keys() <= silent else f"an object shown as {', '.join(sorted(data))}"


def _plotly(_: str, figure: Any) -> str:
    """``plotly Figure: 2 traces (scatter, bar), title 'x'``."""
    figure = _mapping(figure)
    traces = [_mapping(trace) for trace in _sequence(figure.get("data"))]
    layout = _mapping(figure.get("layout"))
    parts = [_count(len(traces), "trace")]
    if traces:
        parts[0] += f" ({_tally(str(trace.get('type', 'scatter')) for trace in traces)})"
    names = [str(trace["name"]) for trace in traces if trace.get("name")]
    if names:
        parts.append(f"named {_some(map(repr, names))}")
    for label, owner in (("title", layout), ("x", layout.get("xaxis")), ("y", layout.get("yaxis"))):
        title = _mapping(owner).get("title")
        words = _mapping(title).get("text") if isinstance(title, Mapping) else title
        if words:
            parts.append(f"{label} {_cut(str(words), 200)!r}")
    frames = _sequence(figure.get("frames"))
    if frames:
        parts.append(_count(len(frames), "frame"))
    return "plotly Figure: " + ", ".join(parts)


def _vega(mime: str, spec: Any) -> str:
    """``Vega-Lite chart: bar (x=a, y=sum(b)), 3 rows``."""
    spec = _mapping(spec)
    if "lite" not in mime:
        kinds = _tally(str(_mapping(mark).get("type")) for mark in _sequence(spec.get("marks")))
        return f"Vega chart: {kinds or 'no marks'}"
    views = list(_views(spec, {}))
    marks = (view.get("mark", "no mark") for view, _ in views)
    text = _tally(str(_mapping(mark).get("type", mark)) for mark in marks)
    channels = [
        f"{channel}={shown}"
        for channel, definition in (views[0][1] if views else {}).items()
        if (shown := _field(_mapping(definition)))
    ]
    if channels:
        text += f" ({_some(channels)})"
    tables = [*_mapping(spec.get("datasets")).values(), _mapping(spec.get("data")).get("values")]
    rows = sum(len(_sequence(table)) for table in tables)
    if rows:
        text += f", {_count(rows, 'row')}"
    title = spec.get("title")
    words = _mapping(title).get("text") if isinstance(title, Mapping) else title
    return f"Vega-Lite chart: {text}" + (f", title {_cut(str(words), 200)!r}" if words else "")


def _views(
    spec: Mapping[str, Any], inherited: Mapping[str, Any], depth: int = 0
) -> Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each single view of a chart, with the encoding that holds for it."""
    encoding = {**inherited, **_mapping(spec.get("encoding"))}
    inner = [
        _mapping(view)
        for key in ("layer", "hconcat", "vconcat", "concat")
        for view in _sequence(spec.get(key))
    ]
    if isinstance(spec.get("spec"), Mapping):
        inner.append(spec["spec"])
    if not inner or depth > 8:
        yield spec, encoding
    else:
        for view in inner:
            yield from _views(view, encoding, depth + 1)


def _field(definition: Mapping[str, Any]) -> str | None:
    field = definition.get("field")
    shown = "" if field is None else str(field)
    for key in ("bin", "timeUnit", "aggregate"):
        if definition.get(key):
            name = "bin" if key == "bin" else definition[key]
            shown = f"{name}({shown})" if isinstance(name, str) else shown
    return _cut(shown, 80) or None


class _Words(HTMLParser):
    """The words of a page as its reader would see them, and the media among them."""

    _MEDIA = frozenset({"audio", "canvas", "embed", "iframe", "img", "object", "svg", "video"})
    # What stands inside media is for browsers that cannot show them.
    _UNSEEN = re.compile("script|style|template|title|audio|canvas|iframe|object|video")
    _BREAK = re.compile(
        "article|blockquote|br|d[dlt]|div|footer|h[1-6r]|header|li|[ou]l|p|pre|section|table|tr"
    )

    def __init__(self) -> None:
        super().__init__()
        self.fragments: list[str] = []
        self.media: Counter[str] = Counter()
        self.unseen = self.verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.unseen += self._UNSEEN.fullmatch(tag) is not None
        self.verbatim += tag == "pre"
        self.media[tag] += tag in self._MEDIA
        self._part(tag)

    def handle_endtag(self, tag: str) -> None:
        self.unseen = max(0, self.unseen - (self._UNSEEN.fullmatch(tag) is not None))
        self.verbatim = max(0, self.verbatim - (tag == "pre"))
        self._part(tag)

    def _part(self, tag: str) -> None:
        if self._BREAK.fullmatch(tag):
            self.fragments.append("\n")
        elif tag in {"td", "th"}:
            self.fragments.append("  ")

    def handle_data(self, data: str) -> None:
        if not self.unseen:
            self.fragments.append(data if self.verbatim else re.sub(r"\s+", " ", data))

    def text(self) -> str:
        lines = (line.rstrip() for line in "".join(self.fragments).splitlines())
        return re.sub(r"\n{2,}", "\n", "\n".join(lines)).strip()


def _html(_: str, page: Any) -> str | None:
    words = _Words()
    words.feed(str(page)[:LIMIT])
    words.close()
    media = _tally(words.media.elements())
    return _cut(words.text(), TEXT_LIMIT) or (f"HTML without text: {media}" if media else None)


def _json(_: str, value: Any) -> str:
    if weighs_at_most(value, LIMIT):
        return _cut(json.dumps(value, ensure_ascii=False, default=str), TEXT_LIMIT)
    if isinstance(value, Mapping):
        return f"JSON object with {_count(len(value), 'key')}: {_some(map(str, value))}"
    return f"JSON array of {_count(len(value), 'item')}" if isinstance(value, list) else "JSON"


def _bokeh(mime: str, _: Any) -> str | None:
    # holoviews and panel say what they show by themselves.
    return "bokeh plot, drawn by JavaScript in a browser" if "bokeh" in mime else None


def _words(_: str, value: Any) -> str:
    return _cut(plain(str(value)), TEXT_LIMIT)


def _script(_: str, value: Any) -> str:
    return f"JavaScript of {_count(len(str(value)), 'character')}, not run here"


def _image(mime: str, value: Any) -> str:
    size = len(value) if isinstance(value, str | bytes) else 0
    return f"{mime} of {size / 1000:,.1f} kB"


_DESCRIPTIONS: tuple[tuple[re.Pattern[str], Callable[[str, Any], str | None]], ...] = (
    (re.compile(re.escape(PLOTLY)), _plotly),
    (_VEGA, _vega),
    (_EXECUTOR, _bokeh),
    (re.compile("text/(markdown|latex)"), _words),
    (_HTML, _html),
    (re.compile(r"application/(?!.*_exec\.)([^/]+\+)?json"), _json),
    (re.compile("image/.+"), _image),
    (_JAVASCRIPT, _script),
)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else ()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _tally(kinds: Iterable[str]) -> str:
    counted = Counter(kinds)
    return _some(f"{kind} ×{n}" if n > 1 else kind for kind, n in counted.items())


def _some(items: Iterable[str], most: int = 8) -> str:
    listed = [_cut(item, 80) for item in items]
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more:,} more" if more > 0 else "")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"
