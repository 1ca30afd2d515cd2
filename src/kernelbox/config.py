"""Settings: read once from the environment, frozen, and passed down with each request.

One table, :data:`VARIABLES`, says what there is; parsing, documentation and ``Settings`` follow it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from kernelbox.errors import BadInput


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: what it is called, what it means, and how its text is read."""

    name: str
    field: str
    default: str
    parse: Callable[[str], Any]
    help: str


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if value < least:
            raise ValueError(f"must be {least} or more")
        if most is not None and value > most:
            raise ValueError(f"must be {most} or less")
        return value

    return parse


def _seconds(*, zero: bool) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (value >= 0 if zero else value > 0) or value == float("inf"):
            raise ValueError("must be a number of seconds " + ("≥ 0" if zero else "> 0"))
        return value

    return parse


def _choice(*options: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in options:
            raise ValueError("must be one of " + ", ".join(options))
        return text

    return parse


def _text(text: str) -> str:
    return text


def _optional(text: str) -> str | None:
    return text or None


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


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
        "KERNELBOX_REGISTRY_PATH", "registry_path", ".kernelbox/registry.json", _text,
        "Where the registry of kernels is written",
    ),
    Variable(
        "KERNELBOX_RUNTIME_DIR", "runtime_dir", ".kernelbox/runtime", _text,
        "Where connection files and spooled output live",
    ),
    Variable(
        "KERNELBOX_STARTUP_CODE", "startup_code", "", _optional,
        "Python code run once in every new or restarted kernel, before its first cell",
    ),
    Variable(
        "KERNELBOX_KERNEL_TYPE", "kernel_type", "python3", _text,
        "python3: our forking kernel; ipykernel or any installed kernelspec: run through Jupyter",
    ),
    Variable(
        "KERNELBOX_HOME", "home", "", _optional,
        "Folder for registry and runtime files; explicit paths beat it",
    ),
    Variable(
        "KERNELBOX_SPARES", "spares", "2", _whole(0, most=100),
        "How many warm kernels are kept ready per interpreter",
    ),
    Variable(
        "KERNELBOX_PRELOAD", "preload", "", _words,
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
)  # fmt: skip


_PATHS = {
    "registry_path": (".kernelbox/registry.json", "registry.json"),
    "runtime_dir": (".kernelbox/runtime", "runtime"),
}


def _whole_path(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


@dataclass(frozen=True, slots=True)
class Settings:
    """What the caller wants; build it with :meth:`from_environment` or by keyword."""

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
    keeper_linger: float = 60.0
    start_timeout: float = 60.0
    fork_timeout: float = 60.0
    interrupt_grace: float = 2.0
    kill_grace: float = 5.0
    spool_limit: int = 256 << 20
    spool_total: int = 1 << 30
    spool_keep: int = 200

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """The settings that the environment asks for; a bad value raises :class:`BadInput`."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for variable in VARIABLES:
            text = environ.get(variable.name)
            if not text:
                continue  # `NAME=` in a compose file means the same as no such line
            try:
                values[variable.field] = variable.parse(text)
            except ValueError as error:
                raise BadInput(
                    f"{variable.name}={text!r} cannot be used: {error}. "
                    f"Unset it for the default ({variable.default or 'none'}).",
                    variable=variable.name,
                ) from None
        for name in _PATHS:
            if name in values:
                # Whole, so that it beats the home even if it spells out the default.
                values[name] = _whole_path(values[name])
        return cls(**values)

    def __post_init__(self) -> None:
        # Explicit paths beat the home, which beats the defaults. Relative ones mean the caller's
        # folder of *now*; the keeper's is another.
        for name, (default, in_home) in _PATHS.items():
            path = getattr(self, name)
            if self.home and path == default:
                path = os.path.join(self.home, in_home)
            object.__setattr__(self, name, _whole_path(path))

    def to_wire(self) -> dict[str, Any]:
        """As plain JSON, to travel with a request."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Settings:
        """What another process sent; fields of a newer version are passed over."""
        kept = {name: value for name, value in values.items() if name in cls.__slots__}
        kept["preload"] = tuple(kept.get("preload", ()))
        return cls(**kept)


_LONGEST_NAME = 128


def check_name(name: object) -> str:
    """A kernel's name, or :class:`BadInput` that says what is wrong with it."""
    if not isinstance(name, str):
        raise BadInput(f"a kernel's name is a string, not {type(name).__name__}")
    if not name or name.isspace():
        raise BadInput("a kernel's name must not be empty; give it a short name like 'demo'")
    if len(name) > _LONGEST_NAME:
        raise BadInput(
            f"a kernel's name has at most {_LONGEST_NAME} characters, this one has {len(name)}"
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
        raise BadInput(f"language must be 'python' or 'bash', not {language!r}")
    return str(language)


def check_attempts(attempts: object) -> int:
    """How often to try, the first time included, or :class:`BadInput`."""
    if not _is_whole(attempts) or attempts < 1:  # type: ignore[operator]
        raise BadInput(f"max_attempts is a whole number from 1 on, not {attempts!r}")
    return attempts  # type: ignore[return-value]


def check_epoch(epoch: object) -> int | None:
    """The epoch a caller expects; None expects nothing."""
    if epoch is not None and not _is_whole(epoch):
        raise BadInput(f"expect_epoch is a whole number, not {epoch!r}")
    return epoch  # type: ignore[return-value]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_timeout(timeout: object) -> float:
    """Seconds an execution may run, or :class:`BadInput`."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not 0 < timeout < float("inf"):  # type: ignore[operator]
        raise BadInput(f"timeout is a number of seconds above 0, not {timeout!r}")
    return float(timeout)  # type: ignore[arg-type]
