"""Losses of tasks are those of torch; weights, unknown targets and pieces of the rows change nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.nn.losses import balanced_class_weight, balanced_pos_weight, sum_rows, validate_weights
from outgrow.nn.tasks import NodeTask
from support import normal

NODES, CLASSES = 23, 4
LOGITS = normal(NODES, CLASSES, seed=1)
LABELS = torch.arange(NODES) * 5 % 7 % CLASSES
ALL = torch.arange(NODES)
WEIGHTS = normal(NODES, seed=2).abs()
CLASS_WEIGHT = [0.5, 2.0, 0.0, 1.5]


def loss_of(task: NodeTask, labels: Tensor, logits: Tensor = LOGITS) -> Tensor:
    """The loss of a step with all nodes."""
    weights = task.sample_weights()
    return task.resolve(labels, ALL, logits.shape[1]).loss(logits, labels, NODES, weights_N=weights)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("class_weight", [None, CLASS_WEIGHT])
def test_classification_is_that_of_torch(smoothing: float, class_weight: list[float] | None) -> None:
    weight = None if class_weight is None else torch.tensor(class_weight, dtype=torch.float64)
    expected = nn.CrossEntropyLoss(weight=weight, label_smoothing=smoothing)(LOGITS, LABELS)
    found = loss_of(og.NodeClassification(class_weight=class_weight, label_smoothing=smoothing), LABELS)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_sample_weights_are_those_of_a_weighted_mean() -> None:
    weight = torch.tensor(CLASS_WEIGHT, dtype=torch.float64)
    each = functional.cross_entropy(LOGITS, LABELS, weight, reduction="none")
    expected = (each * WEIGHTS).sum() / (weight[LABELS] * WEIGHTS).sum()
    found = loss_of(og.NodeClassification(class_weight=CLASS_WEIGHT, sample_weight=WEIGHTS.numpy()), LABELS)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_a_node_of_twice_the_weight_counts_twice() -> None:
    twice = torch.cat([ALL, ALL[:5]])
    weights = torch.ones(NODES).index_fill(0, ALL[:5], 2)
    found = loss_of(og.NodeClassification(sample_weight=weights), LABELS)
    torch.testing.assert_close(found, functional.cross_entropy(LOGITS[twice], LABELS[twice]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("pos_weight", [None, CLASS_WEIGHT])
def test_multi_label_is_that_of_torch(pos_weight: list[float] | None) -> None:
    labels = (normal(NODES, CLASSES, seed=3) > 0).to(torch.uint8)
    weight = None if pos_weight is None else torch.tensor(pos_weight, dtype=torch.float64)
    expected = nn.BCEWithLogitsLoss(pos_weight=weight)(LOGITS, labels.double())
    torch.testing.assert_close(loss_of(og.MultiLabel(pos_weight=pos_weight), labels), expected, rtol=1e-12, atol=0)
    equal = og.MultiLabel(pos_weight=pos_weight, sample_weight=torch.full((NODES,), 3.0))
    torch.testing.assert_close(loss_of(equal, labels), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("name", "expected"), [("mse", nn.MSELoss()), ("mae", nn.L1Loss()), ("huber", nn.HuberLoss())])
@pytest.mark.parametrize("columns", [1, CLASSES])
def test_regression_is_the_mean_over_known_targets(name: str, expected: nn.Module, columns: int) -> None:
    targets, out = normal(NODES, columns, seed=4) * 2, LOGITS[:, :columns].clone().requires_grad_()
    targets[normal(NODES, columns, seed=5) > 0.7] = torch.nan
    known = ~targets.isnan()
    assert 0 < known.sum() < known.numel()
    found = loss_of(og.NodeRegression(loss=name), targets, out)
    torch.testing.assert_close(found, expected(out[known], targets[known]), rtol=1e-12, atol=0)
    [grad] = torch.autograd.grad(found, [out])
    assert grad.isfinite().all()
    assert not grad[~known].any()


def test_regression_of_integers_and_its_metric() -> None:
    task, labels = og.NodeRegression(), torch.tensor([3, -1, 0], dtype=torch.int16)
    assert task.select_known(labels, torch.arange(3)).tolist() == [0, 2]
    assert task.score(torch.tensor([[1.0], [9.0], [1.0]]), labels) == pytest.approx(1.5)
    assert not task.larger_is_better
    assert task.predict(torch.ones(3, 1)).shape == (3,)
    assert task.predict(torch.ones(3, 2)).shape == (3, 2)
    assert task.metric_from_counts(torch.zeros(2)) != task.metric_from_counts(torch.zeros(2))


def test_balanced_weights() -> None:
    labels = torch.tensor([0, 0, 0, 2])
    assert balanced_class_weight(labels, 4) == pytest.approx((4 / 6, 1, 2, 1))
    assert balanced_pos_weight(torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, 0]])) == (1, 1, 2)
    task = og.NodeClassification(class_weight="balanced").resolve(LABELS, ALL, CLASSES)
    assert task.mean_weight == pytest.approx(1)


TASKS: list[Callable[[], NodeTask]] = [
    lambda: og.NodeClassification(class_weight="balanced", label_smoothing=0.2),
    lambda: og.NodeClassification(sample_weight=WEIGHTS),
    lambda: og.NodeClassification(loss=nn.CrossEntropyLoss(reduction="none")),
    lambda: og.NodeRegression(sample_weight=WEIGHTS),
    lambda: og.NodeRegression(loss=lambda out, targets: (out - targets).square().nansum(1)),
]


@given(st.sampled_from(TASKS), st.lists(st.integers(0, NODES), max_size=5))
@settings(deadline=None)
def test_losses_of_pieces_add_up(make: Callable[[], NodeTask], cuts: list[int]) -> None:
    task = make()
    labels = normal(NODES, CLASSES, seed=6) if isinstance(task, og.NodeRegression) else LABELS
    task, weights, ends = task.resolve(labels, ALL, CLASSES), task.sample_weights(), sorted({0, NODES, *cuts})
    logits = LOGITS.clone().requires_grad_()
    whole = task.loss(logits, labels, NODES, ALL, weights)
    parts = [
        task.loss(logits, labels[a:b], NODES, ALL[a:b], None if weights is None else weights[a:b])
        for a, b in [*itertools.pairwise(ends), (0, 0)]
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=0)
    for part in parts:
        assert torch.autograd.grad(part, [logits], retain_graph=True)[0].isfinite().all()


@given(st.integers(0, 300))
@settings(deadline=None)
def test_sums_of_rows(count: int) -> None:
    losses, weights = normal(count, seed=7), normal(count, seed=8)
    torch.testing.assert_close(sum_rows(losses), losses.sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sum_rows(losses, weights), losses @ weights, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("given", ["1, 2.5", [1, 2.5], torch.tensor([1, 2.5]), torch.tensor([1, 2.5]).numpy()])
def test_weights_are_read(given: object) -> None:
    assert validate_weights("class_weight", given) == (1, 2.5)


@pytest.mark.parametrize("given", [[], [1, -1], [0, 0], [1, float("nan")], 3, [[1, 2]], "balance", "1,x", {1: 2}])
def test_weights_that_are_refused(given: object) -> None:
    with pytest.raises(InputError, match="class_weight"):
        og.NodeClassification(class_weight=given)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.scale * functional.cross_entropy(logits, targets, reduction="none")


def each_loss(logits: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(logits, classes, reduction="none")


CALLS = [0]


def changing(logits: Tensor, classes: Tensor) -> Tensor:
    CALLS[0] += 1
    return each_loss(logits, classes) * CALLS[0]


def ranked(logits: Tensor, classes: Tensor) -> Tensor:
    return each_loss(logits, classes) * torch.arange(1, len(logits) + 1)


WRONG: list[tuple[Callable[..., object], str]] = [
    (nn.CrossEntropyLoss(), r"CrossEntropyLoss cannot .*shape \[\]\s+repair: give reduction='none'"),
    (lambda logits, classes: logits, r"shape \[8, 4\]"),
    (lambda logits, classes: 1.0, "float"),
    (lambda logits, classes: each_loss(logits, classes) / len(logits), "looks across rows"),
    (lambda logits, classes: each_loss(logits - logits.mean(0), classes), "looks across rows"),
    (lambda logits, classes: each_loss(logits, classes) * torch.rand(len(logits)), "draws random numbers"),
    (changing, "changing cannot"),
    (ranked, "ranked cannot"),
    (lambda logits, classes: each_loss(logits.detach(), classes), "without"),
    (lambda logits, classes: each_loss(logits, classes) / 0, "finite"),
    (lambda logits, classes: each_loss(logits, classes.float()), "RuntimeError|TypeError|IndexError"),
    (lambda logits: logits, "TypeError"),
    (Scaled(), "without parameters"),
]


@pytest.mark.parametrize(("loss", "match"), WRONG)
def test_losses_that_are_refused(loss: Callable[..., Tensor], match: str) -> None:
    with pytest.raises(InputError, match=f"(?s)the loss .*{match}"):
        og.NodeClassification(loss=loss).validate(LABELS, ALL, CLASSES, "cora", torch.float32)


@pytest.mark.parametrize("loss", [each_loss, nn.CrossEntropyLoss(reduction="none"), lambda a, b: each_loss(a, b) ** 2])
@pytest.mark.parametrize("train", [ALL, ALL[:1], ALL[:3]])
def test_losses_that_are_taken(loss: Callable[..., Tensor], train: Tensor) -> None:
    before = torch.random.get_rng_state()
    og.NodeClassification(loss=loss).validate(LABELS, train, CLASSES, "cora", torch.float32)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("make", "labels", "match"),
    [
        (og.NodeClassification, LABELS.double(), "--task regression"),
        (og.NodeClassification, torch.zeros(NODES, 2, dtype=torch.uint8), "--task multilabel"),
        (og.MultiLabel, LABELS, "--task classification"),
        (lambda: og.NodeClassification(class_weight=[1, 2]), LABELS, "4 numbers, one for each class"),
        (lambda: og.NodeClassification(class_weight=[0, 0, 0, 0, 1]), LABELS, "4 numbers"),
        (lambda: og.MultiLabel(pos_weight=[1]), torch.zeros(NODES, 4, dtype=torch.uint8), "4 numbers"),
        (lambda: og.NodeClassification(sample_weight=torch.ones(3)), LABELS, r"shape \[3\]"),
        (lambda: og.NodeClassification(sample_weight=WEIGHTS.log()), LABELS, "the first is -"),
        (lambda: og.NodeClassification(sample_weight=WEIGHTS / 0 * 0), LABELS, "23 others, the first is nan at node 0"),
        (lambda: og.NodeClassification(sample_weight=WEIGHTS * 0), LABELS, "have weight 0"),
        (og.NodeRegression, torch.full((NODES,), torch.nan), "known target"),
    ],
)
def test_labels_and_weights_that_are_refused(make: Callable[[], NodeTask], labels: Tensor, match: str) -> None:
    with pytest.raises(InputError, match=match):
        make().validate(labels, ALL, CLASSES, "cora", torch.float32)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: og.NodeClassification(label_smoothing=1.0), "label_smoothing is out of range"),
        (lambda: og.NodeClassification(label_smoothing=-0.1), "label_smoothing is out of range"),
        (lambda: og.NodeClassification(smoothing=0.1), "option of og.NodeClassification"),
        (lambda: og.NodeClassification(loss="mse"), "wrong type"),
        (lambda: og.NodeClassification(loss=each_loss, class_weight="balanced"), "given twice"),
        (lambda: og.MultiLabel(loss=each_loss, pos_weight="balanced"), "given twice"),
        (lambda: og.NodeRegression(loss="mape"), "unknown loss 'mape'"),
    ],
)
def test_options_that_are_refused(make: Callable[[], NodeTask], match: str) -> None:
    with pytest.raises(InputError, match=match):
        make()
