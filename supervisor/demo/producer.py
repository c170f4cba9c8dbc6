"""The shop: commits orders at a steady rate until SIGTERM. Each is one transaction with its envelope in it.

Called as: python -m pfsup.supervisor.demo.producer URL RATE SCHEMA
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from ...shared.db.queries import Queries, load_queries
from ...shared.outbox import stage
from .orders import DOMAINS, GRAPHS, PRODUCT_EVERY, Order, next_order
from .product.app import App
from .product.desk import product_queries


class Undo(Exception):
    """The customer changed their mind: the transaction ends in a rollback."""


def commit(conn: psycopg.Connection[Any], queries: Queries, order: Order) -> None:
    """Business row, witness and envelope in one transaction; or none of them."""
    try:
        with conn.transaction():
            write(conn, queries, order)
            if order.rolls_back:
                raise Undo
    except Undo:
        pass


def write(conn: psycopg.Connection[Any], queries: Queries, order: Order) -> None:
    """What the transaction holds: business rows first, pfsup's call last."""
    told = {"actor": order.actor, "aggregate": order.aggregate, "keyed": order.keyed, "plan": order.plan}
    row = conn.execute(queries["want_delivery"], told).fetchone() if order.keyed else None
    conn.execute(queries["note_commit"], {**told, "version": row[0] if row else 1})
    stage(
        conn,
        order.actor,
        order.aggregate,
        {"plan": order.plan},
        available_at=datetime.now(UTC) + timedelta(seconds=order.delay_s) if order.delay_s else None,
        delivery_key=order.delivery_key,
    )


def ask_product(app: App, queries: Queries, rng: random.Random) -> None:
    """Ask one thing of the product, with the shop's witness of it in the same transaction."""
    kind = rng.choice(DOMAINS)
    asks: dict[str, Callable[[], str]] = {
        "delivery": app.ask_delivery,
        "local_edit": lambda: app.ask_edit({"crop": rng.randrange(100)}),
        "image_session": lambda: app.ask_images(rng.randint(1, 3)),
        "workflow": lambda: app.ask_run(f"graph-{rng.randrange(GRAPHS)}", [("render", True), ("join", False)]),
        "agent": lambda: app.ask_agent(f"conversation-{rng.randrange(GRAPHS)}"),
    }
    with app.conn.transaction():
        number = asks[kind]()
        app.conn.execute(queries["note_asked"], {"domain": kind, "id": number})


def main(url: str, rate: float, schema: str) -> None:
    """Commit `rate` orders a second until SIGTERM; what is late is caught up, so the rate holds on average."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it is waited for below
    rng, number = random.Random(), 0  # noqa: S311 - a play
    queries = load_queries(__package__ or "", "shop.sql", schema=schema)
    with psycopg.connect(url, autocommit=True, application_name="shop") as conn:
        app = App(conn, product_queries(schema=schema), schema)
        due = time.monotonic()
        while signal.sigtimedwait({signal.SIGTERM}, max(0.0, due - time.monotonic())) is None:
            number += 1
            due += 1 / rate
            commit(conn, queries, next_order(rng, number))
            if number % PRODUCT_EVERY == 0:
                ask_product(app, queries, rng)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
