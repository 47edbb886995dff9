"""GraphBolt, the loader of DGL 2.1: batches, and a model of `dgl.nn_device` layers that trains on them.

Forms are such as ``int32-2``: type of the ids, and processes that sample beside this one. With 0 this one samples, and
every stage uses all threads. ``int32-2+sampled+whole`` also evaluates: see `rivals.batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import dgl
import torch
from dgl import graphbolt
from dgl.nn import SAGEConv
from numpy.typing import NDArray
from rivals.batches import LAYERWISE, NEIGHBORS, SAMPLED, SAMPLING, WHOLE, Graph, Hop, Sampled, Task, sample, split_form
from rivals.common import Job, main
from rivals.epochs import Epochs
from rivals.sage import Batch, Evaluation, Nodes, Part, drive, infer_batches, infer_layers, infer_whole, make_layers

_ITEMS = ("seed_nodes", "labels")


class _Pipeline:
    """The documented pipeline over a graph, in one of the forms."""

    def __init__(self, job: Job, task: Task, graph: Graph) -> None:
        ids, workers = split_form(job.form)[0].split("-")
        self.ids, self.workers, self.task = getattr(torch, ids), int(workers), task
        indptr, indices = (torch.from_numpy(array).to(self.ids) for array in graph)
        self.graph = graphbolt.fused_csc_sampling_graph(indptr, indices)

    def loader(
        self, items: Any, fanout: Sequence[int], *, shuffle: bool, features: Any = None, size: int | None = None
    ) -> Any:
        """Batches of some items; the workers do what comes before the features are fetched."""
        pipe = graphbolt.ItemSampler(items, batch_size=size or self.task.batch_size, shuffle=shuffle)
        pipe = pipe.sample_neighbor(self.graph, list(reversed(fanout)))  # the farthest hop comes first here
        store = graphbolt.BasicFeatureStore({} if features is None else {("node", None, "x"): features})
        pipe = pipe.fetch_feature(store, node_feature_keys=[] if features is None else ["x"])
        return graphbolt.DataLoader(pipe, num_workers=self.workers)

    def seeds(self, seeds: NDArray[Any], fanout: Sequence[int]) -> Any:
        """Batches of consecutive seeds."""
        items = graphbolt.ItemSet(torch.from_numpy(seeds).to(self.ids), names="seed_nodes")
        return self.loader(items, fanout, shuffle=False)


class _Ways:
    """How to evaluate."""

    def __init__(self, pipeline: _Pipeline, nodes: Nodes, graph: Graph, features: Any) -> None:
        self.pipeline, self.nodes, self.graph, self.features = pipeline, nodes, graph, features

    def make(self, way: str) -> Callable[[torch.nn.ModuleList], torch.Tensor]:
        """What computes logits of the validation nodes."""
        task, pipeline, nodes = self.pipeline.task, self.pipeline, self.nodes
        if way in (SAMPLED, NEIGHBORS):
            (fanout,) = task.fanouts
            items = graphbolt.ItemSet((nodes.val.to(pipeline.ids), nodes.labels[nodes.val]), names=_ITEMS)
            drawn, size = (fanout, task.eval_batch_size) if way == SAMPLED else ([-1] * len(fanout), len(nodes.val))
            loader = pipeline.loader(items, drawn, shuffle=False, features=self.features, size=size)
            return infer_batches(loader, _opened)
        if way == LAYERWISE:
            every = graphbolt.ItemSet(torch.arange(len(nodes.labels), dtype=pipeline.ids), names="seed_nodes")
            loader = pipeline.loader(every, [-1], shuffle=False, size=task.layer_batch_size)
            return infer_layers(nodes, partial(_parts, loader))
        assert way == WHOLE
        indptr, indices = (torch.from_numpy(array).to(pipeline.ids) for array in self.graph)
        whole = dgl.graph(("csc", (indptr, indices, [])), num_nodes=len(nodes.labels))
        return infer_whole(nodes, partial(_call, whole))


def _parts(loader: Any) -> Iterator[Part]:
    for batch in loader:
        (block,) = batch.blocks
        yield Part(batch.input_nodes.long(), block.num_dst_nodes(), partial(_call, block))


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
    nodes, graph = Nodes.read(task.arrays), Graph.read(task.arrays)
    pipeline = _Pipeline(job, task, graph)
    seeds = nodes.train.to(pipeline.ids)
    items = graphbolt.ItemSet((seeds, nodes.labels[nodes.train]), names=_ITEMS)
    features = graphbolt.TorchBasedFeature(nodes.features)
    loader = pipeline.loader(items, task.fanouts[0], shuffle=True, features=features)
    model = make_layers(task, lambda given, wanted: SAGEConv(given, wanted, "mean"), _named, job)
    ways = _Ways(pipeline, nodes, graph, features)
    evaluation = Evaluation(nodes=nodes, ways={way: ways.make(way) for way in split_form(job.form)[1]})
    return drive(job, epochs, model, loader, _opened, evaluation)


if __name__ == "__main__":
    main(work, ("dgl",))
