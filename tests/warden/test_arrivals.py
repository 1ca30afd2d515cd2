"""New clients are let in once their subscription is there, or after a moment."""

from __future__ import annotations

import pytest

from kernelbox.warden.lanes.arrivals import Arrivals


@pytest.fixture
def arrivals() -> Arrivals:
    return Arrivals(patience=0.3, window=1.0)


def test_a_connection_waits_for_a_subscription(arrivals: Arrivals) -> None:
    arrivals.connected(7, 10.0)
    assert not arrivals.ready(7, 10.1)
    arrivals.subscribed(10.15)
    assert arrivals.ready(7, 10.15)
    assert arrivals.ready(7, 99.0)


def test_a_connection_that_nobody_subscribes_for_waits_only_a_moment(arrivals: Arrivals) -> None:
    arrivals.connected(7, 10.0)
    assert arrivals.deadline == pytest.approx(10.3)
    assert not arrivals.ready(7, 10.29)
    assert arrivals.ready(7, 10.3)
    assert arrivals.deadline is None


def test_a_subscription_may_come_first(arrivals: Arrivals) -> None:
    arrivals.subscribed(9.5)
    arrivals.connected(7, 10.0)
    assert arrivals.ready(7, 10.0)


def test_a_listener_of_long_ago_does_not_count(arrivals: Arrivals) -> None:
    arrivals.subscribed(5.0)
    arrivals.connected(7, 10.0)
    assert not arrivals.ready(7, 10.0)


def test_a_subscription_counts_once(arrivals: Arrivals) -> None:
    arrivals.connected(7, 10.0)
    arrivals.subscribed(10.0)
    assert arrivals.ready(7, 10.0)
    arrivals.connected(8, 10.05)
    assert not arrivals.ready(8, 10.05)


def test_two_clients_at_once_wait_for_two_subscriptions(arrivals: Arrivals) -> None:
    arrivals.connected(7, 10.0)
    arrivals.connected(8, 10.0)
    arrivals.subscribed(10.1)
    assert not arrivals.ready(7, 10.1)
    assert not arrivals.ready(8, 10.1)
    arrivals.subscribed(10.2)
    assert arrivals.ready(7, 10.2)
    assert arrivals.ready(8, 10.2)


def test_who_left_is_not_waited_for(arrivals: Arrivals) -> None:
    arrivals.connected(7, 10.0)
    arrivals.connected(8, 10.0)
    arrivals.disconnected(7)
    arrivals.subscribed(10.1)
    assert arrivals.ready(8, 10.1)


def test_a_descriptor_that_is_used_again_is_a_new_connection(arrivals: Arrivals) -> None:
    arrivals.connected(7, 10.0)
    arrivals.subscribed(10.0)
    assert arrivals.ready(7, 10.0)
    arrivals.disconnected(7)
    arrivals.connected(7, 12.0)
    assert not arrivals.ready(7, 12.0)


def test_an_unknown_connection_is_not_held_up(arrivals: Arrivals) -> None:
    assert arrivals.ready(-1, 10.0)
