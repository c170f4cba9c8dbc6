"""Every database test runs on the wheel's PostgreSQL 18 and on the machine's 15."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from support.database import Database
    from support.rows import Rows
    from support.runs import Owner, Worker
    from support.servers import PgServer, PgServers
    from support.staging import App


# On PostgreSQL 15 the suite of every change runs these files of the domains' tests whole, and of the others what
# prepares every statement. What Python does with a server's answers is tested on 18 alone. The rest is in
# `scripts/test long`: it would be 600 of 4,000 tests.
CORE = ("test_cycle", "test_delivery", "test_orphans", "test_migrate_productflow", "test_recovery_role")
ABOUT_PYTHON = (
    "test_breaker", "test_dispatch", "test_dispatch_schedule", "test_sync_work", "test_sync_work_ends", "test_worker",
    "test_worker_ends", "test_worker_outages", "test_worker_points", "test_worker_refusals",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Domains beyond the core on the second server are a slow matrix."""
    for item in items:
        asked: tuple[str, ...] = getattr(item, "fixturenames", ())
        name = item.path.stem
        is_core = name in CORE or "plans" in name or "big_table" in item.name
        if "pg15" in item.name and (name in ABOUT_PYTHON or ("productflow" in asked and not is_core)):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session", params=["18", "15"], ids=["pg18", "pg15"])
def pg_server(request: pytest.FixtureRequest, pg_servers: PgServers) -> PgServer:
    """The session's PostgreSQL of each version."""
    return pg_servers.get(str(request.param))


@pytest.fixture
def owner(database: Database) -> Generator[Owner]:
    """A session of the schema's owner."""
    from support.runs import owner_of

    with owner_of(database) as session:
        yield session


@pytest.fixture
def worker(database: Database) -> Generator[Worker]:
    """A session of the worker's role."""
    from support.runs import worker_of

    with worker_of(database) as session:
        yield session


@pytest.fixture
def app(database: Database) -> Generator[App]:
    """A session of the application's role."""
    from support.staging import app_of

    with app_of(database) as session:
        yield session


@pytest.fixture
def rows(productflow: Database) -> Generator[Rows]:
    """A session of the owner of the reference tables."""
    from support.rows import rows_of

    with rows_of(productflow) as session:
        yield session
