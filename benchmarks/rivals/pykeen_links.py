"""PyKEEN on a folder of triples: MRR on the validation links over seconds of training, test MRR of the best epoch.

python -m rivals.pykeen_links FOLDER MODEL MINUTES OUT [NAME=VALUE ...]     (in benchmarks/, where PyKEEN is installed)

Options: dim, lr, batch, loop (lcwa: all entities are candidates; slcwa), negatives, weight (of N3), every, seed. It is
given what helped it: cross-entropy over all entities, Adagrad and N3, as Lacroix et al. (ICML 2018) train ComplEx;
evaluation is filtered with the links of all parts, for both ends, and is not counted.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import ComplEx, DistMult
from pykeen.regularizers import LpRegularizer
from pykeen.training import LCWATrainingLoop, SLCWATrainingLoop
from pykeen.triples import TriplesFactory

MODELS = {"complex": ComplEx, "distmult": DistMult}
OPTIONS: dict[str, float | str] = {
    **{"dim": 200, "lr": 0.1, "batch": 1000, "loop": "lcwa", "negatives": 100, "weight": 0.05, "every": 3, "seed": 0},
    "optimizer": "Adagrad",
}


def main() -> None:
    """Train until the minutes are over; write the curve and the test score."""
    folder, name, minutes, out = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), Path(sys.argv[4])
    options = dict(OPTIONS)
    for each in sys.argv[5:]:
        key, value = each.split("=")
        options[key] = type(OPTIONS[key])(value)
    torch.set_num_threads(2)
    training = TriplesFactory.from_path(folder / "train.txt")
    ids = {"entity_to_id": training.entity_to_id, "relation_to_id": training.relation_to_id}
    # Entities of other parts alone have numbers too: links of theirs are ranked, not left out.
    parts = {part: (folder / f"{part}.txt").read_text().split("\n") for part in ("train", "valid", "test")}
    rows = {part: [line.split("\t") for line in lines if line] for part, lines in parts.items()}
    entities = sorted({end for part in rows.values() for h, _, t in part for end in (h, t)})
    ids["entity_to_id"] = {entity: number for number, entity in enumerate(entities)}
    training, valid, test = (TriplesFactory.from_path(folder / f"{part}.txt", **ids) for part in parts)
    made: dict[str, Any] = {
        **{"triples_factory": training, "embedding_dim": int(options["dim"]), "loss": "crossentropy"},
        "random_seed": int(options["seed"]),
    }
    weight = float(options["weight"])
    if weight:
        made["regularizer"] = LpRegularizer(weight=weight, p=3.0, apply_only_once=False)
    model = MODELS[name](**made)
    optimizer = getattr(torch.optim, str(options["optimizer"]))(model.parameters(), lr=float(options["lr"]))
    if options["loop"] == "lcwa":
        loop: Any = LCWATrainingLoop(model=model, triples_factory=training, optimizer=optimizer)
    else:
        drawn = {"num_negs_per_pos": int(options["negatives"])}
        loop = SLCWATrainingLoop(
            model=model, triples_factory=training, optimizer=optimizer, negative_sampler_kwargs=drawn
        )
    evaluator = RankBasedEvaluator(filtered=True)

    def score(part: TriplesFactory, known: list[TriplesFactory]) -> dict[str, float]:
        others = [each.mapped_triples for each in known]
        found = evaluator.evaluate(
            model, part.mapped_triples, additional_filter_triples=others, use_tqdm=False, batch_size=256
        )
        return {
            "mrr": found.get_metric("both.realistic.inverse_harmonic_mean_rank"),
            "hits@10": found.get_metric("both.realistic.hits_at_10"),
        }

    curve, spent, epoch, best, kept = [], 0.0, 0, -1.0, None
    while spent < 60 * minutes:
        began = time.perf_counter()
        epoch += int(options["every"])
        loop.train(
            training,
            num_epochs=epoch,
            batch_size=int(options["batch"]),
            use_tqdm=False,
            use_tqdm_batch=False,
            continue_training=epoch > int(options["every"]),
        )
        spent += time.perf_counter() - began
        found = score(valid, [training, test])
        curve.append((round(spent, 1), epoch, found["mrr"]))
        print(curve[-1], flush=True)
        if found["mrr"] > best:
            best, kept = found["mrr"], copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    result = {"options": options, "curve": curve, "val": best, "test": score(test, [training, valid])}
    out.write_text(json.dumps(result))
    print(result["test"])


if __name__ == "__main__":
    main()
