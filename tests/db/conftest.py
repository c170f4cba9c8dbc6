"""Every database test runs on the wheel's PostgreSQL 18 and on the machine's 15."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.servers import PgServer, PgServers


@pytest.fixture(scope="session", params=["18", "15"], ids=["pg18", "pg15"])
def pg_server(request: pytest.FixtureRequest, pg_servers: PgServers) -> PgServer:
    """The session's PostgreSQL of each version."""
    return pg_servers.get(str(request.param))
