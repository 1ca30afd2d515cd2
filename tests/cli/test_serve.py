"""``kernelbox serve``: the service starts, answers and ends; where it is missing, it says how to get it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from typing import Any

import pytest


def test_the_service_answers_and_ends_when_told(own_shell: Any) -> None:
    pytest.importorskip("uvicorn")
    with own_shell.started("serve", "--port", "0", "--on-exit", "wipe") as process:
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        address = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert address, said + process.stderr.read().decode()
        with urllib.request.urlopen(f"{address[0]}/health", timeout=30) as reply:
            assert json.load(reply)["status"] == "ok"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"Traceback" not in stderr


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_where_the_extra_is_missing_the_hint_installs_it(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; "
        "from kernelbox.cli.entry import main; sys.exit(main(['serve']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    error = json.loads(done.stderr)
    assert (done.returncode, error["error"]) == (8, "Unsupported")
    assert error["hint"] == 'pip install ".[server]"'


def test_a_port_that_cannot_be_is_refused(own_shell: Any) -> None:
    done = own_shell("serve", "--port", "70000")
    assert (done.code, done.error["error"]) == (6, "BadInput")
