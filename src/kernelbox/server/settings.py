"""The settings of the HTTP service: read once from the environment, frozen, and passed down.

One table, :data:`VARIABLES`, as in ``kernelbox.config``: parsing and documentation follow it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelbox.config.kinds import choice, seconds, split, whole
from kernelbox.config.variables import Kind, Table, Variable


def _text(takes: str, fits: Callable[[str], bool]) -> Kind:
    return Kind(takes, str, lambda value: value is None or (isinstance(value, str) and fits(value)))


def _words(takes: str, fits: Callable[[str], bool]) -> Kind:
    def fit(value: Any) -> bool:
        return isinstance(value, tuple) and all(isinstance(w, str) and fits(w) for w in value)

    return Kind(f"a list of {takes}", lambda text: split(text.lower()), fit)


def _is_origin(text: str) -> bool:
    scheme, separator, rest = text.partition("://")
    return scheme in ("http", "https") and separator != "" and rest != "" and "/" not in rest


def _read_mounts(text: str) -> tuple[tuple[str, str], ...]:
    """``/srv/data, /srv/out:rw``: each folder with its mode."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(
        (part.removesuffix(":rw"), "rw" if part.endswith(":rw") else "ro") for part in parts
    )


def _is_mount(value: Any) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2 or not isinstance(value[0], str):
        return False
    path, mode = value
    return os.path.normpath(path) == path and path.startswith("/") and mode in ("ro", "rw")


_TOKEN = _text(
    "a token: printable ASCII without spaces",
    lambda token: token.isascii() and token.isprintable() and " " not in token,
)
_PATH = _text("a path", lambda path: path != "" and "\0" not in path)
_ORIGINS = _words("origins like https://example.org", _is_origin)
_HOSTS = _words("host names, without ports", lambda host: "/" not in host)
_MOUNTS = Kind(
    "a list of folders like /srv/data, /srv/out:rw",
    _read_mounts,
    lambda value: isinstance(value, tuple) and all(map(_is_mount, value)),
)

VARIABLES = Table(
    Variable(
        "KERNELBOX_API_TOKEN", "api_token", "", _TOKEN,
        "The token that requests must carry; required when bound to more than loopback",
        secret=True,
    ),
    Variable(
        "KERNELBOX_HTTP_TOKENS_FILE", "tokens_file", "", _PATH,
        "A file of tenants, one name:token per line, who cannot see each other's kernels",
    ),
    Variable(
        "KERNELBOX_CORS_ORIGINS", "cors_origins", "", _ORIGINS,
        "Origins whose web pages may call the service; none by default",
    ),
    Variable(
        "KERNELBOX_HTTP_HOSTS", "hosts", "", _HOSTS,
        "Further host names that the service goes by on loopback, behind a proxy for example",
    ),
    Variable(
        "KERNELBOX_HTTP_MAX_BODY", "max_body", str(16 << 20), whole(1024),
        "Bytes that a JSON body may have",
    ),
    Variable(
        "KERNELBOX_HTTP_MAX_UPLOAD", "max_upload", "0", whole(0),
        "Bytes that an uploaded file may have; 0: as many as the disk has room for",
    ),
    Variable(
        "KERNELBOX_HTTP_BODY_TIMEOUT", "body_timeout", "30", seconds(zero=False),
        "Seconds that a JSON body may take to arrive, and each piece of an upload",
    ),
    Variable(
        "KERNELBOX_HTTP_SEARCH_TIMEOUT", "search_timeout", "10", seconds(zero=False),
        "Seconds that a search in an execution's output may take",
    ),
    Variable(
        "KERNELBOX_HTTP_MAX_CONCURRENCY", "max_concurrency", "1000", whole(1),
        "Requests at the same time; one more is told to come back later",
    ),
    Variable(
        "KERNELBOX_HTTP_MAX_CONCURRENCY_PER_TOKEN", "max_concurrency_per_token", "256", whole(1),
        "Requests of one tenant at the same time",
    ),
    Variable(
        "KERNELBOX_HTTP_MAX_KERNELS", "max_kernels", "200", whole(1),
        "Kernels that there may be",
    ),
    Variable(
        "KERNELBOX_HTTP_MAX_KERNELS_PER_TOKEN", "max_kernels_per_token", "50", whole(1),
        "Kernels of one tenant",
    ),
    Variable(
        "KERNELBOX_HTTP_MOUNTS", "mounts", "", _MOUNTS,
        "Folders of this machine that a request may mount into a sandbox; :rw to be written, too",
    ),
    Variable(
        "KERNELBOX_HTTP_KEEP_ALIVE", "keep_alive", "15", seconds(zero=False),
        "Seconds of silence after which an event stream sends a comment",
    ),
    Variable(
        "KERNELBOX_HTTP_DRAIN", "drain", "10", seconds(zero=True),
        "Seconds that running cells have left when the service is told to end",
    ),
    Variable(
        "KERNELBOX_HTTP_ON_EXIT", "on_exit", "keep", choice("keep", "wipe"),
        "keep: kernels outlive the service; wipe: they end with it",
    ),
    Variable(
        "KERNELBOX_HTTP_DATA_DIR", "data_dir", "", _PATH,
        "Where saved sessions are, each tenant's apart; default: server/ beside the registry",
    ),
    whose=" of the HTTP service",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the operator wants. :meth:`from_environment` takes what the environment says, with
    exceptions by keyword; ``ServerSettings(…)`` alone takes defaults."""

    api_token: str | None = None
    tokens_file: str | None = None
    cors_origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_body: int = 16 << 20
    max_upload: int = 0
    body_timeout: float = 30.0
    search_timeout: float = 10.0
    max_concurrency: int = 1000
    max_concurrency_per_token: int = 256
    max_kernels: int = 200
    max_kernels_per_token: int = 50
    mounts: tuple[tuple[str, str], ...] = ()
    keep_alive: float = 15.0
    drain: float = 10.0
    on_exit: str = "keep"
    data_dir: str | None = None

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, **given: Any
    ) -> ServerSettings:
        """The settings that the environment asks for, but for those ``given`` by keyword; a bad
        value raises :class:`BadInput`."""
        environ = os.environ if environ is None else environ
        return cls(**VARIABLES.read(environ, but=given), **given)

    def __post_init__(self) -> None:
        VARIABLES.check(self)

    def may_mount(self, source: str, mode: str) -> bool:
        """Whether the operator lets a request mount a folder so."""
        allowed = dict(self.mounts).get(source)
        return allowed is not None and (mode == "ro" or allowed == "rw")


def forget_secrets() -> None:
    """Take out of our environment what opens the service: kernels inherit the rest."""
    for name in list(os.environ):
        # Each signal has headers of its own: OTEL_EXPORTER_OTLP_TRACES_HEADERS, …
        of_a_collector = name.startswith("OTEL_EXPORTER_OTLP") and name.endswith("HEADERS")
        if of_a_collector or name in ("KERNELBOX_API_TOKEN", "KERNELBOX_HTTP_TOKENS_FILE"):
            del os.environ[name]
