"""Names that nobody knows, and what they may have been meant to be."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

_PREFIX = "KERNELBOX_"
# Of our scripts, and of the HTTP service, which has settings of its own.
_NOT_SETTINGS = tuple(
    _PREFIX + word for word in ("TEST_", "BENCH_", "DEMO_", "SOAK", "API_", "CORS_", "HTTP_")
)
_NEAR = 0.7
_told: set[str] = set()
_looked_at = -1


def warn_of_strangers(environ: Mapping[str, str], known: Collection[str]) -> None:
    """Warn of variables that look like ours and are not ``known``, of each once per process; the
    warning points at whoever called our caller."""
    global _looked_at
    if environ is os.environ:
        # Every module-level function comes by here; only a new variable is worth another look.
        if len(environ) == _looked_at:
            return
        _looked_at = len(environ)
    for name in environ:
        if not name.startswith(_PREFIX) or name in known or name in _told:
            continue
        if not name.startswith(_NOT_SETTINGS):
            import warnings

            _told.add(name)
            warnings.warn(_stranger_words(name, known), UserWarning, stacklevel=3)


def _stranger_words(name: str, known: Collection[str]) -> str:
    others = [other.removeprefix(_PREFIX) for other in known]
    mine = name.removeprefix(_PREFIX)
    # TIMEOUT alone is spelled right and still not whole: all that it may mean.
    near = [other for other in others if set(mine.split("_")) <= set(other.split("_"))]
    near = near or nearest(mine, others)
    guess = f"; did you mean {' or '.join(_PREFIX + other for other in near)}?" if near else "."
    return f"{name} is no setting of KernelBox and changes nothing{guess}"


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The one that this is a near miss of, if there is one."""
    from difflib import get_close_matches  # only who mistyped waits for it

    known = {other.casefold(): other for other in names}
    return [known[near] for near in get_close_matches(name.casefold(), known, n=1, cutoff=_NEAR)]
