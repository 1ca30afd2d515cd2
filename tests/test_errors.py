"""The error tree: what is caught by what, and that errors cross sockets whole."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

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
from kernelbox.warden import kernelspecs

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


@pytest.mark.parametrize("has_jupyter_client", [True, False])
def test_an_unknown_kernel_type_is_answered_with_the_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_jupyter_client: bool
) -> None:
    if has_jupyter_client:
        pytest.importorskip("jupyter_client")
    else:
        monkeypatch.setitem(sys.modules, "jupyter_client", None)
    spec = tmp_path / "kernels" / "klingon" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text('{"argv": ["tlh"], "display_name": "tlhIngan", "language": "tlh"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    with pytest.raises(Unsupported, match="no kernelspec named 'nope' is installed") as caught:
        kernelspecs.find("nope")
    assert "'python3' (our own kernel) or one of: " in str(caught.value)
    assert "'klingon'" in str(caught.value)
    hint = 'pip install "./kernelbox[foreign]"'
    assert (hint in str(caught.value)) is not has_jupyter_client
    if not has_jupyter_client:
        with pytest.raises(Unsupported, match=r"'klingon' is not ours.*jupyter_client") as caught:
            kernelspecs.find("klingon")
        assert hint in str(caught.value)
