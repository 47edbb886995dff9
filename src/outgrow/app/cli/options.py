"""Options that several commands have: ``--device``, tasks of decoders, and parsing of ``--set NAME=VALUE``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import typer

from outgrow.core.errors import InputError

DEVICE = typer.Option(
    help="What workers compute on: cpu, cuda for a device each, or auto: the CUDA device if there is one and "
    "one worker, else cpu."
)
ALLOW_OVERLAP = typer.Option(
    "--allow-overlap",
    help="Take links to validate and to test on that are training links too, or in both parts, as they are given.",
)
ALLOW_UNSEEN_RELATIONS = typer.Option(
    "--allow-unseen-relations",
    help="Take links to validate and to test on of relations that no training link has.",
)


def parse_assignments(texts: Iterable[str]) -> dict[str, object]:
    """Parse assignments: ``["heads=8", "norm=true"]`` to ``{"heads": 8, "norm": True}``.

    Raises:
        InputError: A text has no name or no ``=``.
    """
    options: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(
                f"--set {text!r} is not an assignment",
                needed="NAME=VALUE, such as --set weight_decay=0.01",
                got=repr(text),
                repair="write the name of the option, an equals sign and its value",
            )
        options[name.strip().replace("-", "_")] = _parse_value(value.strip())
    return options


def require_task_of_decoder(task: str | None, options: Mapping[str, object]) -> None:
    """Check that a decoder is given for links alone.

    Raises:
        InputError: There is one beside another task.
    """
    if task not in (None, "links") and "decoder" in options:
        raise InputError(
            "a decoder is for links",
            needed="--task links, or no decoder",
            got=f"--task {task} with decoder {options['decoder']}",
            repair="leave one of both out",
        )


_JSON_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}


def _parse_value(text: str) -> object:
    # JSON gives numbers, booleans and lists their types; anything else is a string, without quotes.
    try:
        value: object = json.loads(_JSON_OF_PYTHON.get(text, text))
    except ValueError:
        return text
    return value
