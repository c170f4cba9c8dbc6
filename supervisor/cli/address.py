"""Where the supervisor of this configuration can be asked, found with the standard library alone.

`status` and `probe` must not pay for the settings library: probes run every few seconds, and are held to 60 ms of CPU.
"""

from __future__ import annotations

from pathlib import Path

from ...config.locate import supervisor
from ...config.paths import control_socket


def control_path(config_path: str | None) -> Path:
    """The control socket's path. Raises ConfigError when the file cannot be read."""
    return control_socket(supervisor(config_path))
