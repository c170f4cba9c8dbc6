"""Dispatch: turns committed envelopes into entries of streams."""

from __future__ import annotations

from .role import Dispatch

__all__ = ["Dispatch"]
