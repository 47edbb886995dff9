"""The ways of training that must give one and the same run. An exact strategy adds a line to `STRATEGIES`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.training.config import TrainConfig
from planted import model_of
from suites.sessions import Plan

KINDS = ("gcn", "sage", "gat")
CONFIG = TrainConfig(epochs=30, lr=0.02, weight_decay=1e-4, seed=5)
FIRST, AGAIN = ("gat", "metis"), ("gat", "metis once more")


STRATEGIES: dict[str, Strategy] = {
    **{name: Full(partition=name) for name in ("metis", "range", "hash")},
    "hash without overlap": Full(partition="hash", overlap=False),
}


EVERY = [(kind, way) for kind in KINDS for way in STRATEGIES]
SOME = [FIRST, ("gat", "hash without overlap"), ("gcn", "hash"), ("gcn", "metis"), ("sage", "range")]


def plans(store: Path, chosen: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Plan]:
    """Some models in some ways, by the names of both, and one of them twice."""
    given = {name: name for name in chosen} | {AGAIN: FIRST}
    return {name: Plan(store, model_of(kind, seed=1), CONFIG, STRATEGIES[way]) for name, (kind, way) in given.items()}
