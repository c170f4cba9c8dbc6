"""pfsup migrate, pause and resume, as a person runs them: what they print, where, and how they end."""

from __future__ import annotations

import getpass
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from pfsup.shared.db.migrate import LATEST
from pfsup.shared.db.migrations import migrations
from pfsup.supervisor.cli.main import run
from support.database import Database
from support.programs import pg_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str


Pfsup = Callable[..., Ended]

TITLES = [migration.title for migration in migrations()]
APPLIED = f"schema pfsup: applied {', '.join(TITLES)}; version {LATEST}"


def configured(database: Database, directory: Path, *, url: str) -> Path:
    path = directory / "pfsup.toml"
    path.write_text(f'[database]\nurl = "{url}"\nmigrate_url = "{database.url}"\n')
    return path


def runner(config: Path, capsys: pytest.CaptureFixture[str]) -> Pfsup:
    def call(*arguments: str) -> Ended:
        code = run([*arguments, "-c", str(config)])
        captured = capsys.readouterr()
        return Ended(code=code, out=captured.out, err=captured.err)

    return call


@pytest.fixture
def pfsup(database: Database, short_dir: Path, capsys: pytest.CaptureFixture[str]) -> Pfsup:
    """The command line on a migrated database, as an operator."""
    return runner(configured(database, short_dir, url=database.operate_url), capsys)


@pytest.fixture
def pfsup_empty(empty_database: Database, short_dir: Path, capsys: pytest.CaptureFixture[str]) -> Pfsup:
    """The command line on an empty database."""
    return runner(configured(empty_database, short_dir, url=empty_database.operate_url), capsys)


def test_migrate_says_what_it_applied_and_then_that_nothing_is_left(pfsup_empty: Pfsup) -> None:
    assert pfsup_empty("migrate") == Ended(code=0, out=f"{APPLIED}\n", err="")
    assert pfsup_empty("migrate").out == f"schema pfsup: nothing to do; version {LATEST}\n"


def test_migrate_json_is_one_object(pfsup_empty: Pfsup) -> None:
    told = json.loads(pfsup_empty("migrate", "--json").out)
    assert (told["schema"], told["database_schema"], told["before"], told["version"]) == (1, "pfsup", None, LATEST)
    assert told["applied"] == TITLES


def test_migrate_status_before_and_after(pfsup_empty: Pfsup) -> None:
    assert pfsup_empty("migrate", "--status").out == f"schema pfsup: not installed; pending: {', '.join(TITLES)}\n"
    pfsup_empty("migrate")
    assert pfsup_empty("migrate", "--status").out == f"schema pfsup: version {LATEST}; pending: nothing\n"
    told = json.loads(pfsup_empty("migrate", "--status", "--json").out)
    assert (told["version"], told["pending"], told["changed"]) == (LATEST, [], [])


