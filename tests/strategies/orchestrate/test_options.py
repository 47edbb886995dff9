"""The strategy `orchestrate`: options and models that it takes or refuses, and when it is exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.nn import GCN, SAGE, LinearEncoder
from outgrow.nn.model import Model
from outgrow.strategies.orchestrate.strategy import Orchestrate
from suites.orchestrated import BATCHES, model_of

WHOLE = BatchConfig(size=4, fanout=(3, -1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition": "metiss"}, "partition"),
        ({"hot_ratio": -0.1}, "hot_ratio"),
        ({"hot_ratio": 1.01}, "hot_ratio"),
        ({"hot_ratio": float("nan")}, "hot_ratio"),
        ({"hot_ratio": "many"}, "hot_ratio"),
        ({"super_batch": 0}, "super_batch"),
        ({"super_batch": -1}, "super_batch"),
        ({"super_batch": 2.0}, "super_batch"),
        ({"super_batch": None}, "super_batch"),
        ({"super_batch": True}, "super_batch"),
        ({"reuse": "embeddings"}, "reuse"),
        ({"reuse": 3}, "reuse"),
        ({"hot_gradient": 1}, "hot_gradient"),
        ({"gradient_on": "gpu"}, "gradient_on"),
        ({"latest_parameters": "yes"}, "latest_parameters"),
        ({"sampling_threads": 0}, "sampling_threads"),
        ({"cache": -0.5}, "cache"),
        ({"cache": 1.5}, "cache"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        Orchestrate(**options)
    error, (value,) = caught.value, options.values()
    assert str(value) in error.got
    assert error.needed
    assert error.repair


def test_options_are_given_back() -> None:
    given = {"partition": "range", "hot_ratio": 1, "super_batch": 3, "reuse": "aggregate", "hot_gradient": False}
    assert Orchestrate(**given).options() == given | {
        "gradient_on": "cpu",
        "latest_parameters": False,
        "cache": 0.0,
        "sampling_threads": None,
        "memory": None,
    }
    assert Orchestrate().options()["hot_ratio"] == 0.2


def models() -> dict[str, Model]:
    torch.manual_seed(0)
    wide = SAGE(8, 16, 2)
    return {
        "one layer": GCN(8, 8, 2, layers=1),
        "dropout": SAGE(8, 16, 2, input_dropout=0.1),
        "encoder": Model(wide.layers_list(), encoder=LinearEncoder(8, 8)),
        "projection first": SAGE(16, 8, 2),
        "maximum": SAGE(8, 16, 2, pool="max"),
        "attention": model_of("gat", input_dropout=0),
        "wide": wide,
    }


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("one layer", {}, "1 layer"),
        ("one layer", {"hot_ratio": 0}, "1 layer"),
        ("dropout", {"reuse": "aggregate"}, "input_dropout 0.1"),
        ("encoder", {"reuse": "aggregate"}, "encoder LinearEncoder"),
        ("maximum", {"reuse": "aggregate"}, "SAGEMaxConv"),
        ("attention", {"reuse": "aggregate"}, "GATConv"),
    ],
)
def test_models_that_are_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        Orchestrate(**options).validate_model(models()[name])
    assert said in caught.value.got
    assert caught.value.needed
    assert caught.value.repair


@pytest.mark.parametrize("name", ["dropout", "encoder", "projection first", "maximum", "attention", "wide"])
def test_models_that_are_taken(name: str) -> None:
    Orchestrate().validate_model(models()[name])
    if name in ("wide", "projection first"):
        Orchestrate(reuse="aggregate").validate_model(models()[name])


@pytest.mark.parametrize(
    ("options", "batches", "exact"),
    [
        ({}, BATCHES, False),
        ({}, WHOLE, False),
        ({"hot_ratio": 0.0}, BATCHES, True),
        ({"hot_ratio": 0}, WHOLE, True),
        ({"hot_ratio": 0.0, "latest_parameters": True}, BATCHES, True),
        ({"reuse": "aggregate"}, BATCHES, False),
        ({"reuse": "aggregate"}, WHOLE, True),
        ({"reuse": "aggregate"}, BatchConfig(size=4, fanout=(-1, 3)), False),
        ({"reuse": "aggregate"}, BatchConfig(size=4), True),
        ({"reuse": "aggregate"}, FULL_GRAPH, True),
    ],
)
def test_whether_it_is_exact(options: dict[str, Any], batches: BatchConfig, exact: bool) -> None:
    assert Orchestrate(**options).is_exact(batches) is exact
    assert Orchestrate.exact is False
