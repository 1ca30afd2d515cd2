"""The routes, a module for each subject; ``ROUTERS`` has the busiest first."""

from kernelbox.server.routes import (
    executions,
    files,
    health,
    installs,
    kernels,
    metrics,
    saved,
    sessions,
    timetravel,
    websocket,
)

ROUTERS = (
    executions.hot,
    executions.router,
    sessions.router,
    kernels.router,
    health.router,
    timetravel.router,
    installs.router,
    saved.router,
    files.router,
    metrics.router,
    websocket.router,
)
