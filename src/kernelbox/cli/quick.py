"""A plain ``kernelbox exec`` on a live kernel, over the bare sockets.

An agent calls it once per step, and importing the rest takes longer than running the cell. Whatever
is not plain (another option, a setting in the environment, a terminal, a kernel that is not there)
goes the long way, before anything was run. A test holds the two against each other.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from kernelbox.places import PATHS, home_path, socket_folder, whole_path

TYPE_CHECKING = False  # importing typing for it would cost as much as json
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# What the settings and the result are by default; see tests/cli/test_quick.py.
DEFAULTS: dict[str, Any] = {
    "op": "execute",
    "language": "python",
    "timeout": 60.0,
    "limit": 10_000,
    "interrupt_grace": 2.0,
    "kill_grace": 5.0,
    "expect_epoch": None,
    "atomic": False,
    "undo": 0,
    "undo_cost": 0.05,
    "most_checkpoints": 20,
    "stdin": False,
    "stream": False,
    "on_disconnect": "interrupt",
}
RESULT: dict[str, Any] = {
    "status": None,
    "output": "",
    "return_value": None,
    "stderr": "",
    "error": None,
    "execution_count": None,
    "duration_ms": 0,
    "outputs": [],
    "truncated": False,
    "attempts": [],
    "exit_code": None,
    "state": "kept",
    "cause": None,
    "epoch": 0,
    "execution_id": "",
    "kernel_id": "",
    "steps": [],
    "notes": [],
}
ERROR = ("ename", "evalue", "traceback")
ITEM: dict[str, Any] = {"kind": "", "text": None, "name": None, "data": {}, "metadata": {}}

_PLACES = ("KERNELBOX_HOME", "KERNELBOX_REGISTRY_PATH", "KERNELBOX_RUNTIME_DIR")
_CONNECT_PATIENCE = 5.0
_KEEPER_PATIENCE = 30.0


def attempt(words: Sequence[str]) -> int | None:
    """Run the command line if it is a plain ``exec``; None: somebody else must."""
    if not words or words[0] != "exec" or _asks_for_more():
        return None
    asked = _understood(words[1:])
    if asked is None:
        return None
    kernel, request, code = asked
    address = _address(kernel)
    if address is None:
        return None
    if code is None or code == "-":
        code = _standard_input()
    if code is None:
        return None
    try:
        return _run(kernel, address, {**request, "code": code})
    except _NothingRan:
        return None


class _NothingRan(Exception):
    """The kernel went away or refused; the long way finds out why, and says so."""


def _asks_for_more() -> bool:
    """Settings that we do not read, or a person who wants to see progress."""
    if any(name.startswith("KERNELBOX_") and name not in _PLACES for name in os.environ):
        return True
    return any(stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)) or bool(
        sys.stderr.isatty()
    )


def _understood(words: Sequence[str]) -> tuple[str, dict[str, Any], str | None] | None:
    """The kernel, the request and the code (None: on standard input), if nothing else is asked."""
    given: dict[str, str] = {}
    code: str | None = None
    request = {**DEFAULTS, "execution_id": os.urandom(16).hex()}
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if word == "--bash":
            request["language"] = "bash"
        elif option in ("--name", "--id", "--timeout") and option not in given:
            given[option] = value if equals else next(rest, "")
        elif word.startswith("-") or code is not None:
            return None
        else:
            code = word
    kernels = [given[option] for option in ("--name", "--id") if given.get(option)]
    if len(kernels) != 1 or kernels[0].startswith("-"):
        return None
    if "--timeout" in given:
        try:
            request["timeout"] = float(given["--timeout"])
        except ValueError:
            return None
        if not 0 < request["timeout"] <= sys.float_info.max:
            return None
    return kernels[0], request, code


def _standard_input() -> str | None:
    """Code in plain UTF-8; what says that it is something else is read with more care."""
    from io import BytesIO, TextIOWrapper

    raw = sys.stdin.buffer.read()
    sys.stdin = TextIOWrapper(BytesIO(raw))  # for the long way, should we give up
    if b"coding" in raw[:500] or raw.startswith(b"\xef\xbb\xbf"):
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _address(kernel: str) -> str | None:
    """Where the live kernel listens, as its keeper says."""
    try:
        folder = socket_folder(_place("registry_path"), _place("runtime_dir"))
        with _connect(os.path.join(folder, "keeper.sock")) as line:
            line.settimeout(_KEEPER_PATIENCE)
            line.sendall(_frame({"op": "find", "kernel": kernel, "id": 1}))
            record = _read(line, bytearray()).get("reply", {}).get("record")
    except (OSError, ValueError):
        return None
    return str(record["address"]) if record else None


def _place(field: str) -> str:
    given = os.environ.get(f"KERNELBOX_{field.upper()}")
    path = whole_path(given) if given else PATHS[field][0]
    return os.path.realpath(home_path(field, path, os.environ.get("KERNELBOX_HOME") or None))


def _run(kernel: str, address: str, request: dict[str, Any]) -> int:
    """Have it run and print its result. A signal interrupts the cell; the second one leaves."""
    try:
        line = _connect(address)
    except OSError:
        raise _NothingRan from None
    arrived: list[int] = []
    sent = False

    def interrupt(number: int, _: object) -> None:
        if arrived:
            os._exit(128 + number)
        arrived.append(number)
        if sent:
            line.sendall(cancel)

    cancel = _frame({"op": "cancel", "execution_id": request["execution_id"], "id": 2})
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A shell has its background jobs ignore Ctrl-C; so do we then.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    with line:
        try:
            line.sendall(_frame({**request, "id": 1}))
            sent = True
            if arrived:
                line.sendall(cancel)
            answer = _answer(line)
        except OSError as error:
            result = _lost(kernel, request, error)
        else:
            if "result" not in answer:
                raise _NothingRan
            result = _complete(answer["result"])
    return _print(result) or (0 if result["status"] == "success" else _code(arrived))


def _code(arrived: list[int]) -> int:
    return 128 + arrived[0] if arrived else 1


def _answer(line: socket.socket) -> dict[str, Any]:
    buffer = bytearray()
    while True:
        frame = _read(line, buffer)
        if frame.get("id") == 1:
            return frame


def _lost(kernel: str, request: dict[str, Any], error: OSError) -> dict[str, Any]:
    """The kernel went away under the running cell: the long way knows what to say of it."""
    from kernelbox.box import Box
    from kernelbox.client.conversation import ConnectionLost
    from kernelbox.client.executing import lost_result

    with Box() as box:
        lost = ConnectionLost(str(error), connected=True)
        return box._driver.run(lost_result(box._calls, kernel, request, lost)).to_dict()


def _complete(content: dict[str, Any]) -> dict[str, Any]:
    """The result as :meth:`kernelbox.ExecutionResult.to_dict` has it."""
    result = {name: content.get(name, default) for name, default in RESULT.items()}
    if result["error"]:
        result["error"] = {name: result["error"].get(name) for name in ERROR}
    result["outputs"] = [
        {name: item.get(name, default) for name, default in ITEM.items()}
        for item in result["outputs"]
    ]
    return result


def _print(result: dict[str, Any]) -> int:
    """One line of JSON; the exit code is another only if nobody reads it."""
    try:
        text = json.dumps(result, ensure_ascii=False, allow_nan=False, default=str)
        # A lone surrogate has no UTF-8. Its backslash form happens to be what JSON calls it.
        data = text.encode("utf-8", "backslashreplace") + b"\n"
    except ValueError:
        from kernelbox.cli.printing import json_line

        data = json_line(result)
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def _connect(address: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(_CONNECT_PATIENCE)
        line.connect(address)
        line.settimeout(None)
        raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if int.from_bytes(raw[4:8], sys.byteorder) not in (os.getuid(), 0):
            raise ConnectionRefusedError(address)  # somebody else's; the long way says so
    except BaseException:
        line.close()
        raise
    return line


def _frame(content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode("ascii")
    return len(body).to_bytes(4, "big") + body


def _read(line: socket.socket, buffer: bytearray) -> dict[str, Any]:
    """The next frame; ``buffer`` holds what came after the last one."""
    while True:
        end = 4 + int.from_bytes(buffer[:4], "big") if len(buffer) >= 4 else 4
        if len(buffer) >= end > 4:
            frame: dict[str, Any] = json.loads(buffer[4:end])
            del buffer[:end]
            return frame
        data = line.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the connection ended before the answer came")
        buffer += data
