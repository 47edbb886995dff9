"""`HGTConv`: attention with projections per node type and matrices per edge type. Letters as in `outgrow.nn.layer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.graph_types import EdgeType, GraphTypes
from outgrow.core.validation import require_counts
from outgrow.nn.hetero_checks import module_name, require_same_edge_types, type_module_name
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.projection import Projection
from outgrow.nn.slot_layout import TypedRows
from outgrow.nn.typed_linear import TypedLinear, require_same_types
from outgrow.ops.aggregation.typed_attention import TypedAttention
from outgrow.ops.backend import once_differentiable


@check_arguments()
class HGTConv(Conv):
    """Heterogeneous graph transformer, as PyG's ``HGTConv``: Hu, Dong, Wang & Sun, WWW 2020.

    ``x'_v = g_t * gelu(sum over in-edges (u, v) of alpha_uv * value_u M_r) W_t + (1 - g_t) * x_v``, where ``t`` is the
    type of ``v`` and ``r`` that of the edge; ``alpha`` is the softmax over all in-edges of ``v`` of
    ``key_u A_r . query_v * p_r / sqrt(F)``, head by head of ``F`` columns. Keys, values and queries are projections of
    the input by the type of the node; the gate ``g_t`` is the sigmoid of a number, and 1 where widths in and out
    differ. A node without in-edges gets what a sum of zeros gives.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        node_types: Names of the node types of the graph, in any order.
        edge_types: ``(source type, relation, destination type)`` of each of its relations, in any order.
        heads: Number of heads, which divides the width of keys.
        hidden: Width of keys, values and queries, and of what the gate gives; None for ``O``. Else one more projection
            to ``O``, which all types share, follows the gate, as in a last layer, whose ``O`` is the number of classes.

    Raises:
        InputError: ``heads`` does not divide the width, there is no node or edge type, or an edge type is not
            three names, is given twice or is between types that are not given.
    """

    reads_types = True
    reads_weights = False
    accepts_half = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        heads: int = 8,
        *,
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        width = out_features if hidden is None else hidden
        require_counts(in_features=in_features, out_features=out_features, heads=heads, hidden=width)
        if width % heads:
            raise InputError(
                "heads must divide the width of keys",
                needed=f"a multiple of {heads} columns",
                got=f"{heads} heads and {width} columns",
                repair="change one of the two",
            )
        _require_edge_types(edge_types, node_types)
        self.node_types = tuple(node_types)
        self.edge_types = tuple(edge_types)
        # The only relation of a graph need not be stored.
        self.num_relations = len(edge_types) if len(edge_types) > 1 else 0
        self.key_value = TypedLinear(in_features, 2 * width, node_types, bias=True)
        self.query = TypedLinear(in_features, width, node_types, bias=True)
        self.out = TypedLinear(width, width, node_types, bias=True)
        gated = in_features == width
        self.skip = (
            nn.ParameterDict({name: nn.Parameter(torch.ones(1)) for name in map(type_module_name, node_types)})
            if gated
            else None
        )
        # Sparse rows have a product, but no sum with the output.
        self.accepts_sparse = not gated
        self.aggregation = TypedAttention([module_name(each) for each in edge_types], heads, width // heads)
        self.last = None if hidden is None else Projection(width, out_features, bias=True)
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, 2 * width),
            target=(1, width),
            aggregate=(1, width),
            static_edge_weight=True,
            reads_target=True,
            needs_full_neighborhood=True,
        )

    def bind_types(self, types: GraphTypes) -> None:
        """Match node and edge types with those of a graph, by name.

        Raises:
            InputError: The graph has others.
        """
        require_same_types("a HGTConv", self.node_types, types)
        require_same_edge_types(self.edge_types, types)
        for each in (self.key_value, self.query, self.out):
            each.bind_types(types)
        assert isinstance(self.aggregation, TypedAttention)
        self.aggregation.order = tuple(module_name(each) for each in types.edge_types)

    def source(self, x_VD: Features) -> NodeMessages:
        """Not defined: see `source_of_nodes`."""
        raise TypeError("what a node sends depends on its type: call source_of_nodes")

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Not defined: see `update_of_nodes`."""
        raise TypeError("the update of a node depends on its type: call update_of_nodes")

    def source_of_nodes(self, x_VD: Features, nodes_V: Tensor) -> NodeMessages:
        """Return ``[V, 1, 2 O]``: keys, then values, by the type of each node."""
        return NodeMessages(self.key_value(x_VD, nodes_V)[:, None], None)

    def target_of_nodes(self, x_VD: Features, nodes_V: Tensor) -> NodeMessages:
        """Return ``[V, 1, O]``: queries, by the type of each node."""
        return NodeMessages(self.query(x_VD, nodes_V)[:, None], None)

    def source_and_target_of_nodes(self, x_VD: Features, nodes_V: Tensor) -> tuple[NodeMessages, NodeMessages]:
        """Return `source_of_nodes` and `target_of_nodes`."""
        return self.source_of_nodes(x_VD, nodes_V), self.target_of_nodes(x_VD, nodes_V)

    def update_of_nodes(self, x_VD: Features, aggregate_VCF: Tensor, nodes_V: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the projection of the aggregate, and the share of the input that the gate lets pass."""
        new_VF: Tensor = self.out(functional.gelu(aggregate_VCF.squeeze(1)), nodes_V)
        out_VF = new_VF if self.skip is None else self._mix_rows(self.skip, x_VD, new_VF, nodes_V)
        if self.last is None:
            return out_VF
        last_VO: Tensor = self.last(out_VF)
        return last_VO

    def _mix_rows(self, skip: nn.ParameterDict, x_VD: Features, new_VF: Tensor, nodes_V: Tensor) -> Tensor:
        """Return ``[V, F]``: new and old rows, mixed by the gate of the type of each node."""
        assert isinstance(x_VD, Tensor)
        types = self.out.bound_types
        rows = TypedRows(types, nodes_V)
        share_T = torch.cat([torch.sigmoid(skip[type_module_name(name)]) for name in types.names])
        mixed: Tensor = _MixRows.apply(share_T, new_VF, x_VD.to(new_VF.dtype), rows)  # type: ignore[no-untyped-call]
        return mixed


class _MixRows(torch.autograd.Function):
    """``share * new + (1 - share) * old``, of a share for each node type."""

    @staticmethod
    def forward(ctx: Any, share_T: Tensor, new_VF: Tensor, old_VF: Tensor, rows: TypedRows) -> Tensor:
        ctx.rows = rows
        ctx.save_for_backward(share_T, new_VF, old_VF)
        return torch.lerp(old_VF, new_VF, rows.spread(share_T))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_VF: Tensor) -> tuple[Tensor | None, ...]:
        share_T, new_VF, old_VF = ctx.saved_tensors
        d_share = torch.zeros_like(share_T)
        for kind, rows in ctx.rows.rows.items():
            # Over rows first, in an order that threads do not change.
            d_share[kind] = (new_VF[rows] - old_VF[rows]).mul_(grad_VF[rows]).sum(0).sum()
        d_new = grad_VF * ctx.rows.spread(share_T)
        return d_share, d_new, grad_VF - d_new if ctx.needs_input_grad[2] else None, None


def _require_edge_types(edge_types: Sequence[EdgeType], node_types: Sequence[str]) -> None:
    unfit = [each for each in edge_types if not {each[0], each[-1]} <= set(node_types)]
    names = [module_name(each) for each in edge_types]
    got = f"{unfit[0]!r}" if unfit else "none" if not names else "two of the same name"
    if unfit or len(set(names)) != max(1, len(names)):
        raise InputError(
            "the edge types of a HGTConv are not well named",
            needed="(source type, relation, destination type) of each, once, between types of node_types",
            got=got,
            repair="give graph.types.edge_types",
        )
