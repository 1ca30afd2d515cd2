"""Cells of plain Python: a short cut around the rewriting that IPython does for its own syntax.

Every cell is tokenized and looked at by a dozen transformers, because it may hold a ``%magic``, a
``!command`` or a pasted prompt. Most cells hold nothing that could be one. Telling that takes one
search, and spares each cell a tenth of its time and a new kernel a megabyte of memory to write to.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

_MAY_BE_SPECIAL = re.compile(
    r"""[%!?]                       # a magic, a command, a question
      | [\r\v\f\x1c-\x1e\x85\u2028\u2029]  # the end of a line for some, and not for others
      | ^[^\S\n]+$                 # a line of white space, which would lose it
      | ^[^\S\n]*[,;/]              # an escape that quotes or calls
      | ^[^\S\n]*(?:>>>|\.\.\.)     # a prompt of Python's
      | \.\.\.:|In[ ]\[             # a prompt of IPython's
    """,
    re.MULTILINE | re.VERBOSE,
)
_NO_WORD = frozenset("0123456789'\"([{-+~")
"""A line that begins with one of these begins with no name, so it is no magic without its ``%``."""


class Rewriting(Protocol):
    """Where IPython keeps what looks at a cell."""

    input_transformer_manager: Any
    input_transformers_post: list[Any]
    prefilter_manager: Any


class PlainCode:
    """Knows the transformers that IPython itself has, and so whether anybody has added one."""

    def __init__(self, shell: Rewriting) -> None:
        self._shell = shell
        self._known = self._transformers()

    def is_whole(self, cell: str) -> bool:
        """Whether IPython would run this cell as it stands, but for the end of its last line and
        for what a single line may mean."""
        return (
            not cell[:1].isspace()
            and _MAY_BE_SPECIAL.search(cell) is None
            and bool(cell)
            and self._transformers() == self._known
        )

    def is_no_word(self, cell: str) -> bool:
        """Whether a single line, too, can only mean itself."""
        return cell[0] in _NO_WORD

    def _transformers(self) -> list[Any]:
        shell = self._shell
        static, dynamic = shell.input_transformer_manager, shell.prefilter_manager
        return [
            *static.cleanup_transforms,
            *static.line_transforms,
            *static.token_transformers,
            *shell.input_transformers_post,
            *dynamic.checkers,
            *dynamic.transformers,
        ]
