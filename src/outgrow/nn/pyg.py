"""Convolutions of PyTorch Geometric, used unchanged.

Most of them materialise a row for each edge, as in PyG: their memory grows with edges times columns.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block, Edges
from outgrow.core.errors import InputError
from outgrow.core.validation import require_counts
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.aggregation.relation_edges import validate_relations
from outgrow.ops.csc import make_edge_index
from outgrow.ops.edge_features import dense_edge_features, read_edge_features

# Two destinations with two in-edges each, one of them from a source that is no destination.
_PROBE = torch.tensor([[0, 1, 2, 1], [0, 0, 1, 1]])


class PyGAggregation(nn.Module, Aggregation):
    """Aggregation by a PyG convolution. Its inner working is unknown, so it is never split.

    Args:
        conv: Called as ``conv((x_src, x_dst), edge_index)``, with ``edge_weight`` and ``edge_type`` if it
            accepts them and the graph has them, and with ``edge_attr`` if it reads features of edges.
        num_relations: Number of relations that it reads; 0 for none.
        edge_dim: Features of edges that it reads; 0 for none.
    """

    sliceable = False
    additive = False

    def __init__(self, conv: nn.Module, num_relations: int = 0, edge_dim: int = 0) -> None:
        super().__init__()
        self.edge_dim = edge_dim
        self.conv = conv
        self.num_relations = num_relations
        self.accepts_weight = "edge_weight" in inspect.signature(conv.forward).parameters

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate with the PyG convolution; one channel on both sides, no weights of ours."""
        assert dst_VdCF is not None
        assert weight_EK is None
        edges = block.edges
        extra: dict[str, Tensor] = {}
        if self.accepts_weight and edges.weight is not None:
            extra["edge_weight"] = edges.weight.to(src_VsCF.dtype)
        if self.num_relations:
            validate_relations(edges, self.num_relations)
            assert edges.relation is not None
            extra["edge_type"] = edges.relation.long()
        if self.edge_dim:
            features = read_edge_features(edges, self.edge_dim)
            extra["edge_attr"] = dense_edge_features(*features, self.edge_dim, src_VsCF.dtype)
        # Evaluation and training alternate within a run; the key tells which of both this call is.
        self.conv.train(block.key is not None)
        out: Tensor = self.conv((src_VsCF.squeeze(1), dst_VdCF.squeeze(1)), edge_index(edges), **extra)
        return out[:, None]


