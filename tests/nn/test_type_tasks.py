"""Losses of several node types are weighted sums of those of torch, in pieces and in batches too."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.type_labels import TypeLabels, join_type_labels
from outgrow.nn.type_tasks import TargetType, TypeTasks
from support import normal

COUNTS = {"paper": 9, "venue": 3, "author": 7, "topic": 5}
FIRST = {"paper": 0, "venue": 9, "author": 12, "topic": 19}
NODES, OUTPUTS = 24, 3 + 2 + 4
PAPERS = torch.arange(9) * 5 % 3
AUTHORS = normal(7, 2, seed=3)
TOPICS = (normal(5, 4, seed=4) > 0).to(torch.uint8)
WEIGHTS = {"paper": 1.0, "author": 2.5, "topic": 0.5}
GIVEN = (
    TypeLabels(name="paper", labels=PAPERS.short(), num_classes=3),
    TypeLabels(name="author", labels=AUTHORS, num_classes=2),
    TypeLabels(name="topic", labels=TOPICS, num_classes=4),
)
LABELS = join_type_labels(GIVEN, FIRST, NODES)
LOGITS = normal(NODES, OUTPUTS, seed=1)
TRAIN = torch.tensor([node for node in range(NODES) if not 9 <= node < 12])


def make_tasks() -> TypeTasks:
    tasks = {"paper": og.NodeClassification(), "author": og.NodeRegression(), "topic": og.MultiLabel()}
    return TypeTasks(
        [
            TargetType(
                name=each.name,
                task=tasks[each.name],
                loss_weight=WEIGHTS[each.name],
                num_outputs=each.num_classes,
                label_shape=tuple(each.labels.shape[1:]),
                label_dtype=each.labels.dtype,
            )
            for each in GIVEN
        ]
    )


def plain_losses(logits: Tensor) -> dict[str, Tensor]:
    """The loss of each node of each type, by torch, each from the columns of the type."""
    paper, author, topic = logits[:9, :3], logits[12:19, 3:5], logits[19:, 5:]
    return {
        "paper": functional.cross_entropy(paper, PAPERS, reduction="none"),
        "author": ((author - AUTHORS) ** 2).mean(1),
        "topic": functional.binary_cross_entropy_with_logits(topic, TOPICS.double(), reduction="none").mean(1),
    }


def test_the_loss_is_the_weighted_sum_of_the_mean_losses_of_types() -> None:
    logits = LOGITS.clone().requires_grad_()
    found = make_tasks().resolve(LABELS, TRAIN, OUTPUTS).loss(logits, LABELS[TRAIN], len(TRAIN), TRAIN)
    expected = torch.stack([WEIGHTS[name] * losses.mean() for name, losses in plain_losses(logits).items()]).sum()
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (found, expected))
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    # Other nodes and outputs of other types have no gradient.
    assert not ours[9:12].any()
    assert not ours[:9, 3:].any()


@settings(max_examples=40, deadline=None)
@given(order=st.permutations(range(len(TRAIN))), cuts=st.sets(st.integers(1, len(TRAIN) - 1), max_size=5))
def test_batches_of_an_epoch_have_the_gradient_of_all_nodes(order: list[int], cuts: set[int]) -> None:
    # The mean over batches, each weighed by its nodes: whatever nodes of each type a batch has.
    task = make_tasks().resolve(LABELS, TRAIN, OUTPUTS)
    ends = [0, *sorted(cuts), len(TRAIN)]
    batches = [TRAIN[torch.tensor(order[first:last])] for first, last in itertools.pairwise(ends)]
    losses = [task.loss(LOGITS[batch], LABELS[batch], len(batch)) * len(batch) for batch in batches]
    whole = task.loss(LOGITS[TRAIN], LABELS[TRAIN], len(TRAIN))
    assert float(torch.stack(losses).sum()) / len(TRAIN) == pytest.approx(whole.item(), abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.integers(0, 3), min_size=len(TRAIN), max_size=len(TRAIN)))
def test_workers_share_losses_and_counts_in_any_way(parts: list[int]) -> None:
    task = make_tasks().resolve(LABELS, TRAIN, OUTPUTS)
    owned = [TRAIN[torch.tensor(parts) == part] for part in range(4)]
    losses = [task.loss(LOGITS[own], LABELS[own], len(TRAIN)) for own in owned]
    assert float(torch.stack(losses).sum()) == pytest.approx(
        task.loss(LOGITS[TRAIN], LABELS[TRAIN], len(TRAIN)).item(), abs=1e-12
    )
    counts = torch.stack([task.metric_counts(LOGITS[own], LABELS[own]) for own in owned]).sum(0)
    figures = task.figures_from_counts(counts)
    assert figures["paper/accuracy"] == pytest.approx((LOGITS[:9, :3].argmax(1) == PAPERS).double().mean().item())
    assert figures["author/mae"] == pytest.approx((LOGITS[12:19, 3:5] - AUTHORS).abs().mean().item())
    assert figures["topic/micro_f1"] == pytest.approx(og.MultiLabel().score(LOGITS[19:, 5:], TOPICS))


def test_losses_of_nodes_add_up_to_the_loss() -> None:
    task = make_tasks().resolve(LABELS, TRAIN, OUTPUTS)
    each = task.row_losses(LOGITS[TRAIN], LABELS[TRAIN])
    assert (each.sum() / len(TRAIN)).item() == pytest.approx(
        task.loss(LOGITS[TRAIN], LABELS[TRAIN], len(TRAIN)).item(), abs=1e-12
    )


def test_what_is_monitored_by_default() -> None:
    tasks = make_tasks()
    assert (tasks.metric, tasks.larger_is_better) == ("loss", False)
    assert list(tasks.figure_directions) == ["loss", "paper/accuracy", "author/mae", "topic/micro_f1"]
    paper, _, topic = tasks.targets
    assert TypeTasks([paper, topic]).metric == "mean_metric"
    twice = TypeTasks([paper, replace(paper, name="book")])
    assert (twice.metric, twice.larger_is_better) == ("mean_accuracy", True)
    # Of a type without nodes there is no metric, and the mean is over the others.
    assert twice.figures_from_counts(torch.tensor([3.0, 4.0, 0.0, 0.0]))["mean_accuracy"] == 0.75


def test_the_loss_of_other_nodes_has_their_shares() -> None:
    task = make_tasks().resolve(LABELS, TRAIN, OUTPUTS)
    nodes = torch.tensor([0, 1, 2, 13, 20])
    found = task.with_shares_of(LABELS, nodes).loss(LOGITS[nodes], LABELS[nodes], len(nodes)).item()
    losses = plain_losses(LOGITS)
    expected = losses["paper"][:3].mean() + 2.5 * losses["author"][1] + 0.5 * losses["topic"][1]
    assert found == pytest.approx(float(expected), abs=1e-12)


def test_a_type_without_nodes_to_train_on_is_refused() -> None:
    with pytest.raises(InputError, match="no node of type 'author' of 'g'"):
        make_tasks().validate(LABELS, torch.arange(9), OUTPUTS, "g", torch.float64)


def test_nodes_of_other_types_and_without_labels_are_left_out() -> None:
    labels = LABELS.clone()
    labels[0, 1] = -1
    labels[12, 1:3] = torch.nan
    found = make_tasks().select_known(labels, torch.arange(NODES))
    # A class of -1 in a split is refused where a graph is made; here it is kept, as for one type.
    assert found.tolist() == [node for node in range(NODES) if not 9 <= node <= 12]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_joined_labels_hold_every_class_and_number(dtype: torch.dtype) -> None:
    classes = torch.tensor([0, 2**24 + 1, -1], dtype=torch.int32)
    numbers = torch.tensor([0.1, torch.nan], dtype=dtype)
    given = (
        TypeLabels(name="a", labels=classes, num_classes=2**24 + 2),
        TypeLabels(name="b", labels=numbers, num_classes=1),
    )
    joined = join_type_labels(given, {"a": 1, "b": 5}, 8)
    assert joined[:, 0].tolist() == [-1, 0, 0, 0, -1, 1, 1, -1]
    assert torch.equal(joined[1:4, 1].int(), classes)
    assert torch.equal(joined[5:7, 1].to(dtype), numbers) or torch.equal(joined[5:6, 1].to(dtype), numbers[:1])
