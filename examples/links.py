"""Predict links: which pairs of nodes are joined, and by which relation.

    python examples/links.py
    python examples/links.py --epochs 140 --hidden 128    # minutes; twice the score or more

R-GCN makes a row of each node of WordNet, DistMult scores pairs of rows. Some pairs of nodes are set aside with all
edges between them. For each of their links both ends are asked for, and all 117,659 nodes are ranked as the answer;
the filtered MRR is the mean of 1 / rank, without the other known answers. Ranking all takes longer than an epoch, so
models are scored in the last epoch only, on one link in a hundred. Relations are named as in WordNet's files: "@" is a
more general word, "!" the opposite.
"""

from __future__ import annotations

import argparse

import outgrow as og
import torch


def main() -> None:
    """Train, print scores, and ask for the other end of a link."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="wordnet", help="a graph whose edges have relations (wordnet)")
    parser.add_argument("--hidden", type=int, default=32, help="width of the rows of nodes (32)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train (20)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate (0.02)")
    options = parser.parse_args()
    graph, hidden = og.load(options.graph), options.hidden
    print(f"{graph}; relations: {', '.join(graph.relation_names[:4])}, ...")

    # A model with a decoder is one of links. The last layer gives what the decoder takes, instead of logits.

    torch.manual_seed(0)
    relations = graph.num_relations
    layers = og.nn.RGCN(graph.num_features, hidden, hidden, num_relations=relations)
    model = layers.with_decoder(og.nn.DistMult(hidden, relations))

    # 1% of the linked pairs of nodes are set aside to test on; negatives are drawn anew in each epoch.
    loop = {"epochs": options.epochs, "lr": options.lr, "eval_every": options.epochs}
    run = og.train(graph, model, optimizer="adamw", test_links=0.01, val_links=0.005, **loop)
    scores = run.summary["scores"]["test"]
    chance = float((1 / torch.arange(1, graph.num_nodes + 1)).mean())
    print(f"loss: {run.loss[0]:.3f} after the first epoch, {run.loss[-1]:.3f} after the last")
    print(f"filtered MRR: {scores['mrr']:.4f} (by chance {chance:.4f}), Hits@10: {scores['hits@10']:.4f}")

    # What else might be linked to a node, by the first relation? Rows of all nodes, and the score of each pair.
    node, relation = torch.tensor([0]), torch.tensor([0])
    with torch.no_grad():
        rows = og.embed(graph, model)
        score = model.decoder.link_queries(rows[node], relation) @ rows.T
    score[0, node] = -torch.inf
    best = score[0].topk(5).indices.tolist()
    print(f"most likely linked to node {int(node)} by {graph.relation_names[0]!r}: {best}")


if __name__ == "__main__":
    main()
