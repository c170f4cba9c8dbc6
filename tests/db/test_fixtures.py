"""The databases that the other tests stand on."""

from __future__ import annotations

import psycopg
import pytest
from support.database import Database
from support.servers import redis_client


def test_every_role_of_a_test_database_is_no_superuser(database: Database) -> None:
    urls = ("url", "app_url", "worker_url", "run_url", "operate_url", "read_url")
    for name in urls:
        with psycopg.connect(getattr(database, name)) as conn:
            row = conn.execute("SELECT current_user, current_setting('is_superuser')").fetchone()
            assert row is not None
            assert row[1] == "off", row


def test_application_role_of_a_test_database_stages_and_reads_no_table(database: Database) -> None:
    with psycopg.connect(database.app_url) as conn:
        row = conn.execute("SELECT outcome FROM pfsup.stage('actor', '1')").fetchone()
        assert row == ("created",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT count(*) FROM pfsup.async_dispatches")


@pytest.mark.parametrize("run", [1, 2])
def test_database_starts_without_rows_of_the_test_before(database: Database, run: int) -> None:
    with psycopg.connect(database.url) as conn:
        assert conn.execute("SELECT count(*) FROM pfsup.async_dispatches").fetchone() == (0,), run
        conn.execute("SELECT pfsup.stage('actor', '1')")


@pytest.mark.parametrize("run", [1, 2])
def test_redis_starts_empty(redis_url: str, run: int) -> None:
    with redis_client(redis_url) as client:
        assert client.dbsize() == 0, run
        client.set("k", "v")


def test_empty_database_has_no_schema_of_pfsup(empty_database: Database) -> None:
    with psycopg.connect(empty_database.empty_url) as conn:
        assert conn.execute("SELECT to_regnamespace('pfsup')").fetchone() == (None,)
