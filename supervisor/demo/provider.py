"""A provider outside of everything else: a process with a log of its own, which nobody that is killed can take along.

Called as: python -m pfsup.supervisor.demo.provider SOCKET LOG; says "ready"; ends on SIGTERM. A line of JSON asks for
one thing, {"call", "key", "task", "index"}; it is in the log before it is answered, with {"ref"}.
"""

from __future__ import annotations

import os
import signal
import socketserver
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import orjson

Thing = tuple[str, int]  # (task, index)


class _Server(socketserver.ThreadingUnixStreamServer):
    """One thread a connection; `log` is a descriptor that only appends, so that lines of several threads stay whole."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, socket: str, log: int) -> None:
        self.log = log
        super().__init__(socket, _Calls)


class _Calls(socketserver.StreamRequestHandler):
    """One connection: a line a call."""

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        for line in self.rfile:
            if not line.endswith(b"\n"):
                return  # its caller died while it wrote: it asked for nothing
            asked = orjson.loads(line)
            os.write(self.server.log, orjson.dumps(asked) + b"\n")
            self.wfile.write(orjson.dumps({"ref": f"made/{asked['task']}/{asked['index']}"}) + b"\n")

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            pass  # its caller was killed meanwhile


def serve(socket: str, log: str, *, ready: Callable[[], object] = lambda: None) -> None:
    """Answer until the process ends; `ready` is called once it can be asked. The log is there before the socket is."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with _Server(socket, descriptor) as server:
        ready()
        server.serve_forever()


def received(log: Path) -> Counter[Thing]:
    """How often each thing was asked for: what arrived, whether or not the answer did."""
    asked = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    return Counter((call["task"], call["index"]) for call in asked)


def say(line: str) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _stop(number: int, frame: object) -> NoReturn:
    del number, frame
    raise SystemExit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    serve(sys.argv[1], sys.argv[2], ready=lambda: say("ready"))
