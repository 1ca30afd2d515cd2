"""Turns: an answer is taken for the answer to what was asked, once, and for nothing else."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kernelbox.warden.turns import OF_A_TURN, Turns


def asked(turns: Turns, op: str = "run") -> Any:
    request: dict[str, Any] = {"op": op}
    turns.number(request)
    return request["turn"]


@pytest.mark.parametrize(
    ("request_op", "answer_op"),
    [("run", "done"), ("ask", "answer"), ("branch", "forked"), ("checkpoint", "forked")],
)
def test_a_turn_ends_once(request_op: str, answer_op: str) -> None:
    turns = Turns()
    end = {"op": answer_op, "turn": asked(turns, request_op)}
    assert [turns.admit(dict(end)) for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize("op", sorted(OF_A_TURN - {"input_request"}))
@pytest.mark.parametrize("turn", [None, 0, 1, "1", True, [], {}])
def test_a_stray_is_not_admitted(op: str, turn: object) -> None:
    turns = Turns()
    assert not turns.admit({"op": op, "turn": turn})
    asked(turns)
    assert not turns.admit({"op": op, "turn": turn})
    assert not turns.admit({"op": op})


def test_the_end_of_an_earlier_turn_is_not_that_of_the_next() -> None:
    turns = Turns()
    first = asked(turns)
    second = asked(turns)
    assert not turns.admit({"op": "done", "turn": first})
    assert turns.admit({"op": "running", "turn": second})
    assert turns.admit({"op": "input_request"})
    assert turns.admit({"op": "done", "turn": second})
    assert not turns.admit({"op": "running", "turn": second})
    assert not turns.admit({"op": "input_request"})


def test_turns_cannot_be_guessed() -> None:
    turns = Turns()
    numbers = [asked(turns) for _ in range(1000)]
    assert len(set(numbers)) == 1000
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    assert len(steps) == 999


def test_a_value_belongs_to_its_turn() -> None:
    turns = Turns()
    assert not turns.names({"op": "result", "turn": None})
    first = {"op": "result", "turn": asked(turns)}
    assert turns.names(first)
    asked(turns)
    assert not turns.names(first)


@pytest.mark.parametrize("op", ["begin", "prime", "input", "packages", "installed"])
def test_what_is_not_answered_has_no_turn(op: str) -> None:
    request = {"op": op}
    Turns().number(request)
    assert request == {"op": op}
