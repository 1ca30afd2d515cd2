"""Who asks: one request with all that belongs to it, and what callers have said of late."""

from __future__ import annotations

import time

from kernelbox.config import Settings
from kernelbox.keeper.families import Reply
from kernelbox.wire import Frame


class Request:
    """What a caller asks for, under which settings, and how to answer."""

    __slots__ = ("frame", "reply", "settings")

    def __init__(self, frame: Frame, reply: Reply, *, settings: Settings) -> None:
        self.frame = frame
        self.reply = reply
        self.settings = settings


class Callers:
    """When the last of them asked, and what settings it had."""

    def __init__(self) -> None:
        self.asked_at = time.monotonic()
        self.settings = Settings()
        self._told: Frame | None = None  # that they were read from

    def asking(self, frame: Frame) -> Settings:
        """Somebody asks; the settings that count for it."""
        self.asked_at = time.monotonic()
        if "settings" in frame and frame["settings"] != self._told:
            self.settings = Settings.from_wire(frame["settings"])
            self._told = frame["settings"]
        return self.settings
