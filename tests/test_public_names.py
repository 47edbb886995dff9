"""Names that users write: those of this version, and old ones, which work with one warning."""

import importlib
import json
import sys
import warnings
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.app.runs.workers import Workers
from outgrow.app.strategy_registry import make_strategy, use_new_option_names
from outgrow.core.deprecation import renamed_options_of
from outgrow.core.errors import InputError
from outgrow.core.old_names import MOVED
from outgrow.nn.layer import Conv
from outgrow.strategies.base import Strategy

NN = {
    "Chain": "SequentialEncoder",
    "Dense": "LinearEncoder",
    "Finish": "Epilogue",
    "Rows": "NodeMessages",
    "Scores": "AttentionScores",
    "Widths": "ConvSpec",
}
BASE = {
    "BatchExecution": "MiniBatchExecution",
    "WholeExecution": "FullGraphExecution",
    "whole_inference": "full_inference",
}
OPTIONS = {
    og.Sampled: {"ahead": 1, "cache_over": "host", "threads": 1},
    og.Migrate: {"travel": True, "threads": 1, "ahead": 1},
    og.SplitParallel: {"ahead": 1, "partial": False},
    og.TensorParallel: {"constant": False, "files": "edges", "nn": "cpu", "scratch": "folder"},
    og.Offload: {"scratch": "folder"},
    og.Orchestrate: {"newest": True, "threads": 1},
}
MOVED_NAMES = [(old, name) for old, (_, names) in MOVED.items() for name in names]


def test_all_exported_names_exist() -> None:
    assert all(hasattr(og, name) for name in og.__all__)
    assert all(hasattr(og.strategies, name) for name in dir(og.strategies))
    assert issubclass(og.StoreError, og.InputError)
    assert issubclass(og.TrainingError, og.OutgrowError)
    assert "cora" in og.datasets()
    with pytest.raises(AttributeError, match="Wdths"):
        _ = og.nn.Wdths  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        *(("outgrow.nn", old, new) for old, new in NN.items()),
        *(("outgrow.strategies.base", old, new) for old, new in BASE.items()),
    ],
)
def test_old_names_of_a_module(module: str, old: str, new: str) -> None:
    found = importlib.import_module(module)
    vars(found).pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now called .*{new}") as seen:
        exec(f"from {module} import {old}")
    assert len(seen) == 1
    assert getattr(found, old) is getattr(found, new)


@pytest.mark.parametrize(("module", "name"), MOVED_NAMES)
def test_old_paths(module: str, name: str) -> None:
    sys.modules.pop(module, None)
    with pytest.warns(DeprecationWarning, match=f"{module}.{name} is now called") as seen:
        exec(f"from {module} import {name}")
    assert len(seen) == 1
    new_module, names = MOVED[module]
    assert getattr(sys.modules[module], name) is getattr(importlib.import_module(new_module), names[name])


@pytest.mark.parametrize(
    ("kind", "old", "value"), [(kind, old, value) for kind, given in OPTIONS.items() for old, value in given.items()]
)
def test_old_options_of_strategies(kind: type[Strategy], old: str, value: object) -> None:
    new = renamed_options_of(kind)[old]
    with pytest.warns(DeprecationWarning, match=f"option {old} of {kind.__name__} is now called {new}") as seen:
        made = kind(**{old: value})
    assert len(seen) == 1
    assert made == kind(**{new: value})
    assert made.options()[new] == value
    assert old not in made.options()
    with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}") as seen:
        assert getattr(made, old) == value
    assert len(seen) == 1


@pytest.mark.parametrize("kind", OPTIONS)
def test_recorded_options_are_read_silently(kind: type[Strategy]) -> None:
    assert set(OPTIONS[kind]) == set(renamed_options_of(kind))
    new = {renamed_options_of(kind)[old]: value for old, value in OPTIONS[kind].items()}
    assert make_strategy(kind, OPTIONS[kind]) == make_strategy(kind, new)


def test_old_options_that_are_typed_warn() -> None:
    with pytest.warns(DeprecationWarning, match="option ahead of strategy sampled is now called prefetch") as seen:
        assert use_new_option_names(og.Sampled, {"ahead": 2, "epochs": 3}) == {"prefetch": 2, "epochs": 3}
    assert len(seen) == 1
    with pytest.raises(InputError, match="prefetch of Sampled is given twice"):
        make_strategy(og.Sampled, MappingProxyType({"ahead": 2, "prefetch": 3}))


def test_a_convolution_by_old_names() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")

        class Sum(Conv):
            takes_sparse = False

            def __init__(self, width: int) -> None:
                super().__init__()
                self.widths = og.nn.ConvSpec(  # type: ignore[call-arg]
                    in_features=width,
                    out_features=width,
                    source=(1, width),
                    aggregate=(1, width),
                    fixed_weight=True,  # type: ignore[call-arg]
                    reads_target=False,
                )
                self.aggregation = og.nn.WeightedSum()

            def source(self, x_VD: object) -> og.nn.NodeMessages:
                assert isinstance(x_VD, torch.Tensor)
                return og.nn.NodeMessages(x_VD[:, None], None)

            def weigh(self, block: og.nn.Block, source: object, target: object) -> None:
                return super().weigh(block, source, target)  # type: ignore[misc, no-any-return]

            def update(self, x_VD: object, aggregate_VCF: torch.Tensor) -> torch.Tensor:
                return aggregate_VCF[:, 0]

        conv = Sum(2)
        assert conv.widths is conv.spec
    told = " ".join(str(each.message) for each in seen)
    assert all(f"{old} " in told for old in ("takes_sparse", "weigh", "widths", "fixed_weight"))
    assert conv.spec.static_edge_weight
    assert not og.nn.Layer(conv).accepts_sparse


def test_a_run_of_an_older_version_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Imported here: a library behind them draws from `random` when it is imported.
    from tests.app.conftest import planted

    from outgrow.app.cli.main import run_cli
    from outgrow.app.runs.resume import plan_resumed_run

    np.savez(tmp_path / "planted.npz", **planted())
    out, config = tmp_path / "run", tmp_path / "run" / "config.json"
    command = "outgrow train planted.npz --model gcn --hidden 8 --batch-size 32 --strategy sampled --epochs 1 --out run"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*command.split(), "--set", "ahead=2"])
    told = "option ahead of strategy sampled is now called prefetch"
    with pytest.warns(DeprecationWarning, match=told), pytest.raises(SystemExit):
        run_cli()
    record = json.loads(config.read_text())
    new = record["strategy"]["options"]
    assert new["prefetch"] == 2
    old_names = {name: old for old, name in renamed_options_of(og.Sampled).items()}
    record["strategy"]["options"] = {old_names.get(name, name): value for name, value in new.items()}
    config.write_text(json.dumps(record))
    with warnings.catch_warnings(action="error"):
        resumed = plan_resumed_run(out, {}, None, Workers(), keep_num_workers=True)
    resumed.directory.release_lock()
    assert resumed.strategy == og.Sampled(prefetch=2)
    assert json.loads(config.read_text())["strategy"]["options"] == new
