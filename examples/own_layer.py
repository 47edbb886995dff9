"""Write a layer of your own, and train it by any strategy.

    python examples/own_layer.py

A layer says what happens at nodes and edges, and nothing of where they are. So it is written once, and a strategy may
cut the graph as it likes: here the same model is trained on the whole graph in memory, in chunks that move between
memory and a disk, and on two workers. The example prints the largest difference between their losses, which is
rounding. docs/architecture.md has the contract of a layer.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch
from torch import Tensor


class GatedMean(og.nn.Conv):
    """``x'_v = x_v W + b + mean over in-edges (u, v) of sigmoid(x_u s + x_v t) * x_u W'``."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.itself = og.nn.Projection(in_features, out_features, bias=True)
        self.neighbour = og.nn.Projection(in_features, out_features)
        self.source_score = og.nn.Projection(in_features, 1)
        self.target_score = og.nn.Projection(in_features, 1, bias=True)
        self.aggregation = og.nn.WeightedSum()  # how rows of neighbours are put together: one of a few, with kernels
        self.spec = og.nn.ConvSpec(  # all that strategies need to know
            in_features=in_features,
            out_features=out_features,
            source=(1, out_features),  # a source gives one channel of so many columns ...
            score=1,  # ... and, as a destination does, one score
            aggregate=(1, out_features),
            static_edge_weight=False,  # weights of edges are trained: they read the scores
            reads_target=True,  # a destination's own input is read, by `target` and `update`
        )

    def source(self, x: Tensor) -> og.nn.NodeMessages:
        """Phase 1: what each node gives its out-neighbours; dense, once per node. These rows travel."""
        return og.nn.NodeMessages(self.neighbour(x)[:, None], self.source_score(x))

    def target(self, x: Tensor) -> og.nn.NodeMessages:
        """Phase 1, the other side: what each destination adds to its in-edges."""
        return og.nn.NodeMessages(None, self.target_score(x))

    def edge_weight(self, block: og.nn.Block, source: og.nn.NodeMessages, target: og.nn.NodeMessages) -> Tensor:
        """Phase 2: ``[E, 1]`` weight of each edge, from the graph and the scores. Phase 3 is the aggregation."""
        edges = block.edges
        rows = torch.arange(edges.num_dst, device=edges.indptr.device)  # where the block is: it may be a GPU
        destination = torch.repeat_interleave(rows, edges.indptr.diff())
        gate = torch.sigmoid(source.scores[edges.indices] + target.scores[destination])
        # The degree is that of the graph: a block may hold a part of a node's edges, or a sample of them.
        gate = gate / block.dst_degree[destination, None].to(gate.dtype)
        return gate if block.sample_weight is None else gate * block.sample_weight[:, None]

    def update(self, x: Tensor, aggregate: Tensor) -> Tensor:
        """Phase 4: the output, from a destination's own input and what it heard; dense."""
        return self.itself(x) + aggregate[:, 0]


def main() -> None:
    """Train the same model by three strategies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="wordnet", help="a data set by name, a store or a graph file (wordnet)")
    parser.add_argument("--hidden", type=int, default=32, help="width of the hidden layer (32)")
    parser.add_argument("--epochs", type=int, default=15, help="epochs to train (15)")
    parser.add_argument("--chunks", type=int, default=4, help="chunks that the graph is cut into (4)")
    options = parser.parse_args()
    graph = og.load(options.graph)
    shape = (graph.num_features, options.hidden, graph.num_classes)

    def losses(strategy: og.Full | og.Offload, workers: int = 1) -> Tensor:
        torch.manual_seed(0)  # the same initial weights; draws of training have keys, so they are the same anyway
        model = og.nn.Stack(layers=2, norm=True).build(shape, lambda i, o, place: GatedMean(i, o))
        run = og.train(graph, model, epochs=options.epochs, strategy=strategy, workers=workers)
        print(f"{strategy.name}, workers: {workers}, last loss: {run.loss[-1]:.6f}, test: {run.test_accuracy:.3f}")
        return torch.tensor(run.loss)

    reference = losses(og.Full())
    others = (losses(og.Offload(chunks=options.chunks)), losses(og.Full(), workers=2))
    print(f"largest difference of a loss: {max(float((other - reference).abs().max()) for other in others):.1e}")


if __name__ == "__main__":
    main()
