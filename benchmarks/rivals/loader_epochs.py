"""One process of `loader.py`: epochs of two layers of SAGE (mean) over the batches of a library's loader."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

_FANOUT = [10, 10]


def _train(loader: Iterable[Any], model: Any, logits_of: Callable[[Any], tuple[Any, Any]], epochs: int) -> Any:
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    speeds, losses = [], []
    for _ in range(1 + epochs):
        began, batches, total = time.perf_counter(), 0, 0.0
        for batch in loader:
            optimizer.zero_grad()
            logits, y = logits_of(batch)
            loss = torch.nn.functional.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            batches, total = batches + 1, total + float(loss.detach())
        speeds.append(batches / (time.perf_counter() - began))
        losses.append(total / batches)
    return {"batches_per_second": statistics.median(speeds[1:]), "speeds": speeds, "losses": losses}


def _pyg_epochs(job: dict[str, Any], make_loader: Callable[[Any, Any], Any], data: Any, train: Any) -> Any:
    import torch
    from torch_geometric.nn import SAGEConv

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = SAGEConv(data.x.shape[1], job["hidden"])
            self.second = SAGEConv(job["hidden"], int(data.y.max()) + 1)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.second(self.first(x, edge_index).relu(), edge_index)

    torch.manual_seed(0)
    model = Net()

    def logits_of(batch: Any) -> tuple[Any, Any]:
        return model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]

    return _train(make_loader(data, train), model, logits_of, job["epochs"])


def _graphbolt_epochs(job: dict[str, Any], arrays: dict[str, Any]) -> Any:
    import dgl.graphbolt as gb
    import torch
    from dgl.nn import SAGEConv

    graph = gb.fused_csc_sampling_graph(arrays["indptr"], arrays["indices"].long())
    features = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(arrays["features"])})
    items = gb.ItemSet((arrays["train"], arrays["labels"][arrays["train"]]), names=("seeds", "labels"))
    pipe = gb.ItemSampler(items, batch_size=job["batch_size"], shuffle=True)
    pipe = pipe.sample_neighbor(graph, [torch.LongTensor([fanout]) for fanout in _FANOUT])
    pipe = pipe.fetch_feature(features, node_feature_keys=["x"])
    width, classes = arrays["features"].shape[1], int(arrays["labels"].max()) + 1
    torch.manual_seed(0)
    first, second = SAGEConv(width, job["hidden"], "mean"), SAGEConv(job["hidden"], classes, "mean")

    def logits_of(batch: Any) -> tuple[Any, Any]:
        below, above = batch.blocks
        return second(above, first(below, batch.node_features["x"]).relu()), batch.labels

    return _train(gb.DataLoader(pipe), torch.nn.ModuleList([first, second]), logits_of, job["epochs"])


def main() -> None:
    """Train, and print what was measured."""
    # Files beside this one have the names of libraries.
    sys.path.pop(0)
    job = json.loads(sys.argv[1])
    if job["library"] == "outgrow":
        import outgrow as og  # sets up the threads, so it comes before torch
    import torch

    torch.set_num_threads(job["threads"])
    folder = Path(job["folder"])
    names = ("indptr", "indices", "features", "labels", "train")
    arrays = {name: torch.from_numpy(np.load(folder / f"{name}.npy")) for name in names}
    arrays["labels"], arrays["train"] = arrays["labels"].long(), arrays["train"].long()
    if job["library"] == "graphbolt":
        print(json.dumps(_graphbolt_epochs(job, arrays)))
        return
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    destinations = torch.arange(len(arrays["indptr"]) - 1).repeat_interleave(arrays["indptr"].diff())
    edge_index = torch.stack([arrays["indices"].long(), destinations])
    data = Data(x=arrays["features"], y=arrays["labels"], edge_index=edge_index)
    kind = og.NeighborLoader if job["library"] == "outgrow" else NeighborLoader

    def make_loader(data: Any, train: Any) -> Any:
        return kind(data, num_neighbors=_FANOUT, input_nodes=train, batch_size=job["batch_size"], shuffle=True)

    print(json.dumps(_pyg_epochs(job, make_loader, data, arrays["train"])))


if __name__ == "__main__":
    main()
