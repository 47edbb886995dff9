"""Mini-batches on the command line and from Python, and the mistakes that users make with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.app.conftest import Command, planted

import outgrow as og
from outgrow.strategies.split.strategy import SplitParallel

SHORT = ("--epochs", 3, "--hidden", 8, "--model", "gcn")
BATCHES = (*SHORT, "--batch-size", 50, "--fanout", "4,3")


def test_the_command(outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, *BATCHES, "--out", "run", "--json")
    assert result.code == 0
    summary = result.summary
    assert summary["strategy"] == "sampled"
    assert summary["exact"] is True
    assert summary["train"]["batch_size"] == 50
    assert summary["train"]["fanout"] == [4, 3]
    edges_of_seeds = 4 * 120
    assert 3 * edges_of_seeds < summary["counters"]["sampled_edges"] < 3 * edges_of_seeds * (1 + 5 * 3)
    assert "batches of 50, fan-outs 4,3" in result.err
    assert "strategy sampled: it fits into memory" in result.err
    assert "computed once" not in result.err


def test_a_run_goes_on_as_it_began(outgrow: Command, npz: Path) -> None:
    whole = outgrow("train", npz, *BATCHES, "--out", "whole", "--json").summary
    outgrow("train", npz, *BATCHES, "--out", "run", "--epochs", 1)
    result = outgrow("train", "--out", "run", "--resume", "--epochs", 3, "--fanout", "4,3", "--json")
    assert result.code == 0
    assert result.summary["loss"] == whole["loss"]
    refused = outgrow("train", "--out", "run", "--resume", "--fanout", "4,4")
    assert refused.code == 2
    assert "cannot go on with another fanout" in refused.err


def test_in_python(npz: Path) -> None:
    graph = og.load(npz)
    runs = []
    for options in ({"strategy": "auto"}, {"strategy": og.Sampled(partition="range", prefetch=1)}):
        torch.manual_seed(0)
        model = og.nn.SAGE(graph.num_features, 8, graph.num_classes)
        runs.append(og.train(graph, model, epochs=2, batch_size=40, fanout=[5, -1], progress=False, **options))
    assert runs[0].loss == runs[1].loss
    assert runs[0].summary["strategy"] == "sampled"


def test_all_neighbours_of_all_nodes_are_the_whole_graph(npz: Path) -> None:
    graph, losses = og.load(npz), []
    for strategy in ("full", "sampled"):
        torch.manual_seed(0)
        model = og.nn.GAT(graph.num_features, 8, graph.num_classes, heads=2, dropout=0.4).double()
        losses.append(og.train(graph, model, strategy=strategy, epochs=5, progress=False).loss)
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)


def test_relations_have_numbers_of_their_own(outgrow: Command, tmp_path: Path) -> None:
    arrays = planted()
    relation = np.arange(arrays["edge_index"].shape[1]) % 2
    np.savez(tmp_path / "typed.npz", **arrays, edge_type=relation)
    result = outgrow("train", "typed.npz", "--model", "rgcn", "--epochs", 1, "--fanout", "3:1,2", "--json")
    assert result.code == 0, result.err
    assert result.summary["train"]["fanout"] == [[3, 1], 2]
    for sampler, where in (("labor", ("--fanout", "3:1,2")), ("fastgcn", ("--fanout", 2, "--set", "eval_fanout=3:1"))):
        given = ("--model", "rgcn", "--layers", len(str(where[1]).split(",")), *where, "--sampler", sampler)
        refused = outgrow("train", "typed.npz", *given)
        assert refused.code == 2
        assert f"sampler {sampler} cannot draw by relation" in refused.err
    wrong = outgrow("train", "typed.npz", "--model", "rgcn", "--fanout", "3:1:1,2")
    assert wrong.code == 2
    assert "one number, or 2 of them" in wrong.err


@pytest.mark.parametrize(
    ("sampler", "fanout", "strategy"),
    [("labor", "4,3", "split"), ("fastgcn", "60,40", "migrate"), ("neighbor-with-replacement", "4,-1", "orchestrate")],
)
def test_a_sampler_is_an_option_of_a_run(sampler: str, fanout: str, strategy: str, outgrow: Command, npz: Path) -> None:
    options = (*SHORT, "--batch-size", 50, "--fanout", fanout, "--sampler", sampler, "--set", "eval=sampled")
    whole = outgrow("train", npz, *options, "--out", "whole", "--json")
    assert whole.code == 0, whole.err
    assert f"fan-outs {fanout}, sampler {sampler}" in whole.err
    assert whole.summary["train"]["sampler"] == sampler
    assert whole.summary["exact"] is True
    two = outgrow("train", npz, *options, "--strategy", strategy, "--set", "partition=hash", "--workers", 2, "--json")
    if strategy != "orchestrate":  # the age of hot embeddings depends on who owns them
        assert two.summary["loss"] == pytest.approx(whole.summary["loss"], rel=1e-4)
        assert two.summary["val_accuracy"] == pytest.approx(whole.summary["val_accuracy"], abs=0.02)
    outgrow("train", npz, *options, "--out", "run", "--epochs", 1)
    refused = outgrow("train", "--out", "run", "--resume", "--sampler", "neighbor")
    assert refused.code == 2
    assert "cannot go on with another sampler" in refused.err
    result = outgrow("train", "--out", "run", "--resume", "--epochs", 3, "--sampler", sampler, "--json")
    assert result.summary["loss"] == whole.summary["loss"]
    assert result.summary["val_accuracy"] == whole.summary["val_accuracy"]


def test_a_run_without_a_sampler_in_its_record_goes_on(outgrow: Command, npz: Path) -> None:
    """A run of an earlier version, killed within an epoch."""
    whole = outgrow("train", npz, *BATCHES, "--out", "whole", "--json").summary
    outgrow("train", npz, *BATCHES, "--out", "run", "--epochs", 1)
    config = json.loads(Path("run/config.json").read_text())
    del config["train"]["sampler"]
    Path("run/config.json").write_text(json.dumps(config))
    result = outgrow("train", "--out", "run", "--resume", "--epochs", 3, "--sampler", "neighbor", "--json")
    assert result.code == 0, result.err
    assert result.summary["loss"] == whole["loss"]


def test_every_sampler_has_draws_of_its_own(npz: Path) -> None:
    graph, losses = og.load(npz), []
    for sampler in ("neighbor", "neighbor-with-replacement", "labor", "fastgcn"):
        torch.manual_seed(0)
        model = og.nn.SAGE(graph.num_features, 8, graph.num_classes)
        config = og.TrainConfig(epochs=2, batch_size=40, fanout=(5, 4), sampler=sampler)
        losses.append(tuple(og.train(graph, model, config=config, progress=False).loss))
    assert len(set(losses)) == len(losses)
    with pytest.raises(og.InputError, match="one of fastgcn, labor"):
        og.TrainConfig(sampler="ladies")


def test_a_plan_for_a_sampler(npz: Path) -> None:
    graph = og.load(npz)
    model = og.nn.SAGE(graph.num_features, 8, graph.num_classes)
    seconds = {}
    for sampler in ("neighbor", "labor", "fastgcn"):
        found = og.plan(graph, model, workers=1, batch_size=40, fanout=(3, 2), sampler=sampler).plan
        (sampled,) = (each.estimate for each in found.candidates if each.name == "sampled")
        assert sampled is not None
        seconds[sampler] = sampled.epoch_seconds
    assert seconds["fastgcn"] < seconds["labor"] < seconds["neighbor"]
    with pytest.raises(og.InputError, match="nothing to draw"):
        og.plan(graph, model, workers=1, batch_size=40, sampler="labor")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--fanout", "10"), "2 hops, one for each layer"),
        (("--fanout", "ten,ten"), "these are no fan-outs"),
        (("--fanout", "0,3"), "these are no fan-outs"),
        (("--batch-size", 0), "batch_size"),
        (("--strategy", "full", "--batch-size", 10), "strategy full trains on all nodes"),
        (("--batch-size", 10, "--set", "sampling_threads=0"), "sampling_threads"),
        (("--batch-size", 10, "--set", "cache_by=heat"), "cache_by"),
        (("--batch-size", 10, "--set", "cache=64Mb/s"), "64Mb/s"),
        (("--batch-size", 10, "--set", "overlap=false"), "overlap"),
        (("--batch-size", 10, "--set", "weighted=true"), "weight"),
        (("--sampler", "labor"), "sampler labor has nothing to draw"),
        (("--batch-size", 10, "--fanout", "-1,-1", "--sampler", "fastgcn"), "sampler fastgcn has nothing to draw"),
        (("--fanout", "4,3", "--sampler", "labour"), "did you mean labor?"),
        (("--fanout", "4,3", "--sampler", "labor", "--strategy", "full"), "strategy full trains on all nodes"),
        (("--fanout", "4,3", "--sampler", "fastgcn", "--set", "weighted=true"), "weighted=False"),
        (("--fanout", "4,3", "--sampler", "labor", "--set", "weighted=true"), "no weights"),
        (("--strategy", "sample"), "sampled"),
        (("--strategy", "split", "--memory", "0GiB"), "in no memory"),
        (("--strategy", "migrate", "--memory", "9MiB"), "one of: 1."),
        (("--strategy", "split", "--set", "cache=-1"), "a cache cannot hold"),
        (("--strategy", "split", "--set", "partition=meti"), "metis-access"),
        (("--strategy", "sampled", "--set", "cache=0.1"), "at least 2 hosts"),
        (("--strategy", "sampled", "--set", "cache=0.1", "--workers", 2), "2 workers on 1 host"),
        (("--strategy", "split", "--set", "cache_scope=host"), "unknown option 'cache_scope'"),
    ],
)
def test_mistakes(options: tuple[object, ...], said: str, outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, *SHORT, *options, "--out", "run")
    assert result.code == 2
    assert said in result.err
    assert "Traceback" not in result.err
    assert not Path("run").exists()


def test_options_are_recorded(outgrow: Command, npz: Path) -> None:
    cache = ("--set", "cache=16KiB", "--set", "cache_by=presampling")
    outgrow("train", npz, *BATCHES, "--strategy", "split", *cache, "--out", "run")
    config = json.loads(Path("run/config.json").read_text())
    assert config["strategy"] == {
        "name": "split",
        "options": SplitParallel(cache="16KiB", cache_by="presampling").options(),
    }
