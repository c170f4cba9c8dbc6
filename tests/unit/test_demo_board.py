"""The demo's display: a table on a terminal, lines otherwise; and the orders that the shop takes."""

from __future__ import annotations

import io
import random

from pfsup.supervisor.demo.board import Lines, Table, board_for
from pfsup.supervisor.demo.books import Standing, Waits
from pfsup.supervisor.demo.orders import DOMAINS, LONGEST_DELAY_S, QUEUES, next_order
from pfsup.supervisor.demo.waits import percentiles

STANDING = Standing(**dict.fromkeys(Standing.__slots__, 1234))
WAITS = Waits(staged_to_sent=percentiles([1.25]), sent_to_started=percentiles([0.5]))


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_terminal_gets_a_table_and_a_pipe_gets_lines():
    assert isinstance(board_for(Terminal(), plain=False), Table)
    assert isinstance(board_for(Terminal(), plain=True), Lines)
    assert isinstance(board_for(io.StringIO(), plain=False), Lines)


def test_table_is_drawn_over_itself():
    out = Terminal()
    table = Table(out)
    table.show("1 s", STANDING, WAITS)
    height = out.getvalue().count("\n")
    assert "\x1b" not in out.getvalue()
    table.show("2 s", STANDING, WAITS)
    assert f"\x1b[{height}A\x1b[J2 s" in out.getvalue()


def test_lines_hold_no_control_characters_and_one_line_a_call():
    out = io.StringIO()
    lines = Lines(out)
    lines.show("1 s", STANDING, WAITS)
    lines.show("2 s", STANDING, WAITS)
    assert out.getvalue().isprintable() is False
    assert out.getvalue().replace("\n", "").isprintable()
    assert out.getvalue().count("\n") == 2
    assert "committed 1,234" in out.getvalue()


def test_shop_takes_every_kind_of_order():
    rng = random.Random(1)
    orders = [next_order(rng, number) for number in range(2000)]
    assert {order.actor for order in orders} == set(QUEUES) - set(DOMAINS)
    assert {order.plan for order in orders} == {"run", "retry", "reject"}
    assert any(order.rolls_back for order in orders)
    assert 0 < max(order.delay_s for order in orders) <= LONGEST_DELAY_S
    assert all(order.keyed == (order.actor == "deliver") for order in orders)


def test_plain_orders_are_unique_and_delivery_jobs_recur():
    rng = random.Random(1)
    orders = [next_order(rng, number) for number in range(2000)]
    plain = [order.aggregate for order in orders if not order.keyed]
    keys = [order.delivery_key for order in orders if order.keyed]
    assert len(set(plain)) == len(plain)
    assert len(set(keys)) < len(keys)
    assert all(order.delivery_key is None for order in orders if not order.keyed)
