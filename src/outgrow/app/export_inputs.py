"""Inputs of exported models, made from a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.app.compatibility import validate_argument_types
from outgrow.app.output_request import Nodes, to_ids
from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.engine.shard import sampling_view
from outgrow.graph.graph import Graph
from outgrow.graph.graph_part import require_all_features
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.nn.exportable import ExportableLayerInput
from outgrow.nn.model import Model
from outgrow.ops.owned_rows import OwnedRows
from outgrow.ops.sparse import index_rows

_ALL_NEIGHBORS = -1
_STEP = 0  # nothing is drawn, so any number does


@check_arguments(unchecked=("graph", "model", "nodes"))
def export_inputs(graph: Graph, model: Model, nodes: Nodes = None) -> tuple[Tensor, list[ExportableLayerInput]]:
    """Return what an `og.nn.ExportableModel` takes: features, and the in-edges of each layer.

    Args:
        graph: Graph with features; sparse ones are made dense.
        model: The model.
        nodes: ``[n]`` ids of distinct nodes whose logits are wanted, in order, or a ``[V]`` mask; None for all.

    Returns:
        ``x [S, D]``, in the type of the model, and an entry for each layer; the full neighbourhood of the nodes. Of a
        model that was trained on temporal draws, all in-edges before the time of each node.

    Raises:
        InputError: The graph has no features, or a node is not of the graph.
    """
    validate_argument_types(graph, model)
    features = graph.features
    if features is None:
        raise InputError(
            f"{graph.name} has no features",
            needed="features of every node",
            got="none",
            repair="give the graph the features that the model was trained on",
        )
    require_all_features(graph.part, graph.name, "an export")
    assert not isinstance(features, OwnedRows)
    layers = model.layers_list()
    views = [sampling_view(graph.topology, layer) for layer in layers]
    sampler = NeighborSampler(views, (_ALL_NEIGHBORS,) * len(layers), seed=0, temporal_strategy=model.temporal_strategy)
    wanted = torch.arange(graph.num_nodes) if nodes is None else to_ids(nodes, graph.num_nodes)
    blocks = sampler.sample_blocks(wanted, _STEP, _STEP)
    rows = index_rows(features, blocks[0].src_nodes)
    x = rows if isinstance(rows, Tensor) else rows.to_dense()
    return x.to(model.dtype), [_layer_input(block, model.dtype) for block in blocks]


def _layer_input(block: Block, dtype: torch.dtype) -> ExportableLayerInput:
    edges = block.edges
    target = torch.repeat_interleave(torch.arange(edges.num_dst), edges.indptr[1:] - edges.indptr[:-1])
    weight = torch.ones(edges.num_edges, dtype=dtype) if edges.weight is None else edges.weight.to(dtype)
    # Copies, since the sampler uses its memory again.
    return torch.stack([edges.indices.long(), target]), weight, block.src_degree.clone(), block.dst_degree.clone()
