"""A fake model, for trying the recipes without a key. It has four replies, and says it is a fake.

It speaks as much of OpenAI's chat completions and of Anthropic's messages as the recipes in
``docs/recipes.md`` use. Whatever you ask, it sends a cell with some data, one with a mistake
in it, the same without, and then tells what came out. ::

    python examples/fake_model.py      # prints the variables to set; then any recipe runs as it is
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CELLS = ("prices = [3, 1, 2]", "sum(price)", "sum(prices)")
WORDS = "{result} (said by the fake model of KernelBox's examples, which does not think)"
NAME = "fake-model-of-kernelbox"

Message = dict[str, Any]


def next_cell(messages: list[Message]) -> str | None:
    """The code to send now, or None when all of it has been sent."""
    sent = len(results(messages))
    return CELLS[sent] if sent < len(CELLS) else None


def results(messages: list[Message]) -> list[str]:
    """What the cells that were sent so far gave back, in any of the forms that clients use."""
    found = []
    for number, message in enumerate(messages):
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        after_code = number > 0 and messages[number - 1]["role"] == "assistant"
        for part in parts:
            if part.get("type") == "tool_result":
                found.append(text_of(part.get("content")))
            elif message["role"] in ("tool", "tool-response") or (
                message["role"] == "user" and after_code
            ):
                found.append(text_of(part.get("text")))
    return found


def text_of(content: Any) -> str:
    """Text, whether it came as such or as a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content or "")


def final_words(messages: list[Message]) -> str:
    *_, last = results(messages)[-1].split() or ["nothing"]
    return WORDS.format(result=last)


def chat_completion(request: dict[str, Any]) -> dict[str, Any]:
    """A reply in the form of ``POST /v1/chat/completions``."""
    messages, tools = request["messages"], request.get("tools") or []
    names = [tool["function"]["name"] for tool in tools]
    code = next_cell(messages)
    reply: Message = {"role": "assistant", "content": None}
    reason = "stop"
    if code is not None and "run_python" in names:
        reply["tool_calls"] = [openai_call("run_python", len(messages), code=code)]
        reason = "tool_calls"
    elif code is not None:
        reply["content"] = f"```python\n{code}\n```"
    elif "final_answer" in names:  # smolagents ends by a tool
        words = final_words(messages)
        reply["tool_calls"] = [openai_call("final_answer", len(messages), answer=words)]
        reason = "tool_calls"
    else:
        reply["content"] = final_words(messages)
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 0,
        "model": NAME,
        "choices": [{"index": 0, "message": reply, "finish_reason": reason}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def openai_call(name: str, number: int, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def anthropic_message(request: dict[str, Any]) -> dict[str, Any]:
    """A reply in the form of ``POST /v1/messages``."""
    messages = request["messages"]
    code = next_cell(messages)
    block: dict[str, Any]
    if code is None:
        block = {"type": "text", "text": final_words(messages)}
    else:
        call = {"id": f"toolu_{len(messages)}", "name": "run_python", "input": {"code": code}}
        block = {"type": "tool_use", **call}
    return {
        "id": "msg_fake",
        "type": "message",
        "role": "assistant",
        "model": NAME,
        "content": [block],
        "stop_reason": "end_turn" if code is None else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


REPLIES = {"/v1/chat/completions": chat_completion, "/v1/messages": anthropic_message}


class FakeModel(BaseHTTPRequestHandler):
    """One request, one reply; nothing is remembered."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = REPLIES.get(self.path)
        if reply is None or request.get("stream"):
            self.answer(404, {"error": {"message": f"this fake has no stream and no {self.path}"}})
        else:
            self.answer(200, reply(request))

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing; the recipe does."""


def environment(port: int) -> dict[str, str]:
    """What has clients of both kinds come here."""
    place = f"http://127.0.0.1:{port}"
    return {
        "OPENAI_BASE_URL": f"{place}/v1",
        "OPENAI_API_KEY": "none-needed",
        "ANTHROPIC_BASE_URL": place,
        "ANTHROPIC_API_KEY": "none-needed",
        "MODEL": NAME,
    }


def main() -> None:
    """Serve on a free port until Ctrl-C."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with ThreadingHTTPServer(("127.0.0.1", port), FakeModel) as server:
        for name, value in environment(server.server_port).items():
            print(f"export {name}={value}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
