"""As whom the servers run. PostgreSQL refuses uid 0, so root needs another account, or the look of one.

For root, in this order, each tried with the real programs before it is used:
1. the unprivileged account, with the programs where they are;
2. a user namespace in which our own uid is called 65534 (works for a virtual environment under a 0700 home;
   files stay root's; forbidden in some containers);
3. the unprivileged account with a copy of the wheels' programs (35 MiB, 0.1-0.3 s) in the private directory.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from ...config.errors import NotPermitted
from .private import PrivateDir
from .programs import PostgresPrograms, RedisProgram

NOBODY_UID = 65534
CLONE_NEWUSER = 0x10000000  # linux/sched.h; os.unshare exists from Python 3.12 on
_libc = ctypes.CDLL(None, use_errno=True)


class Way(Enum):
    """How a server's process gets its uid."""

    SELF = "as the caller"
    USER = "as another account"
    NAMESPACE = "in a user namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who a server runs as. `uid` and `gid` own its files, as the rest of the system sees them."""

    way: Way
    uid: int
    gid: int

    @property
    def switch_uid(self) -> int | None:
        """Popen's `user`: None where the uid stays."""
        return self.uid if self.way is Way.USER else None

    @property
    def switch_gid(self) -> int | None:
        """Popen's `group`."""
        return self.gid if self.way is Way.USER else None

    @property
    def switch_groups(self) -> list[int] | None:
        """Popen's `extra_groups`: none of root's are kept."""
        return [] if self.way is Way.USER else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An account, and the programs in a place that it can read."""

    account: Account
    postgres: PostgresPrograms | None
    redis: RedisProgram | None


def servers_uids() -> set[int]:
    """The uids that private directories of ours can belong to."""
    mine = os.geteuid()
    return {mine} if mine else {0, unprivileged().uid}


def unprivileged() -> Account:
    """The machine's account without rights: nobody, else uid 65534."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return Account(way=Way.USER, uid=NOBODY_UID, gid=NOBODY_UID)
    return Account(way=Way.USER, uid=entry.pw_uid, gid=entry.pw_gid)


def choose(wanted: Chosen, *, private: PrivateDir, reach: Path, owner: os.stat_result | None) -> Chosen:
    """Return an account that can run the programs and enter `reach`, where the server's files will lie.

    `owner` is the owner of files that exist already: PostgreSQL serves only its own. Gives the private directory to
    the account. Raises NotPermitted when root finds no way.
    """
    if os.geteuid() != 0:
        return wanted
    for candidate in _ways_of_root(wanted, private, owner):
        private.give_to(candidate.account.uid, candidate.account.gid)
        if all(_runs(program, candidate.account, reach) for program in _all_programs(candidate)):
            return candidate
    raise NotPermitted(
        "cannot start the servers as root: PostgreSQL refuses uid 0, no other account can read its programs "
        f"and {reach}, and user namespaces are not allowed here: run it as another user"
    )


def myself() -> Account:
    """The caller's own account."""
    return Account(way=Way.SELF, uid=os.geteuid(), gid=os.getegid())


def enter_namespace() -> None:
    """Become uid 65534 of a new user namespace whose files are still ours. Called between fork and exec.

    Source: user_namespaces(7), "Defining user and group ID mappings".
    """
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY_UID} {uid} 1"),
        ("gid_map", f"{NOBODY_UID} {gid} 1"),
    ):
        Path("/proc/self", name).write_text(text)


def _ways_of_root(wanted: Chosen, private: PrivateDir, owner: os.stat_result | None) -> Iterator[Chosen]:
    user = unprivileged()
    if owner is not None and owner.st_uid != 0:
        user = Account(way=Way.USER, uid=owner.st_uid, gid=owner.st_gid)
    if owner is None or owner.st_uid != 0:
        yield replace(wanted, account=user)
    if owner is None or owner.st_uid == 0:
        yield replace(wanted, account=Account(way=Way.NAMESPACE, uid=0, gid=os.getegid()))
    if owner is None or owner.st_uid != 0:
        yield copy_programs(replace(wanted, account=user), private.path / "programs")


def copy_programs(chosen: Chosen, target: Path) -> Chosen:
    """Copy what can be copied into `target` and return the programs as they lie there."""
    postgres, redis = chosen.postgres, chosen.redis
    target.mkdir(mode=0o755)
    if postgres is not None and postgres.copies:
        root = postgres.copies[0].parent.parent
        for folder in filter(Path.exists, postgres.copies):
            shutil.copytree(folder, target / folder.relative_to(root), symlinks=True)
        postgres = replace(postgres, bin_dir=target / postgres.bin_dir.relative_to(root), copies=())
    if redis is not None:
        redis = replace(redis, path=Path(shutil.copy(redis.path, target)))
    return replace(chosen, postgres=postgres, redis=redis)


def _all_programs(chosen: Chosen) -> Iterator[Path]:
    if chosen.postgres is not None:
        yield chosen.postgres.postgres
        yield chosen.postgres.initdb
    if chosen.redis is not None:
        yield chosen.redis.path


def _runs(program: Path, account: Account, reach: Path) -> bool:
    """True if the account can run `program --version` and enter `reach`. A child finds out: its errors cost nothing."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [program, "--version"],
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            timeout=30,
            preexec_fn=_trial(account, reach),  # one thread here; only this can enter a user namespace
            user=account.switch_uid,
            group=account.switch_gid,
            extra_groups=account.switch_groups,
        )
        return done.returncode == 0
    return False


def _trial(account: Account, reach: Path) -> Callable[[], None]:
    def enter() -> None:
        if account.way is Way.NAMESPACE:
            enter_namespace()
        os.chdir(reach)

    return enter


def environment() -> dict[str, str]:
    """What servers see of our environment: nothing that could name a cluster, a port or a secret."""
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}
