"""Errors as FastAPI knows them: their shape in the schema, and requests that do not fit theirs."""

from __future__ import annotations

from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.errors import in_short
from kernelbox.server.answers import answer
from kernelbox.server.errors import error_content


class ErrorBody(BaseModel):
    """What every error looks like."""

    error: str = Field(description="The kind of error, one word", examples=["KernelNotFound"])
    message: str = Field(description="What happened, to which thing, and what to do now")
    hint: str | None = Field(default=None, description="What to try next, where there is a hint")
    details: dict[str, Any] = Field(description="Facts for programs; empty if there are none")


async def invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [
        {
            "where": ".".join(str(part) for part in problem["loc"]),
            "problem": problem["msg"],
            "given": in_short(problem.get("input")),
        }
        for problem in error.errors()[:20]
    ]
    said = "; ".join(f"{problem['where']}: {problem['problem']}" for problem in problems[:3])
    content = error_content(
        "BadInput",
        f"the request cannot be used: {said}",
        hint="/docs and /openapi.json say what this route takes",
        details={"problems": problems},
    )
    return answer(content, status=422)
