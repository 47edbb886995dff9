"""Models by name, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice, validate_types
from outgrow.graph.graph import Graph
from outgrow.graph.inverse_relations import has_inverses
from outgrow.nn.bilinear_decoders import Bilinear, ComplEx
from outgrow.nn.compgcn import CompGCN, ComposedDistMult
from outgrow.nn.decoder import Decoder, DistMult, Dot
from outgrow.nn.decoupled import SIGN, Decoupled, DecoupledGAT
from outgrow.nn.distance_decoders import RotatE, TransE
from outgrow.nn.edge_models import GINE, EdgeNetwork, GATv2, Transformer
from outgrow.nn.encoder import Encoder
from outgrow.nn.epilogue import Epilogue
from outgrow.nn.mlp_decoder import MLPDecoder
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import NodeEmbedding
from outgrow.nn.nodewise import MLP, Embedding
from outgrow.nn.stack import Stack
from outgrow.nn.to_hetero import to_hetero
from outgrow.nn.typed_models import HGT, TypedRGCN, make_type_encoder
from outgrow.nn.zoo import GAT, GCN, GGCN, GGNN, GIN, RGCN, SAGE, CommNet, FiLM, RGCNDiagonal

EMBEDDING_OPTIONS: Mapping[str, type] = {"embedding": int, "embedding_combine": str, "embedding_std": float}
"""Options of a `NodeEmbedding` before the first layer of a model, and their types."""
TYPE_ENCODER = "type_encoder"
"""Option for an input of its own for each node type before the first layer: `make_type_encoder`."""
_OUTSIDE = {"hidden", "hetero", "decoder", TYPE_ENCODER, *EMBEDDING_OPTIONS}
_WITHOUT_TYPES = ("embedding", "mlp")
"""Models whose input is never one by type unasked."""
_NOT_OPTIONS = {"in_features", "out_features", "stack", "activation", "return"}


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """Model that can be built by name.

    Attributes:
        build: Function from input, hidden and output width, and options, to the model.
        graph_options: Options that are taken from the graph, never from the user.
        fixed_options: Options that the name implies.
        needs_edge_features: Whether the model cannot be built for a graph whose edges have no features.
        typed: Whether its layers may be copied for each edge type (`to_hetero`).
        encodes_types: Whether it finds the feature columns of each node type itself.
        is_stack: Whether it has the options of `Stack`.
    """

    build: Callable[..., Model]
    graph_options: tuple[str, ...] = ()
    fixed_options: Mapping[str, object] = field(default_factory=dict)
    needs_edge_features: bool = False
    typed: bool = False
    encodes_types: bool = False
    is_stack: bool = True


_FIXED_WEIGHTS: Mapping[str, object] = {"heads": 0, "num_relations": 0}
"""Options of a decoupled model whose weights of edges the graph fixes."""
_RELATIONAL: Mapping[str, object] = {"heads": 0, "aggregator": "symmetric"}
"""Options of one whose weights are those of relations."""
MODELS: Mapping[str, ModelEntry] = {
    "gcn": ModelEntry(build=GCN, graph_options=("sparse_input",)),
    "sage": ModelEntry(build=SAGE, graph_options=("sparse_input",), fixed_options={"pool": "mean"}, typed=True),
    "sage-max": ModelEntry(build=SAGE, graph_options=("sparse_input",), fixed_options={"pool": "max"}, typed=True),
    "gat": ModelEntry(build=GAT, graph_options=("edge_dim",), fixed_options={"num_relations": 0}, typed=True),
    "gat-relational": ModelEntry(build=GAT, graph_options=("num_relations", "edge_dim")),
    "gatv2": ModelEntry(build=GATv2, graph_options=("edge_dim",), typed=True),
    "transformer": ModelEntry(build=Transformer, graph_options=("edge_dim",), typed=True),
    "gin": ModelEntry(build=GIN, graph_options=("sparse_input",), typed=True),
    "gine": ModelEntry(build=GINE, graph_options=("sparse_input", "edge_dim"), needs_edge_features=True, typed=True),
    "edge-network": ModelEntry(build=EdgeNetwork, graph_options=("sparse_input", "edge_dim"), needs_edge_features=True),
    "commnet": ModelEntry(build=CommNet, graph_options=("sparse_input",), typed=True),
    "decoupled": ModelEntry(build=Decoupled, fixed_options={**_FIXED_WEIGHTS, "aggregator": "symmetric"}),
    "decoupled-gat": ModelEntry(build=DecoupledGAT),
    "decoupled-gin": ModelEntry(build=Decoupled, fixed_options={**_FIXED_WEIGHTS, "aggregator": "sum"}),
    "decoupled-rgcn": ModelEntry(build=Decoupled, graph_options=("num_relations",), fixed_options=_RELATIONAL),
    "decoupled-sage": ModelEntry(build=Decoupled, fixed_options={**_FIXED_WEIGHTS, "aggregator": "mean"}),
    "ggcn": ModelEntry(build=GGCN, typed=True),
    "ggnn": ModelEntry(build=GGNN, graph_options=("sparse_input",), typed=True),
    "film": ModelEntry(build=FiLM, fixed_options={"num_relations": 0}, typed=True),
    "film-relational": ModelEntry(build=FiLM, graph_options=("num_relations",)),
    "hgt": ModelEntry(build=HGT, graph_options=("types",), encodes_types=True),
    "rgcn": ModelEntry(build=RGCN, graph_options=("sparse_input", "num_relations")),
    "rgcn-typed": ModelEntry(build=TypedRGCN, graph_options=("sparse_input", "types"), encodes_types=True),
    "embedding": ModelEntry(build=Embedding, is_stack=False),
    "mlp": ModelEntry(build=MLP),
    "sgc": ModelEntry(build=SIGN, fixed_options={"concat_hops": False}),
    "sign": ModelEntry(build=SIGN, fixed_options={"concat_hops": True}),
    "rgcn-diagonal": ModelEntry(build=RGCNDiagonal, graph_options=("num_relations",)),
    "compgcn": ModelEntry(build=CompGCN, graph_options=("sparse_input", "num_relations", "inverses")),
}


def _count_relations(graph: Graph) -> int:
    if graph.num_relations:
        return graph.num_relations
    raise InputError(
        f"the edges of {graph.name!r} have no relations",
        needed="edges with relations",
        got=f"{graph.num_edges:,} edges without",
        repair="use another model, or convert a graph whose edges have a relation column",
    )


def _require_edge_features(graph: Graph, name: str) -> None:
    if not graph.num_edge_features:
        raise InputError(
            f"the edges of {graph.name!r} have no features",
            needed=f"edges with features, which model {name} reads",
            got=f"{graph.num_edges:,} edges without",
            repair="use another model, or give the graph features of edges",
        )


_OF_GRAPH: Mapping[str, Callable[[Graph], object]] = {
    "sparse_input": lambda graph: graph.sparse,
    "num_relations": _count_relations,
    "inverses": lambda graph: has_inverses(graph.relation_names),
    "edge_dim": lambda graph: graph.num_edge_features,
    "types": lambda graph: graph.types,
}


AUTO = "auto"
"""Name that stands for the decoder that suits the graph."""
DECODERS: Mapping[str, Callable[[Graph, Any, Model], Decoder]] = {
    "dot": lambda graph, columns, encoder: Dot(),
    "distmult": lambda graph, columns, encoder: DistMult(columns, _count_relations(graph)),
    "complex": lambda graph, columns, encoder: ComplEx(columns, _count_relations(graph)),
    "bilinear": lambda graph, columns, encoder: Bilinear(columns, _count_relations(graph)),
    "transe": lambda graph, columns, encoder: TransE(columns, _count_relations(graph)),
    "rotate": lambda graph, columns, encoder: RotatE(columns, _count_relations(graph)),
    "mlp": lambda graph, columns, encoder: MLPDecoder(columns, graph.num_relations),
    "composed-distmult": lambda graph, columns, encoder: ComposedDistMult(encoder),
}


def choose_decoder(graph: Graph) -> str:
    """Return the name of the link decoder that suits a graph."""
    return "distmult" if graph.num_relations else "dot"


def reads_relations(name: str, settings: Mapping[str, object]) -> bool:
    """Whether a model of this name and these settings reads the relations of edges."""
    of_decoder = settings.get("decoder") not in (None, "dot")
    return of_decoder or bool({"num_relations", "types"} & set(MODELS[name].graph_options))


def reads_types(name: str, settings: Mapping[str, object]) -> bool:
    """Whether a model of this name and these settings has modules per type."""
    return MODELS[name].encodes_types or bool(settings.get("hetero")) or bool(settings.get(TYPE_ENCODER))


def resolve_model_options(name: str, graph: Graph, settings: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a model with those that depend on the graph, so that a resumed run has the same.

    Of types of nodes some of which have features and some have none, each gets an input of its own before the first
    layer of a model that has none: a projection of the features, or a vector for each node.
    """
    if MODELS[name].encodes_types or name in _WITHOUT_TYPES or {TYPE_ENCODER, *EMBEDDING_OPTIONS} & settings.keys():
        return dict(settings)
    widths = [kind.num_columns for kind in graph.node_types]
    return {**settings, TYPE_ENCODER: True} if any(widths) and not all(widths) else dict(settings)


