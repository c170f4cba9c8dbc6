"""remedy: each failure of a dependency names the next step, and never the connection string."""

from __future__ import annotations

import psycopg
import pytest
import redis.exceptions as broker
from pfsup.config.errors import SchemaError
from pfsup.shared.db.ready import is_away, remedy


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (psycopg.errors.InvalidSchemaName(), "run: pfsup migrate"),
        (psycopg.errors.UndefinedTable(), "run: pfsup migrate"),
        (psycopg.errors.InsufficientPrivilege(), "GRANT"),
        (psycopg.OperationalError('FATAL:  password authentication failed for user "u"'), "password"),
        (psycopg.OperationalError('FATAL:  database "x" does not exist'), "does not exist"),
        (psycopg.OperationalError("connection failed: Connection refused"), "nobody listens"),
        (psycopg.OperationalError("postgresql://u:secret@h/d is odd"), "cannot be used"),
        (SchemaError("schema pfsup has version 0, wanted 1, run: pfsup migrate"), "run: pfsup migrate"),
        (broker.AuthenticationError("WRONGPASS"), "user or password"),
        (broker.ConnectionError("Error 111 connecting to h:1"), "cannot reach Redis"),
        (broker.ResponseError("MISCONF can't save\x1b[31m"), r"MISCONF can't save\x1b[31m"),
        (TimeoutError(), "did not answer in time"),
    ],
)
def test_remedy_names_the_next_step_and_no_secret(error: Exception, said: str):
    assert is_away(error)
    assert said in remedy(error)
    assert "secret" not in remedy(error)
    assert "\x1b" not in remedy(error)


@pytest.mark.parametrize("error", [ValueError("ours"), psycopg.errors.SyntaxError(), KeyError("x")])
def test_is_away_is_false_for_faults_of_ours(error: Exception):
    assert not is_away(error)
