"""The ways of training that must give one and the same run. An exact strategy adds a line to `WAYS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig
from planted import model_of
from suites.sessions import Plan
from support import disk_folder

KINDS = ("gcn", "sage", "gat")
CONFIG = TrainConfig(epochs=30, lr=0.02, weight_decay=1e-4, seed=5)
BATCHES = replace(CONFIG, batch_size=16, fanout=(3, 4))


class Way(NamedTuple):
    """A strategy, and what it is asked for. Ways with the same config give the same run."""

    strategy: Strategy
    config: TrainConfig = CONFIG


WAYS = {
    **{name: Way(Full(partition=name)) for name in ("metis", "range", "hash")},
    "hash without overlap": Way(Full(partition="hash", overlap=False, first_aggregate="each-step")),
    "sampled everything": Way(Sampled()),
    "offload": Way(Offload(chunks=3, partition="hash", scratch_dir=str(disk_folder()))),
    "offload without overlap": Way(Offload(chunks=3, partition="hash", overlap=False, scratch_dir=str(disk_folder()))),
    "offload without sharing": Way(Offload(chunks=2, sharing=False, cache=False, scratch_dir=str(disk_folder()))),
    "tensor": Way(TensorParallel()),
    "tensor in one chunk": Way(TensorParallel(chunks=1)),
    **{f"sampled {name}": Way(Sampled(partition=name), BATCHES) for name in ("metis", "hash")},
    "split": Way(SplitParallel(), BATCHES),
    "split with a cache": Way(SplitParallel(partition="hash", cache=0.2, cache_by="presampling", prefetch=1), BATCHES),
    "migrate": Way(Migrate(partition="hash"), BATCHES),
    "migrate with travelling models": Way(Migrate(move_model=True), BATCHES),
    "orchestrate without hot nodes": Way(Orchestrate(partition="hash", hot_ratio=0.0), BATCHES),
    "sampled with a cache": Way(Sampled(partition="range", cache=0.3, cache_by="presampling", prefetch=1), BATCHES),
}
TWICE = {("gat", way): ("gat", f"{way} once more") for way in ("metis", "sampled hash", "split")}
SAME_BITS = ("offload", "offload without overlap")
SLICED = ("tensor", "tensor in one chunk")
EVERY = [(kind, way) for kind in KINDS for way in WAYS]
SOME = [
    *TWICE,
    ("gat", "hash without overlap"),
    ("gcn", "hash"),
    ("gcn", "metis"),
    ("sage", "range"),
    ("sage", "sampled everything"),
    *(("gcn", way) for way in SAME_BITS),
    ("gat", "offload without sharing"),
    *(("gat", way) for way in SLICED),
    ("gcn", "sampled metis"),
    ("sage", "sampled with a cache"),
    ("gcn", "split with a cache"),
    ("sage", "migrate"),
    ("gat", "migrate with travelling models"),
    ("gcn", "orchestrate without hot nodes"),
]


def plans(store: Path, chosen: Sequence[tuple[str, str]], epochs: int) -> dict[tuple[str, str], Plan]:
    """Some models in some ways, by the names of both, and some of them twice."""
    given = {name: name for name in chosen} | {again: name for name, again in TWICE.items()}
    return {
        name: Plan(store, model_of(kind, seed=1), replace(WAYS[way].config, epochs=epochs), WAYS[way].strategy)
        for name, (kind, way) in given.items()
    }
