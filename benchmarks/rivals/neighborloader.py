"""PyG's NeighborLoader, which samples by torch-sparse: batches, and a model of PyG layers that trains on them.

Forms are such as ``adj-2``: the edges of a batch as an edge index (``edge``) or as a `SparseTensor` (``adj``), and
processes that sample beside this one. ``adj-2+sampled+whole`` also evaluates: see `rivals.batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from rivals.batches import LAYERWISE, NEIGHBORS, SAMPLED, SAMPLING, WHOLE, Graph, Hop, Sampled, Task, sample, split_form
from rivals.common import Job, main
from rivals.epochs import Epochs
from rivals.sage import Batch, Evaluation, Nodes, Part, drive, infer_batches, infer_layers, infer_whole, make_layers
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_sparse import SparseTensor


def _data(job: Job, graph: Graph, nodes: Nodes | None = None) -> Data:
    """The graph as PyG holds it; features and labels where there are nodes."""
    num_nodes = len(graph.indptr) - 1
    data = Data(num_nodes=num_nodes) if nodes is None else Data(x=nodes.features, y=nodes.labels)
    if job.form.startswith("adj"):
        data.adj_t = _matrix(graph)
    else:
        indptr, indices = torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices).long()
        data.edge_index = torch.stack([indices, torch.arange(num_nodes).repeat_interleave(indptr.diff())])
    return data


def _matrix(graph: Graph) -> SparseTensor:
    indptr, indices = torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices).long()
    sizes = (len(indptr) - 1, len(indptr) - 1)
    return SparseTensor(rowptr=indptr, col=indices, sparse_sizes=sizes, is_sorted=True)


def _loader(
    job: Job,
    task: Task,
    data: Data,
    seeds: Any,
    fanout: Sequence[int],
    *,
    shuffle: bool = False,
    size: int | None = None,
) -> Any:
    workers = int(split_form(job.form)[0].split("-")[1])
    return NeighborLoader(
        data,
        num_neighbors=list(fanout),
        input_nodes=torch.as_tensor(seeds),
        batch_size=size or task.batch_size,
        shuffle=shuffle,
        replace=False,
        is_sorted=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


class _Ways:
    """How to evaluate."""

    def __init__(self, job: Job, task: Task, data: Data, nodes: Nodes, graph: Graph) -> None:
        self.job, self.task, self.data, self.nodes, self.graph = job, task, data, nodes, graph

    def make(self, way: str) -> Callable[[torch.nn.ModuleList], torch.Tensor]:
        """What computes logits of the validation nodes."""
        job, task, nodes, (fanout,) = self.job, self.task, self.nodes, self.task.fanouts
        if way in (SAMPLED, NEIGHBORS):
            drawn, size = (fanout, task.eval_batch_size) if way == SAMPLED else ([-1] * len(fanout), len(nodes.val))
            loader = _loader(job, task, self.data, nodes.val, drawn, size=size)
            return infer_batches(loader, partial(_opened, job, len(fanout)))
        if way == LAYERWISE:
            # Features change from layer to layer, so the loader does not fetch them.
            every = torch.arange(len(nodes.labels))
            loader = _loader(job, task, _data(job, self.graph), every, [-1], size=task.layer_batch_size)
            return infer_layers(nodes, partial(_parts, job, loader))
        assert way == WHOLE
        return infer_whole(nodes, partial(_call, _matrix(self.graph)))


def _parts(job: Job, loader: Any) -> Iterator[Part]:
    for batch in loader:
        yield Part(batch.n_id, batch.batch_size, partial(_call_bipartite, _edges(job, batch), batch.batch_size))


def _call_bipartite(edges: Any, count: int, layer: Any, x: torch.Tensor) -> Any:
    """Only the seeds have in-edges here, so only they are computed."""
    return layer((x, x[:count]), edges[:count] if isinstance(edges, SparseTensor) else edges)


def _edges(job: Job, batch: Data) -> Any:
    return batch.adj_t if job.form.startswith("adj") else batch.edge_index


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
    calls = [partial(_call, _edges(job, batch))] * num_layers
    return Batch(features=batch.x, labels=batch.y[: batch.batch_size], calls=calls)


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
    nodes, graph = Nodes.read(task.arrays), Graph.read(task.arrays)
    data, (fanout,) = _data(job, graph, nodes), task.fanouts
    loader = _loader(job, task, data, nodes.train, fanout, shuffle=True)
    model = make_layers(task, lambda given, wanted: SAGEConv(given, wanted, aggr="mean"), _named, job)
    ways = _Ways(job, task, data, nodes, graph)
    evaluation = Evaluation(nodes=nodes, ways={way: ways.make(way) for way in split_form(job.form)[1]})
    return drive(job, epochs, model, loader, partial(_opened, job, len(fanout)), evaluation)


if __name__ == "__main__":
    main(work, ("torch_geometric", "torch_sparse"))
