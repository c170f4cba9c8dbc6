"""Certificates for one test session, and servers that ask for them. The machine's servers: the wheels have no TLS."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from psycopg import sql

from .servers import LOGINS, OWNER, PgServer, RedisServer, machine_pg_bin, machine_redis_server, missing, pg, redis_like


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate for 127.0.0.1 and localhost that signed itself: `cert` is its own authority."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsRedis:
    """A redis-server that speaks TLS on a port and wants a user and a password."""

    server: RedisServer
    port: int
    ca: Path
    user: str = "t_user"
    password: str = "not a secret"

    @property
    def url(self) -> str:
        """The right address: verified certificate, right user and password."""
        return self.address()

    def address(self, *, user: str | None = None, password: str | None = None, ca: Path | None = None) -> str:
        """The address, with something wrong in it where asked for."""
        login = f"{quote(user or self.user)}:{quote(password or self.password)}"
        return f"rediss://{login}@127.0.0.1:{self.port}/0?ssl_ca_certs={quote(str(ca or self.ca))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPg:
    """A PostgreSQL that speaks TLS on a port; over TCP every role wants the password."""

    server: PgServer
    port: int
    ca: Path
    password: str = "not a secret"

    def url(self, database: str, user: str = OWNER, *, password: str | None = None, ca: Path | None = None) -> str:
        """The address of a database, verified in full, with something wrong in it where asked for."""
        login = f"{quote(user)}:{quote(password or self.password)}"
        root = quote(str(ca or self.ca), safe="")
        return f"postgresql://{login}@127.0.0.1:{self.port}/{database}?sslmode=verify-full&sslrootcert={root}"


def make_certificate(directory: Path, name: str = "server") -> Certificate:
    """Make a key and a certificate that lasts a day, readable by the servers' account."""
    openssl = shutil.which("openssl")
    if openssl is None:
        missing("openssl of the machine is missing: install its package")
    made = Certificate(cert=directory / f"{name}.crt", key=directory / f"{name}.key")
    arguments = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", str(made.key), "-out", str(made.cert)]
    subprocess.run([str(openssl), *arguments, *names, *files], check=True, capture_output=True)
    made.key.chmod(0o644)  # a throw-away key: the server's account is not ours
    return made


@contextmanager
def tls_redis_server(directory: Path) -> Generator[TlsRedis]:
    """The machine's redis-server with TLS on a free port, a user, and no way in without a password."""
    program, port, made = machine_redis_server(), free_port(), make_certificate(directory, "redis")
    described = TlsRedis.__dataclass_fields__
    user, password = str(described["user"].default), str(described["password"].default)
    flags = [
        *("--tls-port", str(port), "--tls-cert-file", str(made.cert), "--tls-key-file", str(made.key)),
        *("--tls-ca-cert-file", str(made.cert), "--tls-auth-clients", "no"),
        *("--user", user, "on", f">{password}", "~*", "&*", "+@all"),
    ]
    with redis_like(program, flags=flags) as server:
        yield TlsRedis(server=server, port=port, ca=made.cert)


@contextmanager
def tls_pg_server(directory: Path) -> Generator[TlsPg]:
    """The machine's PostgreSQL 15 with TLS on a free port; roles have the password."""
    bin_dir, port, made = machine_pg_bin(15), free_port(), make_certificate(directory, "postgres")
    with pg(bin_dir, flags=("listen_addresses=127.0.0.1",), port=port) as server:
        described = TlsPg(server=server, port=port, ca=made.cert)
        _switch_tls_on(server, made)
        with server.superuser() as conn:
            for role in (OWNER, *LOGINS):
                statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
                conn.execute(statement.format(sql.Identifier(role), sql.Literal(described.password)))
        yield described


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _switch_tls_on(server: PgServer, made: Certificate) -> None:
    # PostgreSQL wants the key to be its own and unreadable to others: a copy in its home, owned like the home.
    owner = server.home.stat()
    for source, name in ((made.cert, "server.crt"), (made.key, "server.key")):
        target = server.home / name
        shutil.copy(source, target)
        target.chmod(0o600)
        os.chown(target, owner.st_uid, owner.st_gid)
    with server.superuser() as conn:
        conn.execute("ALTER SYSTEM SET ssl = on")
    server.restart()
