"""PyKEEN on a folder of triples: MRR on the validation links over seconds of training, test MRR of the best epoch.

python -m rivals.pykeen_links FOLDER MODEL MINUTES OUT [NAME=VALUE ...]     (in benchmarks/, where PyKEEN is installed)

Models: complex, distmult, rgcn (with DistMult). Options: dim, lr, batch, loop (lcwa: all entities are candidates;
slcwa), negatives, weight (of N3; 0 for none), layers and blocks of rgcn, every (epochs between evaluations), seed,
threads, scale (deviation of the initial vectors of complex and distmult: with PyKEEN's own, 1, they begin to learn
after minutes), inverse (1: heads are the tails of inverse relations, so that both ends are trained). It is given what
helped it: cross-entropy over all entities, inverse relations, Adagrad and N3, as Lacroix et al. (ICML 2018) train
ComplEx. Evaluation is PyKEEN's own, filtered with the links of all parts, for both ends, and is not
counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import RGCN, ComplEx, DistMult
from pykeen.regularizers import LpRegularizer
from pykeen.training import LCWATrainingLoop, SLCWATrainingLoop
from pykeen.triples import TriplesFactory
from rivals.link_curve import PARTS, follow_training, parse_arguments, read_triples
from torch.nn.init import normal_

MODELS = {"complex": ComplEx, "distmult": DistMult, "rgcn": RGCN}
OPTIONS: dict[str, float | str] = {
    **{"dim": 200, "lr": 0.1, "batch": 1000, "loop": "lcwa", "negatives": 100, "weight": 0.05, "every": 3, "seed": 0},
    **{"optimizer": "Adagrad", "layers": 1, "blocks": 50, "threads": 2, "scale": 0.05, "inverse": 1},
}


def main() -> None:
    """Train until the minutes are over; write the curve and the test score."""
    trial = parse_arguments(OPTIONS)
    options = trial.options
    torch.set_num_threads(int(options["threads"]))
    triples = read_triples(trial.folder)
    inverse = bool(options["inverse"]) and trial.model != "rgcn"  # which has inverse relations of its own
    parts = {
        part: TriplesFactory(
            triples.parts[part],
            triples.entities,
            triples.relations,
            create_inverse_triples=inverse and part == "train",
        )
        for part in PARTS
    }
    made: dict[str, Any] = {
        **{"triples_factory": parts["train"], "embedding_dim": int(options["dim"]), "loss": "crossentropy"},
        "random_seed": int(options["seed"]),
    }
    if trial.model == "rgcn":
        made |= {"num_layers": int(options["layers"]), "decomposition": "block", "interaction": "distmult"}
        made["decomposition_kwargs"] = {"num_blocks": int(options["blocks"])}
    else:
        made |= dict.fromkeys(("entity_initializer", "relation_initializer"), partial(normal_, std=options["scale"]))
        if trial.model == "distmult":
            # Vectors of norm 1, PyKEEN's default, have scores too alike for a cross-entropy over all entities.
            made["entity_constrainer"] = None
        if options["weight"]:
            made["regularizer"] = LpRegularizer(weight=float(options["weight"]), p=3.0, apply_only_once=False)
    model = MODELS[trial.model](**made)
    optimizer = getattr(torch.optim, str(options["optimizer"]))(model.parameters(), lr=float(options["lr"]))
    given: dict[str, Any] = {"model": model, "triples_factory": parts["train"], "optimizer": optimizer}
    if options["loop"] == "lcwa":
        loop: Any = LCWATrainingLoop(**given)
    else:
        loop = SLCWATrainingLoop(**given, negative_sampler_kwargs={"num_negs_per_pos": int(options["negatives"])})
    evaluator = RankBasedEvaluator(filtered=True)

    def train(before: int, epochs: int) -> None:
        loop.train(
            parts["train"],
            num_epochs=epochs,
            batch_size=int(options["batch"]),
            use_tqdm=False,
            use_tqdm_batch=False,
            continue_training=before > 0,
        )

    def rank(part: str) -> dict[str, float]:
        others = [each.mapped_triples for name, each in parts.items() if name != part]
        found = evaluator.evaluate(
            model, parts[part].mapped_triples, additional_filter_triples=others, use_tqdm=False, batch_size=256
        )
        # Rows of an R-GCN that were made without gradients are kept until parameters change.
        model.post_parameter_update()
        return {
            "mrr": found.get_metric("both.realistic.inverse_harmonic_mean_rank"),
            "hits@10": found.get_metric("both.realistic.hits_at_10"),
        }

    follow_training(trial, model, train, rank)


if __name__ == "__main__":
    main()
