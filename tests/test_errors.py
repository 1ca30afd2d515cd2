"""The error tree: what is caught by what, and that errors cross sockets whole."""

from __future__ import annotations

import json
import pickle

import pytest

import kernelbox
from kernelbox import (
    BadInput,
    BoxError,
    EpochMismatch,
    KeeperUnavailable,
    KernelLost,
    KernelNotFound,
    StartupFailed,
    Unsupported,
)
from kernelbox.errors import from_wire, to_wire

ALL = [
    BadInput,
    BoxError,
    EpochMismatch,
    KeeperUnavailable,
    KernelLost,
    KernelNotFound,
    StartupFailed,
    Unsupported,
]


def test_one_class_catches_them_all() -> None:
    assert all(issubclass(cls, BoxError) for cls in ALL)


def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(BadInput, ValueError)
    assert issubclass(KernelNotFound, LookupError)
    assert issubclass(KernelLost, KernelNotFound)


@pytest.mark.parametrize("cls", ALL)
def test_an_error_crosses_a_socket_whole(cls: type[BoxError]) -> None:
    error = cls("what happened; what to do", epoch=2, cause="idle")
    back = from_wire(json.loads(json.dumps(to_wire(error))))
    assert type(back) is cls
    assert str(back) == "what happened; what to do"
    assert back.details == {"epoch": 2, "cause": "idle"}


def test_an_error_of_a_newer_peer_is_a_plain_box_error() -> None:
    error = from_wire({"error": "NewTrouble", "message": "x", "details": {}})
    assert type(error) is BoxError
    assert from_wire({"error": "BadInput"}).message == "the peer gave no reason"


def test_a_detail_may_have_any_name() -> None:
    sent = {"error": "BoxError", "message": "x", "details": {"message": "m", "self": 1}}
    assert from_wire(sent).details == {"message": "m", "self": 1}


@pytest.mark.parametrize("cls", ALL)
def test_errors_can_be_pickled(cls: type[BoxError]) -> None:
    back = pickle.loads(pickle.dumps(cls("words", epoch=2)))
    assert (type(back), str(back), back.message, back.details) == (
        cls,
        "words",
        "words",
        {"epoch": 2},
    )


@pytest.mark.parametrize("cls", ALL)
def test_each_error_says_who_raises_it(cls: type[BoxError]) -> None:
    assert cls.__doc__
    assert cls.__name__ in (kernelbox.errors.__doc__ or "")
