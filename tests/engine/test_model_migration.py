"""Tours of models: who meets which seeds when; and what models take along on their way."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from outgrow.core.ledger import Kind, Link
from outgrow.engine.model_migration import MicroBatchPlan, send_model
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.migrate.schedule import assign_models, migration_schedule
from suites.checks import named, on_workers
from thread_group import run_in_threads

WORKERS = 4


class Batch(NamedTuple):
    """Seeds of a batch over all workers, the worker where each lives, and how many workers there are."""

    seeds: list[int]
    homes: list[int]
    size: int

    def tours(self, dropped: int = 0) -> list[MicroBatchPlan]:
        """What each worker computes."""
        seeds, homes = torch.tensor(self.seeds, dtype=torch.int64), torch.tensor(self.homes, dtype=torch.int16)
        return [migration_schedule(seeds, homes, rank, self.size, dropped) for rank in range(self.size)]

    @property
    def models(self) -> dict[int, int]:
        """The model of each seed: model ``d`` has those from the ``d``-th of ``P`` cuts to the next, rounded up."""
        cuts = [-(-model * len(self.seeds) // self.size) for model in range(self.size + 1)]
        shares = [self.seeds[cuts[model] : cuts[model + 1]] for model in range(self.size)]
        return {seed: model for model, share in enumerate(shares) for seed in share}

    def at_first(self) -> dict[int, int]:
        """The time step in which each seed is met if none is dropped: how far its home is from its model's."""
        models = self.models
        return {
            seed: next(step for step in range(self.size) if (models[seed] + step) % self.size == home)
            for seed, home in zip(self.seeds, self.homes, strict=True)
        }

    def met(self, left: list[int]) -> dict[int, int]:
        """The time step in which each seed is met, of those that are left; whoever meets it has its model then."""
        models, found = self.models, dict[int, int]()
        for rank, each in enumerate(self.tours(self.size - len(left))):
            for step, group in zip(left, each.groups, strict=True):
                for seed in group.tolist():
                    assert seed not in found
                    assert rank == (models[seed] + step) % self.size
                    found[seed] = step
        assert sorted(found) == sorted(self.seeds)
        return found

    def merged(self) -> list[tuple[list[int], dict[int, int]]]:
        """Which time steps are left, and when each seed is met, with none dropped, one, and so on."""
        left = list(range(self.size))
        found = [(left, self.met(left))]
        while len(left) > 1:
            counts = Counter(found[-1][1].values())
            left = [step for step in left if step != min(left, key=lambda step: (counts[step], step))]
            found.append((left, self.met(left)))
        return found


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Any batch: empty ones too, and those with fewer seeds than workers."""
    size, number = draw(st.integers(1, 6)), draw(st.integers(0, 40))
    seeds = draw(st.permutations(range(100, 100 + 2 * number, 2)))
    homes = draw(st.lists(st.integers(0, size - 1), min_size=number, max_size=number))
    return Batch(seeds, homes, size)


@given(batches())
def test_models_have_equal_shares_in_the_order_of_the_batch(batch: Batch) -> None:
    found = assign_models(len(batch.seeds), batch.size)
    assert found.dtype == torch.int64
    assert found.tolist() == [batch.models[seed] for seed in batch.seeds]
    shares = Counter(found.tolist())
    assert max(shares.values(), default=0) - min(shares[model] for model in range(batch.size)) <= 1


@given(batches())
def test_each_seed_is_met_where_it_lives_when_its_model_is_there(batch: Batch) -> None:
    homes = dict(zip(batch.seeds, batch.homes, strict=True))
    assert batch.met(list(range(batch.size))) == batch.at_first()
    for rank, each in enumerate(batch.tours()):
        assert {homes[seed] for group in each.groups for seed in group.tolist()} <= {rank}
        assert each.hops == [1] * (batch.size - 1)


@given(batches(), st.data())
def test_seeds_of_a_group_keep_the_order_of_the_batch(batch: Batch, data: st.DataObject) -> None:
    for each in batch.tours(data.draw(st.integers(0, batch.size - 1))):
        for group in each.groups:
            assert group.dtype == torch.int64
            places = [batch.seeds.index(seed) for seed in group.tolist()]
            assert places == sorted(places)


@given(batches())
def test_dropped_is_the_time_step_of_fewest_seeds(batch: Batch) -> None:
    """The first of several; then the next by what the others have become. `Batch.merged` fails if it is another."""
    for dropped, (left, _) in enumerate(batch.merged()):
        for each in batch.tours(dropped):
            assert len(each.groups) == len(left) == batch.size - dropped
            assert each.hops == [left[place + 1] - left[place] for place in range(len(left) - 1)]
            assert all(stride >= 1 for stride in each.hops)
            assert sum(each.hops) < batch.size


@given(batches())
def test_a_models_seeds_are_spread_evenly(batch: Batch) -> None:
    """Those of the time steps that are left stay, and no model gets another's: see `Batch.met`."""
    models, merged = batch.models, batch.merged()
    for (before, was), (left, now) in pairwise(merged):
        (gone,) = {*before} - {*left}
        moved = [seed for seed in batch.seeds if was[seed] == gone]
        assert all(now[seed] == was[seed] for seed in batch.seeds if was[seed] != gone)
        for model in range(batch.size):
            got = Counter(now[seed] for seed in moved if models[seed] == model)
            added = [got[step] for step in left]
            assert max(added) - min(added) <= 1


