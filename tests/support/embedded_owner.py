"""A program that owns embedded servers until it is killed or its input ends. Prints where they are as one JSON line.

python -P embedded_owner.py SOCKETS_ROOT [DATA]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pfsup.supervisor.embedded.servers import Servers


def main() -> None:
    """Start, print, wait."""
    root, *data = map(Path, sys.argv[1:])
    with Servers(data[0] if data else None, sockets_root=root) as servers:
        said = {
            "pids": [child.pid for child in servers.children],
            "logs": [str(servers.postgres.log), str(servers.redis.log)],
            "database_url": servers.database_url,
            "redis_url": servers.redis_url,
        }
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
