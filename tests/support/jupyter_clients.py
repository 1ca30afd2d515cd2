"""Jupyter clients for the tests of the lane: somebody else's code on the other side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from processes import such

from kernelbox import Box, KernelRecord
from kernelbox.keeper.home import Home

PATIENCE = 20.0

Message = dict[str, Any]


class Client:
    """jupyter_client, with the few calls that the tests make."""

    def __init__(self, raw: BlockingKernelClient, *, heartbeat: bool = True) -> None:
        self.raw = raw
        self.raw.start_channels(hb=heartbeat)

    @classmethod
    def of(cls, connection_file: str, *, heartbeat: bool = True) -> Client:
        raw = BlockingKernelClient(connection_file=connection_file)
        raw.load_connection_file()
        return cls(raw, heartbeat=heartbeat)

    def close(self) -> None:
        self.raw.stop_channels()
        self.raw.context.destroy(linger=0)

    def ready(self) -> Client:
        """Wait until this client is heard and hears."""
        self.raw.wait_for_ready(timeout=PATIENCE)
        return self

    def published_until(self, msg_id: str, *, state: str = "idle") -> list[Message]:
        """What iopub says about a request, up to and with its status ``state``."""
        found = []
        while True:
            message = self.raw.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            found.append(message)
            if message["content"].get("execution_state") == state:
                return found

    def next_published(self, msg_type: str) -> Message:
        """The next message of a type, whoever's it is."""
        while True:
            message: Message = self.raw.get_iopub_msg(timeout=PATIENCE)
            if message["msg_type"] == msg_type:
                return message

    def reply_to(self, msg_id: str) -> Message:
        return self._reply(self.raw.get_shell_msg, msg_id)

    def control_reply_to(self, msg_id: str, *, timeout: float = PATIENCE) -> Message:
        return self._reply(self.raw.get_control_msg, msg_id, timeout=timeout)

    def _reply(self, get: Any, msg_id: str, *, timeout: float = PATIENCE) -> Message:
        deadline = time.monotonic() + timeout
        while True:
            message: Message = get(timeout=max(0.0, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") == msg_id:
                return message

    def run(self, code: str, **options: Any) -> tuple[Message, list[Message]]:
        """The content of the reply, and what was published."""
        msg_id = self.raw.execute(code, allow_stdin=False, **options)
        published = self.published_until(msg_id)
        reply: Message = self.reply_to(msg_id)["content"]
        return reply, published

    def start(self, code: str, **options: Any) -> str:
        """Begin a cell; return when its first line has run."""
        msg_id: str = self.raw.execute(f"print('started', flush=True)\n{code}", **options)
        while self.next_published("stream")["parent_header"]["msg_id"] != msg_id:
            continue
        return msg_id

    def value(self, expression: str) -> str:
        """The repr of an expression in the kernel."""
        reply, published = self.run(expression)
        assert reply["status"] == "ok", reply
        (result,) = contents(published, "execute_result")
        text: str = result["data"]["text/plain"]
        return text

    def ask(self, msg_type: str, **content: Any) -> Message:
        """Send a shell request and wait for the content of its reply."""
        msg_id = self.send("shell", msg_type, content)
        reply: Message = self.reply_to(msg_id)["content"]
        return reply

    def control(self, msg_type: str, *, timeout: float = PATIENCE, **content: Any) -> Message:
        msg_id = self.send("control", msg_type, content)
        reply: Message = self.control_reply_to(msg_id, timeout=timeout)["content"]
        return reply

    def send(self, channel: str, msg_type: str, content: Message, **parts: Any) -> str:
        message = self.raw.session.msg(msg_type, content, metadata=parts.pop("metadata", None))
        socket = getattr(self.raw, f"{channel}_channel").socket
        self.raw.session.send(socket, message, **parts)
        msg_id: str = message["header"]["msg_id"]
        return msg_id

    def silence(self, seconds: float = 0.3) -> bool:
        """True if no reply comes on shell for a while."""
        try:
            self.raw.get_shell_msg(timeout=seconds)
        except Empty:
            return True
        return False


def contents(messages: list[Message], msg_type: str) -> list[Message]:
    return [message["content"] for message in messages if message["msg_type"] == msg_type]


def kinds(messages: list[Message]) -> list[str]:
    """The types of messages in order; text may come in pieces, so streams in a row count once."""
    found: list[str] = []
    for message in messages:
        if not (message["msg_type"] == "stream" and found[-1:] == ["stream"]):
            found.append(message["msg_type"])
    return found


def text(messages: list[Message], name: str = "stdout") -> str:
    return "".join(part["text"] for part in contents(messages, "stream") if part["name"] == name)


@contextmanager
def attached(record: KernelRecord, *, wait: bool = True) -> Iterator[Client]:
    # jupyter_client's heartbeat thread does not like to be stopped as soon as it was started.
    client = Client.of(record.connection_file, heartbeat=wait)
    try:
        yield client.ready() if wait else client
    finally:
        client.close()


def warden_pid(box: Box, kernel: KernelRecord) -> int:
    (pid,) = (p["pid"] for p in box.status(kernel)["processes"] if p["role"] == "warden")
    return int(pid)


def assert_home_is_deserted(home: Home) -> None:
    """Wait for every process of a home to end by itself; then nothing of it may be left."""
    deadline = time.monotonic() + PATIENCE
    while left := such(lambda process: home.rundir in " ".join(process.cmdline())):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.01)
    assert list(Path(home.rundir).glob("*.sock")) == []
    assert list(Path(home.runtime_dir).glob("*")) == []
