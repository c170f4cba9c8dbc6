"""Where a bench runs: what is printed beside every figure, and the servers that it starts."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
from pfsup.supervisor.demo.waits import percentile

from .broker import open_redis


def fsync_us(folder: Path, *, writes: int = 200) -> float:
    """The median time of writing 8 KiB and fdatasync() in `folder`, in microseconds."""
    path = folder / "fsync"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    took: list[float] = []
    try:
        for _ in range(writes):
            began = time.perf_counter()
            os.pwrite(fd, b"\0" * 8192, 0)
            os.fdatasync(fd)
            took.append((time.perf_counter() - began) * 1e6)
    finally:
        os.close(fd)
        path.unlink()
    return percentile(took, 50)


def server_versions(pg_url: str, redis_url: str) -> dict[str, str]:
    """What the two servers say they are, and whether PostgreSQL waits for the disk."""
    with psycopg.connect(pg_url) as conn:
        row = conn.execute(b"SELECT current_setting('server_version'), current_setting('fsync')").fetchone() or ("", "")
    with open_redis(redis_url) as client:
        told: dict[str, Any] = client.info("server")
    kind = "valkey" if "valkey_version" in told else "redis"
    return {"postgresql": row[0], "fsync": row[1], kind: str(told[f"{kind}_version"])}


def environment(*, pg_url: str, redis_url: str, folder: Path) -> dict[str, object]:
    """Cores, how busy they were before we began, kernel, versions and the time of an fsync."""
    drivers = {name: version(name) for name in ("psycopg", "redis", "uvloop", "pfsup")}
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_1m": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **server_versions(pg_url, redis_url),
        **drivers,
        "fsync_us": round(fsync_us(folder), 1),
    }
