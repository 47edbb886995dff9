"""`HeteroEncoder`: an input of its own for each node type, before any layer that sees neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.graph_types import GraphTypes
from outgrow.core.validation import describe_value, require_counts
from outgrow.nn.encoder import Encoder
from outgrow.nn.epilogue import Epilogue, activation_module, apply_epilogue, make_norm
from outgrow.nn.hetero_checks import require_bound_types, require_widths, type_module_name
from outgrow.nn.layer import Features
from outgrow.nn.node_embedding import NodeEmbedding
from outgrow.nn.projection import Projection
from outgrow.nn.slot_layout import TypedRows
from outgrow.ops.row_slots import Slot, keep_in_graph, scatter_slots


@check_arguments()
class HeteroEncoder(Encoder):
    """``y_v = x_v W_t + b_t`` for a node of a type with features, a learned row of its own for one without them.

    As PyG's ``HeteroDictLinear`` and embeddings beside it; learned rows are those of a `NodeEmbedding`. Types of the
    encoder and of the graph are matched by name.

    Args:
        in_features: Feature columns of each type that has features.
        out_features: ``O``.
        embeddings: Number of nodes of each type whose nodes get a learned row ``[O]`` each; columns that such a type
            has are not read.
        without_input: Types whose nodes get one learned row ``[O]`` for all of them, which begins with zeros; likewise.
        shared_columns: Whether all types have features in the same columns, each with a projection of its own.
        epilogue: Operations after it; none by default.

    Raises:
        InputError: A width or number is less than 1, a type has two inputs, or the epilogue has a residual.
    """

    reads_types = True

    def __init__(
        self,
        in_features: Mapping[str, int],
        out_features: int,
        *,
        embeddings: Mapping[str, int] | None = None,
        without_input: Sequence[str] = (),
        shared_columns: bool = False,
        epilogue: Epilogue | None = None,
    ) -> None:
        super().__init__()
        for what, given in (("in_features", in_features), ("embeddings", embeddings)):
            _require_mapping(what, given)
        self.widths = dict(in_features)
        self.shared_columns = shared_columns
        self.numbers = dict(embeddings or {})
        self.without_input = tuple(without_input)
        self.epilogue = epilogue or Epilogue()
        known = [*self.widths, *self.numbers, *self.without_input]
        require_counts(out_features=out_features)
        _require_one_input(known)
        if self.epilogue.residual:
            raise InputError(
                "a HeteroEncoder has a residual",
                needed="an epilogue without one: types have inputs of other widths than the output",
                got="residual=True",
                repair="leave it out",
            )
        of_types: list[tuple[object, object]] = [*self.widths.items(), *self.numbers.items()]
        if not all(isinstance(name, str) and isinstance(count, int) for name, count in of_types):
            raise InputError(
                "a HeteroEncoder has widths of another form",
                needed="a whole number for the name of each type",
                got=repr(dict(of_types)),
                repair='give {"paper": 128}',
            )
        require_counts(in_features=sum(self.widths.values()))
        if shared_columns and len(set(self.widths.values())) > 1:
            raise InputError(
                "types of a HeteroEncoder that share columns have several widths",
                needed="one width",
                got=", ".join(f"{width} of {name}" for name, width in self.widths.items()),
                repair="leave shared_columns out, or give all types the same width",
            )
        self.in_features = max(self.widths.values()) if shared_columns else sum(self.widths.values())
        self.out_features = out_features
        self.activation_width = 4 * out_features
        self.projections = nn.ModuleDict(
            {type_module_name(name): Projection(width, out_features) for name, width in self.widths.items()}
        )
        # Rows of nodes live with their owners, and are no parameters.
        require_counts(**{f"embeddings of {name}": count for name, count in self.numbers.items()})
        self.embedding = NodeEmbedding(out_features, tuple(self.numbers)) if self.numbers else None
        self.biases = nn.ParameterDict(
            {type_module_name(name): nn.Parameter(torch.zeros(out_features)) for name in known}
        )
        self.norm = make_norm(self.epilogue, self.in_features, out_features)
        self.activation = activation_module(self.epilogue)
        self.types: GraphTypes | None = None

    def bind_types(self, types: GraphTypes) -> None:
        """Match the inputs with the node types of a graph, by name.

        Raises:
            InputError: A type of the graph has no input, has another width or number of nodes; or the graph lacks one.
        """
        _require_inputs({*self.widths, *self.numbers, *self.without_input}, types)
        require_widths("a HeteroEncoder", self.widths, types, shared=self.shared_columns)
        for name, count in self.numbers.items():
            first, last = types.type_nodes(name)
            if last - first != count:
                raise InputError(
                    f"the embedding of {name!r} does not fit the graph",
                    needed=f"{last - first:,} rows, one for each of its nodes",
                    got=f"{count:,} rows",
                    repair=f"give embeddings={{{name!r}: {last - first}}}; an embedding knows no other graph's nodes",
                )
        if self.embedding is not None:
            self.embedding.bind_types(types)
        # Also columns that none reads: readers fill those of types without features with random numbers.
        self.in_features = types.columns[-1]
        self.types = types

    def forward(self, x_VD: Features, nodes_V: Tensor, key: int | None) -> Tensor:
        """Return ``[V, O]``: the input of each node by its type, and the epilogue."""
        types = require_bound_types("a HeteroEncoder", self.types)
        if self.activation is not None:
            self.activation.train(key is not None)
        rows = TypedRows(types, nodes_V)
        given = rows.split(x_VD) if self.shared_columns else rows.split_columns(x_VD, types)
        parts = {kind: self._encode(types.names[kind], rows.nodes_of(kind), given[kind]) for kind in given}
        width = self.out_features
        like = next(iter(self.biases.values()))
        out = scatter_slots(
            list(parts.values()), [Slot(rows.rows[kind], 0, width) for kind in parts], (len(nodes_V), width), like=like
        )
        # Whichever types a worker has rows of, it takes part in the same backward exchanges.
        out = keep_in_graph(out, [each for each in self.biases.values() if each.requires_grad][:1], used=bool(parts))
        return apply_epilogue(self.epilogue, self.norm, x_VD, out, None, nodes_V, key)

    def _encode(self, name: str, nodes_n: Tensor, x_nD: Features) -> Tensor:
        """Return ``[n, O]`` of nodes of one type."""
        assert self.types is not None
        module = type_module_name(name)
        bias_O: Tensor = self.biases[module]
        out: Tensor
        if name in self.widths:
            out = self.projections[module](x_nD) + bias_O
        elif name in self.numbers:
            assert self.embedding is not None
            out = self.embedding.lookup(nodes_n).to(bias_O.device) + bias_O
        else:
            out = bias_O.expand(len(nodes_n), -1)
        return out


def _require_mapping(what: str, given: object) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise InputError(
            f"{what} of a HeteroEncoder is no mapping",
            needed="a whole number for the name of each type",
            got=describe_value(given),
            repair='give {"paper": 128}',
        )


def _require_one_input(known: Sequence[str]) -> None:
    if len(set(known)) < len(known):
        twice = sorted({name for name in known if known.count(name) > 1})
        raise InputError(
            "a type has two inputs",
            needed="features, an embedding or no input, one of them for each type",
            got=f"two for {', '.join(twice)}",
            repair="name each type once",
        )


def _require_inputs(known: set[str], types: GraphTypes) -> None:
    missing = [f"none for {name}" for name in types.names if name not in known]
    unknown = [f"one for {name}, which the graph does not have" for name in known if name not in types.names]
    if missing or unknown:
        raise InputError(
            "the inputs of a HeteroEncoder are not those of the graph's types",
            needed=f"an input for each of {', '.join(types.names)}",
            got="; ".join([*missing, *unknown]),
            repair="give in_features its columns, embeddings its number of nodes, or name it in without_input",
        )
