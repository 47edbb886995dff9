"""GraphBolt, the loader of DGL 2.1: batches, and a model of `dgl.nn_device` layers that trains on them.

Forms are such as ``int32-2``: type of the ids, and processes that sample beside this one. With 0 this one samples, and
every stage uses all threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from dgl import graphbolt
from dgl.nn import SAGEConv
from numpy.typing import NDArray
from rivals.batches import SAMPLING, Graph, Hop, Sampled, Task, sample
from rivals.common import Job, main
from rivals.epochs import Epochs
from rivals.sage import Batch, Nodes, drive, make_layers


class _Pipeline:
    """The documented pipeline over a graph, in one of the forms."""

    def __init__(self, job: Job, task: Task, graph: Graph) -> None:
        ids, workers = job.form.split("-")
        self.ids, self.workers, self.task = getattr(torch, ids), int(workers), task
        indptr, indices = (torch.from_numpy(array).to(self.ids) for array in graph)
        self.graph = graphbolt.fused_csc_sampling_graph(indptr, indices)

    def loader(self, items: Any, fanout: Sequence[int], *, shuffle: bool, features: Any = None) -> Any:
        """Batches of some items; the workers do what comes before the features are fetched."""
        pipe = graphbolt.ItemSampler(items, batch_size=self.task.batch_size, shuffle=shuffle)
        pipe = pipe.sample_neighbor(self.graph, list(reversed(fanout)))  # the farthest hop comes first here
        store = graphbolt.BasicFeatureStore({} if features is None else {("node", None, "x"): features})
        pipe = pipe.fetch_feature(store, node_feature_keys=[] if features is None else ["x"])
        return graphbolt.DataLoader(pipe, num_workers=self.workers)

    def seeds(self, seeds: NDArray[Any], fanout: Sequence[int]) -> Any:
        """Batches of consecutive seeds."""
        items = graphbolt.ItemSet(torch.from_numpy(seeds).to(self.ids), names="seed_nodes")
        return self.loader(items, fanout, shuffle=False)


def _describe(batch: Any) -> Sampled:
    parts = batch.sampled_subgraphs
    return Sampled(
        num_edges=sum(len(part.sampled_csc.indices) for part in parts),
        num_nodes=len(batch.input_nodes),
        hops=lambda count: [_hop(part) for part in reversed(parts)],
    )


def _hop(part: Any) -> Hop:
    sources = part.original_row_node_ids[part.sampled_csc.indices.long()]
    tensors = (part.original_column_node_ids, part.sampled_csc.indptr, sources)
    return Hop(*(tensor.long().numpy() for tensor in tensors))


def _opened(batch: Any) -> Batch:
    calls = [partial(_call, block) for block in batch.blocks]
    return Batch(features=batch.node_features["x"], labels=batch.labels, calls=calls)


def _call(block: Any, layer: Any, x: torch.Tensor) -> Any:
    return layer(block, x)


def _named(layer: Any) -> dict[str, torch.Tensor]:
    return {"itself": layer.fc_self.weight.T, "neighbour": layer.fc_neigh.weight.T, "bias": layer.fc_self.bias}


def work(job: Job) -> dict[str, Any]:
    """Sample or train; see `rivals.common.main`."""
    task = Task.read(job)
    torch.manual_seed(task.seed)
    if job.model == SAMPLING:
        graph = Graph.read(task.arrays)
        return sample(job, task, graph, _Pipeline(job, task, graph).seeds, _describe)
    epochs = Epochs(job)
    nodes, pipeline = Nodes.read(task.arrays), _Pipeline(job, task, Graph.read(task.arrays))
    seeds = nodes.train.to(pipeline.ids)
    items = graphbolt.ItemSet((seeds, nodes.labels[nodes.train]), names=("seed_nodes", "labels"))
    features = graphbolt.TorchBasedFeature(nodes.features)
    loader = pipeline.loader(items, task.fanouts[0], shuffle=True, features=features)
    model = make_layers(task, lambda given, wanted: SAGEConv(given, wanted, "mean"), _named, job)
    return drive(job, epochs, model, loader, _opened)


if __name__ == "__main__":
    main(work, ("dgl",))