@given(batches(), st.data())
def test_how_many_seeds_a_model_has_does_not_depend_on_what_is_dropped(batch: Batch, data: st.DataObject) -> None:
    merged = batch.merged()
    _, met = merged[data.draw(st.integers(0, batch.size - 1))]
    assert Counter(batch.models[seed] for seed in met) == Counter(batch.models.values())


def test_what_is_left_over_does_not_always_fall_to_one_time_step() -> None:
    """Each of four models has one seed in the step that is dropped: they go to different ones of the others."""
    steps = [0, 0, 1, 2, 2, 3, 3] * 4
    homes = [(place // 7 + step) % 4 for place, step in enumerate(steps)]
    batch = Batch(list(range(28)), homes, 4)
    (_, was), (left, now) = batch.merged()[:2]
    assert left == [0, 2, 3]
    added = Counter(now[seed] for seed in batch.seeds if was[seed] == 1)
    assert [added[step] for step in left] in ([2, 1, 1], [1, 2, 1], [1, 1, 2])


def test_the_example_of_figure_10() -> None:
    """Of the second model two seeds are met in the time step that is merged; then it has 5 and 3 in the others."""
    by_model = [(3, 2, 3), (4, 2, 2), (3, 2, 3)]
    steps = [step for counts in by_model for step, count in enumerate(counts) for _ in range(count)]
    homes = [(place // 8 + step) % 3 for place, step in enumerate(steps)]
    batch = Batch(list(range(24)), homes, 3)
    assert batch.met([0, 1, 2]) == dict(enumerate(steps))
    met = batch.met([0, 2])
    counts = Counter((batch.models[seed], step) for seed, step in met.items())
    assert [(counts[model, 0], counts[model, 2]) for model in range(3)] == [(4, 4), (5, 3), (4, 4)]
    assert {tuple(each.hops) for each in batch.tours(1)} == {(2,)}


@pytest.mark.parametrize("dropped", range(4))
def test_an_empty_batch_has_its_time_steps_too(dropped: int) -> None:
    for each in Batch([], [], 4).tours(dropped):
        assert [len(group) for group in each.groups] == [0] * (4 - dropped)
        assert each.hops == [1] * (3 - dropped)


def test_one_seed_is_met_by_one_worker_and_the_others_do_nothing() -> None:
    found = [[group.tolist() for group in each.groups] for each in Batch([7], [2], 4).tours()]
    assert found == [[[], [], [], []], [[], [], [], []], [[], [], [7], []], [[], [], [], []]]


def test_at_once_is_one_time_step() -> None:
    found = MicroBatchPlan.in_one_step(torch.tensor([5, 3]))
    assert [group.tolist() for group in found.groups] == [[5, 3]]
    assert found.hops == []


class Mixed(nn.Module):
    """Parameters of three types in no order, one of them frozen, one a number, one without any."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        random = np.random.default_rng(rank)
        shapes = ((3, 4), (), (5,), (2, 1, 3), (0, 2), (7,), (4,))
        types = (torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float32, torch.float64)
        for place, (shape, dtype) in enumerate(zip(shapes, (*types, torch.bfloat16), strict=True)):
            values = torch.from_numpy(np.asarray(random.standard_normal(shape))).to(dtype)
            self.register_parameter(f"p{place}", nn.Parameter(values, requires_grad=place != 2))
        for place, parameter in enumerate(self.parameters()):
            if parameter.requires_grad and (place + rank) % 3:
                given = torch.from_numpy(np.asarray(random.standard_normal(parameter.shape)))
                parameter.grad = given.to(parameter.dtype) if place != 5 else torch.zeros_like(parameter)


def same(mine: nn.Module, theirs: nn.Module) -> bool:
    """Whether two models have the same parameters and gradients, bit by bit."""
    return all(
        torch.equal(a, b)
        and a.dtype == b.dtype
        and a.requires_grad == b.requires_grad
        and (a.grad is None) == (b.grad is None)
        and (a.grad is None or b.grad is None or torch.equal(a.grad, b.grad))
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True)
    )


def models_go_round(comm: Comm) -> None:
    """Whatever the stride; a parameter without a gradient has none where it arrives."""
    wrong, bare = [], set[int]()
    for stride in range(1, WORKERS):
        model = Mixed(comm.rank)
        send_model(model, comm, stride)
        source = Mixed((comm.rank - stride) % WORKERS)
        bare |= {place for place, each in enumerate(source.parameters()) if each.grad is None}
        if not same(model, source):
            wrong.append(stride)
    assert wrong == []
    assert len(bare) > 3


def a_whole_round_brings_them_home(comm: Comm) -> None:
    model = Mixed(comm.rank)
    for stride in (1, 2, 1):
        send_model(model, comm, stride)
    assert same(model, Mixed(comm.rank))


def parameters_stay_the_same_objects(comm: Comm) -> None:
    """The optimizer holds them."""
    model = Mixed(comm.rank)
    before = [(id(each), each.data_ptr(), each.requires_grad) for each in model.parameters()]
    send_model(model, comm, 1)
    assert [(id(each), each.data_ptr(), each.requires_grad) for each in model.parameters()] == before


def gradients_add_up_on_the_way(comm: Comm) -> None:
    """Each worker adds a gradient of its own to those that came, and to no other parameter's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    inputs = [torch.full((2, 3), float(rank + 1), dtype=torch.float64) for rank in range(WORKERS)]
    for step in range(WORKERS):
        if step:
            send_model(model, comm, 1)
        model(inputs[comm.rank]).square().sum().backward()
    found = [each.grad for each in model.parameters()]
    model.zero_grad()
    for each in inputs:
        model(each).square().sum().backward()
    assert all(
        mine is not None and torch.allclose(mine, whole.grad, rtol=1e-12)
        for mine, whole in zip(found, model.parameters(), strict=True)
        if whole.grad is not None
    )


def what_has_arrived_is_not_overwritten(comm: Comm) -> None:
    """By another model that passes, of the same size, nor by what is made meanwhile."""
    first, second = Mixed(comm.rank), Mixed(10 + comm.rank)
    send_model(first, comm, 1)
    for stride in (1, 2, 3):
        send_model(second, comm, stride)
    assert same(first, Mixed((comm.rank - 1) % WORKERS))
    assert same(second, Mixed(10 + (comm.rank - 6) % WORKERS))


def large_gradients_are_not_overwritten(comm: Comm) -> None:
    """Not even where memory is lent again and again."""

    def model_of(number: int) -> nn.Module:
        model = nn.Linear(400, 300)
        with torch.no_grad():
            for place, parameter in enumerate(model.parameters()):
                parameter.fill_(number + place)
                parameter.grad = torch.full_like(parameter, 100 * number + place)
        return model

    passing = [model_of(8 * number + comm.rank) for number in range(4)]
    for model in passing:
        send_model(model, comm, 1)
    source = (comm.rank - 1) % WORKERS
    assert all(same(model, model_of(8 * number + source)) for number, model in enumerate(passing))


def bytes_are_those_of_the_parameters_and_gradients(comm: Comm) -> None:
    """And a number for each parameter, of its type; whether it has a gradient or not."""
    pairs = []
    for stride in (1, 3):
        model = Mixed(comm.rank)
        before = comm.ledger.bytes_by_link.copy()
        send_model(model, comm, stride)
        added = comm.ledger.bytes_by_link - before
        sizes = [(each.numel(), each.element_size()) for each in model.parameters()]
        values, grads = sum(n * width for n, width in sizes), sum((n + 1) * width for n, width in sizes)
        pairs.append((dict(added), {(Link.PEER, Kind.PARAMETERS): values, (Link.PEER, Kind.GRADIENTS): grads}))
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


test_four_workers = on_workers(
    named(
        models_go_round,
        a_whole_round_brings_them_home,
        parameters_stay_the_same_objects,
        gradients_add_up_on_the_way,
        what_has_arrived_is_not_overwritten,
        large_gradients_are_not_overwritten,
        bytes_are_those_of_the_parameters_and_gradients,
    ),
    WORKERS,
    run_in_threads,
)
