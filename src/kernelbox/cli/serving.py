"""``kernelbox serve``: the HTTP service, if it is installed."""

from __future__ import annotations

from argparse import Namespace

from kernelbox.cli import exits
from kernelbox.errors import BadInput, Unsupported

_INSTALL = 'pip install ".[server]"'


def serve(options: Namespace) -> int:
    if not 0 <= options.port <= 65_535:
        raise BadInput(f"--port is a number from 0 to 65535, not {options.port}")
    try:
        from kernelbox.server.run import serve as serve_http
    except ImportError as error:
        raise Unsupported(str(error), hint=_INSTALL) from None
    serve_http(
        options.host,
        options.port,
        reload=options.reload,
        tokens=options.tokens,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        on_exit=options.on_exit,
        drain=options.drain,
        access_log=options.access_log,
    )
    return exits.DONE
