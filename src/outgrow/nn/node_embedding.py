"""`NodeEmbedding`: a learned vector for each node, beside, instead of, or added to its features.

The vectors are data of nodes, not parameters of the model: in training each worker holds those of its own nodes (see
`outgrow.engine.embeddings`), and no gradient of them is summed over all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.graph_types import GraphTypes
from outgrow.core.validation import require_counts, validate_choice
from outgrow.nn.encoder import Encoder
from outgrow.nn.layer import Features
from outgrow.nn.projection import Projection
from outgrow.ops.keyed_rows import draw_uniform_rows

REPLACE, ADD, CONCAT = "replace", "add", "concat"
COMBINATIONS = (REPLACE, ADD, CONCAT)
"""What becomes of the features of a node that has a vector."""
NodeRanges = tuple[tuple[int, int], ...]
"""First node and last node, plus 1, of each range; ascending."""


class EmbeddingRows(Protocol):
    """Vectors of nodes, wherever they are."""

    def lookup(self, nodes_N: Tensor) -> Tensor:
        """Return ``[N, dim]``, differentiable in the vectors; zeros for nodes of types without vectors."""


@check_arguments()
class NodeEmbedding(Encoder):
    """A learned vector for each node, as input of the first layer. Final.

    Vectors belong to the graph that they were trained on. A node that was not in it gets the mean of all vectors.
    Before training they are drawn: uniform, with the standard deviation ``std``, by the number of the node and a
    seed that torch's generator gives when the module is made.

    Args:
        dim: Numbers in a vector.
        types: Node types whose nodes have vectors; other types have zeros. None for all nodes.
        in_features: ``D``, columns of the features; 0 for a graph without features.
        combine: ``replace``: the vector instead of the features; ``add``: the vector plus a linear map of the
            features to ``dim`` columns; ``concat``: the features, which must be dense, and then the vector. None for
            ``add`` where there are features.
        std: Standard deviation of the first vectors; None for ``dim ** -0.5``, with which a vector has a length near 1.

    Attributes:
        weight: ``[m, dim]``, vectors of all nodes of the types, in the order of nodes; None before training, and where
            they do not fit into memory.

    Raises:
        InputError: A width or ``std`` that is not positive, another ``combine``, or one that needs features.
    """

    weight: Tensor | None
    seed: Tensor

    def __init__(
        self,
        dim: int,
        types: Sequence[str] | str | None = None,
        *,
        in_features: int = 0,
        combine: str | None = None,
        std: float | None = None,
    ) -> None:
        super().__init__()
        require_counts(dim=dim)
        self.dim = dim
        self.types = None if types is None else (types,) if isinstance(types, str) else tuple(types)
        self.combine = combine or (ADD if in_features else REPLACE)
        self.in_features = in_features
        self.std = dim**-0.5 if std is None else std
        validate_choice("combine", self.combine, dict.fromkeys(COMBINATIONS))
        _require_sensible(self)
        if self.combine == REPLACE:
            self.in_features = 0
        self.out_features = dim + in_features if self.combine == CONCAT else dim
        self.accepts_sparse = self.combine != CONCAT
        self.accepts_half = self.combine != CONCAT
        self.activation_width = 2 * self.out_features + dim
        self.reads_types = self.types is not None
        self.reads_features = self.combine != REPLACE
        self.project = Projection(in_features, dim) if self.combine == ADD else None
        self.ranges: NodeRanges | None = None
        self.register_buffer("seed", torch.randint(1 << 62, (), dtype=torch.int64))
        self.register_buffer("weight", None)
        # Has the type and the device of the vectors, which may be elsewhere.
        self.register_buffer("like", torch.empty(0), persistent=False)
        self.rows: EmbeddingRows | None = None
        self._mean: tuple[Tensor, Tensor] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Type of the vectors."""
        like = self.like
        assert isinstance(like, Tensor)
        return like.dtype

    def bind_types(self, types: GraphTypes) -> None:
        """Find the nodes of the types that have vectors.

        Raises:
            InputError: The graph has no type of a name.
        """
        if self.types is None:
            return
        for name in self.types:
            validate_choice("type of a NodeEmbedding", name, dict.fromkeys(types.names))
        self.ranges = tuple(sorted(types.type_nodes(name) for name in self.types))

    def embedded_ranges(self, num_nodes: int) -> NodeRanges:
        """Return the nodes of a graph that have vectors."""
        return ((0, num_nodes),) if self.ranges is None else self.ranges

    def draw_rows(self, nodes_N: Tensor) -> Tensor:
        """Return ``[N, dim]``: vectors before training, in host memory."""
        bound = self.std * 3**0.5
        return draw_uniform_rows(nodes_N, self.dim, bound, int(self.seed), self.dtype)

    def forward(self, x_VD: Features, nodes_V: Tensor, key: int | None) -> Tensor:
        """Return ``[V, O]``: vectors, with the features as ``combine`` says."""
        vectors = self.lookup(nodes_V)
        if self.project is not None:
            projected: Tensor = self.project(x_VD)
            return projected + vectors
        if self.combine == REPLACE:
            return vectors
        assert isinstance(x_VD, Tensor)
        return torch.cat([x_VD.to(vectors.dtype), vectors], 1)

    def lookup(self, nodes_N: Tensor) -> Tensor:
        """Return ``[N, dim]``: the vectors alone, zeros for nodes of types without; differentiable in training."""
        return self._lookup_trained(nodes_N) if self.rows is None else self.rows.lookup(nodes_N)

    def _lookup_trained(self, nodes_N: Tensor) -> Tensor:
        """Return vectors outside of training: trained ones, the mean for nodes beyond them, or those of before."""
        host = nodes_N.cpu()
        if self.weight is None:
            return zero_others(self.draw_rows(host), host, self.ranges).to(nodes_N.device)
        rows = rows_in_ranges(host, self.embedded_ranges(len(self.weight)))
        known = rows >= 0
        out = self.weight.new_zeros(len(host), self.dim)
        out[known.to(out.device)] = self.weight[rows[known].to(out.device)]
        if self.ranges is None and not known.all():
            out[~known.to(out.device)] = self.mean_row
        return out.to(nodes_N.device)

    @property
    def mean_row(self) -> Tensor:
        """``[dim]``: mean of all vectors, which nodes that were not trained get."""
        assert self.weight is not None
        # Once for all chunks of an inference: the vectors may lie in a file. By identity, as they may be replaced.
        if self._mean is None or self._mean[0] is not self.weight:
            self._mean = self.weight, self.weight.mean(0, dtype=torch.float64).to(self.weight.dtype)
        return self._mean[1]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # Vectors that were trained come as a tensor, where a new module has none.
        given = state_dict.get(f"{prefix}weight")
        if isinstance(given, Tensor):
            if given.ndim == 2 and given.shape[1] == self.dim:
                self.weight = torch.empty_like(given, dtype=self.dtype, device=self.seed.device)
        else:
            self.weight = None
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        # Copies, such as those of other processes, do not train the rows of this one.
        return {**self.__dict__, "rows": None, "_mean": None}


