"""A run with vectors of nodes does not depend on the strategy, the number of workers or of chunks, or on owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import write_store
from outgrow.nn import GAT, GCN, MLP, SAGE, Dot, Embedding, Model, NodeEmbedding
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training import embedding_placement as placement
from outgrow.training.config import TrainConfig
from planted import WIDTH, planted
from suites import typed_runs
from suites.embedding_mutants import MUTANTS
from suites.invariance import BATCHES, CONFIG, WAYS, Way
from suites.sessions import Plan, Result, graph_of, largest_step, train_in_turn
from support import disk_folder
from thread_group import run_in_threads

EPOCHS, DIM, CLOSE = 4, 6, 1e-8


class Case(NamedTuple):
    """A run of one of `MODELS` in one of `EVERY`."""

    model: str
    way: str


def with_vectors(model: Callable[[int], Model], **options: object) -> Model:
    encoder = NodeEmbedding(DIM, **options)  # type: ignore[arg-type]
    return model(encoder.out_features).with_encoder(encoder)


MODELS: Mapping[str, Callable[[], Model]] = {
    "replace": lambda: with_vectors(lambda width: GCN(width, 8, 2, dropout=0.3)),
    "add": lambda: with_vectors(lambda width: SAGE(width, 8, 2, dropout=0.3), in_features=WIDTH),
    "concat": lambda: with_vectors(lambda width: GAT(width, 8, 2, heads=2), in_features=WIDTH, combine="concat"),
    "no-messages": lambda: with_vectors(lambda width: MLP(width, 8, 2), in_features=WIDTH),
    "types": lambda: with_vectors(lambda width: GCN(width, 8, 2), in_features=WIDTH, types="item"),
}
LINKS: Mapping[str, Callable[[], Model]] = {
    "links": lambda: with_vectors(lambda width: GCN(width, 8, 6, dropout=0.3)).with_decoder(Dot()),
    "links-alone": lambda: Embedding(WIDTH, 6, 6, dropout=0.2).with_decoder(Dot()),
}
ADAGRAD = replace(BATCHES, embedding_optimizer="adagrad", embedding_lr=0.1, clip_grad_norm=0.5)
DENSE = replace(BATCHES, embedding_optimizer="adam", accumulate=2)
STEPS = replace(
    CONFIG, link_steps=3, hide=0.2, link_loss="softmax", negative_sampling="shared", negatives=16, regularizer="n3"
)
SPARSE = replace(CONFIG, link_steps=4, embedding_optimizer="sparse-adam", link_loss="margin", margin=0.5, negatives=2)
CLIPPED = replace(CONFIG, clip_grad_norm=0.2, schedule="step", schedule_options={"step_size": 2})
EVERY: Mapping[str, Way] = {
    **{
        name: WAYS[name]
        for name in ("hash", "tensor", "offload without sharing", "sampled hash", "sampled everything", "split")
    },
    **{
        f"offload in {count} chunks": Way(Offload(chunks=count, partition="hash", scratch_dir=str(disk_folder())))
        for count in range(1, 8)
    },
    "migrate with travelling models": WAYS["migrate with travelling models"],
    "clipped": Way(Full(partition="hash"), CLIPPED),
    "clipped tensor": Way(TensorParallel(), CLIPPED),
    "adagrad": Way(Sampled(partition="hash"), ADAGRAD),
    "adagrad split": Way(SplitParallel(), ADAGRAD),
    "dense in batches": Way(Sampled(partition="hash"), DENSE),
}
LINK_WAYS: Mapping[str, Way] = {
    "steps": Way(Full(partition="hash"), STEPS),
    "steps tensor": Way(TensorParallel(), STEPS),
    "steps offload": Way(Offload(chunks=3, partition="hash", scratch_dir=str(disk_folder())), STEPS),
    # Without chunks: rows of the nodes of a step alone, where layers read no neighbours.
    "steps by node": Way(Offload(partition="hash", scratch_dir=str(disk_folder())), STEPS),
    "sparse": Way(Full(partition="hash"), SPARSE),
    "sparse offload": Way(Offload(chunks=3, partition="hash", scratch_dir=str(disk_folder())), SPARSE),
    "sparse by node": Way(Offload(partition="hash", scratch_dir=str(disk_folder())), SPARSE),
}
SOME = [
    *(Case(model, way) for model, way in zip(("links", "links-alone", "links"), LINK_WAYS, strict=False)),
    *(Case("links-alone", way) for way in [*LINK_WAYS][3:]),
    Case("replace", "hash"),
    Case("replace", "offload in 3 chunks"),
    Case("replace", "sampled hash"),
    Case("add", "tensor"),
    Case("add", "clipped"),
    Case("add", "adagrad"),
    Case("add", "dense in batches"),
    Case("concat", "split"),
    Case("concat", "offload without sharing"),
    Case("no-messages", "tensor"),
    Case("no-messages", "migrate with travelling models"),
    Case("types", "hash"),
    Case("types", "sampled hash"),
]


class Runs:
    """Runs on two graphs, whose stores are in a folder; of one worker, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        graphs: Mapping[str, Graph] = {"planted": graph_of(planted()), "types": typed_runs.typed_graph()}
        for name, graph in graphs.items():
            write_store(graph, folder / name)
        self._alone: dict[tuple[str, TrainConfig], Result] = {}

    def plan(self, case: Case, way: Way) -> Plan:
        torch.manual_seed(1)
        model = {**MODELS, **LINKS}[case.model]().double()
        graph = "types" if case.model == "types" else "planted"
        return Plan(self.folder / graph, model, replace(way.config, epochs=EPOCHS), way.strategy)

    def results(self, cases: Sequence[Case], workers: int) -> dict[Case, Result]:
        plans = {case: self.plan(case, {**EVERY, **LINK_WAYS}[case.way]) for case in cases}
        return run_in_threads(partial(train_in_turn, plans=plans), workers)[0]

    def alone(self, case: Case) -> Result:
        """What one worker gives on all nodes at once, or on batches."""
        config = {**EVERY, **LINK_WAYS}[case.way].config
        if (case.model, config) not in self._alone:
            strategy = Sampled() if config.batch_size or config.fanout else Full()
            plan = self.plan(case, Way(strategy, config))
            [found] = run_in_threads(partial(train_in_turn, plans={case: plan}), 1)
            self._alone[case.model, config] = found[case]
        return self._alone[case.model, config]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("node-embeddings"))


