"""The bench's own connection to Redis."""

from __future__ import annotations

from typing import Any

import redis


def open_redis(url: str) -> Any:
    """A client; Any, because redis-py leaves its keyword arguments untyped."""
    return redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType] - see above
