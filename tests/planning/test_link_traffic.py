"""What is estimated to cross links while a model learns links is nearly what the ledger says, under every strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from outgrow.app.plan.question import PlanSite, query_for_graph
from outgrow.core.ledger import Link
from outgrow.engine.link_draws import DrawnLinks, LinkDraws
from outgrow.graph import datasets
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import write_store
from outgrow.nn import GCN, RGCN, SAGE, Embedding, Model
from outgrow.nn.decoder import DistMult, Dot
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.registry import estimate_strategy
from outgrow.planning.estimators.wave_traffic import PassTraffic
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.link_costs import add_link_costs
from outgrow.planning.planner import cost_model_for
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig
from suites.sessions import Plan, Result, train_in_turn
from suites.traffic import list_ledger_bytes
from thread_group import run_in_threads

WORKERS, EPOCHS = 3, 1
PLAIN, RELATIONS = "arxiv@0.03", "relations arxiv@0.03"


class Case(NamedTuple):
    """What is trained, on which graph, and how."""

    strategy: Strategy
    options: dict[str, Any]
    graph: str = PLAIN
    model: str = "sage"
    hosts: int = 1


BATCHES: dict[str, Any] = {"batch_size": 1000, "fanout": (5, 5)}
SHARED: dict[str, Any] = {"link_loss": "softmax", "negative_sampling": "shared", "negatives": 50}
CASES = {
    "full": Case(Full(partition="metis"), {}),
    "full, steps, hidden edges": Case(Full(partition="hash"), {"link_steps": 3, "hide": 0.4, **SHARED}),
    "full, all nodes": Case(Full(), {"link_loss": "k-vs-all"}, RELATIONS, "rgcn"),
    "vectors alone": Case(Full(partition="metis"), {"link_steps": 4, **SHARED}, RELATIONS, "embedding"),
    "tensor": Case(TensorParallel(chunks=2), {"link_steps": 2}),
    "tensor, hidden edges": Case(TensorParallel(chunks=1), {"link_steps": 2, "hide": 0.5}, model="gcn"),
    "offload": Case(Offload(chunks=3), {"link_steps": 2}, model="gcn"),
    "offload, hidden edges": Case(Offload(chunks=2), {"link_steps": 2, "hide": 0.5}),
    "sampled": Case(Sampled(cache=0.1), BATCHES, hosts=2),
    "sampled, candidates in common": Case(Sampled(partition="hash"), {**BATCHES, **SHARED}, RELATIONS, "rgcn", 2),
    "by degree": Case(Migrate(), {**BATCHES, **SHARED, "negative_sampling": "degree"}, hosts=2),
    "split": Case(SplitParallel(partial_sums=False), BATCHES),
    "split, in batches": Case(
        SplitParallel(partition="metis"), {**BATCHES, **SHARED, "negative_sampling": "in-batch"}, RELATIONS, "rgcn", 2
    ),
    "orchestrate": Case(Orchestrate(), BATCHES, hosts=2),
}


@cache
def graph_of(name: str) -> Graph:
    graph = datasets.load_graph(PLAIN)
    if name == PLAIN:
        return graph
    generator = torch.Generator().manual_seed(5)
    relation = torch.randint(3, (graph.num_edges,), generator=generator, dtype=torch.int16)
    names = ("a", "b", "c")
    return replace(graph, topology=replace(graph.topology, relation=relation), relation_names=names)


def model_of(case: Case) -> Model:
    torch.manual_seed(0)
    graph = graph_of(case.graph)
    columns = graph.num_features
    match case.model:
        case "rgcn":
            made: Model = RGCN(columns, 16, 8, num_relations=3)
        case "embedding":
            made = Embedding(columns, 8, 8)
        case "gcn":
            made = GCN(columns, 16, 8)
        case _:
            made = SAGE(columns, 16, 8)
    return made.with_decoder(Dot() if case.graph == PLAIN else DistMult(8, 3))


def config_of(case: Case) -> TrainConfig:
    evaluation = {} if case.strategy.uses_minibatches is False else {"eval": "layerwise"}
    return TrainConfig().with_options(
        epochs=EPOCHS, eval_every=EPOCHS, seed=3, val_links=0.02, test_links=0.03, **evaluation, **case.options
    )


def estimate_of(case: Case) -> Estimate:
    layout = WorkerLayout(workers=WORKERS, hosts=case.hosts)
    profile = find_profile("2-core-cpu")
    links = {**profile.links, Link.NETWORK: profile.links[Link.PEER]}
    site = PlanSite(replace(profile, links=links), [layout])
    query = query_for_graph(graph_of(case.graph), model_of(case), config_of(case), site)
    return estimate_strategy(case.strategy, query.work, cost_model_for(query, layout))


@cache
def runs() -> dict[str, Result]:
    """A run of each case."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for graph in {case.graph for case in CASES.values()}:
            write_store(graph_of(graph), folder / graph)
        found = {}
        for hosts in {case.hosts for case in CASES.values()}:
            plans = {
                name: Plan(folder / case.graph, model_of(case), config_of(case), case.strategy)
                for name, case in CASES.items()
                if case.hosts == hosts
            }
            run = run_in_threads(lambda place, plans=plans: train_in_turn(place, plans), WORKERS, hosts=hosts)
            found.update(run[0])
        return found


