"""The settings as every process sees them: frozen, slotted, plain. Loaded and checked once, in cli/, then handed over.

This is the one definition. Field names are the TOML keys; `setting()` puts each key's default, limits and sentence
beside it, and the loader, the example file, README's table and `pfsup config` are made from that.
Every duration is `Seconds` (TOML: text with a unit). Nothing here imports a settings library: the parent may hold these
objects.
"""

# ruff: noqa: RUF009 - setting() and section() return a dataclass field, made anew for every key

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from .setting import section, setting

Seconds = Annotated[float, "seconds"]  # in TOML and the environment a text with a unit: "500ms", "25s", "7d"

DAY_S = 86400.0
LONGEST_S = 3650 * DAY_S
NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$"
NAME_WANTED = "a letter or _, then letters, digits and _ . -, at most 128 characters"
# It goes into SQL as text and into role names: `<schema>_operate` must fit PostgreSQL's 63 bytes.
SCHEMA_NAME = r"^(?!pg_)[a-z_][a-z0-9_]{0,39}$"
SCHEMA_WANTED = "lower-case letters, digits and _, at most 40 characters, not beginning with pg_"
NAME_OR_EMPTY = f"^$|{NAME_PATTERN}"
NAME_OR_EMPTY_WANTED = f"empty, or {NAME_WANTED}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Connections of one process: `min` are kept open, never more than `max`."""

    min: int = setting(0, "Connections kept open while idle.", at_least=0, at_most=1000)
    max: int = setting(2, "Connections this process may hold at once.", at_least=1, at_most=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """Where the outbox is, and how long a statement of ours may take there."""

    url: str = setting(
        "",
        "The application's PostgreSQL, as a user that has role `<schema>_run`. Needed, here or as url_file.",
        example="postgresql://pfsup@localhost:5432/app",
        secret=True,
    )
    url_file: str = setting("", "A file that holds the url; read again for every connection.", path=True)
    listen_url: str = setting("", "A direct connection for LISTEN, when url goes through a pooler.", secret=True)
    listen_url_file: str = setting("", "A file that holds listen_url.", path=True)
    migrate_url: str = setting("", "Used by `pfsup migrate`: the role that owns the schema. Else url.", secret=True)
    migrate_url_file: str = setting("", "A file that holds migrate_url.", path=True)
    schema: str = setting(
        "pfsup",
        "The schema of pfsup's tables and functions; also the prefix of its roles.",
        pattern=SCHEMA_NAME,
        wanted=SCHEMA_WANTED,
    )
    connect_timeout: Seconds = setting(5.0, "How long one attempt to connect may take.", at_least=0.1, at_most=300.0)
    statement_timeout: Seconds = setting(5.0, "How long one statement may run.", at_least=0.1, at_most=3600.0)
    lock_timeout: Seconds = setting(2.0, "How long one statement may wait for a lock.", at_least=0.01, at_most=3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    """Where the workers' streams are."""

    url: str = setting(
        "redis://127.0.0.1:6379/0", "The Redis: redis://host:port/0, rediss://… (TLS) or unix:///path.", secret=True
    )
    url_file: str = setting("", "A file that holds the url; read again for every connection.", path=True)
    socket_timeout: Seconds = setting(2.0, "How long Redis may take to answer.", at_least=0.05, at_most=300.0)
    payload: Literal["reference", "inline"] = setting(
        "reference", "reference: begin_work returns the payload. inline: the entry carries a copy."
    )
    group: str = setting(
        "pfsup",
        "The consumer group of the workers.",
        pattern=r"^[!-~]{1,128}$",
        wanted="1 to 128 printable ASCII characters without spaces",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """The parent process: its name, its files, its patience."""

    name: str = setting(
        "pfsup",
        "This instance's name: part of its files' names and of the streams' keys.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        wanted="a letter or digit, then letters, digits and _ . -, at most 64 characters",
    )
    runtime_dir: str = setting(
        "", "Holds the socket, lock and pid file. Empty: $XDG_RUNTIME_DIR/pfsup, /run/pfsup as root.", path=True
    )
    state_dir: str = setting(
        "", "Holds what survives a restart. Empty: /var/lib/pfsup as root, else ~/.local/state/pfsup.", path=True
    )
    stop_timeout: Seconds = setting(
        25.0, "What a stop may take before children are killed.", at_least=0.1, at_most=DAY_S
    )
    start_method: Literal["fork", "exec"] = setting(
        "fork", "fork: children share the parent's memory. exec: they do not."
    )
    preload: bool = setting(True, "Import the children's modules once, in the parent, before the first fork.")
    beat_interval: Seconds = setting(1.0, "How often a child says that it lives.", at_least=0.05, at_most=60.0)
    beat_timeout: Seconds = setting(10.0, "The silence after which a child is replaced.", at_least=0.15, at_most=3600.0)
    boot_timeout: Seconds = setting(30.0, "How long a child may take to be ready.", at_least=0.1, at_most=3600.0)
    on_failed: Literal["keep", "exit"] = setting(
        "keep", "A parked child: keep the supervisor running, or exit with code 3."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """The process that moves committed rows to the streams."""

    enabled: bool = setting(True, "Run it.")
    scan_interval: Seconds = setting(
        1.0, "How often the table is read when no notification comes.", at_least=0.01, at_most=3600.0
    )
    batch_size: int = setting(100, "Rows claimed by one statement.", at_least=1, at_most=10_000)
    max_in_flight: int = setting(4, "Batches being sent at once.", at_least=1, at_most=1000)
    claim_lease: Seconds = setting(30.0, "How long a claimed row belongs to this process.", at_least=1.0, at_most=DAY_S)
    max_send_attempts: int = setting(10, "Refusals of one row before it is dead.", at_least=1, at_most=10_000)
    wake: Literal["notify", "poll"] = setting("notify", "notify: LISTEN and the scan. poll: the scan alone.")
    pool: Pool = section(lambda: Pool(min=1, max=4), "Its connections; one more is held for LISTEN.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One stream."""

    stream: str = setting(
        "",
        "The stream's key. Empty: pfsup:<supervisor name>:<queue>.",
        pattern=r"^[ -~]{0,400}$",
        wanted="at most 400 printable ASCII characters",
    )
    max_outstanding: int = setting(0, "Entries sent and not begun, at most; 0 = no limit.", at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """What SQL must know of one worker function."""

    queue: str = setting("", "Its queue. Empty: the actor's name.", pattern=NAME_OR_EMPTY, wanted=NAME_OR_EMPTY_WANTED)
    completion: Literal["worker", "handover"] = setting("worker", "handover: sent is the end, no worker reports back.")
    max_attempts: int = setting(20, "Failed runs before it is dead.", at_least=1, at_most=10_000)
    retry_base: Seconds = setting(2.0, "The first pause after a failed run.", at_least=0.001, at_most=LONGEST_S)
    retry_cap: Seconds = setting(3600.0, "The longest pause after a failed run.", at_least=0.001, at_most=LONGEST_S)
    lease: Seconds = setting(60.0, "How long a worker may be silent.", at_least=1.0, at_most=DAY_S)
    max_run: Seconds = setting(3600.0, "How long one run may take, beats or not.", at_least=1.0, at_most=LONGEST_S)
    on_lost: Literal["unknown", "redispatch"] = setting(
        "unknown", "What becomes of a lost run whose outside effect had begun."
    )


ENVELOPE = "envelope"  # the domain that looks after the outbox itself: it runs without being named
# The built-in kinds of domains, each with its own defaults: a worker that makes pictures may be silent for longer.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "workflow": {"stale_after": 1800.0},
    "image_session": {"stale_after": 5400.0},
    "delivery": {"stale_after": 1800.0},
    "local_edit": {"stale_after": 1200.0},
    "agent": {"stale_after": 1800.0},
    ENVELOPE: {"interval": 5.0, "batch_size": 1000},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """One recovery process."""

    enabled: bool = setting(True, "Run it.")
    kind: str = setting(
        "",
        f"What it runs: {', '.join(KINDS)}, or module:Class from --app-dir. Empty: the section's name.",
        example="shop.recovery:Invoices",
    )
    actor: str = setting(
        "",
        "The actor whose runs it looks after. Empty: the domain's name.",
        pattern=NAME_OR_EMPTY,
        wanted=NAME_OR_EMPTY_WANTED,
    )
    schema: str = setting(
        "productflow", "The schema of a built-in domain's own tables.", pattern=SCHEMA_NAME, wanted=SCHEMA_WANTED
    )
    mode: Literal["act", "observe"] = setting("act", "observe: say what would be done, write nothing.")
    interval: Seconds = setting(10.0, "The pause between two cycles.", at_least=0.05, at_most=DAY_S)
    batch_size: int = setting(25, "Candidates of one cycle.", at_least=1, at_most=10_000)
    stale_after: Seconds = setting(
        1800.0, "The silence after which a run is looked at.", at_least=0.1, at_most=LONGEST_S
    )
    sent_grace: Seconds = setting(
        60.0,
        "envelope: how long an entry may lie taken up by nobody before it is looked at.",
        at_least=1.0,
        at_most=LONGEST_S,
    )
    takeover_grace: Seconds = setting(
        5.0, "The unbroken time between the two looks that a silent worker gets.", at_least=0.1, at_most=3600.0
    )
    share: float = setting(
        0.2,
        "At most this share of the time is spent on candidates; it rests between them, so new work goes first.",
        at_least=0.01,
        at_most=1.0,
    )
    max_recoveries: int = setting(5, "Recoveries of one row before it is given up.", at_least=0, at_most=10_000)
    pool: Pool = section(Pool, "Its connections.")


def domain_of(kind: str) -> Domain:
    """A domain of this kind in which nobody has set anything but, where it is written, the kind."""
    return Domain(**KINDS.get(kind, {}))


def unnamed_domains() -> dict[str, Domain]:
    """The domains that a configuration holds which names none."""
    return {ENVELOPE: domain_of(ENVELOPE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Housekeeping:
    """The process that deletes what is over."""

    enabled: bool = setting(True, "Run it.")
    interval: Seconds = setting(60.0, "The pause between two rounds.", at_least=0.05, at_most=DAY_S)
    batch_size: int = setting(1000, "Rows deleted by one statement.", at_least=1, at_most=100_000)
    keep_consumed: Seconds = setting(
        7 * DAY_S, "How long consumed, cancelled and rejected rows stay.", at_least=0.0, at_most=LONGEST_S
    )
    keep_audit: Seconds = setting(400 * DAY_S, "How long the audit log stays.", at_least=0.0, at_most=LONGEST_S)
    pool: Pool = section(lambda: Pool(min=0, max=1), "Its connections.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What is said, and where."""

    format: Literal["text", "json"] = setting("text", "The form of a line.")
    level: Literal["debug", "info", "warning", "error"] = setting("info", "The least that is said.")
    file: str = setting("", "The file that lines are added to. Empty: standard error.", path=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything one supervisor and its children are configured with."""

    database: Database = section(Database, "Where the outbox is.")
    redis: Redis = section(Redis, "Where the workers' streams are.")
    supervisor: Supervisor = section(Supervisor, "The parent process.")
    dispatch: Dispatch = section(Dispatch, "Moves committed rows to the streams.")
    queues: dict[str, Queue] = section(
        dict[str, Queue], "One table a queue; a queue without one works.", example="emails"
    )
    actors: dict[str, Actor] = section(
        dict[str, Actor], "One table an actor; an actor without one has these values.", example="send_email"
    )
    domains: dict[str, Domain] = section(
        unnamed_domains, "One table a recovery process; envelope runs without one.", example="invoices"
    )
    housekeeping: Housekeeping = section(Housekeeping, "Deletes what is over.")
    log: Log = section(Log, "What is said, and where.")
