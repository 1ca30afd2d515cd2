"""What the numbers were taken on, in one short table."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path


def describe() -> dict[str, str]:
    """Processor, memory, system and how busy it was."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "system": f"{_system()}, Linux {platform.release()}",
        "Python": f"{platform.python_implementation()} {sys.version.split()[0]}",
        "load when it began": load(),
    }


def load() -> str:
    """Processes that wanted to run in the last minute; above the cores, figures are noise."""
    return f"{os.getloadavg()[0]:.2f}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()
