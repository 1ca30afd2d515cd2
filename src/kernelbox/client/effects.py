"""What a call asks of its driver: a call is a generator that yields these and is sent what came of
each, so that blocking and asyncio callers drive the same one."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from kernelbox.keeper.home import Home
from kernelbox.wire import Frame

_T = TypeVar("_T")


# Named tuples, with types that no future import turns into strings: a frozen dataclass takes eight
# times as long to make, and whoever imports us waits for it.
class Ask(NamedTuple):
    """Send a request to an address and wait for its answer; ``on_input`` answers the questions that
    come before it."""

    address: str
    request: Frame
    patience: float | None = None
    cancel_on_interrupt: bool = False
    on_input: Callable[[str], Any] | None = None


class StartKeeper(NamedTuple):
    """Make sure that a keeper listens; one that has to be started starts ``first_root`` first."""

    home: Home
    first_root: Frame | None = None


class Work(NamedTuple):
    """Do something here that may take a while: reading and writing files."""

    do: Callable[[], Any]


class Consult(NamedTuple):
    """Ask a function of the caller's; what an asyncio caller's returns may have to be awaited."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Together(NamedTuple):
    """Make several calls at the same time and wait for all of them."""

    calls: Sequence[Generator[Any, Any, Any]]


class Pause(NamedTuple):
    """Wait a moment."""

    seconds: float


Effect = Ask | StartKeeper | Work | Consult | Together | Pause
Call = Generator[Effect, Any, _T]