@check_arguments()
class PyGConv(Conv):
    """Any PyTorch Geometric convolution that accepts a bipartite pair ``(x_src, x_dst)``, unchanged.

    Its memory grows with edges times columns, and its columns cannot be sliced. If it uses dropout, it draws
    from torch's generator, not from a key: it trains, but runs that use it report ``exact: false``.

    Args:
        conv: The convolution, with its input width set. Used, not copied.
        in_features: ``D``.
        out_features: ``O``, all heads together.
        self_loops: Whether to add one self-loop per node, with zeros as features. The convolution must not add any
            itself.
        edge_dim: Features of edges, ``graph.num_edge_features``, that the convolution gets as ``edge_attr``; None for
            its own ``edge_dim``. Codes of categories are one-hot vectors there.

    Raises:
        InputError: The convolution cannot be used on parts of a graph: it accepts no pair, adds self-loops,
            mixes rows in a batch norm, updates buffers, or returns another width; or the features of edges that it
            reads cannot be passed to it.
    """

    accepts_sparse = False

    def __init__(
        self,
        conv: nn.Module,
        in_features: int,
        out_features: int,
        *,
        self_loops: bool = False,
        edge_dim: int | None = None,
    ) -> None:
        super().__init__()
        _require_usable(conv)
        self.edge_dim = _count_edge_features(conv, edge_dim)
        # One relation is none: such a convolution ignores the types of edges.
        if "edge_type" in inspect.signature(conv.forward).parameters:
            relations = int(getattr(conv, "num_relations", 1))
            self.num_relations = relations if relations > 1 else 0
        if self_loops and self.num_relations:
            _raise_unsupported(
                conv, "edges that have relations, or self-loops: a loop has none", "both", "leave self_loops out"
            )
        self.exact = not _has_random_dropout(conv)
        self.aggregation = PyGAggregation(conv, self.num_relations, self.edge_dim)
        self.reads_weights = self.aggregation.accepts_weight
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, in_features),
            target=(1, in_features),
            aggregate=(1, out_features),
            static_edge_weight=True,
            reads_target=True,
            self_loops=self_loops,
            needs_full_neighborhood=True,
        )
        _probe(conv, self.aggregation, in_features, out_features)

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, D]``: the input."""
        assert isinstance(x_VD, Tensor)
        return NodeMessages(x_VD[:, None], None)

    def target(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, D]``: the input."""
        return self.source(x_VD)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the aggregate, which is the whole convolution."""
        return aggregate_VCF.squeeze(1)


def edge_index(edges: Edges) -> Tensor:
    """Return ``[2, E]`` int64, sources above destinations, as PyG expects; built once per block."""
    if "edge_index" not in edges.cache:
        edges.cache["edge_index"] = make_edge_index(edges)
    return cast(Tensor, edges.cache["edge_index"])


def _has_random_dropout(conv: nn.Module) -> bool:
    """Whether some part of a convolution uses dropout."""
    # PyG keeps the probability as an attribute ``dropout``, torch's modules as ``p``.
    for module in conv.modules():
        share = getattr(module, "p" if isinstance(module, nn.modules.dropout._DropoutNd) else "dropout", 0)
        if isinstance(share, int | float) and share > 0:
            return True
    return False


def _require_usable(conv: nn.Module) -> None:
    # Each of these would train without an error, and give results that depend on how the graph is split.
    parts = list(conv.modules())
    if any(isinstance(part, nn.modules.batchnorm._NormBase) for part in parts):
        _raise_unsupported(
            conv, "no norm over nodes: parts of a graph would each have their own", "one", "use a layer norm"
        )
    if any(getattr(part, "add_self_loops", False) is True for part in parts):
        repair = "give the convolution add_self_loops=False, and og.nn.PyGConv self_loops=True"
        _raise_unsupported(
            conv, "a convolution that adds no self-loops: in parts of a graph it adds wrong ones", "one", repair
        )
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in conv.parameters()):
        _raise_unsupported(conv, "parameters of known shape", "in_channels=-1", "give its input width")


def _count_edge_features(conv: nn.Module, asked: int | None) -> int:
    """Return how many features of edges a convolution gets, after checking that it accepts them."""
    own = getattr(conv, "edge_dim", None)
    given = own if asked is None else asked
    if not given:
        if any(getattr(part, "edge_dim", None) for part in conv.modules()):
            got = "edge_dim in a part of it"
            _raise_unsupported(conv, "the number of features of edges", got, "give og.nn.PyGConv edge_dim")
        return 0
    require_counts(0, edge_dim=given)
    if own is not None and own != given:
        _raise_unsupported(conv, f"{own} features of edges, its edge_dim", f"{given}", "leave edge_dim out")
    if "edge_attr" not in inspect.signature(conv.forward).parameters:
        repair = "give it an argument edge_attr, or leave edge_dim out"
        _raise_unsupported(conv, "a convolution that accepts edge_attr", "features of edges", repair)
    return int(given)


def _probe(conv: nn.Module, aggregation: PyGAggregation, in_features: int, out_features: int) -> None:
    """Run a copy on 3 sources, 2 destinations and 4 edges, as in training, and check its output."""
    dtype = next((parameter.dtype for parameter in conv.parameters()), torch.float32)
    extra: dict[str, Any] = {"edge_type": torch.zeros(4, dtype=torch.int64)} if aggregation.num_relations else {}
    if aggregation.edge_dim:
        extra["edge_attr"] = torch.ones(4, aggregation.edge_dim, dtype=dtype)
    # A copy, and a forked generator: the probe must not change buffers, or the random numbers of the caller.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        clone = copy.deepcopy(conv).train()
        before = {name: buffer.clone() for name, buffer in clone.named_buffers()}
        x = torch.randn(3, in_features, dtype=dtype)
        try:
            out = clone((x, x[:2]), _PROBE, **extra)
        except Exception as error:
            repair = (
                "use one that is documented as bipartite, of input width D; give edge_dim if it needs features of edges"
            )
            got = f"{type(error).__name__}: {error}"
            _raise_unsupported(
                conv, f"a call with ([3, {in_features}], [2, {in_features}]) and 4 edges to work", got, repair, error
            )
    if any(not torch.equal(before.get(name, buffer.new_empty(0)), buffer) for name, buffer in clone.named_buffers()):
        _raise_unsupported(
            conv, "buffers that stay as they are", "buffers that a call updates", "turn running statistics off"
        )
    if not isinstance(out, Tensor) or out.shape != (2, out_features):
        got = f"{list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        _raise_unsupported(conv, f"an output of [2, {out_features}] for 2 destinations", got, "correct out_features")


def _raise_unsupported(conv: nn.Module, needed: str, got: str, repair: str, cause: Exception | None = None) -> NoReturn:
    name = type(conv).__name__
    raise InputError(f"{name} cannot be wrapped", needed=needed, got=got, repair=repair) from cause
