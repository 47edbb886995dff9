"""Load a graph, train a model on it, and use the model.

    python examples/quickstart.py
    python examples/quickstart.py --graph cora --epochs 100    # downloads the data set if it is not on this machine
    python examples/quickstart.py --out runs/quickstart        # keeps the curves and checkpoints of the run

WordNet comes with the package: 117,659 nodes, each a set of synonyms with the words of its definition, and 45 classes.
The first run of a model on a machine compiles its kernels, half a minute or so; they are kept for the next.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="wordnet", help="a data set by name, a store or a graph file (wordnet)")
    parser.add_argument("--hidden", type=int, default=64, help="width of the hidden layer (64)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train (20)")
    parser.add_argument("--out", help="directory for the files of the run (none)")
    return parser.parse_args()


def main() -> None:
    """Train, predict and embed."""
    options = arguments()

    # A graph: edges, features and labels of nodes, and which nodes to train, validate and test on.
    graph = og.load(options.graph)
    print(graph)

    # A model: two layers of GraphSAGE. Where features are sparse, the first layer projects before it aggregates.
    # The initial weights are drawn by torch; all that is drawn in training follows from og.train(seed=...).

    torch.manual_seed(0)
    shape = (graph.num_features, options.hidden, graph.num_classes)
    model = og.nn.SAGE(*shape, layers=2, dropout=0.5, norm=True)

    # Training. The strategy is chosen by what fits; workers=4 or og.Offload(memory="2GiB") would give the same results.
    run = og.train(graph, model, epochs=options.epochs, lr=0.01, weight_decay=0.01, optimizer="adamw", out=options.out)
    print(f"loss: {run.loss[0]:.3f} after the first epoch, {run.loss[-1]:.3f} after the last")
    print(f"test accuracy: {run.test_accuracy:.3f}")

    # Predictions: the model is now as it was in its best epoch by the validation nodes.
    probability = og.predict(graph, model).softmax(1)
    node = int(graph.split.test[0])
    best = int(probability[node].argmax())
    print(f"node {node}: class {best}, with probability {probability[node, best]:.2f}")

    # Embeddings: what the last layer takes. Nodes that are alike are near to one another.
    rows = og.embed(graph, model)
    rows /= rows.norm(dim=1, keepdim=True)
    nearest = (rows @ rows[node]).topk(6).indices.tolist()
    print(f"nearest to it: {[other for other in nearest if other != node][:5]}")

    if run.directory is not None:
        print(f"files of the run: {run.directory}")


if __name__ == "__main__":
    main()
