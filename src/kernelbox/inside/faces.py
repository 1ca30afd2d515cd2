"""The face an interpreter shows to libraries that ask whether they are in a notebook.

One interpreter serves two kinds of readers, a cell at a time: our own lane, where an agent reads
text and may look at images (face ``text``), and Jupyter clients (face ``jupyter``). Libraries
choose their output by what they see, and each looks at something else:

==================  ============================================================================
rich                the name of the shell's class, when a ``Console`` is made
tqdm.auto           on import; ``IPKernelApp`` in the shell's config, or, since 4.69,
                    ``ipykernel.zmqshell`` in ``sys.modules``
plotly              on import: the name and the module of the shell's class
polars and others   ``IPKernelApp`` in the shell's config
altair              nothing: HTML with scripts by default, for everybody
ipywidgets, pandas  nothing: text, and the rich form beside it
command-line tools  ``FORCE_COLOR`` and its like, which ipykernel sets
==================  ============================================================================

So `wear` gives the shell another class, another config section and other colour variables, and
for the few libraries that remember their answer it corrects the memory: on import (a finder in
``sys.meta_path`` that is asked for their names only) and when the face changes. What a user has
chosen himself (a plotly renderer, a console of his own) is left as it is. What stays as it was
imported: a ``tqdm`` that a cell took from ``tqdm.auto`` under the other face, and a ``Console``
that the user holds. Both still work: `compact` takes care of what they display.

Width is left to ``COLUMNS``: without it, in the text face, rich writes 80 columns and tqdm a short
bar.
"""

from __future__ import annotations

import enum
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace, new_class
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["Face", "compact", "notebook_twin", "recolour", "wear"]

Face = Literal["text", "jupyter"]
AnyShell = TypeVar("AnyShell", bound="InteractiveShell")

_SECTION = "IPKernelApp"
_ZMQSHELL = "ipykernel.zmqshell"
_COLOURS = ("CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR")

_twins: dict[type, Any] = {}
_plain_of: dict[type, Any] = {}


