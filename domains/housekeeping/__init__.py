"""Housekeeping: retention, streams of finished tasks, table health."""

from __future__ import annotations

from .role import Housekeeping

__all__ = ["Housekeeping"]
