"""`pfsup check` on this machine: files that hold a secret and that other users can read."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from ...config.values import Settings
from ...shared.text import printable
from .findings import Finding


def look(settings: Settings, *, file: Path | None) -> Iterator[Finding]:
    """Secrets that other users of this machine can read."""
    written = [Path(f) for f in (settings.database.url_file, settings.redis.url_file) if f]
    for path in [file, *written]:
        if path is not None and _readable_by_all(path) and (path in written or _holds_password(settings)):
            step = f"chmod 600 {printable(str(path))}"
            yield Finding(subject="files", state="warning", text=f"every user can read {path}", next_step=step)


def _readable_by_all(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def _holds_password(settings: Settings) -> bool:
    """Whether an address in the settings carries one, as far as its form tells."""
    addresses = (settings.database.url, settings.database.listen_url, settings.database.migrate_url, settings.redis.url)
    return any("password=" in a or ":" in a.partition("://")[2].rpartition("@")[0] for a in addresses)
