"""What schemathesis is told besides the schema: every request has a key of its own, and walls are
such as can stand.

The same key with another body is 422 by design, which no schema can say. Of walls, each field may fit
and the whole make no sense, or leave no room to live in. Both are changed where they are sent, so that
schemathesis still knows each case as it made it.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import requests
from pydantic import ValidationError

from kernelbox import BadInput
from kernelbox.server.walls_body import ProfileBody

_LEAST_MEMORY, _LEAST_CPUS = 100 << 20, 0.2

_KEY = "Idempotency-Key"
_send = requests.Session.send


def _without_walls_that_cannot_stand(request: requests.PreparedRequest) -> None:
    try:
        body = json.loads(request.body or b"")
        profile = ProfileBody.model_validate(body["profile"])
    except (ValueError, TypeError, KeyError, ValidationError):
        return  # none, or such as the schema refuses, too
    if not _can_stand(profile):
        request.prepare_body(None, None, json={**body, "profile": None})


def _can_stand(wanted: ProfileBody) -> bool:
    try:
        profile = wanted.checked()
    except BadInput:
        return False
    cramped = (profile.memory or _LEAST_MEMORY) < _LEAST_MEMORY
    return not cramped and (profile.cpus or _LEAST_CPUS) >= _LEAST_CPUS


def _send_with_own_key(
    session: requests.Session, request: requests.PreparedRequest, **options: Any
) -> requests.Response:
    key = request.headers.get(_KEY)
    text = key.decode("latin-1") if isinstance(key, bytes) else key
    if text is not None and re.fullmatch("[!-~]{1,255}", text):
        request.headers[_KEY] = uuid.uuid4().hex
    if request.method == "POST" and str(request.path_url).endswith("/kernels"):
        _without_walls_that_cannot_stand(request)
    return _send(session, request, **options)


requests.Session.send = _send_with_own_key  # type: ignore[method-assign]
