"""PyG's NeighborLoader, which samples by torch-sparse: batches, and a model of PyG layers that trains on them.

Forms are such as ``adj-2``: the edges of a batch as an edge index (``edge``) or as a `SparseTensor` (``adj``), and
processes that sample beside this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from rivals.batches import SAMPLING, Graph, Hop, Sampled, Task, sample
from rivals.common import Job, main
from rivals.epochs import Epochs
from rivals.sage import Batch, Nodes, drive, make_layers
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_sparse import SparseTensor


def _data(job: Job, graph: Graph, nodes: Nodes | None = None) -> Data:
    """The graph as PyG holds it; features and labels where there are nodes."""
    indptr, indices = torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices).long()
    num_nodes = len(indptr) - 1
    data = Data(num_nodes=num_nodes) if nodes is None else Data(x=nodes.features, y=nodes.labels)
    if job.form.startswith("adj"):
        data.adj_t = SparseTensor(rowptr=indptr, col=indices, sparse_sizes=(num_nodes, num_nodes), is_sorted=True)
    else:
        data.edge_index = torch.stack([indices, torch.arange(num_nodes).repeat_interleave(indptr.diff())])
    return data


def _loader(job: Job, task: Task, data: Data, seeds: Any, fanout: Sequence[int], shuffle: bool = False) -> Any:
    workers = int(job.form.split("-")[1])
    return NeighborLoader(
        data,
        num_neighbors=list(fanout),
        input_nodes=torch.as_tensor(seeds),
        batch_size=task.batch_size,
        shuffle=shuffle,
        replace=False,
        is_sorted=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def _describe(batch: Data) -> Sampled:
    return Sampled(num_edges=batch.num_edges, num_nodes=batch.num_nodes, hops=partial(_hops, batch))


def _hops(batch: Data, count: int) -> list[Hop]:
    """A hop draws edges of those nodes only that the hop before has found; they lie in order of destinations."""
    src, dst = batch.edge_index.numpy()
    nodes, drawn = batch.n_id.numpy(), np.bincount(dst, minlength=batch.num_nodes)
    indptr = np.concatenate([[0], np.cumsum(drawn)])
    hops, first, last = [], 0, batch.batch_size
    for _ in range(count):
        edges = src[indptr[first] : indptr[last]]
        hops.append(Hop(nodes[first:last], indptr[first : last + 1] - indptr[first], nodes[edges]))
        first, last = last, max(last, int(edges.max(initial=0)) + 1)
    return hops


def _opened(job: Job, num_layers: int, batch: Data) -> Batch:
    """Every layer computes all edges and nodes of the batch: torch-sparse does not say what each hop has drawn."""
    edges = batch.adj_t if job.form.startswith("adj") else batch.edge_index
    return Batch(features=batch.x, labels=batch.y[: batch.batch_size], calls=[partial(_call, edges)] * num_layers)


def _call(edges: Any, layer: Any, x: torch.Tensor) -> Any:
    return layer(x, edges)


def _named(layer: Any) -> dict[str, torch.Tensor]:
    return {"itself": layer.lin_r.weight.T, "neighbour": layer.lin_l.weight.T, "bias": layer.lin_l.bias}


def work(job: Job) -> dict[str, Any]:
    """Sample or train; see `rivals.common.main`."""
    task = Task.read(job)
    torch.manual_seed(task.seed)
    if job.model == SAMPLING:
        graph = Graph.read(task.arrays)
        data = _data(job, graph)
        return sample(job, task, graph, partial(_loader, job, task, data), _describe)
    epochs = Epochs(job)
    nodes = Nodes.read(task.arrays)
    data, (fanout,) = _data(job, Graph.read(task.arrays), nodes), task.fanouts
    loader = _loader(job, task, data, nodes.train, fanout, shuffle=True)
    model = make_layers(task, lambda given, wanted: SAGEConv(given, wanted, aggr="mean"), _named, job)
    return drive(job, epochs, model, loader, partial(_opened, job, len(fanout)))


if __name__ == "__main__":
    main(work, ("torch_geometric", "torch_sparse"))
