"""`pfsup probe live|ready`: exit 0 or 1, for container and service probes. Imports neither click nor pydantic."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ...config.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, PfsupError

if TYPE_CHECKING:
    import click

USAGE = "usage: pfsup probe live|ready [-c FILE]"
HELP = f"{USAGE}\n\nExit 0 if the supervisor is live (its loop turns) or ready (every wanted child works), else 1."
REPLY_S = 2.0


def main(argv: list[str]) -> int:
    """Answer by exit code: 0 yes; 1 no, or nobody answers; 2 usage. `argv` is what follows `probe`."""
    config, words, bad = _parse(argv)
    if not bad and words in (["--help"], ["-h"]):
        print(HELP)
        return EXIT_OK
    if bad or words not in (["live"], ["ready"]):
        print(USAGE, file=sys.stderr)
        return EXIT_USAGE
    return probe(words[0], config)


def probe(what: str, config_path: str | None) -> int:
    """0 if the supervisor says so within 2 s, else 1 with the reason on standard error."""
    from .address import control_path
    from .client import ask

    try:
        reply = ask(control_path(config_path), "probe", within_s=REPLY_S)
    except PfsupError as error:
        return _no(str(error))
    except (OSError, KeyboardInterrupt) as error:
        return _no(f"cannot ask: {getattr(error, 'strerror', None) or 'interrupted'}")
    return EXIT_OK if reply.get(what) is True else _no(f"not {what}; see: pfsup status")


def _no(why: str) -> int:
    print(f"pfsup: {why}", file=sys.stderr)
    return EXIT_FAILED


def _parse(argv: list[str]) -> tuple[str | None, list[str], bool]:
    config: str | None = None
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word in ("-c", "--config"):
            config = next(rest, None)
            if config is None:
                return None, [], True
        elif word.startswith("--config="):
            config = word.partition("=")[2]
        else:
            words.append(word)
    return config, words, False


def _command() -> click.Command:
    import click

    from .common import config_option

    @click.command("probe")
    @click.argument("what", type=click.Choice(["live", "ready"]))
    @config_option
    def command(what: str, config_path: str | None) -> int:
        """Exit 0 if the supervisor is live or ready, else 1."""
        return probe(what, config_path)

    return command


def __getattr__(name: str) -> Any:
    """`command` is made when the command line's help asks for it."""
    if name == "command":
        return _command()
    raise AttributeError(name)
