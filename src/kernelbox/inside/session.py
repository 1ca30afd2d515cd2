"""A session as bytes: every variable that can be pickled, the imports, the folder, the cells.

One pickler writes all variables, so that two names of one object stay two names of one object; but
each in a piece of its own, so that one which cannot be read later costs only what refers to it.
Functions and classes of cells are written by value (cloudpickle), with one difference: their
globals are *the* namespace of the session, before and after, and not a copy of what they use.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import re
import struct
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from kernelbox.inside.shell import Shell

_LENGTH = struct.Struct("!Q")
_NAMESPACE = "the namespace"
_OF_IPYTHON = re.compile(
    r"_+|_i{1,3}|_i?\d+|_[iod]h|_exit_code"
    r"|__(?:name|doc|package|loader|spec|file|annotations|builtins?)__"
)
_LONGEST_REASON = 300


def dump(shell: Shell, file: BinaryIO) -> dict[str, Any]:
    """Write the session to a file that can seek; what is in it, and what could not be."""
    writer = _Writer(file, shell.user_ns)
    modules, failures = {}, {}
    saved: list[str] = []
    for name, value in list(_variables(shell)):
        if isinstance(value, types.ModuleType):
            modules[name] = value.__name__
            continue
        if why := writer.try_out(value):
            failures[name] = why
            continue
        writer.write(name, value)
        saved.append(name)
    outputs = [
        count
        for count, value in list(shell.user_ns.get("_oh", {}).items())
        if not writer.try_out(value) and writer.write(f"Out[{count}]", value)
    ]
    return {
        "python": list(sys.version_info[:3]),
        "variables": saved,
        "modules": modules,
        "failures": failures,
        "cells": list(shell.user_ns.get("_ih", [])),
        "outputs": outputs,
        "execution_count": shell.execution_count,
        "cwd": _folder(),
        "path": [entry for entry in sys.path if entry],
    }


def load(shell: Shell, file: BinaryIO, manifest: dict[str, Any]) -> dict[str, Any]:
    """Read a session into this one; what came, and what did not and why."""
    if list(sys.version_info[:2]) != list(manifest["python"][:2]):
        mine, theirs = (".".join(map(str, v[:2])) for v in (sys.version_info, manifest["python"]))
        raise ValueError(
            f"the session was saved by Python {theirs} and cannot be read by {mine}: "
            "the code of functions differs between them"
        )
    failures: dict[str, str] = {}
    notes: list[str] = []
    try:
        os.chdir(manifest["cwd"])
    except OSError as error:
        notes.append(f"the folder {manifest['cwd']!r} cannot be entered ({error.strerror})")
    sys.path += [entry for entry in manifest["path"] if entry not in sys.path]
    namespace = shell.user_ns
    for name, module in manifest["modules"].items():
        try:
            namespace[name] = importlib.import_module(module)
        except BaseException as error:
            failures[name] = _reason(error)
    reader = _Reader(file, namespace)
    outputs: dict[int, Any] = {}
    loaded = list(manifest["modules"].keys() - failures.keys())
    for name, value, failure in reader.pieces():
        if failure:
            failures[name] = failure
        elif name.startswith("Out["):
            outputs[int(name[4:-1])] = value
        else:
            namespace[name] = value
            loaded.append(name)
    namespace["_ih"][:] = manifest["cells"]
    namespace["_oh"].clear()
    namespace["_oh"].update(outputs)
    shell.execution_count = manifest["execution_count"]
    if outputs:
        namespace["_"] = shell.displayhook._ = outputs[max(outputs)]
    return {"loaded": loaded, "failures": failures, "notes": notes}


def _variables(shell: Shell) -> Iterator[tuple[str, Any]]:
    """What the user has made, without what IPython keeps in the same namespace."""
    hidden = shell.user_ns_hidden
    for name, value in shell.user_ns.items():
        if _OF_IPYTHON.fullmatch(name) or (name in hidden and hidden[name] is value):
            continue
        if name in ("In", "Out", "get_ipython", "exit", "quit"):
            continue
        yield name, value


class _Writer:
    def __init__(self, file: BinaryIO, namespace: dict[str, Any]) -> None:
        self._file = file
        self._namespace = namespace
        self._pickler = _pickler(file, namespace)

    def try_out(self, value: Any) -> str:
        """Why it cannot be pickled, in words; empty if it can. Large buffers are not copied."""
        sink = _pickler(_Null(), self._namespace, buffer_callback=lambda _: None)
        try:
            sink.dump(value)
        except BaseException as error:
            return _reason(error)
        return ""

    def write(self, name: str, value: Any) -> bool:
        """Name and value as one piece, whose length is written when it is known."""
        encoded = name.encode("utf-8", "surrogatepass")
        self._file.write(_LENGTH.pack(len(encoded)) + encoded)
        start = self._file.tell()
        self._file.write(_LENGTH.pack(0))
        self._pickler.dump(value)
        end = self._file.tell()
        self._file.seek(start)
        self._file.write(_LENGTH.pack(end - start - _LENGTH.size))
        self._file.seek(end)
        return True


def _pickler(file: Any, namespace: dict[str, Any], **options: Any) -> Any:
    import cloudpickle
    from cloudpickle import cloudpickle as inner

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> str | None:
            return _NAMESPACE if value is namespace else None

        def _function_getnewargs(self, function: Any) -> Any:
            arguments = super()._function_getnewargs(function)
            if function.__globals__ is not namespace:
                return arguments
            code, _, *rest = arguments
            return (code, namespace, *rest)

        def _dynamic_function_reduce(self, function: Any) -> Any:
            reduced = super()._dynamic_function_reduce(function)
            if function.__globals__ is namespace:
                # What it refers to is saved by itself, or reported; it must not be dragged in.
                reduced[2][1]["__globals__"] = {}
            return reduced

    return Pickler(file, protocol=inner.DEFAULT_PROTOCOL, **options)


class _Reader:
    """Gives the pieces one by one to one unpickler, which remembers what it has read."""

    def __init__(self, file: BinaryIO, namespace: dict[str, Any]) -> None:
        self._file = file
        self._piece = _Piece()

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, pid: Any) -> Any:
                if pid != _NAMESPACE:
                    raise pickle.UnpicklingError(f"no such thing: {pid!r}")
                return namespace

        self._new = lambda: Unpickler(self._piece)
        self._unpickler = self._new()

    def pieces(self) -> Iterator[tuple[str, Any, str]]:
        while header := self._file.read(_LENGTH.size):
            name = self._file.read(_LENGTH.unpack(header)[0]).decode("utf-8", "surrogatepass")
            (size,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
            end = self._file.tell() + size
            self._piece.start(self._file, end)
            try:
                value, failure = self._unpickler.load(), ""
            except BaseException as error:
                value, failure = None, _reason(error)
                # It still holds the rest of this piece; what it has learned so far is good.
                memo = self._unpickler.memo
                self._unpickler = self._new()
                self._unpickler.memo = memo
            self._file.seek(end)
            yield name, value, failure


class _Piece:
    """A file that ends where a piece of another ends."""

    def start(self, file: BinaryIO, end: int) -> None:
        self._file = file
        self._end = end

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self._file.tell())
        return self._file.read(left if size < 0 else min(size, left))

    def readline(self) -> bytes:
        return self._file.readline(max(0, self._end - self._file.tell()))

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Null(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


def _reason(error: BaseException) -> str:
    words = f"{type(error).__name__}: {error}"
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]}…"


def _folder() -> str:
    with contextlib.suppress(OSError):
        return os.getcwd()
    return "/"
