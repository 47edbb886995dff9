"""What the convolutions of a `HeteroConv` must be, and which edge types a graph must have for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outgrow.core.errors import InputError
from outgrow.core.graph_types import EdgeType, GraphTypes
from outgrow.nn.layer import Conv

_NAMES = 3


def module_name(edge_type: EdgeType) -> str:
    """Return the name that an edge type's convolution has as a module.

    Raises:
        InputError: It is no edge type.
    """
    given: object = edge_type
    if not isinstance(given, tuple) or not all(isinstance(name, str) for name in given):
        raise InputError(
            "this is no edge type",
            needed='names of the source type, the relation and the destination type, as ("user", "buys", "item")',
            got=repr(edge_type),
            repair="give those of graph.types.edge_types",
        )
    # A name of a module has no dots, which separate names of its parameters.
    return "__".join(edge_type).replace(".", "#")


def type_module_name(name: str) -> str:
    """Return the name that a node type's parameters have as a module."""
    # A prefix, since a module cannot have the name of a method; no dots, which separate names of parameters.
    return f"type_{name}".replace(".", "#")


def types_of_names(edge_types: Sequence[EdgeType]) -> GraphTypes:
    """Return types as the convolutions name them, without nodes."""
    names = tuple(dict.fromkeys(name for source, _, target in edge_types for name in (source, target)))
    none = (0,) * (len(names) + 1)
    return GraphTypes(names=names, borders=none, columns=none, edge_types=tuple(edge_types))


def require_same_edge_types(known: Sequence[EdgeType], types: GraphTypes) -> None:
    """Check that the edge types of some convolutions are those of a graph, in any order.

    Raises:
        InputError: One is missing or unknown.
    """
    missing = [each for each in types.edge_types if each not in known]
    unknown = [each for each in known if each not in types.edge_types]
    if missing or unknown:
        got = [f"no convolution for {each}" for each in missing]
        got += [f"a convolution for {each}, which the graph does not have" for each in unknown]
        raise InputError(
            "a HeteroConv does not fit the edge types of the graph",
            needed="one convolution for each of " + ", ".join(map(str, types.edge_types)),
            got="; ".join(got),
            repair="give each edge type of graph.types its convolution, such as with og.nn.to_hetero(model, graph)",
        )


def require_bound_types(what: str, types: GraphTypes | None) -> GraphTypes:
    """Return the types of a graph that a module was bound to.

    Args:
        what: The module, for the error.
        types: The types; None before `bind_types`.

    Raises:
        InputError: There are none.
    """
    if types is None:
        raise InputError(
            f"{what} does not know the types of the graph",
            needed="the types of the nodes, by their ids",
            got="a model that no graph was given for",
            repair="call model.bind_types(graph.types) first; og.train and og.predict do so",
        )
    return types


def require_convs(convs: Mapping[EdgeType, Conv]) -> None:
    """Check that convolutions can be those of a `HeteroConv`.

    Raises:
        InputError: One cannot; see `HeteroConv`.
    """
    if not _is_mapping(convs) or not convs:
        raise InputError(
            "a HeteroConv has no convolutions",
            needed="a convolution for each edge type of the graph",
            got="none" if _is_mapping(convs) else type(convs).__name__,
            repair="give {(source type, relation, destination type): convolution, ...}",
        )
    for edge_type, conv in convs.items():
        if not _is_edge_type(edge_type):
            raise InputError(
                "a HeteroConv has a key that is no edge type",
                needed='three names, such as ("author", "writes", "paper")',
                got=repr(edge_type),
                repair="name source type, relation and destination type",
            )
        if not _is_conv(conv):
            _raise_unfit(
                edge_type,
                "a convolution of og.nn",
                f"{type(conv).__module__}.{type(conv).__name__}",
                "wrap one of PyG: og.nn.PyGConv(conv, in_features, out_features)",
            )
        if conv.reads_types or conv.num_relations:
            _raise_unfit(
                edge_type,
                "a convolution of one relation",
                f"{type(conv).__name__}, which tells relations or types apart",
                "use it as a layer of its own, or one such as SAGEConv here",
            )
        if conv.spec.self_loops:
            _raise_unfit(
                edge_type,
                "a convolution without self-loops: between two types there are none",
                f"{type(conv).__name__}, which adds them",
                "use SAGEConv, or one with self_loops=False",
            )
    widths_by_type(convs)
    widths = {conv.spec.out_features for conv in convs.values()}
    if len(widths) > 1:
        raise InputError(
            "the convolutions of a HeteroConv differ in out_features",
            needed="the same width for all types, as the nodes of a layer have",
            got=", ".join(map(str, sorted(widths))),
            repair="give them one width",
        )
    counts = {conv.edge_dim for conv in convs.values() if conv.edge_dim}
    if len(counts) > 1:
        raise InputError(
            "the convolutions of a HeteroConv differ in edge_dim",
            needed="one number of features of edges, those of graph.num_edge_features, which all edge types share",
            got=", ".join(map(str, sorted(counts))),
            repair="give edge_dim=graph.num_edge_features to those that shall read features of edges, 0 to others",
        )
    names = [module_name(each) for each in convs]
    if len(set(names)) < len(names):
        raise InputError(
            "two edge types of a HeteroConv have the same name when they are joined by __",
            needed="names that stay apart",
            got=", ".join(sorted({name for name in names if names.count(name) > 1})),
            repair="rename a type or a relation",
        )