def compact(
    data: Mapping[str, Any], metadata: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the text face shows of a bundle: see :func:`kernelbox.inside.bundles.compact`.

    Most cells end with a number or a word. That is shown as it is, and needs no look into a module
    whose import the first kernel of all would wait for.
    """
    if len(data) == 1 and _says_it_all(data.get("text/plain")):
        return dict(data), dict(metadata)
    from kernelbox.inside import bundles

    return bundles.compact(data, metadata)


def _says_it_all(text: object) -> bool:
    """Neither empty, nor with escape codes, nor like ``<something object at 0x…>``."""
    return type(text) is str and text[:1].strip() not in ("", "<") and "\x1b" not in text


def notebook_twin(plain: type[AnyShell]) -> type[AnyShell]:
    """The subclass of ``plain`` that libraries take for ipykernel's shell; always the same one.

    It adds nothing but its name, so an instance can change between the two classes, and traitlets'
    singleton, which is kept on ``plain`` and its bases, is found from either.
    """
    if plain not in _twins:
        name = "ZMQInteractiveShell"
        body = {"__module__": _ZMQSHELL, "__qualname__": name, "__doc__": plain.__doc__}
        _twins[plain] = new_class(
            name, (plain,), exec_body=lambda namespace: namespace.update(body)
        )
        _plain_of[_twins[plain]] = plain
    twin: type[AnyShell] = _twins[plain]
    return twin


def wear(shell: InteractiveShell, face: Face) -> None:
    """Show ``face`` from now on. Call it before each cell: a microsecond if it is worn already."""
    notebook = face == "jupyter"
    if (
        _wardrobe.worn == face
        and (shell.__class__ in _plain_of) is notebook
        # A library may have created the section by merely looking into it.
        and (_SECTION in shell.config) is notebook
    ):
        return
    _wardrobe.change(face)
    plain = _plain_of.get(shell.__class__, shell.__class__)
    shell.__class__ = notebook_twin(plain) if notebook else plain
    # In place: a new config object would make every component of the shell load itself anew.
    if notebook:
        shell.config[_SECTION]
    else:
        shell.config.pop(_SECTION, None)


def recolour() -> None:
    """Fit a new environment to the worn face: a request brings a warm spare one after the fact."""
    _wardrobe.colours.clear()
    if _wardrobe.worn is not None:
        _wardrobe.colour(_wardrobe.worn)


class _Wardrobe:
    """What is worn in this process, and what was taken off and may be put on again."""

    def __init__(self) -> None:
        self.worn: Face | None = None
        self.colours: dict[str, str] = {}
        self.modules: dict[tuple[Face, str], ModuleType] = {}

    def change(self, face: Face) -> None:
        if face == self.worn:
            return
        # A library that was imported before any face was worn saw no shell: a plain answer.
        before, first = self.worn or "text", self.worn is None
        if first:
            sys.meta_path.insert(0, _ImportWatch())
        # rich reads the colour variables: compare under the old ones, replace under the new.
        as_rich_made_it = face != before and _rich_console_is_untouched(before)
        self.worn = face
        self.colour(face)
        if as_rich_made_it:
            _adjust("rich", lambda rich: rich.reconfigure(force_jupyter=face == "jupyter"))
        if face != before:
            self.put_away(before, face)
        if first:
            _adjust("plotly.io._renderers", _settle_plotly)
        _adjust("altair", _settle_altair)

    def put_away(self, before: Face, face: Face) -> None:
        """Let the next ``from tqdm.auto import tqdm`` decide anew, or find its earlier decision."""
        for name in ("tqdm.auto", "tqdm.autonotebook"):
            module = sys.modules.pop(name, None)
            if module is not None:
                self.modules[before, name] = module
            if (face, name) in self.modules:
                sys.modules[name] = self.modules[face, name]

    def colour(self, face: Face) -> None:
        """Ask tools for colours in Jupyter, as ipykernel does; take the request back for text."""
        for name in _COLOURS:
            if face == "text":
                with suppress(KeyError):
                    self.colours[name] = os.environ.pop(name)
            elif "NO_COLOR" not in os.environ:
                os.environ.setdefault(name, self.colours.get(name, "1"))


_wardrobe = _Wardrobe()


def _adjust(name: str, adjustment: Callable[[Any], None]) -> None:
    """Adjust a library if it is loaded; if its insides are not as we know them, leave it alone."""
    module = sys.modules.get(name)
    if module is not None:
        with suppress(Exception):
            adjustment(module)


def _settle_plotly(renderers: Any) -> None:
    """Give figures as JSON in both faces; the fallback is megabytes of script, or a browser."""
    # Looked at for its version only, so its absence would make fig.show() fail for no reason.
    if not renderers.nbformat:
        renderers.nbformat = SimpleNamespace(__version__="5.0")
    undecided = (None, "", "browser", "plotly_mimetype+notebook")
    if "PLOTLY_RENDERER" not in os.environ and renderers.renderers.default in undecided:
        renderers.renderers.default = "plotly_mimetype"


def _settle_altair(altair: Any) -> None:
    """Give charts as their specification in the text face, where HTML with scripts is of no use."""
    usual, wanted = ("default", "mimetype")[:: 1 if _wardrobe.worn == "text" else -1]
    if altair.renderers.active == usual:
        altair.renderers.enable(wanted, **altair.renderers.options)


def _rich_console_is_untouched(face: Face) -> bool:
    """Is the console behind ``rich.print`` the one that rich would make by itself in ``face``?"""
    console = getattr(sys.modules.get("rich"), "_console", None)
    if console is None or getattr(console, "_render_hooks", None):
        return False

    def settings(console: Any) -> dict[str, Any]:
        simple = (bool, int, str, enum.Enum, type(None))
        return {name: value for name, value in vars(console).items() if isinstance(value, simple)}

    with suppress(Exception):
        by_itself = type(console)(force_jupyter=face == "jupyter")
        return settings(console) == settings(by_itself)
    return False


@contextmanager
def _tqdm_deciding() -> Iterator[None]:
    """Let tqdm see, while it decides, whether this is ipykernel's process."""
    real = sys.modules.get(_ZMQSHELL)
    notebook = _wardrobe.worn == "jupyter"
    with warnings.catch_warnings():
        # Without ipywidgets the text bar is what we want, and no reason to warn.
        warnings.filterwarnings("ignore", message="IProgress not found")
        if notebook:
            # First, so that nothing but tqdm's own question meets the stand-in.
            with suppress(ImportError):
                importlib.import_module("tqdm.notebook")
            sys.modules.setdefault(_ZMQSHELL, ModuleType(_ZMQSHELL))
        else:
            sys.modules.pop(_ZMQSHELL, None)
        try:
            yield
        finally:
            sys.modules.pop(_ZMQSHELL, None)
            if real is not None:
                sys.modules[_ZMQSHELL] = real


@contextmanager
def _then(adjustment: Callable[[Any], None], name: str) -> Iterator[None]:
    yield
    _adjust(name, adjustment)


_WATCHED: dict[str, Callable[[str], Any]] = {
    "altair": lambda name: _then(_settle_altair, name),
    "plotly.io._renderers": lambda name: _then(_settle_plotly, name),
    "tqdm.autonotebook": lambda _: _tqdm_deciding(),
}


class _ImportWatch:
    """A finder that is there when a library that remembers its answer is imported, else blind."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _WATCHED:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = cast("Loader", _WatchedLoader(spec.loader))
                    return spec
        return None


class _WatchedLoader:
    """Runs a module as its own loader would, and steps aside."""

    def __init__(self, own: Loader) -> None:
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Before it runs: a package may ask its loader for resources right away.
        if module.__spec__ is not None:
            module.__spec__.loader = self.own
        module.__loader__ = self.own
        with _WATCHED[module.__name__](module.__name__):
            self.own.exec_module(module)
