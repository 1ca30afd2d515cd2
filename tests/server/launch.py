"""Starts a service as the tests want it: ``launch.py '{"server": {…}, "settings": {…}, …}'``."""

from __future__ import annotations

import json
import sys

from kernelbox import Settings
from kernelbox.server.app import create_app
from kernelbox.server.run import run_app
from kernelbox.server.settings import ServerSettings


def main() -> None:
    wanted = json.loads(sys.argv[1])
    server = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in wanted.get("server", {}).items()
    }
    app = create_app(
        ServerSettings.from_environment(**server),
        settings=Settings.from_environment(**wanted.get("settings", {})),
    )
    run_app(app, wanted.get("host", "127.0.0.1"), 0, **wanted.get("run", {}))


main()