def _raise_unfit(edge_type: EdgeType, needed: str, got: str, repair: str) -> None:
    raise InputError(f"the convolution of {edge_type} does not fit a HeteroConv", needed=needed, got=got, repair=repair)


def _is_edge_type(key: object) -> bool:
    return isinstance(key, tuple) and [type(name) for name in key] == [str] * _NAMES


def _is_conv(value: object) -> bool:
    return isinstance(value, Conv)


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def widths_by_type(convs: Mapping[EdgeType, Conv]) -> dict[str, int] | None:
    """Return the input width of each type if convolutions have pairs of widths; None if all types have the same.

    Raises:
        InputError: Two convolutions expect another width of a type.
    """
    if all(conv.spec.target_in_features is None for conv in convs.values()):
        widths = {conv.spec.in_features for conv in convs.values()}
        if len(widths) > 1:
            raise InputError(
                "the convolutions of a HeteroConv differ in in_features",
                needed="the same width for all types; or pairs of widths, such as SAGEConv((128, 64), 32), of features",
                got=", ".join(map(str, sorted(widths))),
                repair="give them one width; og.nn.HeteroEncoder projects features of other widths first",
            )
        return None
    found = dict[str, int]()
    for (source, _, target), conv in convs.items():
        spec = conv.spec
        of_target = spec.in_features if spec.target_in_features is None else spec.target_in_features
        for name, width in ((source, spec.in_features), (target, of_target)):
            if found.setdefault(name, width) != width:
                raise InputError(
                    f"the convolutions of a HeteroConv differ in the width of {name!r}",
                    needed="one width of each type",
                    got=f"{found[name]} and {width}",
                    repair="give each convolution the widths of its source type and its destination type",
                )
    return found


def require_projection(edge_type: EdgeType, conv: Conv) -> Conv:
    """Return a convolution in its form that projects first.

    Raises:
        InputError: It has none.
    """
    form = conv.with_projection_first()
    if form is None:
        raise InputError(
            f"the convolution of {edge_type} does not fit a HeteroConv",
            needed="a convolution that projects its input first, where types have columns of their own",
            got=type(conv).__name__,
            repair="project the features by og.nn.HeteroEncoder before the first layer",
        )
    return form


def require_widths(what: str, widths: Mapping[str, int], types: GraphTypes, *, shared: bool = False) -> None:
    """Check that some widths are those of a graph's types.

    Raises:
        InputError: They are not, or types share their columns.
    """
    own = {name: last - first for name, (first, last) in ((name, types.type_columns(name)) for name in types.names)}
    wrong = [f"{width} of {name}" for name, width in widths.items() if own.get(name) != width]
    if not wrong and types.num_types > 1 and types.shares_columns != shared:
        wrong = [f"columns that types {'share' if shared else 'do not share'}, unlike those of the graph"]
    if wrong:
        raise InputError(
            f"{what} does not fit the columns of the graph's types",
            needed=", ".join(f"{width} of {name}" for name, width in own.items()),
            got="; ".join(wrong),
            repair="give the widths of graph.types, or one width where types share columns",
        )
