"""What rivals that predict links share: triples as numbers, filtered ranks, a curve of validation MRR over seconds."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

PARTS = ("train", "valid", "test")
_BATCH = 256


class Triples(NamedTuple):
    """Triples of a folder, numbered over all of its parts: entities of one part alone are ranked too.

    Attributes:
        entities: Number of each entity.
        relations: Number of each relation.
        parts: ``[N, 3]`` int64, head, relation and tail, of each part.
    """

    entities: dict[str, int]
    relations: dict[str, int]
    parts: dict[str, Tensor]


class Trial(NamedTuple):
    """Arguments of the command, ``FOLDER MODEL MINUTES OUT [NAME=VALUE ...]``."""

    folder: Path
    model: str
    minutes: float
    out: Path
    options: dict[str, float | str]


def parse_arguments(defaults: Mapping[str, float | str]) -> Trial:
    """Read the command; an option has the type of its default."""
    folder, name, minutes, out, *given = sys.argv[1:]
    options = dict(defaults)
    for each in given:
        key, value = each.split("=")
        options[key] = type(defaults[key])(value)
    return Trial(Path(folder), name, float(minutes), Path(out), options)


def read_triples(folder: Path) -> Triples:
    """Read ``train.txt``, ``valid.txt`` and ``test.txt``: head, relation and tail by tabulators."""
    lines = {part: (folder / f"{part}.txt").read_text().split("\n") for part in PARTS}
    rows = {part: [line.split("\t") for line in found if line] for part, found in lines.items()}
    entities = _number(end for part in rows.values() for head, _, tail in part for end in (head, tail))
    relations = _number(relation for part in rows.values() for _, relation, _ in part)
    parts = {
        part: torch.tensor([(entities[h], relations[r], entities[t]) for h, r, t in found])
        for part, found in rows.items()
    }
    return Triples(entities, relations, parts)


def _number(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted(set(names)))}


def follow_training(
    trial: Trial,
    model: nn.Module,
    train: Callable[[int, int], None],
    rank: Callable[[str], Mapping[str, float]],
) -> None:
    """Train until the minutes are over, evaluations not counted; write the curve, and test scores of the best epoch.

    Args:
        trial: The command.
        model: The model.
        train: Trains from an epoch up to another.
        rank: Returns scores of a part, ``mrr`` among them.
    """
    every = int(trial.options["every"])
    curve, spent, epoch, best, kept = list[tuple[float, int, float]](), 0.0, 0, -1.0, model.state_dict()
    while spent < 60 * trial.minutes:
        began = time.perf_counter()
        train(epoch, epoch + every)
        spent, epoch = spent + time.perf_counter() - began, epoch + every
        found = rank("valid")["mrr"]
        curve.append((round(spent, 1), epoch, found))
        print(curve[-1], flush=True)
        if found > best:
            best, kept = found, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    result = {"options": trial.options, "curve": curve, "val": best, "test": dict(rank("test"))}
    trial.out.write_text(json.dumps(result))
    print(result["test"])


class FilteredRanks:
    """Realistic ranks of both ends among all entities, without the other answers of all parts."""

    def __init__(self, triples: Triples) -> None:
        self._parts = triples.parts
        self._answers: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for h, r, t in torch.cat(list(triples.parts.values())).tolist():
            self._answers["tail", h, r].append(t)
            self._answers["head", t, r].append(h)

    @torch.no_grad()
    def rank(self, part: str, score_all: Callable[[str, Tensor, Tensor], Tensor]) -> dict[str, float]:
        """Return MRR and Hits@10 of a part.

        Args:
            part: Name of the part.
            score_all: ``(end, given, relation)``, ``end`` being the one asked for, to scores ``[N, V]``.
        """
        ranks = []
        for batch in self._parts[part].split(_BATCH):
            for end, given, answer in (("tail", batch[:, 0], batch[:, 2]), ("head", batch[:, 2], batch[:, 0])):
                scores = score_all(end, given, batch[:, 1])
                true = scores.gather(1, answer[:, None])
                for row, (node, relation) in enumerate(zip(given.tolist(), batch[:, 1].tolist(), strict=True)):
                    scores[row, self._answers[end, node, relation]] = -torch.inf
                ranks.append(1 + (scores > true).sum(1) + (scores == true).sum(1) / 2)
        found = torch.cat(ranks)
        return {"mrr": float((1 / found).mean()), "hits@10": float((found <= 10).float().mean())}
