"""Models by name, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from outgrow.core.errors import InputError
from outgrow.core.validation import pick, require_types
from outgrow.graph.graph import Graph
from outgrow.nn.decoder import Decoder, DistMult, Dot
from outgrow.nn.decoupled import Decoupled, DecoupledGAT
from outgrow.nn.model import Model
from outgrow.nn.stack import Stack
from outgrow.nn.zoo import GAT, GCN, GGCN, GGNN, GIN, RGCN, SAGE, CommNet, FiLM, RGCNDiagonal

_NOT_OPTIONS = {"in_features", "out_features", "stack", "activation", "return"}


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model that has a name.

    Attributes:
        make: Makes it from three widths and options.
        from_graph: Options that the graph gives, never the user.
        fixed: Options that the name stands for.
    """

    make: Callable[..., Model]
    from_graph: tuple[str, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)


MODELS: Mapping[str, ModelEntry] = {
    "gcn": ModelEntry(make=GCN, from_graph=("sparse_input",)),
    "sage": ModelEntry(make=SAGE, from_graph=("sparse_input",), fixed={"pool": "mean"}),
    "sage-max": ModelEntry(make=SAGE, from_graph=("sparse_input",), fixed={"pool": "max"}),
    "gat": ModelEntry(make=GAT, fixed={"num_relations": 0}),
    "gat-relational": ModelEntry(make=GAT, from_graph=("num_relations",)),
    "gin": ModelEntry(make=GIN, from_graph=("sparse_input",)),
    "commnet": ModelEntry(make=CommNet, from_graph=("sparse_input",)),
    "decoupled": ModelEntry(make=Decoupled, fixed={"heads": 0, "num_relations": 0}),
    "decoupled-gat": ModelEntry(make=DecoupledGAT),
    "decoupled-rgcn": ModelEntry(make=Decoupled, from_graph=("num_relations",), fixed={"heads": 0}),
    "ggcn": ModelEntry(make=GGCN),
    "ggnn": ModelEntry(make=GGNN, from_graph=("sparse_input",)),
    "film": ModelEntry(make=FiLM, fixed={"num_relations": 0}),
    "film-relational": ModelEntry(make=FiLM, from_graph=("num_relations",)),
    "rgcn": ModelEntry(make=RGCN, from_graph=("sparse_input", "num_relations")),
    "rgcn-diagonal": ModelEntry(make=RGCNDiagonal, from_graph=("num_relations",)),
}


def _relations_of(graph: Graph) -> int:
    if graph.num_relations:
        return graph.num_relations
    raise InputError(
        f"the edges of {graph.name!r} have no relations",
        needed="edges with relations",
        got=f"{graph.num_edges:,} edges without",
        repair="use another model, or convert a graph whose edges have a relation column",
    )


_OF_GRAPH: Mapping[str, Callable[[Graph], object]] = {
    "sparse_input": lambda graph: graph.sparse,
    "num_relations": _relations_of,
}


AUTO = "auto"
"""The decoder that suits the graph."""
DECODERS: Mapping[str, Callable[[Graph, Any], Decoder]] = {
    "dot": lambda graph, columns: Dot(),
    "distmult": lambda graph, columns: DistMult(columns, _relations_of(graph)),
}


def default_decoder(graph: Graph) -> str:
    """The decoder of links that suits a graph."""
    return "distmult" if graph.num_relations else "dot"


def model_options(name: str) -> dict[str, Any]:
    """Options of a model and their types, ``hidden`` first and ``decoder``, one of `DECODERS`, last.

    Raises:
        InputError: No such model.
    """
    entry = pick("model", name, MODELS)
    hints = {"hidden": int, **get_type_hints(Stack), **get_type_hints(entry.make), "decoder": str}
    hidden = _NOT_OPTIONS | set(entry.from_graph) | set(entry.fixed)
    return {option: hint for option, hint in hints.items() if option not in hidden}


def build_model(name: str, graph: Graph, options: Mapping[str, object]) -> Model:
    """Make the model ``name`` for a graph.

    Args:
        name: One of `MODELS`.
        graph: Gives the widths of features and classes, whether features are sparse, and the number of relations.
        options: ``hidden`` and any other of `model_options`. With a ``decoder`` it is a model of links, which gives
            each node ``hidden`` columns.

    Raises:
        InputError: No such model or option, a value that the model refuses, or a graph that it cannot be made for.
    """
    known = model_options(name)
    for option in options:
        pick(f"option of model {name}", option, known)
    require_types(options, known)
    rest = {key: value for key, value in options.items() if key not in ("hidden", "decoder")}
    entry, hidden, decoder = MODELS[name], options["hidden"], options.get("decoder")
    given = {option: _OF_GRAPH[option](graph) for option in entry.from_graph}
    make_decoder = None if decoder is None else pick("decoder", str(decoder), DECODERS)
    try:
        width = graph.num_classes if make_decoder is None else hidden
        model = entry.make(graph.num_features, hidden, width, **entry.fixed, **given, **rest)
        return model if make_decoder is None else model.with_decoder(make_decoder(graph, hidden))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"model {name} cannot be built",
            needed="option values that the model takes",
            got=f"{error} (with {', '.join(f'{k}={v}' for k, v in options.items())})",
            repair="correct the option; `outgrow train --help` lists them",
        ) from error
