"""`pfsup check` on this machine: files that hold a secret and that other users can read."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from ...config import fields
from ...config.load import Loaded
from ...shared.text import printable
from .findings import Finding


def look(loaded: Loaded) -> Iterator[Finding]:
    """Warn of each file with a secret that every user can read."""
    database, redis = loaded.settings.database, loaded.settings.redis
    files = [database.url_file, database.listen_url_file, database.migrate_url_file, redis.url_file]
    holders = [Path(file) for file in files if file]
    if loaded.path is not None and _holds_password(loaded):
        holders.insert(0, loaded.path)
    for path in holders:
        if _readable_by_all(path):
            shown = printable(str(path))
            text = f"every user can read {shown}"
            yield Finding(subject="files", state="warning", text=text, next_step=f"chmod 600 {shown}")


def _readable_by_all(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def _holds_password(loaded: Loaded) -> bool:
    """Whether an address that is written in the configuration file carries one, as far as its form tells."""
    return any(
        "password=" in value or ":" in value.partition("://")[2].rpartition("@")[0]
        for path, key, value in fields.leaves(loaded.settings)
        if key.rule.secret and loaded.origins[fields.dotted(*path)].startswith(f"{loaded.path}:")
    )
