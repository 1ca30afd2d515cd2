"""What the service does, for those who watch: numbers for Prometheus, OpenTelemetry traces."""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_plus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("kernelbox.server")

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Numbers:
    """Requests by route and status, and how long they took."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._times: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_BUCKETS) + 1))
        self._sums: dict[str, float] = defaultdict(float)
        self.inside = 0

    def count(self, method: str, route: str, *, status: int, seconds: float) -> None:
        self.requests[method, route, status] += 1
        self._times[route][bisect_left(_BUCKETS, seconds)] += 1
        self._sums[route] += seconds

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """All of it in the format of Prometheus, with ``gauges`` of name to help and value."""
        lines = [
            "# HELP kernelbox_http_requests_total Requests by method, route and status.",
            "# TYPE kernelbox_http_requests_total counter",
        ]
        for (method, route, status), count in sorted(self.requests.items()):
            labels = f'method="{method}",route="{route}",status="{status}"'
            lines.append(f"kernelbox_http_requests_total{{{labels}}} {count}")
        lines += [
            "# HELP kernelbox_http_request_seconds How long requests took, streams included.",
            "# TYPE kernelbox_http_request_seconds histogram",
        ]
        for route, counts in sorted(self._times.items()):
            total = 0
            for edge, count in zip((*map(str, _BUCKETS), "+Inf"), counts, strict=True):
                total += count
                labels = f'route="{route}",le="{edge}"'
                lines.append(f"kernelbox_http_request_seconds_bucket{{{labels}}} {total}")
            label = f'{{route="{route}"}}'
            lines.append(f"kernelbox_http_request_seconds_sum{label} {self._sums[route]:.6f}")
            lines.append(f"kernelbox_http_request_seconds_count{label} {total}")
        everything = {**gauges, "http_requests_inside": ("Requests being served.", self.inside)}
        return "\n".join(lines) + "\n" + gauges_text(everything)


def gauges_text(gauges: dict[str, tuple[str, float]]) -> str:
    """Values of name to help and value, in the format of Prometheus."""
    return "".join(
        f"# HELP kernelbox_{name} {words}\n"
        f"# TYPE kernelbox_{name} gauge\n"
        f"kernelbox_{name} {value:g}\n"
        for name, (words, value) in gauges.items()
    )


class WithoutTokens(logging.Filter):
    """Takes tokens out of what the server logs: Jupyter's clients have them in addresses."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                without_token(value) if isinstance(value, str) else value for value in record.args
            )
        return True

    @classmethod
    def install(cls) -> None:
        for name in ("uvicorn.access", "uvicorn.error"):
            logger = logging.getLogger(name)
            if not any(isinstance(found, cls) for found in logger.filters):
                logger.addFilter(cls())


def without_token(address: str) -> str:
    """An address whose parameter ``token``, however it is written, has no value."""
    path, separator, query = address.partition("?")
    if not separator:
        return address
    shown = []
    for part in query.split("&"):
        name, equals, _ = part.partition("=")
        hidden = equals and unquote_plus(name) == "token"
        shown.append(f"{name}=…" if hidden else part)
    return f"{path}?{'&'.join(shown)}"


class Observing:
    """Pure ASGI middleware, the outermost: counts every request, and traces it if wanted."""

    def __init__(self, app: ASGIApp, *, numbers: Numbers, traces: Traces) -> None:
        self._app = app
        self._numbers = numbers
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if self._traces.tracer is None:
            await self._counted(scope, receive, send)
            return
        with self._traces.span(scope) as finish:
            status = await self._counted(scope, receive, send)
            finish(route_of(scope), status)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> int:
        numbers = self._numbers
        status = 500 if scope["type"] == "http" else 101

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            await send(message)

        begun = time.perf_counter()
        numbers.inside += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            numbers.inside -= 1
            numbers.count(
                # Anybody can make up a method; the routes know these.
                _method(scope),
                route_of(scope),
                status=status,
                seconds=time.perf_counter() - begun,
            )
        return status


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"})


def _method(scope: Scope) -> str:
    if scope["type"] == "websocket":
        return "WEBSOCKET"
    method = str(scope["method"])
    return method if method in _METHODS else "other"


def route_of(scope: Scope) -> str:
    """The route as it was written, so that names and ids do not become labels."""
    return str(getattr(scope.get("route"), "path_format", "") or "none")


class Traces:
    """A span for every request, sent by OTLP, where the environment asks for it."""

    def __init__(self) -> None:
        self.tracer: Any = None
        self._provider: Any = None
        self._propagator: Any = None

    def start(self) -> None:
        """Set up what OTEL_EXPORTER_OTLP_ENDPOINT asks for."""
        names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        if not any(os.environ.get(name) for name in names):
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import (
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            _log.warning(
                "OTEL_EXPORTER_OTLP_ENDPOINT is set, but %s is not installed, so there are no "
                'traces: pip install "./kernelbox[server,otel]"',
                error.name,
            )
            return
        name = os.environ.get("OTEL_SERVICE_NAME", "kernelbox")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._propagator = TraceContextTextMapPropagator()
        self.tracer = self._provider.get_tracer("kernelbox.server")

    def stop(self) -> None:
        """Send what has not been sent."""
        self.tracer = None
        if self._provider is not None:
            self._provider.shutdown()

    def span(self, scope: Scope) -> _Span:
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        return _Span(self.tracer, self._propagator.extract(headers), scope)


class _Span:
    """One request's span: named when its route is known."""

    def __init__(self, tracer: Any, context: Any, scope: Scope) -> None:
        from opentelemetry.trace import SpanKind

        method = _method(scope)
        self._method = method
        self._span = tracer.start_span(
            method,
            context=context,
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": scope["path"][:500]},
        )

    def __enter__(self) -> Callable[[str, int], None]:
        return self._finish

    def _finish(self, route: str, status: int) -> None:
        self._span.update_name(f"{self._method} {route}")
        self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if isinstance(error, Exception):
            self._span.record_exception(error)
        self._span.end()