def test_migrate_sql_prints_what_psql_can_run_and_runs_nothing(pfsup_empty: Pfsup, empty_database: Database) -> None:
    printed = pfsup_empty("migrate", "--sql").out
    assert pfsup_empty("migrate", "--status").out.startswith("schema pfsup: not installed")
    psql = [pg_program(empty_database.server, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", empty_database.url]
    subprocess.run(psql, input=printed, text=True, check=True, capture_output=True)
    assert pfsup_empty("migrate", "--sql").out == "-- nothing to run: schema pfsup is up to date\n"


def test_migrate_no_roles_prints_the_grants_alone_on_standard_output(pfsup_empty: Pfsup) -> None:
    ended = pfsup_empty("migrate", "--no-roles")
    assert ended.err == f"{APPLIED}\n"
    assert "GRANT EXECUTE ON FUNCTION\n    pfsup.stage(" in ended.out
    assert "@schema@" not in ended.out
    assert "GRANT" not in pfsup_empty("migrate", "--sql", "--no-roles").out


def test_migrate_with_productflow_makes_both_schemas_in_order(pfsup_empty: Pfsup) -> None:
    ended = pfsup_empty("migrate", "--with", "productflow")
    assert ended.out.splitlines() == [APPLIED, "schema productflow: applied 0001 tables; version 1"]
    ended = pfsup_empty("migrate", "--with", "productflow", "--with", "productflow")
    assert (ended.code, ended.out.splitlines()[1:]) == (0, ["schema productflow: nothing to do; version 1"])


def test_migrate_with_productflow_tells_of_both(pfsup_empty: Pfsup) -> None:
    told = json.loads(pfsup_empty("migrate", "--status", "--json", "--with", "productflow").out)
    assert (told["database_schema"], told["version"]) == ("pfsup", None)
    assert told["with"]["productflow"] == {
        "database_schema": "productflow",
        "version": None,
        "pending": ["0001 tables"],
        "changed": [],
    }
    told = json.loads(pfsup_empty("migrate", "--json", "--with", "productflow").out)
    assert (told["version"], told["with"]["productflow"]["applied"]) == (LATEST, ["0001 tables"])
    said = pfsup_empty("migrate", "--status", "--with", "productflow").out.splitlines()
    assert said[1] == "schema productflow: version 1; pending: nothing"


def test_migrate_with_productflow_sql_is_run_by_psql(pfsup_empty: Pfsup, empty_database: Database) -> None:
    printed = pfsup_empty("migrate", "--sql", "--with", "productflow").out
    psql = [pg_program(empty_database.server, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", empty_database.url]
    subprocess.run(psql, input=printed, text=True, check=True, capture_output=True)
    left = pfsup_empty("migrate", "--sql", "--with", "productflow").out.splitlines()
    assert left[1] == "-- nothing to run: schema productflow is up to date"


def test_migrate_with_productflow_no_roles_prints_all_grants(pfsup_empty: Pfsup, empty_database: Database) -> None:
    ended = pfsup_empty("migrate", "--with", "productflow", "--no-roles")
    assert "schema productflow: applied 0001 tables" in ended.err
    with psycopg.connect(empty_database.url, autocommit=True) as conn:
        conn.execute(ended.out.encode())
    assert pfsup_empty("migrate", "--with", "productflow").out.count("nothing to do") == 2


def test_migrate_with_productflow_goes_to_the_schema_of_the_domains(
    empty_database: Database, short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(empty_database, short_dir, url=empty_database.run_url)
    path.write_text(path.read_text() + '[domains.agent]\nschema = "shop"\n[domains.delivery]\nschema = "shop"\n')
    said = runner(path, capsys)("migrate", "--with", "productflow").out.splitlines()
    assert said[1] == "schema shop: applied 0001 tables; version 1"
    path.write_text(path.read_text() + '[domains.workflow]\nschema = "store"\n')
    ended = runner(path, capsys)("migrate", "--with", "productflow")
    assert (ended.code, "domains.workflow.schema: wanted 'shop'" in ended.err) == (78, True)


def test_migrate_with_unknown_tables_names_what_there_is(pfsup_empty: Pfsup) -> None:
    ended = pfsup_empty("migrate", "--with", "shop")
    wanted = "pfsup: cannot migrate with 'shop': no tables have that name; there is productflow\n"
    assert (ended.code, ended.err) == (1, wanted)
    assert pfsup_empty("migrate", "--status").out.startswith("schema pfsup: not installed")


def test_pause_and_resume_say_what_they_did_and_who_did_it(pfsup: Pfsup, database: Database) -> None:
    assert pfsup("pause", "queue", "slow", "--why", "broken").out == "queue slow: paused until pfsup resume\n"
    with psycopg.connect(database.url) as conn:
        kept = conn.execute("SELECT who, why, until FROM pfsup.controls").fetchone()
    assert kept == (getpass.getuser(), "broken", None)
    assert pfsup("resume", "queue", "slow", "--why", "mended", "--who", "ann").out == "queue slow: resumed\n"
    assert pfsup("resume", "queue", "slow", "--why", "mended").out == "queue slow: was not paused\n"


@pytest.mark.parametrize(("until", "within"), [("15m", "15 min"), ("2h", "2 h"), ("90s", "90 s"), ("1d", "1 day")])
def test_pause_until_a_duration_counts_from_the_databases_now(
    pfsup: Pfsup, database: Database, until: str, within: str
) -> None:
    assert re.fullmatch(
        r"tenant acme: paused until 20\S+\n", pfsup("pause", "tenant", "acme", "--why", "x", "--until", until).out
    )
    with psycopg.connect(database.url) as conn:
        kept = conn.execute(
            "SELECT until = created_at + %s::interval"
            " OR until BETWEEN created_at - interval '1 s' + %s::interval AND created_at + %s::interval"
            " FROM pfsup.controls",
            [within] * 3,
        ).fetchone()
    assert kept == (True,)


def test_pause_until_a_time_again_changes_it(pfsup: Pfsup) -> None:
    pfsup("pause", "actor", "paint", "--why", "x")
    ended = pfsup("pause", "actor", "paint", "--why", "x", "--until", "2099-01-02T03:04Z", "--json")
    told = json.loads(ended.out)
    assert (told["schema"], told["kind"], told["name"], told["outcome"]) == (1, "actor", "paint", "changed")
    assert told["until"].startswith("2099-01-0")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["pause", "kueue", "slow", "--why", "x"], 2, "'kueue' is not one of"),
        (["pause", "queue", "slow"], 2, "Missing option '--why'"),
        (["pause", "queue", "slow", "--why", "x", "--until", "soon"], 2, "neither a time"),
        (["pause", "queue", "slow", "--why", "x", "--until", "2030-01-01T00:00"], 2, "has no time zone"),
        (["pause", "queue", "slow", "--why", "x", "--until", "2020-01-01T00:00Z"], 1, "that is not in the future"),
        (["pause", "queue", "a\nb", "--why", "x"], 1, 'the name "a?b" is not allowed'),
        (["pause", "queue", "slow", "--why", ""], 1, "the note is missing"),
    ],
)
def test_pause_of_nonsense_ends_with_its_code_and_reason(
    pfsup: Pfsup, arguments: list[str], code: int, text: str
) -> None:
    ended = pfsup(*arguments)
    assert ended.code == code
    assert text in ended.err
    assert "Traceback" not in ended.err


def test_pause_on_an_empty_database_says_to_migrate(pfsup_empty: Pfsup) -> None:
    ended = pfsup_empty("pause", "queue", "slow", "--why", "x")
    assert (ended.code, "pfsup migrate" in ended.err) == (75, True)


def test_pause_as_a_role_that_may_not_ends_77(
    database: Database, short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = runner(configured(database, short_dir, url=database.app_url), capsys)
    ended = call("pause", "queue", "slow", "--why", "x")
    assert ended.code == 77
    assert "permission denied for function pause" in ended.err


def test_migrate_without_a_server_ends_75_and_names_no_password(
    empty_database: Database, short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = short_dir / "away.toml"
    path.write_text('[database]\nurl = "postgresql://ann:sesame@/x?host=/nowhere"\n')
    ended = runner(path, capsys)("migrate")
    assert ended.code == 75
    assert "nobody listens" in ended.err
    assert "sesame" not in ended.err
