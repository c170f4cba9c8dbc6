"""The settings as every process sees them: frozen, slotted, plain. Loaded and checked once, in cli/, then handed over.

Field names are the TOML keys. Every duration is seconds (TOML: text with a unit), every size bytes.
This module imports nothing of ours and no settings library: the parent may hold these objects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Connections of one process: `min` are kept open, never more than `max`."""

    min: int = 0
    max: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    url: str = ""
    url_file: str = ""
    listen_url: str = ""  # a direct connection, when url goes through a transaction pooler
    listen_url_file: str = ""
    migrate_url: str = ""
    migrate_url_file: str = ""
    schema: str = "pfsup"
    connect_timeout: float = 5.0
    statement_timeout: float = 5.0
    lock_timeout: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    url: str = "redis://127.0.0.1:6379/0"
    url_file: str = ""
    socket_timeout: float = 2.0
    payload: Literal["reference", "inline"] = "reference"
    group: str = "pfsup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    name: str = "pfsup"
    runtime_dir: str = ""  # "" = $XDG_RUNTIME_DIR/pfsup, else /run/pfsup (root), else state_dir
    state_dir: str = ""  # "" = /var/lib/pfsup (root), else ~/.local/state/pfsup
    stop_timeout: float = 25.0
    start_method: Literal["fork", "exec"] = "fork"
    preload: bool = True
    beat_interval: float = 1.0
    beat_timeout: float = 10.0
    boot_timeout: float = 30.0
    on_failed: Literal["keep", "exit"] = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    enabled: bool = True
    scan_interval: float = 1.0
    batch_size: int = 100
    max_in_flight: int = 4
    claim_lease: float = 30.0
    max_send_attempts: int = 10
    wake: Literal["notify", "poll"] = "notify"
    pool: Pool = field(default_factory=lambda: Pool(min=1, max=4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    stream: str = ""  # "" = pfsup:<supervisor name>:<queue>
    max_outstanding: int = 0  # 0 = no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    queue: str = ""  # "" = the actor's name
    completion: Literal["worker", "handover"] = "worker"
    max_attempts: int = 20
    retry_base: float = 2.0
    retry_cap: float = 3600.0
    lease: float = 60.0
    max_run: float = 3600.0
    on_lost: Literal["unknown", "redispatch"] = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    enabled: bool = True
    kind: str = ""  # "" = the section's name; or a module:Class from --app-dir
    mode: Literal["act", "observe"] = "act"
    interval: float = 10.0
    batch_size: int = 25
    stale_after: float = 1800.0
    max_recoveries: int = 5
    pool: Pool = field(default_factory=Pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Housekeeping:
    enabled: bool = True
    interval: float = 60.0
    batch_size: int = 1000
    keep_consumed: float = 7 * 86400.0  # consumed and cancelled and rejected rows, counted from finished_at
    keep_audit: float = 400 * 86400.0
    pool: Pool = field(default_factory=lambda: Pool(min=0, max=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    file: str = ""  # "" = standard error


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything one supervisor and its children are configured with."""

    database: Database = field(default_factory=Database)
    redis: Redis = field(default_factory=Redis)
    supervisor: Supervisor = field(default_factory=Supervisor)
    dispatch: Dispatch = field(default_factory=Dispatch)
    queues: dict[str, Queue] = field(default_factory=dict[str, Queue])
    actors: dict[str, Actor] = field(default_factory=dict[str, Actor])
    domains: dict[str, Domain] = field(default_factory=dict[str, Domain])
    housekeeping: Housekeeping = field(default_factory=Housekeeping)
    log: Log = field(default_factory=Log)
