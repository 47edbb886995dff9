"""PyG on a folder of triples: MRR on the validation links over seconds of training, test MRR of the best epoch.

python -m rivals.pyg_links FOLDER MODEL MINUTES OUT [NAME=VALUE ...]     (in benchmarks/, where PyG is installed)

Models: complex and distmult, trained as PyG's example for FB15k-237 trains its `KGEModel`s (batches of links, their own
loss of a drawn negative for each link; it has Adagrad, lr=0.001, and Adam, lr=0.0001, both decay=1e-6), and rgcn, as
its example of link prediction by an R-GCN with DistMult: the whole graph in a step, a drawn negative for each link,
binary cross-entropy, an L2 term of 0.01, but one layer in small blocks, not two in large ones. Options: dim, lr,
optimizer, decay, batch (links of a step; of rgcn 0, all), layers and blocks of rgcn, every (epochs between
evaluations), seed, threads. PyG's own evaluation is not filtered: `FilteredRanks` takes its place, and is not counted.
"""

from __future__ import annotations

import torch
from rivals.link_curve import FilteredRanks, Trial, Triples, follow_training, parse_arguments, read_triples
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import RGCNConv
from torch_geometric.nn.kge import ComplEx, DistMult

OPTIONS: dict[str, float | str] = {
    **{"dim": 200, "lr": 0.01, "optimizer": "Adam", "decay": 0.0, "batch": 1000, "every": 3, "seed": 0},
    **{"layers": 1, "blocks": 50, "threads": 2},
}


class RelationalModel(nn.Module):
    """Trained vectors, layers of `RGCNConv` in blocks, and DistMult."""

    def __init__(self, triples: Triples, options: dict[str, float | str]) -> None:
        super().__init__()
        width, relations = int(options["dim"]), len(triples.relations)
        self.vectors = nn.Parameter(torch.empty(len(triples.entities), width))
        self.relations = nn.Parameter(torch.empty(relations, width))
        nn.init.xavier_uniform_(self.vectors)
        nn.init.xavier_uniform_(self.relations)
        blocks = int(options["blocks"])
        self.layers = nn.ModuleList(
            RGCNConv(width, width, 2 * relations, num_blocks=blocks) for _ in range(int(options["layers"]))
        )
        heads, types, tails = triples.parts["train"].T
        self.edges = torch.stack([torch.cat([heads, tails]), torch.cat([tails, heads])])
        self.types = torch.cat([types, types + relations])

    def forward(self) -> Tensor:
        """Return ``[V, F]``, a row of each entity."""
        rows: Tensor = self.vectors
        for number, layer in enumerate(self.layers):
            rows = layer(rows.relu() if number else rows, self.edges, self.types)
        return rows

    def loss(self, batch: Tensor) -> Tensor:
        """Return the loss of some triples ``[N, 3]``."""
        rows = self()
        drawn = batch.clone()
        ends = torch.where(torch.rand(len(batch)) < 0.5, 0, 2)
        drawn[torch.arange(len(batch)), ends] = torch.randint(len(rows), (len(batch),))
        h, r, t = torch.cat([batch, drawn]).T
        scores = (rows[h] * self.relations[r] * rows[t]).sum(1)
        truth = torch.cat([torch.ones(len(batch)), torch.zeros(len(batch))])
        penalty = rows.square().mean() + self.relations.square().mean()
        return functional.binary_cross_entropy_with_logits(scores, truth) + 0.01 * penalty


def main() -> None:
    """Train until the minutes are over; write the curve and the test score."""
    trial = parse_arguments(OPTIONS)
    torch.set_num_threads(int(trial.options["threads"]))
    torch.manual_seed(int(trial.options["seed"]))
    triples = read_triples(trial.folder)
    if trial.model == "rgcn":
        follow_relational(trial, triples)
    else:
        follow_vectors(trial, triples)


def make_optimizer(trial: Trial, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of an option."""
    made: torch.optim.Optimizer = getattr(torch.optim, str(trial.options["optimizer"]))(
        model.parameters(), lr=float(trial.options["lr"]), weight_decay=float(trial.options["decay"])
    )
    return made


def follow_vectors(trial: Trial, triples: Triples) -> None:
    """Train ComplEx or DistMult."""
    kind = ComplEx if trial.model == "complex" else DistMult
    model = kind(len(triples.entities), len(triples.relations), int(trial.options["dim"]))
    optimizer = make_optimizer(trial, model)
    loader = model.loader(*triples.parts["train"].T, batch_size=int(trial.options["batch"]), shuffle=True)
    ranks = FilteredRanks(triples)

    def train(before: int, epochs: int) -> None:
        model.train()
        for _ in range(before, epochs):
            for batch in loader:
                optimizer.zero_grad()
                model.loss(*batch).backward()
                optimizer.step()

    def score_all(end: str, given: Tensor, relation: Tensor) -> Tensor:
        rows, queries = model.node_emb.weight, model.node_emb(given) * model.rel_emb(relation)
        if not isinstance(model, ComplEx):
            return queries @ rows.T
        real, imaginary = model.node_emb(given), model.node_emb_im(given)
        a, b = model.rel_emb(relation), model.rel_emb_im(relation)
        if end == "head":
            b = -b
        return (real * a - imaginary * b) @ rows.T + (imaginary * a + real * b) @ model.node_emb_im.weight.T

    follow_training(trial, model, train, lambda part: ranks.rank(part, score_all))


def follow_relational(trial: Trial, triples: Triples) -> None:
    """Train the R-GCN."""
    model = RelationalModel(triples, trial.options)
    optimizer = make_optimizer(trial, model)
    ranks, links = FilteredRanks(triples), triples.parts["train"]
    size = int(trial.options["batch"]) or len(links)

    def train(before: int, epochs: int) -> None:
        for _ in range(before, epochs):
            for batch in links[torch.randperm(len(links))].split(size):
                optimizer.zero_grad()
                model.loss(batch).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

    def rank(part: str) -> dict[str, float]:
        with torch.no_grad():
            rows = model()
        return ranks.rank(part, lambda end, given, relation: (rows[given] * model.relations[relation]) @ rows.T)

    follow_training(trial, model, train, rank)


if __name__ == "__main__":
    main()
