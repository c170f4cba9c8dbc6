"""The child's end of the link, on a real socket pair and a real loop."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pfsup.config.errors import ConfigError
from pfsup.domains.contract import Identity
from pfsup.shared.frames import Message
from pfsup.supervisor.parent.wire import Wire
from pfsup.supervisor.runtime.link import ChildLink
from pfsup.supervisor.runtime.shell import find_role
from support.waiting import auntil

ME = Identity(instance="pfsup", boot_id="b", name="a", generation=3)


class Ends:
    """The link, and the parent's end of it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.parent = Wire(ours)
        self.heard: list[Message] = []
        self.orders: list[Message] = []
        orders = {"drain": self.orders.append, "dump": self.orders.append}
        self.link = ChildLink(theirs, ME, beat_s=3600, stop_s=25, orders=orders)
        self.theirs = theirs

    async def hear(self, kind: str) -> Message:
        """The newest message of this kind, once there is one."""

        def found() -> Message | None:
            self.heard.extend(self.parent.read())
            return next((message for message in reversed(self.heard) if message["type"] == kind), None)

        return await auntil(found)

    def say(self, kind: str, **fields: Any) -> None:
        self.parent.outbox.put(kind, {"type": kind, **fields})
        self.parent.flush()


@pytest.fixture
async def ends() -> AsyncGenerator[Ends]:
    ends = Ends()
    ends.link.open(pid=4711)
    yield ends
    ends.link.close()
    ends.theirs.close()
    ends.parent.sock.close()


async def test_hello_says_who_it_is_and_which_version_it_speaks(ends: Ends):
    assert await ends.hear("hello") == {"type": "hello", "v": 1, "pid": 4711, "generation": 3}


async def test_ready_is_said_once_and_followed_by_a_beat_with_the_phase(ends: Ends):
    ends.link.ready()
    ends.link.ready()
    ends.link.phase("idle")
    await ends.hear("ready")
    await auntil(lambda: _phases(ends) == ["booting", "idle"])
    assert sum(message["type"] == "ready" for message in ends.heard) == 1


async def test_waiting_is_said_when_it_changes(ends: Ends):
    for reason in ("no schema", "no schema", None):
        ends.link.waiting(reason)
    ends.link.bye(0)
    await ends.hear("bye")
    assert [m["reason"] for m in ends.heard if m["type"] == "waiting"] == ["no schema", None]


async def test_ready_ends_the_waiting(ends: Ends):
    ends.link.waiting("no schema")
    ends.link.ready()
    await ends.hear("ready")
    assert [m["reason"] for m in ends.heard if m["type"] == "waiting"] == ["no schema", None]


async def test_figures_travel_with_the_next_beat(ends: Ends):
    ends.link.report({"sent": 7})
    ends.link.ready()
    await auntil(lambda: (ends.heard.extend(ends.parent.read()) or ends.heard[-1].get("figures")) == {"sent": 7})


@pytest.mark.parametrize("odd", ["x" * 100_000, float("nan"), "\udcff", 2**70])
async def test_figures_that_no_status_can_show_are_left_out_and_the_beat_goes_on(ends: Ends, odd: object):
    ends.link.report({"odd": odd})
    ends.link.ready()
    await auntil(lambda: (ends.heard.extend(ends.parent.read()) or ends.heard[-1].get("figures", {})).get("left_out"))
    assert ends.parent.bad == 0


async def test_a_long_reason_to_wait_is_cut_and_made_printable(ends: Ends):
    ends.link.waiting("\udcff\x1b" + "x" * 100_000)
    text = (await ends.hear("waiting"))["reason"]
    assert text.startswith("\\udcff\\x1bxxx")
    assert len(text) <= 500


async def test_a_peer_is_woken_through_the_parent(ends: Ends):
    ends.link.wake_peer("dispatch")
    assert (await ends.hear("wake"))["name"] == "dispatch"


async def test_a_wake_sets_the_slot(ends: Ends):
    ends.say("wake")
    await ends.link.wake.wait()
    assert ends.link.wake.is_set


async def test_a_drain_carries_its_deadline_and_a_later_one_only_shortens_it(ends: Ends):
    ends.say("drain", deadline_s=20.0)
    await ends.link.drain.wait()
    ends.say("drain", deadline_s=2.0)
    await auntil(lambda: len(ends.orders) == 2)
    ends.link.order_drain(600.0)
    assert ends.link.drain.left_s() <= 2.0
    assert [order["within_s"] <= limit for order, limit in zip(ends.orders, (20, 2, 2), strict=True)] == [True] * 3


async def test_the_end_of_the_link_is_a_drain(ends: Ends):
    ends.parent.sock.shutdown(socket.SHUT_WR)
    await ends.link.drain.wait()
    assert 0 < ends.link.drain.left_s() <= 25


async def test_other_orders_are_passed_on_and_unknown_ones_passed_over(ends: Ends):
    ends.say("from the future", v=9)
    ends.say("dump")
    await auntil(lambda: [order["type"] for order in ends.orders] == ["dump"])


async def test_a_parent_that_does_not_read_costs_old_messages_never_the_work(ends: Ends):
    for number in range(3000):
        ends.link.report({"number": number, "text": "x" * 1000})
        ends.link.bye(number)
    assert "dropped=0" not in repr(ends.link)
    await auntil(lambda: (ends.heard.extend(ends.parent.read()) or ends.heard[-1]).get("code") == 2999)
    assert ends.parent.bad == 0


@pytest.mark.parametrize("target", ["no_such_module_at_all:C", "json:Nothing", "json", ":", ""])
def test_a_role_that_is_not_there_is_a_configuration_error(target: str):
    with pytest.raises(ConfigError, match="write it as module:Class"):
        find_role(target)


def _phases(ends: Ends) -> list[str]:
    ends.heard.extend(ends.parent.read())
    return [message["phase"] for message in ends.heard if message["type"] == "beat"]
