"""What in a model looks across rows, draws or is not trained is found by calling it, and named."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from layer_table import CONVS
from torch import Tensor, nn

import outgrow as og
from outgrow.app.model_probe import probe_model
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import ModelWarning
from outgrow.nn import Decoupled, DecoupledGAT, DistMult, Epilogue, GINConv, Layer, LinearEncoder, Model, SAGEConv

IN = 5


class DrawsInUpdate(GINConv):
    def update(self, x_VD: Any, aggregate_VCF: Tensor) -> Tensor:
        return nn.functional.dropout(super().update(x_VD, aggregate_VCF), 0.5, training=self.training)


class DrawsWithoutSeed(GINConv):
    """Stands for draws that no seed of torch changes: each call gives another factor, and never the same twice."""

    def __init__(self, *widths: int) -> None:
        super().__init__(*widths)
        self.calls = itertools.count(1)

    def update(self, x_VD: Any, aggregate_VCF: Tensor) -> Tensor:
        return super().update(x_VD, aggregate_VCF) * next(self.calls)


class CentresRows(GINConv):
    def update(self, x_VD: Any, aggregate_VCF: Tensor) -> Tensor:
        out = super().update(x_VD, aggregate_VCF)
        return out - out.mean(0)


class CountsRows(GINConv):
    def update(self, x_VD: Any, aggregate_VCF: Tensor) -> Tensor:
        out = super().update(x_VD, aggregate_VCF)
        return out * torch.arange(1, len(out) + 1, dtype=out.dtype)[:, None]


class LeavesOut(GINConv):
    def __init__(self, *widths: int) -> None:
        super().__init__(*widths)
        self.extra = nn.Linear(2, 2)


class Raises(GINConv):
    def update(self, x_VD: Any, aggregate_VCF: Tensor) -> Tensor:
        raise KeyError("only 100 rows")


def activated(activation: Callable[[Tensor], Tensor]) -> Model:
    return Model([Layer(SAGEConv(IN, 6), Epilogue(activation=activation)), Layer(SAGEConv(6, 3))])


FOUND: dict[str, tuple[Callable[[], Model], str]] = {
    "batch norm": (lambda: activated(nn.BatchNorm1d(6)), "layers.0.activation (BatchNorm1d) looks across rows"),
    "dropout": (
        lambda: activated(nn.Sequential(nn.ReLU(), nn.Dropout(0.5))),
        "layers.0.activation.1 (Dropout) draws random numbers",
    ),
    "softmax over rows": (lambda: activated(nn.Softmax(0)), "layers.0.activation (Softmax) looks across rows"),
    "dropout by a function": (lambda: Model([Layer(DrawsInUpdate(IN, 3))]), "layers.0 (DrawsInUpdate) draws"),
    "draws without a seed": (lambda: Model([Layer(DrawsWithoutSeed(IN, 3))]), "layers.0 (DrawsWithoutSeed) draws"),
    "a mean over rows": (lambda: Model([Layer(CentresRows(IN, 3))]), "layers.0 (CentresRows) looks across rows"),
    "the position of rows": (lambda: Model([Layer(CountsRows(IN, 3))]), "layers.0 (CountsRows) looks across rows"),
    "an encoder": (
        lambda: Model([Layer(GINConv(4, 3))], encoder=LinearEncoder(IN, 4, Epilogue(activation=nn.BatchNorm1d(4)))),
        "encoder.activation (BatchNorm1d) looks across rows",
    ),
    "an error": (
        lambda: Model([Layer(Raises(IN, 3))]),
        "layers.0 cannot be called on 8 nodes (KeyError: 'only 100 rows')",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_depends_on_how_work_is_split_is_named(name: str) -> None:
    make, text = FOUND[name]
    [found] = probe_model(make()).inexact
    assert found.startswith(text)


@pytest.mark.parametrize(
    "make", [nn.PReLU, nn.ReLU, lambda: nn.LayerNorm(6), lambda: lambda x: x.square().clamp(max=1)]
)
def test_what_computes_each_row_by_itself_is_exact(make: Callable[[], Callable[[Tensor], Tensor]]) -> None:
    assert probe_model(activated(make())) == ((), ())


@pytest.mark.parametrize("conv", [name for name in CONVS if name != "foreign"])
@pytest.mark.parametrize("finish", [Epilogue(norm=True, activation=torch.tanh, dropout=0.3), Epilogue()])
def test_own_layers_are_as_trusted_as_they_should_be(conv: str, finish: Epilogue) -> None:
    assert probe_model(Model([Layer(CONVS[conv](), finish)]), trust_own=False) == ((), ())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Decoupled(IN, 4, 3, rounds=2, dropout=0.4),
        lambda: DecoupledGAT(IN, 4, 3, heads=2, rounds=2),
        lambda: og.nn.RGCN(IN, 4, 4, num_relations=3).with_decoder(DistMult(4, 3)),
    ],
)
def test_own_models_are_too(make: Callable[[], Model]) -> None:
    assert probe_model(make(), trust_own=False) == ((), ())


def test_wrapped_convolutions() -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    for conv, why in (
        (pyg.SAGEConv(IN, 3), None),
        (pyg.SAGEConv(IN, 3, aggr="lstm"), "depends on the order of the edges"),
        (pyg.GATv2Conv(IN, 3, dropout=0.5, add_self_loops=False), "draws random numbers"),
    ):
        found = probe_model(Model([Layer(og.nn.PyGConv(conv, IN, 3))])).inexact
        assert [why in text for text in found] == ([] if why is None else [True])


def test_parameters_without_a_gradient_are_named() -> None:
    assert probe_model(Model([Layer(LeavesOut(IN, 3))])).untrained == (
        "layers.0.conv.extra.weight",
        "layers.0.conv.extra.bias",
    )


def test_a_probe_leaves_nothing_behind() -> None:
    model = activated(nn.BatchNorm1d(6))
    model.layers[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes, state = [part.training for part in model.modules()], torch.get_rng_state()
    probe_model(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def graph() -> og.Graph:
    random = np.random.default_rng(0)
    return og.from_arrays(
        random.integers(0, 40, (2, 160)),
        features=random.normal(size=(40, IN)).astype("f4"),
        labels=random.integers(0, 3, 40),
        split={"train": np.arange(20), "val": np.arange(20, 40)},
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_says_so_and_is_not_exact(workers: int) -> None:
    with pytest.warns(ModelWarning, match=r"exact: false: layers\.0\.activation \(BatchNorm1d\)"):
        run = og.train(graph(), activated(nn.BatchNorm1d(6)), epochs=2, workers=workers, progress=False)
    assert run.summary["exact"] is False
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        assert og.train(graph(), activated(nn.PReLU()), epochs=2, progress=False).summary["exact"] is True


@pytest.mark.parametrize("strategy", ["full", "offload", "tensor", "sampled"])
def test_an_activation_with_parameters_is_trained(strategy: str) -> None:
    activation = nn.PReLU()
    options = {"batch_size": 10, "fanout": (3, 3)} if strategy == "sampled" else {}
    og.train(graph(), activated(activation), strategy=strategy, epochs=3, progress=False, **options)
    assert activation.weight.item() != 0.25


def test_modes_follow_training_and_evaluation() -> None:
    """Without that, a dropout would be at work in evaluation."""
    model = activated(nn.Sequential(nn.ReLU(), nn.Dropout(0.5)))
    assert torch.equal(og.predict(graph(), model), og.predict(graph(), model))
    seen = list[bool]()

    class Own(GINConv):
        def update(self, x_VD: Any, aggregate_VCF: Tensor) -> Tensor:
            seen.append(self.training)
            return super().update(x_VD, aggregate_VCF)

    own = Model([Layer(Own(IN, 3))])
    og.predict(graph(), own)
    assert seen == [False]
    assert own.training
    seen.clear()
    og.train(graph(), own, epochs=1, progress=False)
    assert seen[-3:] == [True, False, False]


@pytest.mark.parametrize("frozen", [True, False])
def test_a_model_without_anything_to_train_is_refused(frozen: bool) -> None:
    if frozen:
        model = Model([Layer(GINConv(IN, 3))]).requires_grad_(False)
        got = "5 parameters, all of them frozen"
    else:
        model = Model([Layer(og.nn.PropagateConv(IN))])
        got = "no parameters"
        assert og.predict(graph(), model).shape == (40, IN)
    with pytest.raises(InputError, match="nothing to train") as refused:
        og.train(graph(), model, epochs=1, progress=False)
    assert refused.value.got == got
