"""Which function does the work of which actor."""

from __future__ import annotations

from ....shared.worker.worker import Worker
from .agent import Agent
from .delivery import Delivery
from .desk import Desk
from .image_session import ImageSession
from .local_edit import LocalEdit
from .workflow import Workflow

FUNCTIONS = {
    "delivery": Delivery,
    "local_edit": LocalEdit,
    "image_session": ImageSession,
    "workflow": Workflow,
    "agent": Agent,
}


def register(worker: Worker, desk: Desk) -> None:
    """Let `worker` do the work of all five domains."""
    for name, function in FUNCTIONS.items():
        worker.actor(name)(function(desk))
