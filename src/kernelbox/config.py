"""Settings: read once from the environment, frozen, and passed down with each request.

One table, :data:`VARIABLES`, says what there is; parsing, documentation and ``Settings`` follow it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from kernelbox.errors import BadInput
from kernelbox.places import PATHS, home_path, whole_path


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting takes: in words, how its text is read, and which values fit."""

    takes: str
    read: Callable[[str], Any]
    fits: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: what it is called, what it means, and how its text is read."""

    name: str
    field: str
    default: str
    kind: Kind
    help: str
    secret: bool = False  # its text is in no message

    def parse(self, text: str) -> Any:
        """The value that a text means, or :class:`BadInput` that says what can be meant."""
        try:
            value = self.kind.read(text)
        except ValueError:
            value = None
        if not self.kind.fits(value):
            given = self.name if self.secret else f"{self.name}={in_short(text)}"
            raise BadInput(
                f"{given} cannot be used: it takes {self.kind.takes}. "
                f"Unset it for the default ({self.default or 'none'}).",
                variable=self.name,
            )
        return value


_LONGEST_SHOWN = 128


def in_short(value: object) -> str:
    """A value in an error message: never a page of it."""
    if isinstance(value, str):
        cut = value[:_LONGEST_SHOWN]
        return repr(cut) if cut == value else f"{cut!r}… ({len(value):,} characters)"
    small = isinstance(value, int) and value.bit_length() < 64
    if value is None or small or isinstance(value, float):
        return repr(value)
    return f"a value of type {type(value).__name__}"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_seconds(value: object, *, zero: bool) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # Not "below infinity": a whole number can be that and still be more than a float holds.
    return (value >= 0 if zero else value > 0) and value <= sys.float_info.max


def _whole(least: int, most: int | None = None) -> Kind:
    def fits(value: Any) -> bool:
        return _is_whole(value) and least <= value and (most is None or value <= most)

    to = "on" if most is None else f"to {most}"
    return Kind(f"a whole number from {least} {to}", int, fits)


def _seconds(*, zero: bool) -> Kind:
    takes = "a number of seconds, 0 or more" if zero else "a number of seconds above 0"
    return Kind(takes, float, lambda value: _is_seconds(value, zero=zero))


def _choice(*options: str) -> Kind:
    return Kind("one of " + ", ".join(options), str, lambda value: value in options)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _read_words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _are_words(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, value))


_PATH = Kind("a path", str, _is_text)
_HOME = Kind(
    "the path of a folder",
    lambda text: text or None,
    lambda value: value in (None, "") or _is_text(value),
)
_FILE = Kind(
    "the path of a file",
    lambda text: text or None,
    lambda value: value in (None, "") or _is_text(value),
)
_CODE = Kind(
    "Python code, as a string",
    lambda text: text or None,
    lambda value: value is None or isinstance(value, str),
)
_TYPE = Kind("'python3', 'ipykernel' or the name of an installed kernelspec", str, _is_text)
_WALLS = Kind("the name of a profile, or the path of a file with one", str, _is_text)
_MODULES = Kind("a list of names of modules", _read_words, _are_words)
_PACKAGES = Kind("a list of names of packages", _read_words, _are_words)
_ADDRESSES = Kind("a list of addresses of package indexes", _read_words, _are_words)
_FOLDER = Kind("the path of a folder", str, lambda value: value == "" or _is_text(value))


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "KERNELBOX_MAX_RETRIES", "max_retries", "5", _whole(1),
        "Most attempts of execute_with_retry, the first run included",
    ),
    Variable(
        "KERNELBOX_EXECUTION_TIMEOUT", "execution_timeout", "60", _seconds(zero=False),
        "Seconds before one execution times out, counted from when it starts to run",
    ),
    Variable(
        "KERNELBOX_KERNEL_IDLE_TIMEOUT", "kernel_idle_timeout", "1800", _seconds(zero=True),
        "Seconds after which an idle kernel is ended; 0 keeps kernels for ever",
    ),
    Variable(
        "KERNELBOX_OUTPUT_CHAR_LIMIT", "output_char_limit", "10000", _whole(1),
        "Most characters of stdout, and of stderr, in a result; head and tail are kept",
    ),
    Variable(
        "KERNELBOX_STORE_BACKEND", "store_backend", "file", _choice("file", "memory"),
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
        "KERNELBOX_INSTALL", "install", "on", _choice("on", "callers", "off"),
        "Who may install packages into kernels: callers and cells (on), only callers, nobody (off)",
    ),
    Variable(
        "KERNELBOX_INSTALL_ALLOW", "install_allow", "*", _PACKAGES,
        "Packages that may be asked for, with * as wildcard; what they depend on comes along",
    ),
    Variable(
        "KERNELBOX_INSTALL_BLOCK", "install_block", "", _PACKAGES,
        "Packages that are never installed, with * as wildcard; not even for another package",
    ),
    Variable(
        "KERNELBOX_INSTALL_INDEXES", "install_indexes", "", _ADDRESSES,
        "The only indexes to install from, the first by default; none: as pip or uv is set up",
        secret=True,
    ),
    Variable(
        "KERNELBOX_INSTALL_SOURCE", "install_source", "never", _choice("never", "allow"),
        "Whether packages without a wheel may be built, which runs their code on the host",
    ),
    Variable(
        "KERNELBOX_INSTALL_TIMEOUT", "install_timeout", "300", _seconds(zero=False),
        "Seconds that one install may take",
    ),
    Variable(
        "KERNELBOX_INSTALL_SIZE", "install_size", str(8 << 30), _whole(1 << 20),
        "Bytes that the installed packages of one kernel may have on disk",
    ),
    Variable(
        "KERNELBOX_INSTALL_CACHE", "install_cache", "", _FOLDER,
        "Folder of installed packages; by default kernelbox/packages in the user's cache folder",
    ),
    Variable(
        "KERNELBOX_INSTALL_CACHE_SIZE", "install_cache_size", str(20 << 30), _whole(0),
        "Bytes that this folder may have; what was not used for longest goes first",
    ),
    Variable(
        "KERNELBOX_HOME", "home", "", _HOME,
        "Folder for registry and runtime files; explicit paths beat it",
    ),
    Variable(
        "KERNELBOX_SPARES", "spares", "2", _whole(0, most=100),
        "How many warm kernels are kept ready per interpreter; unless it is 0, one sandbox is, too",
    ),
    Variable(
        "KERNELBOX_PRELOAD", "preload", "", _MODULES,
        "Modules to import ahead, so that new kernels have them at once",
    ),
    Variable(
        "KERNELBOX_KEEPER_LINGER", "keeper_linger", "60", _seconds(zero=True),
        "Seconds the keeper stays warm after its last kernel has ended",
    ),
    Variable(
        "KERNELBOX_START_TIMEOUT", "start_timeout", "60", _seconds(zero=False),
        "Seconds a new kernel may take to come up",
    ),
    Variable(
        "KERNELBOX_FORK_TIMEOUT", "fork_timeout", "60", _seconds(zero=False),
        "Seconds a branch may wait for the running cell to end",
    ),
    Variable(
        "KERNELBOX_UNDO", "undo", "0", _whole(0, most=1000),
        "How many cells back undo() can go: a checkpoint is kept of the moment before each",
    ),
    Variable(
        "KERNELBOX_UNDO_COST", "undo_cost", "0.05", _seconds(zero=False),
        "Seconds: when the checkpoint before a cell takes longer, undo switches itself off",
    ),
    Variable(
        "KERNELBOX_MAX_CHECKPOINTS", "max_checkpoints", "20", _whole(1, most=1000),
        "Most checkpoints of one kernel; the oldest automatic one makes room for a new one",
    ),
    Variable(
        "KERNELBOX_INTERRUPT_GRACE", "interrupt_grace", "2", _seconds(zero=True),
        "Seconds after the first interrupt of a timed-out cell before it is interrupted again",
    ),
    Variable(
        "KERNELBOX_KILL_GRACE", "kill_grace", "5", _seconds(zero=True),
        "Seconds after the first interrupt of a timed-out cell before it is killed",
    ),
    Variable(
        "KERNELBOX_SPOOL_LIMIT", "spool_limit", str(256 << 20), _whole(1 << 16),
        "Bytes of output kept on disk for one execution, head and tail",
    ),
    Variable(
        "KERNELBOX_SPOOL_TOTAL", "spool_total", str(1 << 30), _whole(1 << 16),
        "Bytes of output kept on disk for one kernel; the oldest executions go first",
    ),
    Variable(
        "KERNELBOX_SPOOL_KEEP", "spool_keep", "200", _whole(1),
        "How many executions of a kernel can be read again",
    ),
    Variable(
        "KERNELBOX_AUDIT_LOG", "audit_log", "", _FILE,
        "Where each event of a kernel's life, execution and denial is written down; empty: nowhere",
    ),
    Variable(
        "KERNELBOX_AUDIT_MAX_BYTES", "audit_max_bytes", str(64 << 20), _whole(1 << 12),
        "Bytes after which a new file of the audit log is begun",
    ),
    Variable(
        "KERNELBOX_AUDIT_KEEP", "audit_keep", "10", _whole(1, most=1000),
        "How many full files of the audit log are kept beside the one that is written",
    ),
    Variable(
        "KERNELBOX_AUDIT_CODE", "audit_code", "digest", _choice("digest", "whole"),
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
        _warn_of_strangers(environ)
        if unknown := sorted(given.keys() - _FIELDS):
            raise TypeError(
                f"there is no setting {unknown[0]!r}; there are: {', '.join(sorted(_FIELDS))}"
            )
        values: dict[str, Any] = {}
        for variable in VARIABLES:
            if variable.field in given:
                continue
            text = environ.get(variable.name)
            if text:  # `NAME=` in a compose file means the same as no such line
                values[variable.field] = variable.parse(text)
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
        # The home first: the paths are made of it.
        for variable in sorted(VARIABLES, key=lambda variable: variable.field != "home"):
            value = getattr(self, variable.field)
            if not variable.kind.fits(value):
                raise BadInput(
                    f"the setting {variable.field} takes {variable.kind.takes}, "
                    f"not {in_short(value)}",
                    field=variable.field,
                )
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
_FIELDS = frozenset(variable.field for variable in VARIABLES)
_PREFIX = "KERNELBOX_"
# Of our scripts, tests and benchmarks.
# Of our scripts, and of the HTTP service, which has settings of its own.
_NOT_SETTINGS = tuple(
    _PREFIX + word for word in ("TEST_", "BENCH_", "DEMO_", "SOAK", "API_", "CORS_", "HTTP_")
)
_NEAR = 0.7
_told: set[str] = set()
_looked_at = -1


def _warn_of_strangers(environ: Mapping[str, str]) -> None:
    """Warn of misspelled variables, of each once per process."""
    global _looked_at
    if environ is os.environ:
        # Every module-level function comes by here; only a new variable is worth another look.
        if len(environ) == _looked_at:
            return
        _looked_at = len(environ)
    known = {variable.name for variable in VARIABLES}
    for name in environ:
        if not name.startswith(_PREFIX) or name in known or name in _told:
            continue
        if not name.startswith(_NOT_SETTINGS):
            import warnings

            _told.add(name)
            warnings.warn(_stranger_words(name), UserWarning, stacklevel=3)


def _stranger_words(name: str) -> str:
    known = [variable.name.removeprefix(_PREFIX) for variable in VARIABLES]
    mine = name.removeprefix(_PREFIX)
    # TIMEOUT alone is spelled right and still not whole: all that it may mean.
    near = [other for other in known if set(mine.split("_")) <= set(other.split("_"))]
    near = near or nearest(mine, known)
    guess = f"; did you mean {' or '.join(_PREFIX + other for other in near)}?" if near else "."
    return f"{name} is no setting of KernelBox and changes nothing{guess}"


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The one that this is a near miss of, if there is one."""
    from difflib import get_close_matches  # only who mistyped waits for it

    known = {other.casefold(): other for other in names}
    return [known[near] for near in get_close_matches(name.casefold(), known, n=1, cutoff=_NEAR)]


