"""Correct and smooth: a network of features alone, whose outputs are then propagated over the graph.

    python examples/correct_and_smooth.py

The workload of PyG's examples/correct_and_smooth.py (Huang et al., Combining label propagation and simple models
outperforms graph neural networks, ICLR 2021). Errors on nodes to train on are propagated to the others and subtracted;
then labels are. A propagation is a model of 50 layers without parameters: og.predict computes it layer by layer, in
bounded memory, and on several workers with --workers. By default the graph is generated, with the statistics of
ogbn-products at 1/50 of its size.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch
from torch import Tensor, nn
from torch.nn import functional


class LabelPropagation(og.nn.Conv):
    """``z' = alpha A z + (1 - alpha) z0``, or ``z0`` where it is kept; rows are ``[z, z0, whether z0 is kept]``."""

    def __init__(self, classes: int, alpha: float, *, mean: bool) -> None:
        super().__init__()
        self.classes, self.alpha = classes, alpha
        self.normalization = og.nn.mean_weight if mean else og.nn.symmetric_weight
        self.aggregation = og.nn.WeightedSum()
        columns, width = (1, classes), 2 * classes + 1
        widths = {"in_features": width, "out_features": width, "source": columns, "aggregate": columns}
        self.spec = og.nn.ConvSpec(**widths, static_edge_weight=True, reads_target=True)

    def source(self, x: Tensor) -> og.nn.NodeMessages:
        """The columns of z."""
        return og.nn.NodeMessages(x[:, None, : self.classes], None)

    def edge_weight(self, block: og.nn.Block, source: og.nn.NodeMessages, target: og.nn.NodeMessages) -> Tensor:
        """A: the mean over neighbours, or the normalisation of GCN without self-loops."""
        return self.normalization(block, source.values.dtype)

    def update(self, x: Tensor, aggregate: Tensor) -> Tensor:
        """The next z, beside the same z0."""
        first = x[:, self.classes : -1]
        mixed = self.alpha * aggregate[:, 0] + (1 - self.alpha) * first
        return torch.cat([torch.where(x[:, -1:] > 0, first, mixed), x[:, self.classes :]], 1)


def propagate(graph: og.Graph, z: Tensor, kept: Tensor, alpha: float, *, mean: bool, workers: int) -> Tensor:
    """Rows ``z`` after 50 layers; those of ``kept`` stay as they are."""
    rows = og.from_arrays(graph.edge_index, features=torch.cat([z, z, kept[:, None]], 1))
    layers = [og.nn.Layer(LabelPropagation(z.shape[1], alpha, mean=mean)) for _ in range(50)]
    return og.predict(rows, og.nn.Model(layers), workers=workers)[:, : z.shape[1]]


def main() -> None:
    """Train a network, correct its outputs, and smooth them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="products@0.02", help="a data set by name, a store or a graph file")
    parser.add_argument("--epochs", type=int, default=100, help="epochs to train (100)")
    parser.add_argument("--workers", type=int, default=1, help="workers that propagate (1)")
    options = parser.parse_args()
    graph = og.load(options.graph)
    x, y, train, classes = torch.as_tensor(graph.features), graph.labels.long(), graph.split.train, graph.num_classes

    def score(name: str, out: Tensor) -> None:
        print(f"{name}: test accuracy {float((out.argmax(1) == y)[graph.split.test].float().mean()):.3f}")

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(x.shape[1], 200), nn.ReLU(), nn.Dropout(0.5), nn.Linear(200, classes))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(options.epochs):
        optimizer.zero_grad()
        functional.cross_entropy(network(x[train]), y[train]).backward()
        optimizer.step()
    with torch.no_grad():
        soft = network.eval()(x).softmax(1)
    score("the network alone", soft)
    true = functional.one_hot(y[train], classes).float()
    known = torch.zeros(len(x)).index_fill_(0, train, 1.0)
    error = torch.zeros_like(soft).index_copy_(0, train, true - soft[train])
    soft = soft + propagate(graph, error, known, 1.0, mean=False, workers=options.workers)
    score("corrected", soft)
    soft = soft.index_copy(0, train, true)
    score("smoothed", propagate(graph, soft, torch.zeros(len(x)), 0.8, mean=True, workers=options.workers))


if __name__ == "__main__":
    main()
