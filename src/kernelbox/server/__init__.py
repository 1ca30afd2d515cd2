"""The HTTP service: every call of a Box over REST, server-sent events and a WebSocket."""

from importlib.util import find_spec

# Looked for and not imported: a service without FastAPI's routes, as the gateway's, starts faster.
for _name in ("fastapi", "uvicorn"):
    if find_spec(_name) is None:
        raise ImportError(
            f"the HTTP service needs {_name}, which is not installed. In a checkout, this line "
            'installs it: pip install ".[server]"',
            name=_name,
        )
