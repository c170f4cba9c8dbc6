"""README's ways to stage: each runs as it is printed, as the application's role, and commits with the application."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable

import asyncpg  # pyright: ignore[reportMissingTypeStubs] - it ships none
import pfsup
import psycopg
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.orm import Session
from support import readme
from support.database import Database

IDS = {"sql": "4711", "psycopg": "4712", "sqlalchemy": "4713", "django": "4714", "asyncpg": "4715"}


@pytest.fixture
def shop(database: Database) -> Database:
    """The application's own table beside the outbox."""
    with psycopg.connect(database.url) as conn:
        conn.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY, mailed_as text)")
        conn.execute("GRANT ALL ON public.orders TO t_app")
    return database


def by_psycopg(url: str, name: str) -> None:
    """Plain SQL and the Python layer."""
    with psycopg.connect(url) as conn:
        if name == "sql":
            conn.execute(readme.snippet(name).encode())
        else:
            readme.run(readme.snippet(name), conn=conn, pfsup=pfsup)


def by_sqlalchemy(url: str, name: str) -> None:
    """A session of the ORM."""
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with Session(engine) as session, session.begin():
        readme.run(readme.snippet(name), session=session, text=sqlalchemy.text)
    engine.dispose()


def by_django(url: str, name: str) -> None:
    """In a process of its own: Django's settings are global."""
    where = conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": where["dbname"],
        "USER": where["user"],
        "HOST": where["host"],
        "PORT": str(where.get("port", "")),
    }
    code = textwrap.dedent(f"""
        import django
        from django.conf import settings
        settings.configure(DATABASES={{"default": {database!r}}})
        django.setup()
        from django.db import connection, transaction
    """)
    done = subprocess.run(
        [sys.executable, "-c", code + readme.snippet(name)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def by_asyncpg(url: str, name: str) -> None:
    """A driver that is not psycopg."""
    where = conninfo_to_dict(url)

    async def stage() -> None:
        conn = await asyncpg.connect(host=where["host"], user=where["user"], database=where["dbname"])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        try:
            await readme.run_async(readme.snippet(name), conn=conn)  # pyright: ignore[reportUnknownArgumentType]
        finally:
            await conn.close()  # pyright: ignore[reportUnknownMemberType]

    asyncio.run(stage())


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("sql", by_psycopg),
        ("psycopg", by_psycopg),
        ("sqlalchemy", by_sqlalchemy),
        ("django", by_django),
        ("asyncpg", by_asyncpg),
    ],
)
def test_snippet_stages_in_the_application_s_transaction(
    shop: Database, name: str, way: Callable[[str, str], None]
) -> None:
    """The business row and the envelope are both there, written by the application's role."""
    way(shop.app_url, name)
    with shop.superuser() as conn:
        rows = conn.execute("SELECT actor, aggregate_id, payload, status FROM pfsup.async_dispatches").fetchall()
        orders = conn.execute("SELECT id::text FROM public.orders").fetchall()
    assert rows == [("send_invoice", IDS[name], {"copy": True}, "pending")]
    assert orders == [(IDS[name],)]


def test_every_snippet_of_readme_is_run_by_a_test() -> None:
    """A snippet that nothing runs goes stale."""
    assert readme.names() == {*IDS, "worker", "work"}
