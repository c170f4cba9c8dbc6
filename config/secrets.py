"""Values that nobody may see: read where they are needed, masked where they are shown."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from .errors import ConfigError, Problem

SIZE_LIMIT_BYTES = 64 * 1024
MASK = "***"


def secret(value: str, file: str) -> str:
    """`value`, or the first line of `file` when one is named; read at every call, so that a rotated secret is used.

    Raises ConfigError when the file cannot be read, is empty, or is larger than 64 KiB.
    """
    if not file:
        return value
    try:
        with Path(file).open("rb") as opened:
            raw = opened.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError([_unusable(file, error.strerror or type(error).__name__)]) from None
    if len(raw) > SIZE_LIMIT_BYTES:
        raise ConfigError([_unusable(file, "it is larger than 64 KiB")])
    lines = raw.decode("utf-8", "surrogateescape").strip().splitlines()
    if len(lines) != 1:
        raise ConfigError([_unusable(file, f"it has {len(lines)} lines, wanted one")])
    return lines[0]


def _unusable(file: str, why: str) -> Problem:
    return Problem(
        where=file, path=f"cannot read the secret: {why}", hint="give this user the right to read one line there"
    )


_USER_INFO = re.compile(r"^([a-z][a-z0-9+.-]*://)(?:([^/?#]*)@)?([^/?#@]*)(/[^?#]*)?([?#].*)?$", re.DOTALL)


def masked(url: str) -> str:
    """An address without what opens it: password and options gone, the rest kept. An unclear text: all masked."""
    if not url:
        return ""
    match = _USER_INFO.match(url)
    if match is None:
        return MASK
    scheme, login, host, path, options = (part or "" for part in match.groups())
    if "@" in path + options:  # a / ? or # in the password, not written as %2F: the parts are not what they seem
        return MASK
    user, colon, _ = login.partition(":")
    who = f"{user}{colon and ':' + MASK}@" if login else ""
    return f"{scheme}{who}{host}{path}{'?' + MASK if options else ''}"


def scheme_of(url: str) -> str:
    """The address's scheme in lower case; "" where there is none or the text is no address."""
    try:
        return urlsplit(url).scheme if "://" in url else ""
    except ValueError:
        return ""
