"""`pfsup check` on real servers: one finding a thing, each with its next step, and no secret in any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result
from pfsup.config import values
from pfsup.supervisor.cli import check, look_broker, look_database
from pfsup.supervisor.cli.findings import Finding
from psycopg import sql
from support.database import Database
from support.servers import RedisServer
from support.tls import TlsPg, TlsRedis

NOBODY = "postgresql://u:hunter2@127.0.0.1:1/none?connect_timeout=1"


def run(environ: dict[str, str], *arguments: str) -> Result:
    """Run `pfsup check` as the command line does, configured by the environment alone."""
    return CliRunner().invoke(check.command, ["-c", "/dev/null", *arguments], env=environ, catch_exceptions=False)


def of_database(database: Database, /, **overrides: values.Database | values.Dispatch) -> list[Finding]:
    """What is found on the database as the supervisor's role, healthy things left out."""
    return worth_a_line(look_database.look(database.settings(**overrides)))


def worth_a_line(findings: Iterator[Finding]) -> list[Finding]:
    """Findings that are not ok."""
    return [finding for finding in findings if finding.state != "ok"]


def seen_by(database: Database, url: str) -> values.Database:
    """The database's section with another address."""
    return replace(database.settings().database, url=url)


def test_check_of_healthy_servers_ends_with_0_and_names_each(database: Database) -> None:
    environ = {"PFSUP_DATABASE__URL": database.run_url, "PFSUP_REDIS__URL": database.redis_url}
    result = run(environ)
    assert result.exit_code == 0, result.output
    assert [line.split()[0:2] for line in result.output.splitlines()] == [
        ["ok", "database"],
        ["ok", "schema"],
        ["ok", "role"],
        ["ok", "connections"],
        ["ok", "notifications"],
        ["ok", "redis"],
    ]
    printed = json.loads(run(environ, "--json").output)
    assert (printed["exit_code"], printed["problems"], len(printed["findings"])) == (0, [], 6)


def test_check_of_servers_that_are_away_ends_with_75_and_tells_both(redis_url: str) -> None:
    del redis_url
    result = run({"PFSUP_DATABASE__URL": NOBODY, "PFSUP_REDIS__URL": "redis://:hunter2@127.0.0.1:1/0"})
    assert result.exit_code == 75, result.output
    assert [line.split()[:2] for line in result.output.splitlines()] == [["away", "database"], ["away", "redis"]]
    assert "hunter2" not in result.output


def test_check_of_an_unmigrated_database_says_pfsup_migrate_and_ends_with_1(empty_database: Database) -> None:
    result = run({"PFSUP_DATABASE__URL": empty_database.url, "PFSUP_REDIS__URL": empty_database.redis_url})
    assert result.exit_code == 1
    assert "schema pfsup is missing; run: pfsup migrate" in result.output


def test_check_tells_a_database_that_does_not_exist_as_failed(database: Database) -> None:
    url = database.server.url("no_such_database", "t_run")
    assert [f.state for f in of_database(database, database=seen_by(database, url))] == ["failed"]


def test_check_tells_text_that_is_no_address_as_failed_without_the_text(database: Database) -> None:
    for text in ("postgresql://u:hunter2@h:port/d", "hunter2=1 host=h"):
        (found,) = of_database(database, database=seen_by(database, text))
        assert found.state == "failed"
        assert "hunter2" not in str(found)


def test_check_tells_a_wrong_password_as_failed(tls_pg: TlsPg) -> None:
    settings = values.Settings(database=values.Database(url=tls_pg.url("postgres", password="hunter2")))
    (found,) = worth_a_line(look_database.look(settings))
    assert (found.state, found.subject) == ("failed", "database")
    assert "hunter2" not in str(found)


def test_check_tells_an_unreadable_secret_as_failed(database: Database, tmp_path: Path) -> None:
    section = values.Database(url_file=str(tmp_path / "none"))
    (found,) = of_database(database, database=section)
    assert found.state == "failed"
    assert "cannot read the secret" in found.text


def test_check_tells_a_user_without_the_role_what_to_grant(database: Database) -> None:
    found = of_database(database, database=seen_by(database, database.app_url))
    assert [(f.state, f.subject, f.next_step) for f in found] == [("failed", "role", "GRANT pfsup_run TO t_app")]


def test_check_tells_a_user_who_may_not_read_the_schema_what_to_grant(database: Database) -> None:
    with database.superuser() as conn:
        conn.execute("REVOKE USAGE ON SCHEMA pfsup FROM pfsup_stage")
    found = of_database(database, database=seen_by(database, database.app_url))
    assert (found[0].subject, found[0].next_step) == ("schema", "GRANT pfsup_run TO t_app")