LONGEST_NAME = 128


def check_name(name: object) -> str:
    """A kernel's name, or :class:`BadInput` that says what is wrong with it."""
    if not isinstance(name, str):
        raise BadInput(f"a kernel's name is a string, not {type(name).__name__}")
    if not name or name.isspace():
        raise BadInput("a kernel's name must not be empty; give it a short name like 'demo'")
    if len(name) > LONGEST_NAME:
        raise BadInput(
            f"a kernel's name has at most {LONGEST_NAME} characters, this one has {len(name)}"
        )
    if not name.isprintable():
        raise BadInput(f"a kernel's name must be printable, without control characters: {name!r}")
    if "/" in name or "\\" in name or name.strip(".") == "":
        raise BadInput(f"a kernel's name must not look like a path: {name!r}")
    return name


def check_code(code: object) -> str:
    """The code of a cell; anything but a string is refused."""
    if not isinstance(code, str):
        raise BadInput(f"code is a string, not {type(code).__name__}")
    return code


LANGUAGES = ("python", "bash")


def check_language(language: object) -> str:
    if language not in LANGUAGES:
        raise BadInput(f"language must be 'python' or 'bash', not {in_short(language)}")
    return str(language)


def check_flag(name: str, value: object) -> bool:
    """True or False; "no" would be taken for yes."""
    if not isinstance(value, bool):
        raise BadInput(f"{name} is True or False, not {in_short(value)}")
    return value


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """One of a few words that was given as the argument ``name``, or :class:`BadInput`."""
    if value not in choices:
        words = " or ".join(repr(choice) for choice in choices)
        raise BadInput(f"{name} is {words}, not {in_short(value)}")
    return str(value)


