"""A session as bytes: every variable that can be pickled, the imports, the folder, the cells.

One pickler writes all variables, so that two names of one object stay two names of one object; but
each in a piece of its own, so that one which cannot be read later costs only what refers to it.
Functions and classes of cells are written by value (cloudpickle), with differences: their globals
are *the* namespace of the session, before and after, and not a copy of what they use; and variables
that two functions share (closures) stay shared.

A file has the pieces, and then a *manifest*: JSON that says what else there is to know.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import pickle
import random
import re
import struct
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from kernelbox.inside.shell import Shell

_LENGTH = struct.Struct("!Q")
_HEADER = struct.Struct("!QQQ")  # of a piece: its name's length, where its memo begins, its length
_NAMESPACE = "the namespace"
_OF_IPYTHON = re.compile(
    r"_+|_i{1,3}|_i?\d+|_[iod]h|_exit_code|__(?:name|doc|package|loader|spec|file|builtins?)__"
)
_LONGEST_REASON = 300
_RANDOM = ("<random>", "<numpy.random>")


def dump(shell: Shell, file: BinaryIO, *, whole: bool = False) -> dict[str, Any]:
    """Write the session to a file that can seek, from where it stands; what is in it, and what
    could not be. ``whole``: with environment and random numbers, for a copy that is to go on here.
    """
    start = file.tell()
    writer = _Writer(file, shell.user_ns)
    modules, failures = {}, {}
    saved: list[str] = []
    for name, value in list(_variables(shell)):
        if isinstance(value, types.ModuleType):
            modules[name] = value.__name__
        elif why := writer.try_out(value):
            failures[name] = why
        else:
            writer.write(name, value)
            saved.append(name)
    for count, value in list(shell.user_ns.get("_oh", {}).items()):
        if why := writer.try_out(value):
            failures[f"Out[{count}]"] = why
        else:
            writer.write(f"Out[{count}]", value)
    if whole:
        for name, state in zip(_RANDOM, (random.getstate(), _numpy_state()), strict=True):
            writer.write(name, state)
    facts = {"variables": saved, "modules": modules, "failures": failures}
    manifest = {
        **facts,
        "python": list(sys.version_info[:3]),
        "cells": list(shell.user_ns.get("_ih", [])),
        "execution_count": shell.execution_count,
        "cwd": _folder(),
        "path": [entry for entry in sys.path if entry],
        "environ": dict(os.environ) if whole else None,
    }
    pieces = file.tell() - start
    file.write(json.dumps(manifest).encode("ascii"))
    file.flush()
    return {**facts, "pieces": pieces, "manifest": file.tell() - start - pieces}


def load(
    shell: Shell, file: BinaryIO, *, pieces: int, manifest: int, reseed: bool = False
) -> dict[str, Any]:
    """Read a session into this one; what came, and what did not and why."""
    start = file.tell()
    file.seek(start + pieces)
    facts = json.loads(file.read(manifest))
    file.seek(start)
    if list(sys.version_info[:2]) != list(facts["python"][:2]):
        mine, theirs = (".".join(map(str, v[:2])) for v in (sys.version_info, facts["python"]))
        raise ValueError(
            f"the session was saved by Python {theirs} and cannot be read by {mine}: "
            "the code of functions differs between them"
        )
    failures: dict[str, str] = {}
    notes: list[str] = []
    if facts.get("environ") is not None:
        os.environ.clear()
        os.environ.update(facts["environ"])
    try:
        os.chdir(facts["cwd"])
    except OSError as error:
        notes.append(f"the folder {facts['cwd']!r} cannot be entered ({error.strerror})")
    sys.path += [entry for entry in facts["path"] if entry not in sys.path]
    namespace = shell.user_ns
    for name, module in facts["modules"].items():
        try:
            namespace[name] = importlib.import_module(module)
        except BaseException as error:
            failures[name] = _reason(error)
    outputs: dict[int, Any] = {}
    states: dict[str, Any] = {}
    loaded = [name for name in facts["modules"] if name not in failures]
    for name, value, failure in _Reader(file, start + pieces, namespace).pieces():
        if failure:
            failures[name] = failure
        elif name.startswith("Out["):
            outputs[int(name[4:-1])] = value
        elif name in _RANDOM:
            states[name] = value
        else:
            namespace[name] = value
            loaded.append(name)
    namespace["_ih"][:] = facts["cells"]
    namespace["_oh"].clear()
    namespace["_oh"].update(outputs)
    shell.execution_count = facts["execution_count"]
    if outputs:
        namespace["_"] = shell.displayhook._ = outputs[max(outputs)]
    if states and not reseed:
        _restore_random(states)
    return {"loaded": loaded, "failures": failures, "notes": notes}


def _variables(shell: Shell) -> Iterator[tuple[str, Any]]:
    """What the user has made, without what IPython keeps in the same namespace."""
    hidden = shell.user_ns_hidden
    for name, value in shell.user_ns.items():
        if _OF_IPYTHON.fullmatch(name) or (name in hidden and hidden[name] is value):
            continue
        if name in ("In", "Out") or type(value).__module__ == "IPython.core.autocall":
            continue
        if value == shell.get_ipython if isinstance(value, types.MethodType) else False:
            continue
        if name == "__annotations__" and not value:
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

    def write(self, name: str, value: Any) -> None:
        """A piece: header, name, value. Where the memo stands is asked of the pickler itself: a
        thing that it has just seen for the first time, and then again, it names by its number."""
        encoded = name.encode("utf-8", "surrogatepass")
        header = self._file.tell()
        self._file.write(bytes(_HEADER.size) + encoded)
        start = self._file.tell()
        probe: list[Any] = []
        self._pickler.dump(probe)
        again = self._file.tell()
        self._pickler.dump(probe)
        end = self._file.tell()
        self._file.seek(again)
        base = _memo_number(self._file.read(end - again))
        self._file.seek(end)
        self._pickler.dump(value)
        end = self._file.tell()
        self._file.seek(header)
        self._file.write(_HEADER.pack(len(encoded), base, end - start))
        self._file.seek(end)


def _memo_number(data: bytes) -> int:
    """The number in a pickle that is nothing but a reference."""
    if data[:1] == pickle.PROTO and data[-1:] == pickle.STOP:
        body = data[11:] if data[2:3] == pickle.FRAME else data[2:]
        opcode, number = body[:1], body[1:-1]
        if (opcode, len(number)) in ((pickle.BINGET, 1), (pickle.LONG_BINGET, 4)):
            return int.from_bytes(number, "little")
    raise pickle.PicklingError("the pickler has forgotten what it has just written")


def _pickler(file: Any, namespace: dict[str, Any], **options: Any) -> Any:
    import cloudpickle
    from cloudpickle import cloudpickle as inner

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> str | None:
            return _NAMESPACE if value is namespace else None

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, types.CellType):
                # Empty first, filled when it is known: it may lead back to its own function.
                try:
                    content = (value.cell_contents,)
                except ValueError:
                    return _empty_cell, ()
                return _empty_cell, (), content, None, None, _fill_cell
            if isinstance(value, io.TextIOWrapper | io.BufferedIOBase | io.FileIO) and not (
                isinstance(value, io.BytesIO)
            ):
                # cloudpickle would read it to its end and make a string of it.
                raise pickle.PicklingError("an open file cannot be pickled")
            if isinstance(value, functools._lru_cache_wrapper):
                inner_function = value.__wrapped__
                if getattr(inner_function, "__module__", None) == "__main__":
                    return _cached, (inner_function, value.cache_parameters())
            return super().reducer_override(value)

        def _function_getnewargs(self, function: Any) -> Any:
            code, base, name, defaults, _ = super()._function_getnewargs(function)
            mine = function.__globals__ is namespace
            return code, namespace if mine else base, name, defaults, function.__closure__

        def _dynamic_function_reduce(self, function: Any) -> Any:
            reduced = super()._dynamic_function_reduce(function)
            if function.__globals__ is namespace:
                # What it refers to is saved by itself, or reported; it must not be dragged in.
                reduced[2][1]["__globals__"] = {}
            return reduced

    return Pickler(file, protocol=inner.DEFAULT_PROTOCOL, **options)


def _empty_cell() -> types.CellType:
    return types.CellType()


def _fill_cell(cell: types.CellType, content: tuple[Any]) -> None:
    (cell.cell_contents,) = content


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


class _Missing:
    """In the place of what could not be read: nobody can do anything with it."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        raise pickle.UnpicklingError("refers to something that could not be loaded")