def require_one_run(runs: Runs, cases: Sequence[Case], workers: int) -> None:
    for case, result in runs.results(cases, workers).items():
        expected = runs.alone(case)
        assert result.summary["exact"] is True
        assert largest_step(result.summary["loss"], expected.summary["loss"]) < CLOSE, case
        found, vectors = result.state_dict["encoder.weight"], expected.state_dict["encoder.weight"]
        assert found.shape == vectors.shape
        assert torch.allclose(found, vectors, rtol=0, atol=CLOSE), case


@pytest.mark.timeout(900)
def test_some_runs(runs: Runs) -> None:
    require_one_run(runs, SOME, 2)
    require_one_run(runs, SOME[2::4], 3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_model_in_every_way(runs: Runs, workers: int) -> None:
    require_one_run(runs, [Case(model, way) for model in MODELS for way in EVERY], workers)
    require_one_run(runs, [Case(model, way) for model in LINKS for way in LINK_WAYS], workers)


def test_rows_in_files(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that do not fit into memory give the same run; the trained ones are in the checkpoint."""
    cases = [Case("add", "hash"), Case("replace", "offload in 3 chunks"), Case("replace", "sampled hash")]
    cases += [Case("links", "sparse offload"), Case("links-alone", "sparse by node")]
    expected = [runs.alone(case) for case in cases]
    monkeypatch.setattr(placement, "MEMORY_SHARE", 0.0)
    for number, (case, right) in enumerate(zip(cases, expected, strict=True)):
        plan = runs.plan(case, {**EVERY, **LINK_WAYS}[case.way])._replace(directory=runs.folder / f"run-{number}")
        found = run_in_threads(partial(train_in_turn, plans={case: plan}), 2)[0][case]
        assert found.summary["strategy_facts"]["embeddings_on_disk"] is True
        assert largest_step(found.summary["loss"], right.summary["loss"]) < CLOSE


FOUND_IN = {
    "moments_of_untouched_rows": Case("replace", "sampled hash"),
    "stale_remote_rows": Case("replace", "sampled hash"),
    "gradients_from_every_worker": Case("add", "adagrad"),
    "rows_drawn_by_place": Case("replace", "hash"),
}
"""A run that each mutant changes."""


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, runs: Runs) -> None:
    case = FOUND_IN[name]
    expected = runs.alone(case)
    with MUTANTS[name]() as hits:
        found = runs.results([case], 3)[case]
    assert hits.count
    assert not largest_step(found.summary["loss"], expected.summary["loss"]) < CLOSE