def check_attempts(attempts: object) -> int:
    """How often to try, the first time included, or :class:`BadInput`."""
    return check_whole("max_attempts", attempts, least=1)


def check_whole(name: str, value: object, *, least: int | None = None) -> int:
    """A whole number that was given as the argument ``name``, or :class:`BadInput`."""
    if not _is_whole(value) or (least is not None and value < least):  # type: ignore[operator]
        where = "" if least is None else f" from {least} on"
        raise BadInput(f"{name} is a whole number{where}, not {in_short(value)}")
    return value  # type: ignore[return-value]


def check_label(label: object) -> str | None:
    """What a checkpoint is called, if it is called something."""
    if label is None:
        return None
    if not isinstance(label, str) or not label.strip() or not label.isprintable():
        raise BadInput(f"a checkpoint's label is a printable string, not {in_short(label)}")
    if len(label) > LONGEST_NAME:
        raise BadInput(
            f"a checkpoint's label has at most {LONGEST_NAME} characters, not {len(label)}"
        )
    return label


def check_key(key: object) -> str:
    """An idempotency key: any printable text that is not too long to be kept for a day."""
    if not isinstance(key, str) or not key or not key.isprintable() or len(key) > 255:
        raise BadInput(
            f"an idempotency key is a printable string of 1 to 255 characters, not {in_short(key)}"
        )
    return key


def check_epoch(epoch: object) -> int | None:
    """The epoch a caller expects; None expects nothing."""
    return None if epoch is None else check_whole("expect_epoch", epoch)


def check_timeout(timeout: object) -> float:
    """Seconds an execution may run, or :class:`BadInput`."""
    if not _is_seconds(timeout, zero=False):
        raise BadInput(f"timeout is a number of seconds above 0, not {in_short(timeout)}")
    return float(timeout)  # type: ignore[arg-type]
