"""What the shop's customers do next: a pure function of a random source."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Plan = Literal["run", "retry", "reject"]

# Which stream each kind of work goes to; `[actors.NAME] queue` of the demo's configuration says the same.
DOMAINS = ("delivery", "local_edit", "image_session", "workflow", "agent")  # the product's, each with its actor
QUEUES = {"render_image": "images", "send_mail": "mail", "deliver": "deliveries"} | dict.fromkeys(DOMAINS, "product")
DELIVERY_JOBS = 8  # so few that a wish often meets an envelope that is still alive
LONGEST_DELAY_S = 1.5
LEASE_S = 2.0  # so short that a crash is noticed while the play runs
PRODUCT_EVERY = 5  # orders; between them one thing is asked of the product
GRAPHS = 6
RETRY_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One thing that the shop commits. `delay_s`: due that much later. `keyed`: at most one live envelope a job."""

    actor: str
    aggregate: str
    plan: Plan = "run"
    delay_s: float = 0.0
    keyed: bool = False
    rolls_back: bool = False

    @property
    def delivery_key(self) -> str | None:
        """What makes two wishes one envelope; None: every order is a run of its own."""
        return f"{self.actor}:{self.aggregate}" if self.keyed else None


def next_order(rng: random.Random, number: int) -> Order:
    """The order with this number: 3 of 10 are delivery jobs; of the others some are late, retried, refused, undone."""
    if rng.random() < 0.3:
        return Order(actor="deliver", aggregate=f"job-{rng.randrange(DELIVERY_JOBS)}", keyed=True)
    actor, aggregate, draw = rng.choice(("render_image", "send_mail")), f"order-{number}", rng.random()
    if draw < 0.10:
        return Order(actor=actor, aggregate=aggregate, delay_s=rng.uniform(0.2, LONGEST_DELAY_S))
    if draw < 0.15:
        return Order(actor=actor, aggregate=aggregate, plan="retry")
    if draw < 0.18:
        return Order(actor=actor, aggregate=aggregate, plan="reject")
    return Order(actor=actor, aggregate=aggregate, rolls_back=draw < 0.20)
