"""GraphBolt's batches of links, `RelGraphConv` and DistMult, in the environment of DGL.

python -m rivals.graphbolt_link_batches JSON     (in benchmarks/)

Forms are such as ``int32-0``: type of the ids, and processes that sample beside this one.
"""

from __future__ import annotations

from typing import Any

import torch
from dgl import graphbolt
from dgl.nn import RelGraphConv
from rivals.link_batches import DistMult, Task, train
from torch import nn


def main() -> None:
    """Train."""
    task = Task.read()
    facts, (ids, workers) = task.facts, task.form.split("-")
    kind = getattr(torch, ids)
    edge_index, relation = task.edge_index, task.array("relation").long()
    numbers = torch.arange(edge_index.shape[1])
    graph = graphbolt.fused_csc_sampling_graph(
        task.array("indptr").to(kind),
        task.array("indices").to(kind),
        edge_attributes={graphbolt.ORIGINAL_EDGE_ID: numbers},
    )
    items = graphbolt.ItemSet((edge_index.T.to(kind), relation), names=("node_pairs", "labels"))
    store = graphbolt.BasicFeatureStore(
        {("node", None, "x"): graphbolt.TorchBasedFeature(task.array("features").contiguous())}
    )

    def batches() -> Any:
        pipe = graphbolt.ItemSampler(items, batch_size=task.batch_size, shuffle=True)
        pipe = pipe.sample_uniform_negative(graph, 1)
        pipe = pipe.sample_neighbor(graph, task.fanout)
        pipe = pipe.fetch_feature(store, node_feature_keys=["x"])
        return graphbolt.DataLoader(pipe, num_workers=int(workers))

    layers = nn.ModuleList(
        RelGraphConv(given, facts["hidden"], facts["relations"], "basis", facts["bases"])
        for given in (facts["inputs"], facts["hidden"])
    )
    decoder = DistMult(facts["hidden"], facts["relations"])

    def loss_of(batch: Any) -> tuple[torch.Tensor, int]:
        x = batch.node_features["x"]
        hops = zip(layers, batch.blocks, batch.sampled_subgraphs, strict=True)
        for number, (layer, block, sampled) in enumerate(hops):
            # A mean for each relation, as that of the others.
            kinds = relation[sampled.original_edge_ids.long()]
            x = layer(block, x.relu() if number else x, kinds, norm=_shares(block, kinds, facts["relations"]))
        heads, tails = batch.compacted_node_pairs
        links = len(heads)
        truth = torch.cat([torch.ones(links), torch.zeros(links)])
        # Negatives have the heads of the links.
        ends = torch.cat([heads, heads]).long(), torch.cat([tails, batch.compacted_negative_dsts.flatten()]).long()
        return decoder.loss(x[ends[0]], x[ends[1]], batch.labels.repeat(2), truth), links

    train(task, [*layers.parameters(), *decoder.parameters()], batches, loss_of)


def _shares(block: Any, kinds: torch.Tensor, relations: int) -> torch.Tensor:
    """``[E, 1]``: one over the in-edges of the destination that have the relation."""
    _, tails = block.edges()
    code = tails * relations + kinds
    counts = torch.bincount(code, minlength=block.num_dst_nodes() * relations)
    return (1.0 / counts[code])[:, None]


if __name__ == "__main__":
    main()
