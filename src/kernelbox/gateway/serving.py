"""The process behind a :class:`KernelGateway`: reads what is wanted from standard input, says when
it is ready on standard output, and ends when standard input does."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any


def main() -> int:
    wanted = json.loads(sys.stdin.readline())
    _end_with_input()
    _warm_up(wanted)
    try:
        _serve(wanted)
    except Exception as error:  # noqa: BLE001 - whoever started us wants to know
        _say({"error": str(error)})
        return 1
    return 0


def _end_with_input() -> None:
    """Whoever started us holds the other end; when that is gone, however it went, so are we."""

    def wait() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _settings(wanted: dict[str, Any]) -> Any:
    from kernelbox.config import Settings

    return Settings(home=wanted["home"], keeper_linger=1.0, spares=1)


def _warm_up(wanted: dict[str, Any]) -> None:
    """The first kernel's interpreter starts while the service is still being imported."""

    def warm() -> None:
        from kernelbox.box import Box

        with Box(_settings(wanted)) as box:
            box.destroy(box.get_or_create("warm-up"))

    threading.Thread(target=warm, daemon=True).start()


def _serve(wanted: dict[str, Any]) -> None:
    from kernelbox.server.app import create_app
    from kernelbox.server.run import run_app
    from kernelbox.server.settings import ServerSettings

    os.environ.pop("PYTHONPATH", None)  # was for us, to be found
    os.environ.update(wanted["env"])  # what kernels inherit
    server = ServerSettings(api_token=wanted["token"] or None, on_exit="wipe")
    app = create_app(server, settings=_settings(wanted))
    run_app(app, wanted["host"], int(wanted["port"]), on_ready=lambda port: _say({"port": port}))


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
