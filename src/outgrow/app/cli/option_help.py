"""``outgrow train --help-options NAME``: what the options of a strategy, of a model or of training mean."""

from __future__ import annotations

import typer


def show_options(name: str | None) -> None:
    """Print the options of a strategy, of a model or of training, and stop; do nothing without a name.

    Raises:
        InputError: There is nothing of that name.
    """
    if name is None:
        return
    from rich.console import Console
    from rich.table import Table

    from outgrow.app.option_reference import list_option_descriptions

    table = Table(title=f"options of {name}, for --set NAME=VALUE", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("default", overflow="fold")
    table.add_column("meaning", ratio=1)
    for option in list_option_descriptions(name):
        table.add_row(option.name, option.default, option.meaning.replace("`", ""))
    Console(markup=False).print(table)
    raise typer.Exit


HELP_OPTIONS = typer.Option(
    "--help-options",
    metavar="NAME",
    help="Show what --set takes of a strategy, of a model, or of training, and stop.",
    is_eager=True,
    callback=show_options,
    show_default=False,
)
