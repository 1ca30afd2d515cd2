"""The arguments of calls: what each may be, and what is refused in words before anything is run."""

from __future__ import annotations

from kernelbox.config.kinds import is_seconds, is_whole
from kernelbox.errors import BadInput, in_short

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
    if not is_whole(value) or (least is not None and value < least):  # type: ignore[operator]
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
    if not is_seconds(timeout, zero=False):
        raise BadInput(f"timeout is a number of seconds above 0, not {in_short(timeout)}")
    return float(timeout)  # type: ignore[arg-type]
