"""Models, features and partitions that the exactness suite trains with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from layer_table import CONVS, IN, OUT, RELATIONS
from torch import Tensor, nn

from outgrow.nn.decoupled import SIGN, Decoupled
from outgrow.nn.epilogue import Epilogue
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.sparse import SparseRows
from support import normal

DECOUPLED: dict[str, dict[str, Any]] = {
    "decoupled": {},
    "decoupled-attention": {"heads": 2},
    "decoupled-relations": {"num_relations": RELATIONS},
    "decoupled-sum": {"aggregator": "sum"},
    "decoupled-restarts": {"alpha": 0.3},
    "decoupled-attention-restarts": {"alpha": 0.3, "heads": 2},
}
"""Options of decoupled models, which stand for a convolution in a case."""
PROPAGATED: dict[str, dict[str, Any]] = {
    "propagated-features": {"alpha": 0.2, "aggregator": "mean", "concat_hops": False},
    "propagated-hops": {},
}
"""Options of `SIGN`, which propagates dense features before all else."""


class Case(NamedTuple):
    """A model of one kind of layers on one graph, dealt out in one way.

    Attributes:
        conv: Which of `CONVS`, of `DECOUPLED` or of `PROPAGATED`.
        graph: Which of the suite's ``GRAPHS``.
        deal: Which of its ``DEALS``.
        input_dropout: Dropout of the features: with 0 a first aggregate may be constant.
        features: ``dense``, ``sparse``, ``blocks`` or ``half``, which stays so with parameters in float32 only.
        task: Which of its ``TASKS``.
        dtype: Of the parameters.
    """

    conv: str
    graph: str = "multi-graph"
    deal: str = "scattered"
    input_dropout: float = 0.0
    features: str = "dense"
    task: str = "single"
    dtype: torch.dtype = torch.float64

    @property
    def tolerance(self) -> float:
        """Largest difference that the order of additions explains."""
        return 1e-10 if self.dtype == torch.float64 else 2e-5


def model_of(case: Case) -> Model:
    """A model of which no parameter is zero."""
    torch.manual_seed(1)
    makes = propagated if case.conv in PROPAGATED else decoupled if case.conv in DECOUPLED else coupled
    model = makes(case)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(case.dtype)


def coupled(case: Case) -> Model:
    """Three layers with all that may follow a convolution."""
    residual = case.features == "dense"
    hidden = Epilogue(norm=True, activation=nn.functional.elu, residual=residual, dropout=0.3)
    finishes = (hidden, Epilogue(activation=torch.relu, dropout=0.2), None)
    return Model([Layer(CONVS[case.conv](), finish) for finish in finishes], input_dropout=case.input_dropout)


def decoupled(case: Case) -> Model:
    """Two dense layers with all that may follow one, then three rounds of propagation."""
    after: dict[str, Any] = {"norm": True, "activation": nn.functional.elu, "dropout": 0.3}
    return Decoupled(IN, 5, OUT, rounds=3, gamma=0.9, input_dropout=case.input_dropout, **DECOUPLED[case.conv], **after)


def propagated(case: Case) -> Model:
    """Three layers: propagation of the features, dropout of the result if there is any, and a projection."""
    rounds = 1 if case.input_dropout else 2
    return SIGN(IN, 5, OUT, rounds=rounds, layers=1, input_dropout=case.input_dropout, **PROPAGATED[case.conv])


def features_of(case: Case, num_nodes: int) -> Features:
    """``[V, IN]``; of the sparse ones and of blocks some rows are empty."""
    dense = normal(num_nodes, IN, seed=3)
    if case.features == "dense":
        return dense.to(case.dtype)
    if case.features == "half":
        return dense.half()
    if case.features == "blocks":
        third, width = num_nodes // 3, IN // 2
        ranges = slice(0, third), slice(num_nodes - third, num_nodes)
        parts = dense[ranges[0], :width], dense[ranges[1], width:]
        return BlockRows(blocks=tuple(part.contiguous() for part in parts), rows=ranges, num_rows=num_nodes)
    stored = dense > 0.5
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), stored.sum(1).cumsum(0)])
    columns = stored.nonzero()[:, 1].int()
    return SparseRows(indptr=ends, indices=columns, values=dense[stored], num_columns=IN)


def _scattered(num_nodes: int, size: int) -> Tensor:
    return torch.from_numpy(normal(num_nodes, seed=7).argsort().numpy() % size)


def _one_node(num_nodes: int, size: int) -> Tensor:
    """All nodes but one belong to the last worker, and one to the first: with three and more, some own nothing."""
    owner = torch.full((num_nodes,), size - 1)
    owner[num_nodes // 2] = 0
    return owner


def _ranges(num_nodes: int, size: int) -> Tensor:
    return torch.arange(num_nodes) * size // num_nodes


DEALS: dict[str, Callable[[int, int], Tensor]] = {
    "scattered": _scattered,
    "one-node-part": _one_node,
    "ranges": _ranges,
}
