"""Servers and databases for every test. Each server starts when the first test of this worker asks for it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop

pytest.register_assert_rewrite("support")  # before the first import of it

if TYPE_CHECKING:
    import asyncio

    from support.database import Database
    from support.servers import PgServer, PgServers, RedisServer
    from support.tls import TlsPg, TlsRedis


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every async test runs on the loop that pfsup's children use."""
    del config, item
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def pg_servers() -> Generator[PgServers]:
    """The session's PostgreSQL servers by name; stopped at the end."""
    from support.servers import PgServers

    with ExitStack() as stack:
        yield PgServers(stack)


@pytest.fixture(scope="session")
def pg_server(pg_servers: PgServers) -> PgServer:
    """The session's PostgreSQL 18. tests/db runs on the machine's 15 too."""
    return pg_servers.get("18")


@pytest.fixture(scope="session")
def redis_server() -> Generator[RedisServer]:
    """The session's Valkey. Whoever freezes it lets it run on."""
    from support.servers import redis_like

    with redis_like() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """An empty Redis."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture
def short_dir() -> Generator[Path]:
    """A directory whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="pft-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def database(pg_server: PgServer, redis_url: str, short_dir: Path) -> Generator[Database]:
    """A migrated database of the test's own, seen through each role."""
    from support.database import fresh_database

    with fresh_database(pg_server, redis_url=redis_url, directory=short_dir) as made:
        yield made


@pytest.fixture
def productflow(pg_server: PgServer, redis_url: str, short_dir: Path) -> Generator[Database]:
    """As `database`, with the reference tables of ProductFlow in schema productflow."""
    from support.productflow import productflow_database

    with productflow_database(pg_server, redis_url=redis_url, directory=short_dir) as made:
        yield made


@pytest.fixture
def empty_database(pg_server: PgServer, redis_url: str, short_dir: Path) -> Generator[Database]:
    """A database without pfsup's schema."""
    from support.database import fresh_database

    with fresh_database(pg_server, redis_url=redis_url, directory=short_dir, schema=None) as made:
        yield made


@pytest.fixture
def own_pg() -> Generator[PgServer]:
    """A PostgreSQL 18 that the test may kill, freeze or restart."""
    from support.servers import pg

    with pg() as server:
        yield server


@pytest.fixture
def own_redis() -> Generator[RedisServer]:
    """A Valkey that the test may kill, freeze or restart."""
    from support.servers import redis_like

    with redis_like() as server:
        yield server


@pytest.fixture
def own_database(own_pg: PgServer, redis_url: str, short_dir: Path) -> Generator[Database]:
    """A migrated database on a server that the test may kill, freeze or restart."""
    from support.database import fresh_database

    with fresh_database(own_pg, redis_url=redis_url, directory=short_dir) as made:
        yield made


@pytest.fixture(scope="session")
def tls_dir() -> Generator[Path]:
    """Where the session's certificates lie, readable by the servers' account."""
    path = Path(tempfile.mkdtemp(prefix="pft-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def tls_redis(tls_dir: Path) -> Generator[TlsRedis]:
    """The machine's redis-server with TLS, a user and a password."""
    from support.tls import tls_redis_server

    with tls_redis_server(tls_dir) as server:
        yield server


@pytest.fixture(scope="session")
def tls_pg(tls_dir: Path) -> Generator[TlsPg]:
    """The machine's PostgreSQL 15 with TLS and a password."""
    from support.tls import tls_pg_server

    with tls_pg_server(tls_dir) as server:
        yield server
