"""The HTTP service: every call of a Box over REST, server-sent events and a WebSocket."""

try:
    import fastapi as fastapi
    import uvicorn as uvicorn
except ImportError as error:
    raise ImportError(
        f"the HTTP service needs {error.name}, which is not installed. In a checkout, this line "
        'installs it: pip install "./kernelbox[server]"'
    ) from error