def model_options(name: str) -> dict[str, Any]:
    """Return options of a model and their types, ``hidden`` first and ``decoder``, one of `DECODERS`, last.

    Models of one kind of edges also have ``hetero``: a copy of each convolution for each edge type (`to_hetero`); those
    without inputs per type have ``type_encoder``, such inputs before the first layer, and ``embedding``, the width of a
    `NodeEmbedding` there, with its options.

    Raises:
        InputError: There is no such model.
    """
    entry = validate_choice("model", name, MODELS)
    # Signatures are the only list of options: a new parameter of a model needs no entry here.
    typed = {"hetero": bool} if entry.typed else {}
    vectors = {} if entry.encodes_types or name == "embedding" else {TYPE_ENCODER: bool, **EMBEDDING_OPTIONS}
    stack = get_type_hints(Stack) if entry.is_stack else {}
    hints = {"hidden": int, **stack, **get_type_hints(entry.build), **typed, **vectors, "decoder": str}
    hidden = _NOT_OPTIONS | set(entry.graph_options) | set(entry.fixed_options)
    return {option: hint for option, hint in hints.items() if option not in hidden}


def adds_vectors(name: str, settings: Mapping[str, object]) -> bool:
    """Whether a model of this name and these settings has a vector for each node."""
    return name == "embedding" or "embedding" in settings


