"""What a client has not been told yet: in order, and within bounds while it is away. No I/O."""

from __future__ import annotations

from collections import deque

from kernelbox.server.jupyter.wire import Packet
from kernelbox.warden.lanes.messages import Session, to_json

_OUTPUT = frozenset({"stream", "display_data", "update_display_data", "execute_result", "comm_msg"})
"""What a cell may say without end. Replies, states and errors are few, and worth more."""
_STREAMS = tuple(f'{{"name":"{name}","text":"'.encode() for name in ("stdout", "stderr"))
_END = b'"}'
"""How a kernel of ours writes the content of a message of a stream."""
_LONGEST_JOINED = 1 << 16
_OVERHEAD = 500
"""What a waiting message costs beyond its bytes, roughly."""


class Backlog:
    """Messages that wait for a client."""

    def __init__(self) -> None:
        self._packets: deque[Packet] = deque()
        self.size = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._packets)

    def add(self, packet: Packet) -> None:
        # Never into the first one, which may be on its way.
        if len(self._packets) > 1 and (whole := _joined(self._packets[-1], packet)) is not None:
            self.size += whole.size - self._packets[-1].size
            self._packets[-1] = whole
            return
        self._packets.append(packet)
        self.size += packet.size + _OVERHEAD

    def first(self) -> Packet:
        return self._packets[0]

    def pop(self) -> None:
        """The first one has been told."""
        packet = self._packets.popleft()
        self.size -= packet.size + _OVERHEAD

    def thin(self, most: int) -> None:
        """Drop the oldest output until the rest fits, and anything if there is nothing else; where
        it was, one message says so."""
        if self.size <= most:
            return
        kept: deque[Packet] = deque()
        place: tuple[int, Packet] | None = None
        for packet in self._packets:
            if self.size > most and packet.msg_type in _OUTPUT:
                place = place or (len(kept), packet)
                self._forget(packet)
            else:
                kept.append(packet)
        while self.size > most and kept:
            packet = kept.popleft()
            place = (0, packet)
            self._forget(packet)
        self._packets = kept
        if place is not None:
            at, packet = place
            notice = _notice(packet, self.dropped)
            kept.insert(at, notice)
            self.size += notice.size + _OVERHEAD

    def _forget(self, packet: Packet) -> None:
        self.size -= packet.size + _OVERHEAD
        self.dropped += 1


def _joined(first: Packet, second: Packet) -> Packet | None:
    """Two texts of one stream of one cell as one message: a cell that prints line by line is not
    to cost a client that is slow half a kilobyte for each. They are joined as they are written, in
    JSON; no text is parsed."""
    for before in _STREAMS:
        if first.parts[3].startswith(before) and second.parts[3].startswith(before):
            break
    else:
        return None
    if first.parts[1:3] != second.parts[1:3] or len(first.parts[3]) > _LONGEST_JOINED:
        return None
    if not first.msg_type == second.msg_type == "stream":
        return None
    text = first.parts[3].removesuffix(_END) + second.parts[3][len(before) :]
    return Packet(first.channel, [*first.parts[:3], text])


def _notice(missing: Packet, dropped: int) -> Packet:
    """In the place of what is missing, and with the same parent, so that it shows in its cell."""
    words = (
        f"\n[kernelbox: {dropped} messages were dropped while this client was away, "
        "because they did not fit into memory; run the cell again to see all of its output]\n"
    )
    content = {"name": "stderr", "text": words}
    header = Session(b"").header("stream")
    return Packet("iopub", [to_json(header), missing.parts[1], b"{}", to_json(content)])
