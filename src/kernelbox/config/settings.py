"""The settings of kernels: read once from the environment, frozen, and passed down with requests.

One table, :data:`VARIABLES`, says what there is; parsing, documentation and ``Settings`` follow it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kernelbox.config.kinds import choice, is_text, seconds, text, text_if_any, whole, words
from kernelbox.config.spelling import warn_of_strangers
from kernelbox.config.variables import Kind, Table, Variable
from kernelbox.places import PATHS, home_path, whole_path

_PATH = text("a path")
_TYPE = text("'python3', 'ipykernel' or the name of an installed kernelspec")
_WALLS = text("the name of a profile, or the path of a file with one")
_FOLDER = Kind("the path of a folder", str, lambda value: value == "" or is_text(value))
_CODE = Kind(
    "Python code, as a string",
    lambda code: code or None,
    lambda value: value is None or isinstance(value, str),
)

VARIABLES = Table(
    Variable(
        "KERNELBOX_MAX_RETRIES", "max_retries", "5", whole(1),
        "Most attempts of execute_with_retry, the first run included",
    ),
    Variable(
        "KERNELBOX_EXECUTION_TIMEOUT", "execution_timeout", "60", seconds(zero=False),
        "Seconds before one execution times out, counted from when it starts to run",
    ),
    Variable(
        "KERNELBOX_KERNEL_IDLE_TIMEOUT", "kernel_idle_timeout", "1800", seconds(zero=True),
        "Seconds after which an idle kernel is ended; 0 keeps kernels for ever",
    ),
    Variable(
        "KERNELBOX_OUTPUT_CHAR_LIMIT", "output_char_limit", "10000", whole(1),
        "Most characters of stdout, and of stderr, in a result; head and tail are kept",
    ),
    Variable(
        "KERNELBOX_STORE_BACKEND", "store_backend", "file", choice("file", "memory"),
        "file: kernels outlive the process that made them; memory: they end with it",
    ),
    Variable(
        "KERNELBOX_REGISTRY_PATH", "registry_path", ".kernelbox/registry.json", _PATH,
        "Where the registry of kernels is written",
    ),
    Variable(
        "KERNELBOX_RUNTIME_DIR", "runtime_dir", ".kernelbox/runtime", _PATH,
        "Where connection files and spooled output live",
    ),
    Variable(
        "KERNELBOX_STARTUP_CODE", "startup_code", "", _CODE,
        "Python code run once in every new or restarted kernel, before its first cell",
    ),
    Variable(
        "KERNELBOX_KERNEL_TYPE", "kernel_type", "python3", _TYPE,
        "python3: our forking kernel; ipykernel or any installed kernelspec: run through Jupyter",
    ),
    Variable(
        "KERNELBOX_PROFILE", "profile", "open", _WALLS,
        "The walls around new kernels: open (none), permissive, moderate, restrictive, or a file",
    ),
    Variable(
        "KERNELBOX_INSTALL", "install", "on", choice("on", "callers", "off"),
        "Who may install packages into kernels: callers and cells (on), only callers, nobody (off)",
    ),
    Variable(
        "KERNELBOX_INSTALL_ALLOW", "install_allow", "*", words("names of packages"),
        "Packages that may be asked for, with * as wildcard; what they depend on comes along",
    ),
    Variable(
        "KERNELBOX_INSTALL_BLOCK", "install_block", "", words("names of packages"),
        "Packages that are never installed, with * as wildcard; not even for another package",
    ),
    Variable(
        "KERNELBOX_INSTALL_INDEXES", "install_indexes", "", words("addresses of package indexes"),
        "The only indexes to install from, the first by default; none: as pip or uv is set up",
        secret=True,
    ),
    Variable(
        "KERNELBOX_INSTALL_SOURCE", "install_source", "never", choice("never", "allow"),
        "Whether packages without a wheel may be built, which runs their code on the host",
    ),
    Variable(
        "KERNELBOX_INSTALL_TIMEOUT", "install_timeout", "300", seconds(zero=False),
        "Seconds that one install may take",
    ),
    Variable(
        "KERNELBOX_INSTALL_SIZE", "install_size", str(8 << 30), whole(1 << 20),
        "Bytes that the installed packages of one kernel may have on disk",
    ),
    Variable(
        "KERNELBOX_INSTALL_CACHE", "install_cache", "", _FOLDER,
        "Folder of installed packages; by default kernelbox/packages in the user's cache folder",
    ),
    Variable(
        "KERNELBOX_INSTALL_CACHE_SIZE", "install_cache_size", str(20 << 30), whole(0),
        "Bytes that this folder may have; what was not used for longest goes first",
    ),
    Variable(
        "KERNELBOX_HOME", "home", "", text_if_any("the path of a folder"),
        "Folder for registry and runtime files; explicit paths beat it",
    ),
    Variable(
        "KERNELBOX_SPARES", "spares", "2", whole(0, most=100),
        "How many warm kernels are kept ready per interpreter; unless it is 0, one sandbox is, too",
    ),
    Variable(
        "KERNELBOX_PRELOAD", "preload", "", words("names of modules"),
        "Modules to import ahead, so that new kernels have them at once",
    ),
    Variable(
        "KERNELBOX_KEEPER_LINGER", "keeper_linger", "60", seconds(zero=True),
        "Seconds the keeper stays warm after its last kernel has ended",
    ),
    Variable(
        "KERNELBOX_START_TIMEOUT", "start_timeout", "60", seconds(zero=False),
        "Seconds a new kernel may take to come up",
    ),
    Variable(
        "KERNELBOX_FORK_TIMEOUT", "fork_timeout", "60", seconds(zero=False),
        "Seconds a branch may wait for the running cell to end",
    ),
    Variable(
        "KERNELBOX_UNDO", "undo", "0", whole(0, most=1000),
        "How many cells back undo() can go: a checkpoint is kept of the moment before each",
    ),
    Variable(
        "KERNELBOX_UNDO_COST", "undo_cost", "0.05", seconds(zero=False),
        "Seconds: when the checkpoint before a cell takes longer, undo switches itself off",
    ),
    Variable(
        "KERNELBOX_MAX_CHECKPOINTS", "max_checkpoints", "20", whole(1, most=1000),
        "Most checkpoints of one kernel; the oldest automatic one makes room for a new one",
    ),
    Variable(
        "KERNELBOX_INTERRUPT_GRACE", "interrupt_grace", "2", seconds(zero=True),
        "Seconds after the first interrupt of a timed-out cell before it is interrupted again",
    ),
    Variable(
        "KERNELBOX_KILL_GRACE", "kill_grace", "5", seconds(zero=True),
        "Seconds after the first interrupt of a timed-out cell before it is killed",
    ),
    Variable(
        "KERNELBOX_SPOOL_LIMIT", "spool_limit", str(256 << 20), whole(1 << 16),
        "Bytes of output kept on disk for one execution, head and tail",
    ),
    Variable(
        "KERNELBOX_SPOOL_TOTAL", "spool_total", str(1 << 30), whole(1 << 16),
        "Bytes of output kept on disk for one kernel; the oldest executions go first",
    ),
    Variable(
        "KERNELBOX_SPOOL_KEEP", "spool_keep", "200", whole(1),
        "How many executions of a kernel can be read again",
    ),
    Variable(
        "KERNELBOX_AUDIT_LOG", "audit_log", "", text_if_any("the path of a file"),
        "Where each event of a kernel's life, execution and denial is written down; empty: nowhere",
    ),
    Variable(
        "KERNELBOX_AUDIT_MAX_BYTES", "audit_max_bytes", str(64 << 20), whole(1 << 12),
        "Bytes after which a new file of the audit log is begun",
    ),
    Variable(
        "KERNELBOX_AUDIT_KEEP", "audit_keep", "10", whole(1, most=1000),
        "How many full files of the audit log are kept beside the one that is written",
    ),
    Variable(
        "KERNELBOX_AUDIT_CODE", "audit_code", "digest", choice("digest", "whole"),
        "What the audit log has of the code that was run: its SHA-256 and length, or all of it too",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """What the caller wants. :meth:`from_environment` takes what the environment says, with
    exceptions by keyword; ``Settings(…)`` alone takes defaults and ignores the environment."""

    max_retries: int = 5
    execution_timeout: float = 60.0
    kernel_idle_timeout: float = 1800.0
    output_char_limit: int = 10_000
    store_backend: str = "file"
    registry_path: str = ".kernelbox/registry.json"
    runtime_dir: str = ".kernelbox/runtime"
    startup_code: str | None = None
    kernel_type: str = "python3"
    home: str | None = None
    spares: int = 2
    preload: tuple[str, ...] = ()
    profile: str = "open"
    keeper_linger: float = 60.0
    start_timeout: float = 60.0
    fork_timeout: float = 60.0
    undo: int = 0
    undo_cost: float = 0.05
    max_checkpoints: int = 20
    interrupt_grace: float = 2.0
    kill_grace: float = 5.0
    spool_limit: int = 256 << 20
    spool_total: int = 1 << 30
    spool_keep: int = 200
    audit_log: str | None = None
    audit_max_bytes: int = 64 << 20
    audit_keep: int = 10
    audit_code: str = "digest"
    install: str = "on"
    install_allow: tuple[str, ...] = ("*",)
    install_block: tuple[str, ...] = ()
    install_indexes: tuple[str, ...] = ()
    install_source: str = "never"
    install_timeout: float = 300.0
    install_size: int = 8 << 30
    install_cache: str = ""
    install_cache_size: int = 20 << 30

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Settings:
        """The settings that the environment asks for, but for those ``given`` by keyword:
        ``Settings.from_environment(execution_timeout=5)``.

        A bad value raises :class:`BadInput`; a variable that looks like ours and is none is warned
        of once. A ``home`` given by keyword beats the environment's paths too.
        """
        environ = os.environ if environ is None else environ
        warn_of_strangers(environ, VARIABLES.names)
        if unknown := sorted(given.keys() - VARIABLES.fields):
            known = ", ".join(sorted(VARIABLES.fields))
            raise TypeError(f"there is no setting {unknown[0]!r}; there are: {known}")
        values = VARIABLES.read(environ, but=given)
        if given.get("home"):
            for name in PATHS:
                values.pop(name, None)
        values.update(given)
        for name in PATHS:
            if isinstance(values.get(name), str | os.PathLike):
                # Whole, so that it beats the home even if it spells out the default.
                values[name] = whole_path(values[name])
        settings = cls(**values)
        return settings.check() if given else settings

    def __post_init__(self) -> None:
        for name in _LISTS:
            value = getattr(self, name)
            if isinstance(value, list):  # as JSON has it, and as most people write it
                object.__setattr__(self, name, tuple(value))
        # Explicit paths beat the home, which beats the defaults. Relative ones mean the caller's
        # folder of *now*; the keeper's is another.
        try:
            if self.home is not None:
                object.__setattr__(self, "home", os.fspath(self.home))
            for name in PATHS:
                path = home_path(name, getattr(self, name), self.home)
                object.__setattr__(self, name, path)
            if self.audit_log:
                object.__setattr__(self, "audit_log", whole_path(self.audit_log))
            if self.install_cache:
                object.__setattr__(self, "install_cache", whole_path(self.install_cache))
        except TypeError:
            self.check()  # says which of them is no path
            raise

    def check(self) -> Settings:
        """Itself, or :class:`BadInput` that names the field and what it takes.

        Whoever is about to use settings asks once. Making them does not: they come over the wire
        with every request, from somebody who has asked.
        """
        VARIABLES.check(self, first="home")  # the paths are made of it
        return self

    def to_wire(self) -> dict[str, Any]:
        """As plain JSON, to travel with a request."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Settings:
        """What another process sent; fields of a newer version are passed over. Its paths are whole
        already, and somebody waits: nothing is looked at twice."""
        if not values.keys() >= PATHS.keys():
            return cls(**{name: value for name, value in values.items() if name in _DEFAULTS})
        made = object.__new__(cls)
        for name, default in _DEFAULTS.items():
            value = values.get(name, default)
            object.__setattr__(made, name, tuple(value) if isinstance(value, list) else value)
        return made


_DEFAULTS = {field.name: field.default for field in fields(Settings)}
_LISTS = ("preload", "install_allow", "install_block", "install_indexes")
