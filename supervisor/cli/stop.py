"""`pfsup stop`: end the running supervisor and wait until it is gone."""

from __future__ import annotations

import sys

import click

from ...config.errors import EXIT_FAILED, EXIT_OK
from .address import control_path
from .client import REPLY_S, Connection, checked, wait_until_gone
from .common import config_option


@click.command("stop")
@config_option
def command(config_path: str | None) -> int:
    """Stop the supervisor; wait until it is gone. Exit 4 if something had to be killed, 69 if none runs."""
    with Connection(control_path(config_path), within_s=REPLY_S) as connection:
        connection.send("stop")
        # No deadline of its own: the supervisor holds one for all of its children, and Ctrl-C ends only this wait.
        reply = connection.receive(None)
        if reply is not None:
            checked(reply)
        wait_until_gone(connection.pid, REPLY_S)
    return _tell(reply)


def _tell(reply: dict[str, object] | None) -> int:
    if reply is None:
        sys.stderr.write("pfsup: the supervisor is gone, without saying how it ended\n")
        return EXIT_FAILED
    forced, code = reply.get("forced"), reply.get("code")
    if isinstance(forced, list) and forced:
        sys.stderr.write(f"pfsup: stopped; had to be killed: {', '.join(map(str, forced))}\n")  # pyright: ignore[reportUnknownArgumentType] - names
    return code if isinstance(code, int) else EXIT_OK
