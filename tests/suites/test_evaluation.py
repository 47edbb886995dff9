"""All evaluations that are exact give the scores of the plain model, under every strategy, on any number of workers."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.engine.shard import FullGraphShard, PartitionShard
from outgrow.inference.layer_nodes import find_layer_nodes
from suites.cases import DEALS, Case, features_of, model_of
from suites.evaluation import (
    BROKEN,
    CASES,
    MEMORY,
    MODES,
    MUTANTS,
    SCARCE,
    STRATEGIES,
    Key,
    Scores,
    scores_of,
    split_of,
)
from suites.exactness import GRAPHS, OPAQUE
from suites.objectives import make_task
from support import whole_blocks
from thread_group import run_in_threads

TOLERANCE = 1e-10
VISIBLE = 1e-6
KEYS: list[Key] = [
    (name, mode, case)
    for name in STRATEGIES
    for mode in MODES
    for case in CASES
    if not (name == "tensor" and case.conv in OPAQUE)
]
QUICK = [key for key in KEYS if key[2] in (CASES[0], CASES[2])]
"""What is run with little memory, where chunks are many."""


@cache
def seen(workers: int, memory: str) -> list[dict[Key, Scores]]:
    return scores_of(QUICK if memory == "scarce" else KEYS, workers, MEMORY[memory])


@cache
def plain_logits(case: Case) -> Tensor:
    """What the model gives for all nodes at once."""
    model, topology = model_of(case), GRAPHS[case.graph]
    with model.evaluating(), torch.no_grad():
        return model(whole_blocks(model, topology), features_of(case, topology.num_nodes))


def plain_scores(case: Case) -> tuple[float, float, float]:
    """The validation score, its loss, and the test score."""
    logits = plain_logits(case)
    task, labels = make_task(case.task, len(logits))
    val, test = split_of(case)
    scores = [task.metric_from_counts(task.metric_counts(logits[at], labels[at])) for at in (val, test)]
    return scores[0], task.loss(logits[val], labels[val], len(val)).item(), scores[1]


workers_and_memory = pytest.mark.parametrize(
    ("workers", "memory"),
    [
        (1, "scarce"),
        (3, "scarce"),
        *(pytest.param(workers, "ample", marks=pytest.mark.slow) for workers in (1, 2, 3)),
        pytest.param(2, "scarce", marks=pytest.mark.slow),
    ],
)


@workers_and_memory
def test_exact_evaluations_score_the_plain_model(workers: int, memory: str) -> None:
    wrong = {}
    for key, found in seen(workers, memory)[0].items():
        if key[1] == "sampled":
            continue
        score, loss, test = plain_scores(key[2])
        right = found.val.score == score and found.final_val.score == score and found.test.score == test
        if not (right and abs(found.val.loss - loss) <= TOLERANCE * max(1, abs(loss))):
            wrong[key] = found
    assert not wrong


@workers_and_memory
def test_sampled_evaluations_do_not_depend_on_workers_or_strategies(workers: int, memory: str) -> None:
    wrong = {}
    for key, found in seen(workers, memory)[0].items():
        if key[1] == "sampled":
            alone = seen(1, memory)[0]["sampled", "sampled", key[2]]
            if found.val.score != alone.val.score or abs(found.val.loss - alone.val.loss) > TOLERANCE * abs(
                alone.val.loss
            ):
                wrong[key] = found
    assert not wrong


def test_samples_are_not_the_whole_neighbourhood() -> None:
    found = seen(1, "scarce")[0]
    case = CASES[0]
    assert abs(found["sampled", "sampled", case].val.loss - plain_scores(case)[1]) > VISIBLE


@workers_and_memory
def test_all_workers_agree(workers: int, memory: str) -> None:
    first, *others = seen(workers, memory)
    for other in others:
        assert [key for key in first if first[key].val != other[key].val or first[key].test != other[key].test] == []


def test_auto_is_exact_under_every_strategy_and_says_which() -> None:
    found = {key[0]: scores.mode for key, scores in seen(1, "scarce")[0].items() if key[1] == "auto"}
    whole = dict.fromkeys(("full", "offload", "tensor"), "layerwise")
    assert found == {name: whole.get(name, "exact") for name in STRATEGIES}


@pytest.mark.slow
def test_output_of_all_nodes_is_kept_where_whole_layers_fit() -> None:
    for (name, mode, case), found in seen(1, "ample")[0].items():
        if mode == "layerwise" and name != "offload":
            assert found.logits is not None
            torch.testing.assert_close(found.logits, plain_logits(case), rtol=TOLERANCE, atol=TOLERANCE)


def test_feature_bytes_are_those_of_the_nodes_that_are_read() -> None:
    """Bytes of an exact validation equal a walk over its nodes: with one chunk a layer, each row comes once."""
    case, workers = CASES[0], 3
    topology = GRAPHS[case.graph]
    owner = DEALS[case.deal](topology.num_nodes, workers)
    key = ("sampled", "exact", case)
    sent = sum(each[key].feature_bytes for each in scores_of([key], workers, MEMORY["ample"], hosts=workers))
    needed = split_of(case)[0]
    for _ in model_of(case).layers_list()[1:]:
        needed = with_sources(needed, case)
    rows = sum(int((owner[with_sources(needed[owner[needed] == rank], case)] != rank).sum()) for rank in range(workers))
    width = features_of(case, topology.num_nodes).shape[1]
    assert sent == rows * width * case.dtype.itemsize


def with_sources(nodes: Tensor, case: Case) -> Tensor:
    topology, found = GRAPHS[case.graph], set(nodes.tolist())
    for node in nodes.tolist():
        found |= set(topology.indices[topology.indptr[node] : topology.indptr[node + 1]].tolist())
    return torch.tensor(sorted(found), dtype=torch.int64)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_layers_compute_what_the_next_one_reads(workers: int) -> None:
    """Against sets of Python; nodes of all workers together, each once."""
    case = CASES[0]
    topology, model = GRAPHS[case.graph], model_of(case)
    owner = DEALS[case.deal](topology.num_nodes, workers)
    val = split_of(case)[0]
    expected = [val]
    for _ in model.layers_list()[1:]:
        expected.append(with_sources(expected[-1], case))

    def found(place):  # type: ignore[no-untyped-def]
        shard = FullGraphShard(topology, place.comm) if workers == 1 else PartitionShard(topology, owner, place.comm)
        return find_layer_nodes(shard, model.layers_list(), shard.filter_owned(val))

    by_worker = run_in_threads(found, workers)
    for layer, nodes in enumerate(reversed(expected)):
        assert torch.equal(torch.cat([each.outputs[layer] for each in by_worker]).sort().values, nodes)
    assert sum(len(each.inputs) for each in by_worker) == len(with_sources(expected[-1], case))


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    right = scores_of(BROKEN, 3, SCARCE)[0]
    with MUTANTS[name]() as hits:
        try:
            found = scores_of(BROKEN, 3, SCARCE)[0]
        except (RuntimeError, ValueError, IndexError, InputError):  # a row that is not there
            found = None
    assert hits.count > 0
    assert found is None or max(abs(found[key].val.loss - right[key].val.loss) for key in BROKEN) > VISIBLE
