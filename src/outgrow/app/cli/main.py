"""The command ``outgrow``: its subcommands, and its error messages and exit codes."""

from __future__ import annotations

import errno
import re
import sys
import warnings
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from outgrow.app.cli import (
    append,
    calibrate,
    convert,
    datasets,
    doctor,
    info,
    links,
    partition,
    plan,
    predict,
    report,
    train,
    warm,
)
from outgrow.app.messages import log_warning
from outgrow.core.errors import InputError, OutgrowError, WorkerError
from outgrow.core.memory_limits import available_bytes
from outgrow.core.user_warnings import OWN_WARNINGS

_ASSIGNMENT = re.compile(r"[A-Za-z_][\w-]*=")
app = typer.Typer(
    name="outgrow",
    help="Train graph neural networks on graphs that have outgrown one device, one memory or one machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    train.train,
    plan.plan,
    warm.warm,
    predict.predict,
    links.links,
    report.report,
    info.info,
    convert.convert,
    append.append,
    partition.partition,
    datasets.datasets,
    calibrate.calibrate,
    doctor.doctor,
):
    app.command()(command)


@app.callback(invoke_without_command=True)
def version(
    show: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True),
) -> None:
    """Train graph neural networks on graphs that have outgrown one device, one memory or one machine."""
    if show:
        from outgrow import __version__

        typer.echo(f"outgrow {__version__}")
        raise typer.Exit


def run_cli() -> None:
    """Run the command line; exit with 2 if the input cannot be used, with 1 if training failed."""
    # Python hides these warnings by default, but users who type an old name should learn the new one.
    warnings.filterwarnings("once", message=r".* is now called ", category=DeprecationWarning)
    _show_own_warnings_as_lines()
    sys.argv[1:] = normalize_arguments(sys.argv[1:])
    try:
        app()
    except OutgrowError as error:
        print_error(error)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except OSError as error:
        # Asked for so late since any path of any option may be it.
        if error.errno != errno.ENAMETOOLONG:
            raise
        print_error(_long_name_error(error))
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        # torch raises a plain RuntimeError when CPU memory runs out: only its text tells.
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        print_error(_out_of_memory_error(error))
        sys.exit(1)


def normalize_arguments(arguments: list[str]) -> list[str]:
    """Return arguments as the parser takes them, of which no option has one value or none, or several.

    ``--resume auto`` becomes one argument, and ``--set a=1 b=2`` the same as ``--set a=1 --set b=2``.
    """
    found = list[str]()
    for argument in arguments:
        if argument == "auto" and found[-1:] == ["--resume"]:
            found[-1] = "--resume-auto"
        elif found[-2:-1] == ["--set"] and _ASSIGNMENT.match(argument):
            found += ["--set", argument]
        else:
            found.append("--resume-auto" if argument == "--resume=auto" else argument)
    return found


def _show_own_warnings_as_lines() -> None:
    """Write warnings on data and models without the line of code, which says nothing to users of the command."""
    for own in OWN_WARNINGS:
        warnings.simplefilter("always", own)
    show_in_python = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if issubclass(category, OWN_WARNINGS):
            log_warning(f"warning: {message}")
        else:
            show_in_python(message, category, *place, **options)

    warnings.showwarning = show


def _long_name_error(error: OSError) -> InputError:
    name = str(error.filename or "")
    return InputError(
        "the name of a file is too long",
        needed="a name that the file system takes, often of 255 bytes at most",
        got=f"{len(name)} characters, which begin with {name[:40]!r}",
        repair="check the path",
    )


def _out_of_memory_error(error: Exception) -> OutgrowError:
    request = re.search(r"tried to allocate (\d+) bytes", str(error))
    return OutgrowError(
        "memory is at its end",
        needed=f"{int(request[1]):,} bytes more" if request else "more memory",
        got=f"{available_bytes():,} bytes available",
        repair="choose fewer or narrower layers, and check with outgrow info that no class or feature is far too many",
    )


def print_error(error: OutgrowError) -> None:
    """Print an error for people, on standard error."""
    # Soft wrapping: hard line breaks would cut paths and commands that users copy.
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold red]error:[/] {escape(error.what)}")
    for name, text in (("needed", error.needed), ("got", error.got), ("repair", error.repair)):
        console.print(f"  [bold]{name + ':':<8}[/] {escape(text)}")
    if isinstance(error, WorkerError) and error.report:
        console.print(f"\n{escape(error.report)}")
