"""The type of a table of settings: its variables, how each is read, and what is refused.

The kernels' settings and those of the HTTP service are a table each; parsing, checking and the
documentation follow it.
"""

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from typing import Any, NamedTuple

from kernelbox.errors import BadInput, in_short


# Named tuples, with types that no future import turns into strings: a frozen dataclass takes eight
# times as long to make, and whoever imports us waits for it.
class Kind(NamedTuple):
    """What a setting takes: in words, how its text is read, and which values fit."""

    takes: str
    read: Callable[[str], Any]
    fits: Callable[[Any], bool]


class Variable(NamedTuple):
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


class Table:
    """The variables of some settings, in the order in which people read of them.

    Settings have a field for each. ``whose`` says in messages which settings they are.
    """

    def __init__(self, *variables: Variable, whose: str = "") -> None:
        self._variables = variables
        self._whose = whose
        # In order, and looked up at once.
        self.names: Collection[str] = dict.fromkeys(variable.name for variable in variables)
        self.fields = frozenset(variable.field for variable in variables)

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._variables)

    def read(self, environ: Mapping[str, str], *, but: Container[str] = ()) -> dict[str, Any]:
        """What the environment says of the fields, ``but`` for these; bad text is refused."""
        values = {}
        for variable in self._variables:
            text = environ.get(variable.name)
            # `NAME=` in a compose file means the same as no such line.
            if text and variable.field not in but:
                values[variable.field] = variable.parse(text)
        return values

    def check(self, settings: object, *, first: str = "") -> None:
        """Refuse settings with a value that does not fit, by the name of its field; ``first`` is
        the field to look at before all others."""
        for variable in sorted(self._variables, key=lambda variable: variable.field != first):
            value = getattr(settings, variable.field)
            if not variable.kind.fits(value):
                but = "" if variable.secret else f", not {in_short(value)}"
                raise BadInput(
                    f"the setting {variable.field}{self._whose} takes {variable.kind.takes}{but}",
                    field=variable.field,
                )
