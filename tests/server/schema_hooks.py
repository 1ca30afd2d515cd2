"""What schemathesis is told besides the schema: every request has a key of its own.

The same key with another body is 422 by design, which no schema can say. The key is changed where it
is sent, so that schemathesis still knows each case as it made it.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

import requests

_KEY = "Idempotency-Key"
_send = requests.Session.send


def _send_with_own_key(
    session: requests.Session, request: requests.PreparedRequest, **options: Any
) -> requests.Response:
    key = request.headers.get(_KEY)
    text = key.decode("latin-1") if isinstance(key, bytes) else key
    if text is not None and re.fullmatch("[!-~]{1,255}", text):
        request.headers[_KEY] = uuid.uuid4().hex
    return _send(session, request, **options)


requests.Session.send = _send_with_own_key  # type: ignore[method-assign]
