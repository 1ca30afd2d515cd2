"""The fake model that the recipes talk to, running."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(scope="session")
def fake_model() -> Iterator[dict[str, str]]:
    """The environment variables that lead clients of models to it."""
    fake = runpy.run_path(str(EXAMPLES / "fake_model.py"))
    with ThreadingHTTPServer(("127.0.0.1", 0), fake["FakeModel"]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield dict(fake["environment"](server.server_port))
        server.shutdown()
        thread.join()
