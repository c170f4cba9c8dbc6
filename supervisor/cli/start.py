"""`pfsup start`: run the supervisor in the foreground."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import click

from ...config.errors import ConfigError
from ...config.values import Settings
from ...domains.registry import target
from ..parent.loop import Parent, Setup
from ..parent.preload import preload
from ..parent.spec import Paths, Spec
from .common import config_option, load

DISPATCH = "pfsup.domains.dispatch:Dispatch"
HOUSEKEEPING = "pfsup.domains.housekeeping:Housekeeping"
SHARED_MODULES = ("uvloop", "psycopg", "psycopg_pool", "redis.asyncio")


@click.command("start")
@config_option
@click.option("--only", multiple=True, metavar="NAME", help="Run only this child. May be given several times.")
@click.option(
    "--app-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory to import domains of your own from.",
)
def command(config_path: str | None, only: tuple[str, ...], app_dir: Path | None) -> int:
    """Run the supervisor and its children in the foreground until SIGTERM."""
    return start(load(config_path).settings, only=only, app_dir=app_dir)


def start(settings: Settings, *, only: tuple[str, ...] = (), app_dir: Path | None = None) -> int:
    """Run until stopped; the exit code. Raises ConfigError for what can be known to be wrong without a server."""
    _open_standard_descriptors()
    specs = chosen(children(settings), only)
    _refuse_exec(settings)
    if app_dir is not None:
        sys.path.insert(0, str(app_dir.resolve()))
    from ...config.paths import control_socket, lock_file
    from ..runtime.logfile import LogFile
    from ..runtime.shell import child_main

    log_file = LogFile(settings.log, who=settings.supervisor.name)
    if settings.supervisor.preload:
        _preload(specs)
    setup = Setup(
        settings=settings,
        specs=specs,
        paths=Paths(lock=lock_file(settings.supervisor), control=control_socket(settings.supervisor)),
        child_main=child_main,
        version=version("pfsup"),
        log=log_file,
    )
    return Parent(setup).run()


def _open_standard_descriptors() -> None:
    """Put /dev/null where 0, 1 or 2 is closed: else the next thing opened gets the number, and a stray line of a
    library's lands in the lock file or on a link (seen: the epoll became every child's standard input).
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace", closefd=False))


def children(settings: Settings) -> list[Spec]:
    """Every child that the settings ask for: recovery domains first, then housekeeping, then dispatch."""
    specs = [
        Spec(name=name, target=target(name, domain), group="recovery")
        for name, domain in settings.domains.items()
        if domain.enabled
    ]
    if settings.housekeeping.enabled:
        specs.append(Spec(name="housekeeping", target=HOUSEKEEPING, group="main"))
    if settings.dispatch.enabled:
        specs.insert(0, Spec(name="dispatch", target=DISPATCH, group="main"))
    return specs


def chosen(specs: list[Spec], only: tuple[str, ...]) -> list[Spec]:
    """The children named by --only, or all. Raises UsageError for an unknown name."""
    known = {spec.name for spec in specs}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise click.UsageError(
            f"--only {', '.join(unknown)}: not among the enabled children {', '.join(sorted(known))}"
        )
    return [spec for spec in specs if not only or spec.name in only]


def _preload(specs: list[Spec]) -> None:
    modules = [spec.target.partition(":")[0] for spec in specs]
    ours = [name for name in modules if name.partition(".")[0] == "pfsup"]
    preload((*SHARED_MODULES, *ours), [name for name in modules if name not in ours])


def _refuse_exec(settings: Settings) -> None:
    if settings.supervisor.start_method == "exec":
        raise ConfigError(('supervisor.start_method: "exec" is not available in this version; use "fork"',))