def _make_encoder(graph: Graph, options: Mapping[str, Any]) -> Encoder | None:
    """Return what options ask for before the first layer of a model."""
    if not options.get(TYPE_ENCODER):
        return _make_embedding(graph, options)
    if given := [name for name in EMBEDDING_OPTIONS if name in options]:
        raise InputError(
            "a model has two inputs",
            needed=f"{TYPE_ENCODER}, or vectors of all nodes",
            got=f"{TYPE_ENCODER}=true and {', '.join(given)}",
            repair=f"leave one of them out: {TYPE_ENCODER} gives vectors to types without features",
        )
    return make_type_encoder(graph.types, graph.num_features, options["hidden"], Epilogue(), embeddings=True)


def _make_embedding(graph: Graph, options: Mapping[str, object]) -> NodeEmbedding | None:
    """Return the embedding that options ask for before the first layer of a model."""
    given = {name.removeprefix("embedding_"): options[name] for name in EMBEDDING_OPTIONS if name in options}
    if "embedding" not in given:
        if given:
            raise InputError(
                "options of vectors of nodes are given without their width",
                needed="embedding, the width of a vector",
                got=", ".join(f"embedding_{name}={value}" for name, value in given.items()),
                repair="give embedding=64 too",
            )
        return None
    dim: Any = given.pop("embedding")
    return NodeEmbedding(dim, in_features=graph.num_features, **given)  # type: ignore[arg-type]


def build_model(name: str, graph: Graph, options: Mapping[str, object]) -> Model:
    """Make the model ``name`` for a graph.

    Args:
        name: One of `MODELS`.
        graph: Determines the numbers of features, classes and relations, and whether features are sparse.
        options: ``hidden`` and any other of `model_options`. With a ``decoder`` the result is a link model,
            whose embeddings have ``hidden`` columns.

    Raises:
        InputError: There is no such model or option, or the model refuses a value or the graph.
    """
    known = model_options(name)
    for option in options:
        validate_choice(f"option of model {name}", option, known)
    validate_types(options, known)
    rest = {key: value for key, value in options.items() if key not in _OUTSIDE}
    entry, hidden, decoder = MODELS[name], options["hidden"], options.get("decoder")
    if entry.needs_edge_features:
        _require_edge_features(graph, name)
    given = {option: _OF_GRAPH[option](graph) for option in entry.graph_options}
    make_decoder = None if decoder is None else validate_choice("decoder", str(decoder), DECODERS)
    try:
        # A link model ends with embeddings for the decoder instead of a logit for each class.
        width = graph.num_classes if make_decoder is None else hidden
        encoder = _make_encoder(graph, options)
        columns = graph.num_features
        if encoder is not None:
            columns = encoder.out_features
            # The first layer reads what the encoder makes, which is dense.
            given |= {"sparse_input": False} if "sparse_input" in given else {}
        model = entry.build(columns, hidden, width, **entry.fixed_options, **given, **rest)
        if encoder is not None:
            model = model.with_encoder(encoder)
        if options.get("hetero"):
            model = to_hetero(model, graph)
        return model if make_decoder is None else model.with_decoder(make_decoder(graph, hidden, model))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"model {name} cannot be built",
            needed="option values that the model takes",
            got=f"{error} (with {', '.join(f'{k}={v}' for k, v in options.items())})",
            repair="correct the option; `outgrow train --help` lists them",
        ) from error
