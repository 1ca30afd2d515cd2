"""The process behind a :class:`KernelGateway`: reads what is wanted from standard input, says when
it is ready on standard output, and ends when standard input does."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelbox.config import Settings

_END_PATIENCE = 15.0
_LARGEST_MESSAGE = 1 << 30


def main() -> int:
    gc.disable()  # until all is imported: there is no garbage yet, and somebody waits
    wanted = json.loads(sys.stdin.readline())
    _end_with_input()
    # Before anything is started: kernels inherit what is there then, and PYTHONPATH was for us.
    os.environ.pop("PYTHONPATH", None)
    try:
        _serve(wanted)
    except Exception as error:  # noqa: BLE001 - whoever started us wants to know
        _say({"error": str(error)})
        return 1
    finally:
        # Whoever started us does the same, if they are there.
        shutil.rmtree(wanted["home"], ignore_errors=True)
    return 0


def _end_with_input() -> None:
    """Whoever started us holds the other end; when that is gone, however it went, so are we."""

    def wait() -> None:
        # Not by sys.stdin, whose lock nobody may hold when the interpreter ends.
        while os.read(0, 1024):
            continue
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_END_PATIENCE)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def settings_for(home: str, profile: str) -> Settings:
    """With the memory store, kernels end with this process, also if it is killed. Until then the
    keeper stays, with or without kernels: somebody may always want one."""
    from kernelbox.config import Settings

    return Settings(home=home, store_backend="memory", keeper_linger=1e9, spares=1, profile=profile)


def _serve(wanted: dict[str, Any]) -> None:
    from kernelbox.gateway.app import create_app
    from kernelbox.server.run import run_app
    from kernelbox.server.settings import ServerSettings

    server = ServerSettings(api_token=wanted["token"] or None, max_body=_LARGEST_MESSAGE, drain=0)
    app = create_app(server, settings_for(wanted["home"], wanted["profile"]), wanted["env"])
    run_app(
        app,
        wanted["host"],
        int(wanted["port"]),
        access_log=bool(wanted["access_log"]),
        on_ready=_say_port,
    )


def _say_port(port: int) -> None:
    _say({"port": port})
    gc.freeze()
    gc.enable()
    # Nobody reads there any more, and what is logged to standard output is a log.
    os.dup2(2, 1)


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
