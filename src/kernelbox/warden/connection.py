"""The connection file, and the five listening ports it names, open before anyone reads it."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


@dataclass(slots=True)
class Ports:
    """Listening sockets, one per channel; ZeroMQ takes them over when the first client knocks."""

    listeners: dict[str, socket.socket]
    info: dict[str, Any]

    def close(self) -> None:
        for listener in self.listeners.values():
            listener.close()


def open_ports(info: dict[str, Any] | None = None) -> Ports:
    """Bind the ports that ``info`` (a connection file's content) asks for, or five free ones."""
    wanted = dict(info or {})
    listeners: dict[str, socket.socket] = {}
    ip = wanted.get("ip", "127.0.0.1")
    try:
        for channel in CHANNELS:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listeners[channel] = listener
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("" if ip == "*" else ip, int(wanted.get(f"{channel}_port", 0))))
            listener.listen(64)
            listener.setblocking(False)
    except OSError:
        for listener in listeners.values():
            listener.close()
        raise
    ports = {f"{channel}_port": sock.getsockname()[1] for channel, sock in listeners.items()}
    return Ports(
        listeners,
        {
            "transport": "tcp",
            "signature_scheme": "hmac-sha256",
            "kernel_name": "python3",
            **wanted,
            "ip": ip,
            "key": wanted["key"] if "key" in wanted else secrets.token_hex(32),
            **ports,
        },
    )


def write_private(path: str, content: dict[str, Any]) -> None:
    """Write JSON so that it is there whole or not at all, and only for us."""
    temporary = f"{path}.writing"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        # json's own indentation is written in Python, and takes longer than all the rest.
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(content[key])}" for key in content)
        with open(fd, "wb", buffering=0) as file:
            file.write(f"{{\n{lines}\n}}\n".encode())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
