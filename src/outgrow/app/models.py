"""Models by name, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

from outgrow.app.option_types import require_types
from outgrow.core.errors import InputError
from outgrow.core.nearest import pick
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.nn.zoo import GAT, GCN, SAGE, Stack

MODELS: Mapping[str, Callable[..., Model]] = {
    "gcn": GCN,
    "sage": SAGE,
    "sage-max": partial(SAGE, pool="max"),
    "gat": GAT,
}
_NOT_OPTIONS = {"in_features", "out_features", "pool", "sparse_input", "stack", "activation", "return"}


def model_options(name: str) -> dict[str, Any]:
    """Options of a model and their types, ``hidden`` first.

    Raises:
        InputError: No such model.
    """
    maker = pick("model", name, MODELS)
    own = get_type_hints(maker.func if isinstance(maker, partial) else maker)
    hints = {"hidden": int, **get_type_hints(Stack), **own}
    return {option: hint for option, hint in hints.items() if option not in _NOT_OPTIONS}


def build_model(name: str, graph: Graph, options: Mapping[str, object]) -> Model:
    """Make the model ``name`` for a graph.

    Args:
        name: One of `MODELS`.
        graph: Gives the widths of features and classes, and whether features are sparse.
        options: ``hidden`` and any other of `model_options`.

    Raises:
        InputError: No such model or option, or a value that the model refuses.
    """
    known = model_options(name)
    for option in options:
        pick(f"option of model {name}", option, known)
    require_types(options, known)
    rest = {key: value for key, value in options.items() if key != "hidden"}
    if name.startswith("sage"):
        rest["sparse_input"] = graph.sparse
    try:
        return MODELS[name](graph.num_features, options["hidden"], graph.num_classes, **rest)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"model {name} cannot be built",
            needed="option values that the model takes",
            got=f"{error} (with {', '.join(f'{k}={v}' for k, v in options.items())})",
            repair="correct the option; `outgrow train --help` lists them",
        ) from error
