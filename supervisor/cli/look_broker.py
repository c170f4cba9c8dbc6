"""`pfsup check` on Redis: reached, writable, and not set to throw entries away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import redis
import redis.exceptions as broker
from redis.backoff import NoBackoff
from redis.retry import Retry

from ...config.errors import ConfigError
from ...config.secrets import secret
from ...config.values import Redis
from ...shared.db.ready import remedy
from ...shared.text import printable
from .findings import NAME, Finding, State


def look(settings: Redis) -> Iterator[Finding]:
    """Redis: reached, writable, and not set to throw entries away."""
    try:
        client = _client(settings)
    except ConfigError as error:
        yield Finding(subject="redis", state="failed", text=" ".join(error.problems))
        return
    with closing(client):
        began = time.monotonic()
        try:
            client.ping()  # pyright: ignore[reportUnknownMemberType] - redis-py leaves **kwargs open
        except (broker.RedisError, OSError) as error:
            yield Finding(subject="redis", state=_state(error), text="cannot use it", next_step=remedy(error))
            return
        took_ms = (time.monotonic() - began) * 1000
        info = _info(client)
        yield _greeting(info, took_ms=took_ms)
        yield from _keeps(info)


def _client(settings: Redis) -> redis.Redis:
    url = secret(settings.url, settings.url_file)
    options: dict[str, Any] = {
        "socket_timeout": settings.socket_timeout,
        "socket_connect_timeout": settings.socket_timeout,
        "retry": Retry(NoBackoff(), 0),  # one try: what a check says is what it saw
        "client_name": NAME,
    }
    try:
        return redis.Redis.from_url(url, **options)  # pyright: ignore[reportUnknownMemberType] - **kwargs open
    except ValueError:  # its text may hold the address
        raise ConfigError(
            ["redis.url: cannot read the address: wanted redis://host:port/0, rediss://… or unix:///path"]
        ) from None


def _state(error: Exception) -> State:
    """An answer that refuses us must be mended; no answer, or one that says "not yet", may change by itself."""
    match error:
        case broker.BusyLoadingError():
            return "away"
        case broker.AuthenticationError() | broker.AuthorizationError() | broker.ResponseError():
            return "failed"
        case _:
            return "away"


def _info(client: redis.Redis) -> dict[str, Any]:
    """INFO as far as the user may see it."""
    try:
        return client.info()  # pyright: ignore[reportUnknownMemberType] - redis-py leaves **kwargs open
    except broker.ResponseError:
        return {}


def _greeting(info: dict[str, Any], *, took_ms: float) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = printable(str(info.get("valkey_version") or info.get("redis_version") or "of unknown version"), limit=40)
    return Finding(subject="redis", state="ok", text=f"{name} {version}, connected in {took_ms:.0f} ms")


def _keeps(info: dict[str, Any]) -> Iterator[Finding]:
    """Whether what is written there stays: a replica refuses it, an eviction policy may delete a whole stream."""
    if info.get("role") == "slave":
        step = "point [redis] url at the primary"
        yield Finding(subject="redis", state="failed", text="it is a replica and cannot be written", next_step=step)
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if info.get("maxmemory") and policy.startswith("allkeys"):
        step = "set maxmemory-policy noeviction"
        text = f"with maxmemory-policy {printable(policy, limit=40)} it deletes streams when memory is short"
        yield Finding(subject="redis", state="warning", text=text, next_step=step)
