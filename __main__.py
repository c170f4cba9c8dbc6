"""`python -m pfsup` and the console script. `probe` answers before the command-line library is imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Run one command and exit with its code (README, "Exit codes")."""
    if sys.argv[1:2] == ["probe"]:
        # A probe runs every few seconds in a container: 16 ms lean, 52 with click, 227 with every import.
        from .supervisor.cli.probe import main as probe

        sys.exit(probe(sys.argv[2:]))
    from .supervisor.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