def test_check_tells_a_standby(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # A standby of its own would take a base backup; what it answers is one function's result.
    monkeypatch.setattr(look_database, "_IS_STANDBY", b"SELECT true")
    (found,) = of_database(database)
    assert (found.state, found.next_step) == ("failed", "point [database] url at the primary")


def test_check_goes_on_when_one_look_fails(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_database, "_IS_STANDBY", b"SELECT 1/0")
    (found,) = of_database(database)
    assert (found.subject, found.state, found.text) == ("writable", "failed", "cannot look")


def test_check_tells_a_schema_that_is_newer_than_this_version(database: Database) -> None:
    with database.superuser() as conn:
        conn.execute("INSERT INTO pfsup.schema_migrations (version, name, checksum) VALUES (999, 'x', 'y')")
    (found,) = of_database(database)
    assert (found.state, found.subject) == ("failed", "schema")
    assert "999" in found.text


def test_check_tells_a_schema_that_was_made_by_another_text(database: Database) -> None:
    with database.superuser() as conn:
        conn.execute("UPDATE pfsup.schema_migrations SET checksum = 'other' WHERE version = 1")
    (found,) = of_database(database)
    assert (found.state, found.subject) == ("warning", "schema")


def test_check_tells_a_schema_that_lacks_a_migration(database: Database) -> None:
    with database.superuser() as conn:
        conn.execute("DELETE FROM pfsup.schema_migrations")
        conn.execute("INSERT INTO pfsup.schema_migrations (version, name, checksum) VALUES (0, 'x', 'y')")
    (found,) = of_database(database)
    assert (found.state, found.subject, found.next_step) == ("failed", "schema", "run: pfsup migrate")


def test_check_tells_pools_that_do_not_fit_the_database(database: Database) -> None:
    with database.superuser() as conn:
        conn.execute(sql.SQL("ALTER DATABASE {} CONNECTION LIMIT 5").format(sql.Identifier(database.name)))
    (found,) = of_database(database)
    assert (found.state, found.subject) == ("failed", "connections")
    assert "the pools may take 8, the database's limit is 5" in found.text


def test_check_warns_when_others_leave_too_little_room(database: Database) -> None:
    with database.superuser() as conn, psycopg.connect(database.app_url):
        conn.execute(sql.SQL("ALTER DATABASE {} CONNECTION LIMIT 8").format(sql.Identifier(database.name)))
        (found,) = of_database(database)
    assert (found.state, found.subject) == ("warning", "connections")


def test_check_warns_when_no_notification_arrives_at_the_listen_address(
    database: Database, empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_database, "NOTIFY_WAIT_S", 0.1)
    # Notifications stay within a database: another one is as deaf as a transaction pooler.
    section = replace(database.settings().database, listen_url=empty_database.url)
    (found,) = of_database(database, database=section)
    assert (found.state, found.subject) == ("warning", "notifications")
    assert "listen_url" in found.next_step


def test_check_tells_a_listen_address_that_is_away(database: Database) -> None:
    section = replace(database.settings().database, listen_url=NOBODY)
    (found,) = of_database(database, database=section)
    assert (found.state, found.subject) == ("away", "notifications")


def test_check_in_poll_mode_needs_no_notification_and_no_connection_for_it(database: Database) -> None:
    dispatch = values.Dispatch(wake="poll")
    found = list(look_database.look(database.settings(dispatch=dispatch)))
    assert [f.subject for f in found] == ["database", "schema", "role", "connections"]
    assert "the pools may take 7," in found[-1].text


def test_connections_are_counted_for_what_runs_only() -> None:
    domains = {"a": values.Domain(), "b": values.Domain(enabled=False)}
    settings = values.Settings(domains=domains, housekeeping=values.Housekeeping(enabled=False))
    assert look_database.wanted_connections(settings) == 4 + 1 + 2
    assert look_database.wanted_connections(replace(settings, dispatch=values.Dispatch(enabled=False))) == 2


def test_check_tells_a_refused_redis_password_as_failed(tls_redis: TlsRedis) -> None:
    section = values.Redis(url=tls_redis.address(password="hunter2"))
    (found,) = look_broker.look(section)
    assert found.state == "failed"
    assert "hunter2" not in str(found)


def test_check_reaches_redis_over_tls(tls_redis: TlsRedis) -> None:
    assert [f.state for f in look_broker.look(values.Redis(url=tls_redis.url))] == ["ok"]


def test_check_tells_a_frozen_redis_as_away(own_redis: RedisServer) -> None:
    own_redis.stop_frozen()
    try:
        (found,) = look_broker.look(values.Redis(url=own_redis.url, socket_timeout=0.1))
    finally:
        own_redis.resume()
    assert found.state == "away"


def test_check_tells_a_replica_and_an_eviction_policy(own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.replicaof("127.0.0.1", "1")
        found = worth_a_line(look_broker.look(values.Redis(url=own_redis.url)))
    assert [f.state for f in found] == ["failed", "warning"]
    assert found[1].next_step == "set maxmemory-policy noeviction"


def test_check_tells_a_redis_address_it_cannot_read_without_showing_it() -> None:
    (found,) = look_broker.look(values.Redis(url="redis://:hunter2@h:port/0"))
    assert found.state == "failed"
    assert "hunter2" not in str(found)


def test_check_reads_what_a_user_without_info_may_see(own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        client.acl_setuser("few", enabled=True, nopass=True, commands=["+@connection"])
    joiner = "&" if "?" in own_redis.url else "?"
    (found,) = look_broker.look(values.Redis(url=f"{own_redis.url}{joiner}username=few&password=x"))
    assert (found.state, "unknown version" in found.text) == ("ok", True)