def rows_in_ranges(nodes_N: Tensor, ranges: NodeRanges) -> Tensor:
    """Return ``[N]`` int64: the row of each node among those of all ranges, joined; -1 for nodes of none."""
    rows = torch.full_like(nodes_N, -1)
    before = 0
    for first, last in ranges:
        here = (nodes_N >= first) & (nodes_N < last)
        rows[here] = nodes_N[here] - first + before
        before += last - first
    return rows


def zero_others(rows_NF: Tensor, nodes_N: Tensor, ranges: NodeRanges | None) -> Tensor:
    """Return the rows, with zeros for nodes in none of the ranges; None for all nodes."""
    if ranges is None:
        return rows_NF
    return torch.where((rows_in_ranges(nodes_N, ranges) >= 0)[:, None], rows_NF, torch.zeros_like(rows_NF))


def find_embeddings(model: torch.nn.Module) -> dict[str, NodeEmbedding]:
    """Return the node embeddings of a model, by the names that they have as modules."""
    return {name: each for name, each in model.named_modules() if isinstance(each, NodeEmbedding)}


def count_embedding_numbers(model: torch.nn.Module, num_nodes: int) -> int:
    """Return how many numbers the vectors of a graph have in all; the model is bound to its types."""
    return sum(
        each.dim * sum(last - first for first, last in each.embedded_ranges(num_nodes))
        for each in find_embeddings(model).values()
    )


def _require_sensible(embedding: NodeEmbedding) -> None:
    if not embedding.std > 0:
        raise InputError(
            "vectors of a NodeEmbedding cannot be drawn",
            needed="std above 0",
            got=repr(embedding.std),
            repair="leave std out for a sensible one",
        )
    if embedding.in_features < 0 or (embedding.combine != REPLACE and embedding.in_features == 0):
        raise InputError(
            f"a NodeEmbedding with combine={embedding.combine!r} has no features to combine with",
            needed="in_features, the number of feature columns",
            got=f"in_features={embedding.in_features}",
            repair="give in_features=graph.num_features, or leave combine out for a graph without features",
        )