class _Reader:
    """Gives the pieces one by one to one unpickler, which remembers what it has read.

    What refers to a piece that failed fails too. An unpickler that has failed is in the middle of
    something; its successor is taught all that it had learned before, number by number.
    """

    def __init__(self, file: BinaryIO, end: int, namespace: dict[str, Any]) -> None:
        self._file = file
        self._end = end
        self._piece = _Piece()
        self._known: list[Any] = []
        self._missing = _Missing()
        reader = self

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, pid: Any) -> Any:
                if isinstance(pid, int):
                    return reader._known[pid]
                if pid != _NAMESPACE:
                    raise pickle.UnpicklingError(f"no such thing: {pid!r}")
                return namespace

        self._kind = Unpickler
        self._unpickler = Unpickler(self._piece)

    def pieces(self) -> Iterator[tuple[str, Any, str]]:
        failed_at: int | None = None
        while self._file.tell() < self._end:
            length, base, size = _HEADER.unpack(self._file.read(_HEADER.size))
            name = self._file.read(length).decode("utf-8", "surrogatepass")
            end = self._file.tell() + size
            if failed_at is not None:
                self._start_anew(failed_at, base)
                failed_at = None
            self._piece.start(self._file, end)
            before = sys.getrefcount(self._missing)
            failure, value = "", None
            try:
                self._unpickler.load()
                self._unpickler.load()
                value = self._unpickler.load()
                if sys.getrefcount(self._missing) > before:
                    raise pickle.UnpicklingError("refers to something that could not be loaded")
            except BaseException as error:
                value, failure = None, _reason(error)
                failed_at = base
            self._file.seek(end)
            yield name, value, failure

    def _start_anew(self, good: int, until: int) -> None:
        """An unpickler that knows what was read before ``good``, and counts on from ``until``. Of
        what lies between, which may be half built, it knows what is never half built."""
        learned = self._unpickler.memo.copy()
        self._known = [learned.get(number, self._missing) for number in range(until)]
        for number in range(good, until):
            if type(self._known[number]) not in (str, bytes, int, float):
                self._known[number] = self._missing
        self._unpickler = self._kind(self._piece)
        teach = pickle.BINPERSID + pickle.MEMOIZE + pickle.POP
        lesson = b"".join(
            pickle.BININT + number.to_bytes(4, "little") + teach for number in range(until)
        )
        data = pickle.PROTO + b"\x04" + lesson + pickle.NONE + pickle.STOP
        self._piece.start(io.BytesIO(data), len(data))
        self._unpickler.load()
        self._known = []


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


def _numpy_state() -> Any:
    numpy_random = sys.modules.get("numpy.random")
    return numpy_random.get_state() if numpy_random is not None else None


def _restore_random(states: dict[str, Any]) -> None:
    random.setstate(states[_RANDOM[0]])
    if states.get(_RANDOM[1]) is not None:
        importlib.import_module("numpy.random").set_state(states[_RANDOM[1]])


def _reason(error: BaseException) -> str:
    words = f"{type(error).__name__}: {error}"
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]}…"


def _folder() -> str:
    with contextlib.suppress(OSError):
        return os.getcwd()
    return "/"