def is_near_the_ledger(name: str) -> bool:
    """All bytes of a link within 2%, and those of each kind within 10%: nothing but gradients go to the CPU."""
    expected = estimate_of(CASES[name]).traffic.run_bytes(EPOCHS, 1)
    found = list_ledger_bytes(runs()[name].summary["ledger"])
    if expected.keys() != found.keys():
        return False
    near = all(expected[key] == pytest.approx(count, rel=0.1) for key, count in found.items())
    for link in {link for link, _ in found} - {Link.DEVICE_TO_HOST}:
        crossed, estimated = (sum(table[key] for key in table if key[0] == link) for table in (found, expected))
        near &= estimated == pytest.approx(crossed, rel=0.02)
    return near


@pytest.mark.parametrize("name", CASES)
def test_bytes(name: str) -> None:
    assert is_near_the_ledger(name)


@contextmanager
def without_negatives() -> Iterator[None]:
    """The rows of negatives are taken to be there."""
    right = LinkDraws.list_needed

    def list_needed(self: LinkDraws, drawn: DrawnLinks, owner: Tensor, num_workers: int) -> list[Tensor]:
        count = len(drawn.links)
        tails, heads, relations = (each[:count] for each in drawn.pairs)
        return right(self, drawn._replace(pairs=(tails, heads, relations), candidates=[]), owner, num_workers)

    with patch.object(LinkDraws, "list_needed", list_needed):
        yield


@contextmanager
def without_degrees() -> Iterator[None]:
    """In-degrees without hidden edges are taken to be known."""
    with patch("outgrow.planning.link_costs._add_degrees"):
        yield


@contextmanager
def last_layer_once() -> Iterator[None]:
    """Chunks compute the last layer once, as where a loss adds up over nodes."""
    with patch.object(PassTraffic, "_last_layer_bytes", lambda self: Counter()):
        yield


@contextmanager
def one_step_an_epoch() -> Iterator[None]:
    """An epoch is one pass over the graph."""

    def add(found: Estimate, work: Workload, costs: CostModel) -> Estimate:
        assert work.links is not None
        options = replace(work.links.options, steps=replace(work.links.options.steps, num_steps=1))
        return add_link_costs(found, replace(work, links=replace(work.links, options=options)), costs)

    with patch("outgrow.planning.estimators.registry.add_link_costs", add):
        yield


MUTANTS: dict[str, tuple[Callable[[], AbstractContextManager[None]], str]] = {
    "rows_of_negatives_known": (without_negatives, "sampled, candidates in common"),
    "degrees_known": (without_degrees, "full, steps, hidden edges"),
    "last_layer_computed_once": (last_layer_once, "offload"),
    "one_pass_an_epoch": (one_step_an_epoch, "tensor"),
}
"""By name, what is wrong, and the run whose ledger shows it."""


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str) -> None:
    broken, name = MUTANTS[mutant]
    # Trained first, with the code as it is.
    runs()
    with broken():
        assert not is_near_the_ledger(name)
