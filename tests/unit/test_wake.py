"""The wake slot and the drain."""

from __future__ import annotations

import asyncio

import pytest
from pfsup.shared.drain import Drain
from pfsup.shared.wake import WakeSlot


async def test_three_wakes_before_a_look_are_one() -> None:
    """The slot says "worth looking", not how often (seed 000, 4.2)."""
    slot = WakeSlot()
    for _ in range(3):
        slot.wake()
    await slot.wait()
    slot.clear()
    assert not slot.is_set
    assert slot.wakes == 3


async def test_wake_during_a_scan_is_one_more_scan() -> None:
    """Cleared before the scan, so what comes during it stays set."""
    slot = WakeSlot()
    slot.wake()
    await slot.wait()
    slot.clear()
    slot.wake()
    await asyncio.wait_for(slot.wait(), 30)
    assert repr(slot) == "<WakeSlot set wakes=2>"


async def test_waiter_is_released_by_a_later_wake() -> None:
    """A waiter that came first is woken by the first wake."""
    slot = WakeSlot()
    waiter = asyncio.create_task(slot.wait())
    await asyncio.wait([waiter], timeout=0)
    assert not waiter.done()
    slot.wake()
    await asyncio.wait_for(waiter, 30)


async def test_second_drain_request_can_only_shorten() -> None:
    """The budget of a stop is one; a second signal hastens it."""
    now = 100.0
    drain = Drain(lambda: now)
    assert not drain.requested
    assert drain.left_s() == float("inf")
    drain.request(20)
    drain.request(30)
    assert drain.deadline == 120
    drain.request(2)
    assert drain.left_s() == 2
    await asyncio.wait_for(drain.wait(), 30)
    assert drain.requested
    assert "requested" in repr(drain)


async def test_drain_deadline_never_leaves_negative_time() -> None:
    """A budget that is used up is zero seconds, which every wait understands."""
    times = iter([100.0, 200.0])
    drain = Drain(lambda: next(times))
    drain.request(5)
    assert drain.left_s() == pytest.approx(0.0)
