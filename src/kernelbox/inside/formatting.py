"""How values become mime bundles: IPython's way, with a short cut for plain built-in values.

A number has no HTML. IPython asks eleven formatters all the same, which is a fifth of the time that
``1+1`` takes. The short cut is left as soon as anybody has registered a formatter for the type.
"""

from __future__ import annotations

from typing import Any

from IPython.core.formatters import DisplayFormatter

_PLAIN = frozenset({int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset})


class QuickFormatter(DisplayFormatter):
    """Formats what has only a text form without asking for the others."""

    def format(
        self, obj: Any, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        kind = type(obj)
        if kind in _PLAIN and include is None and exclude is None and self._text_only(obj, kind):
            text = self.formatters["text/plain"](obj)
            return ({"text/plain": text} if text is not None else {}), {}
        formatted: tuple[dict[str, Any], dict[str, Any]] = super().format(obj, include, exclude)
        return formatted

    def _text_only(self, obj: Any, kind: type) -> bool:
        name = (kind.__module__, kind.__name__)
        for by_type, deferred, singletons in self._registrations():
            if kind in by_type or object in by_type or name in deferred or id(obj) in singletons:
                return False
        return True

    def _registrations(self) -> list[tuple[Any, Any, Any]]:
        """What is registered for the rich forms: the live tables, looked up once."""
        found: list[tuple[Any, Any, Any]] | None = getattr(self, "_tables", None)
        if found is None:
            rich = [f for mime, f in self.formatters.items() if mime != "text/plain"]
            rich += [self.ipython_display_formatter, self.mimebundle_formatter]
            found = [(f.type_printers, f.deferred_printers, f.singleton_printers) for f in rich]
            self._tables = found
        return found
