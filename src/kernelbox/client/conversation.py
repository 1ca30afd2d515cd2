"""A conversation, sans I/O: a request goes out; events, questions and one answer come back."""

from typing import Any, NamedTuple

from kernelbox.errors import from_wire
from kernelbox.wire import Decoder, Frame, encode


class ConnectionLost(Exception):
    """The other side is gone. ``connected`` is False if it was never there: nothing was sent;
    ``late``: it is there, but did not answer in time."""

    def __init__(self, words: str, *, connected: bool, late: bool = False) -> None:
        super().__init__(words)
        self.connected = connected
        self.late = late


# Named tuples, with types that no future import turns into strings: a frozen dataclass takes eight
# times as long to make, and whoever imports us waits for it.
class Happened(NamedTuple):
    """An event of the execution, with its number."""

    number: int
    event: dict[str, Any]


class InputWanted(NamedTuple):
    """The code called ``input()``; answer with :meth:`Conversation.answer_input`."""

    number: Any
    prompt: str
    password: bool


class Answer(NamedTuple):
    """The last word: a reply, or the result of an execution."""

    content: dict[str, Any]


Item = Happened | InputWanted | Answer


class Conversation:
    """Turns one request into bytes, and the bytes that come back into items."""

    def __init__(self, request: Frame) -> None:
        self._request = request
        self._decoder = Decoder()
        self.over = False

    def opening(self) -> bytes:
        return encode({**self._request, "id": 1})

    def feed(self, data: bytes) -> list[Item]:
        """What the peer said; a refusal is raised."""
        if not data:
            raise ConnectionLost("the connection ended before the answer came", connected=True)
        items: list[Item] = []
        for frame in self._decoder.feed(data):
            if frame.get("id") != 1:
                continue
            if "error" in frame and "result" not in frame:
                self.over = True
                raise from_wire(frame)
            if "event" in frame:
                items.append(Happened(frame.get("n", 0), frame["event"]))
            elif "input" in frame:
                wanted = frame["input"]
                items.append(InputWanted(wanted["number"], wanted["prompt"], wanted["password"]))
            elif "result" in frame or "reply" in frame:
                self.over = True
                items.append(Answer(frame.get("result", frame.get("reply")) or {}))
        return items

    def answer_input(self, question: InputWanted, value: str | None) -> bytes:
        execution_id = self._request.get("execution_id")
        number = question.number
        return encode(
            {"op": "input", "execution_id": execution_id, "number": number, "value": value}
        )

    def cancel(self) -> bytes:
        return encode({"op": "cancel", "execution_id": self._request.get("execution_id"), "id": 2})
