"""Whether a home is still ours: its address is the file that we listen at."""

from __future__ import annotations

import os

from kernelbox.keeper.home import Home


class Claim:
    """Made when the address is bound."""

    def __init__(self, home: Home) -> None:
        self._address = home.keeper_address
        self._file = os.stat(self._address).st_ino

    @property
    def lost(self) -> bool:
        """Whether somebody has taken our address away; another keeper may have its own there."""
        try:
            return os.stat(self._address).st_ino != self._file
        except OSError:
            return True

    def give_up(self) -> None:
        """Let the next keeper have it."""
        try:
            os.unlink(self._address)
        except OSError:
            pass
