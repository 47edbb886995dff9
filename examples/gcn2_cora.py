"""Train GCNII, 64 layers deep, with a weight decay for convolutions and another for dense layers.

    python examples/gcn2_cora.py                        # downloads Cora if it is not on this machine
    python examples/gcn2_cora.py --graph citeseer

The workload of PyG's examples/gcn2_cora.py (Chen et al., Simple and deep graph convolutional networks, ICML 2020).
Each convolution reads the rows of its input and those that the encoder gave, x0: so rows are pairs [x, x0], of which
only x travels. Dropout is on the features and on what the encoder gives, and not, as in PyG, between convolutions:
there it would be applied to x0 again and again.
"""

from __future__ import annotations

import argparse
from math import log

import outgrow as og
import torch
from torch import Tensor


class GCN2Conv(og.nn.Conv):
    """``h = 0.9 A x + 0.1 x0``, ``x' = relu((1 - b) h + b h W)`` with ``b = log(0.5 / place + 1)``; then logits."""

    def __init__(self, in_features: int, hidden: int, place: int, classes: int = 0) -> None:
        super().__init__()
        self.hidden, self.strength = hidden, log(0.5 / place + 1)
        self.project = og.nn.Projection(hidden, hidden)
        self.readout = og.nn.Projection(hidden, classes, bias=True) if classes else None
        self.aggregation = og.nn.WeightedSum()
        self.spec = og.nn.ConvSpec(
            in_features=in_features,
            out_features=classes or 2 * hidden,
            source=(1, hidden),
            aggregate=(1, hidden),
            static_edge_weight=True,
            reads_target=True,
            self_loops=True,
        )

    def source(self, x: Tensor) -> og.nn.NodeMessages:
        """The first columns: the first layer gets x0 alone, which is its x too."""
        return og.nn.NodeMessages(x[:, None, : self.hidden], None)

    def edge_weight(self, block: og.nn.Block, source: og.nn.NodeMessages, target: og.nn.NodeMessages) -> Tensor:
        """The normalisation of GCN."""
        return og.nn.symmetric_weight(block, source.values.dtype)

    def update(self, x: Tensor, aggregate: Tensor) -> Tensor:
        """Pairs for the next layer, or logits."""
        mixed = 0.9 * aggregate[:, 0] + 0.1 * x[:, -self.hidden :]
        out = torch.lerp(mixed, self.project(mixed), self.strength).relu()
        return torch.cat([out, x[:, -self.hidden :]], 1) if self.readout is None else self.readout(out)


def main() -> None:
    """Train, and score the model of the best epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="cora", help="a data set by name, a store or a graph file (cora)")
    parser.add_argument("--layers", type=int, default=64, help="number of convolutions (64)")
    parser.add_argument("--epochs", type=int, default=300, help="epochs to train (300)")
    options = parser.parse_args()
    graph, hidden = og.load(options.graph), 64

    torch.manual_seed(0)
    encoder = og.nn.LinearEncoder(graph.num_features, hidden, og.nn.Epilogue(activation=torch.relu, dropout=0.6))
    widths = [(hidden if place == 1 else 2 * hidden, place) for place in range(1, options.layers + 1)]
    convs = [GCN2Conv(width, hidden, place) for width, place in widths[:-1]]
    convs.append(GCN2Conv(widths[-1][0], hidden, options.layers, graph.num_classes))
    model = og.nn.Model([og.nn.Layer(conv) for conv in convs], input_dropout=0.6, encoder=encoder)

    groups = {"layers.*.project.*": {"weight_decay": 0.01}, r"regex:encoder.*|.*readout.*": {"weight_decay": 5e-4}}
    run = og.train(graph, model, epochs=options.epochs, lr=0.01, param_groups=groups, patience=None)
    print(f"loss: {run.loss[0]:.3f} after the first epoch, {run.loss[-1]:.3f} after the last")
    scores = f"val accuracy: {run.val_accuracy:.3f}, test accuracy: {run.test_accuracy:.3f}"
    print(f"best epoch: {run.summary['best_epoch']}, {scores}")


if __name__ == "__main__":
    main()
