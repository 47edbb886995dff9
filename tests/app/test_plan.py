"""``outgrow plan``, ``og.plan``, and what ``auto`` makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.app.conftest import Command

import outgrow as og
from outgrow.app.plan.question import PlanSite, query_for_graph
from outgrow.planning.graph_stats.analytic import AnalyticGraph
from outgrow.planning.graph_stats.counted import CountedGraph
from outgrow.planning.graph_stats.known_graphs import list_known_graphs
from outgrow.planning.hardware.profile import find_profile, list_machines, write_profile
from outgrow.planning.traffic import WorkerLayout
from outgrow.training.config import TrainConfig

GCN = ("--model", "gcn", "--hidden", 8)
BATCHES = ("--batch-size", 50, "--fanout", "4,3")
NAMES = {"full", "offload", "tensor", "sampled", "split", "migrate", "orchestrate"}


def test_a_graph_at_hand(outgrow: Command, npz: Path) -> None:
    result = outgrow("plan", npz, *GCN, "--workers", 2, "--json")
    assert result.code == 0
    assert "not measured" in result.err
    found = result.summary
    assert {each["strategy"] for each in found["strategies"]} == NAMES
    assert {each["workers"] for each in found["strategies"]} == {2}
    assert found["chosen"] == found["strategies"][0]["strategy"] == "full"
    assert found["why"].startswith("strategy full: ")
    first = found["strategies"][0]
    assert first["epoch_seconds"] == pytest.approx(sum(part["seconds"] - part["hidden"] for part in first["parts"]))
    assert {each["link"] for each in first["bytes"]["epoch"]} == {"peer"}
    assert all(each["why_not"] for each in found["strategies"] if each["strategy"] in ("sampled", "split", "migrate"))


def test_the_table_is_for_people(outgrow: Command, npz: Path) -> None:
    result = outgrow("plan", npz, *GCN, *BATCHES, "--workers", 2)
    assert result.code == 0
    for word in (*NAMES, "an epoch", "MiB", "only with --set inexact=true", "its epoch:"):
        assert word in result.out
    assert list(Path().iterdir()) == [Path("planted.npz")]


def test_a_graph_and_a_machine_that_are_not_here(outgrow: Command) -> None:
    result = outgrow("plan", "--workload", "products", *GCN, "--hardware", "4xA100", "--json")
    assert result.code == 0
    assert result.err == ""
    assert result.summary["machine"] == "4xA100"
    assert result.summary["chosen"] == "full"
    wide = outgrow(
        "plan", "--workload", "papers100M", "--model", "gcn", "--hidden", 256, "--hardware", "4xA100", "--json"
    )
    assert wide.summary["chosen"] == "offload"
    held = {each["strategy"]: each for each in wide.summary["strategies"]}
    assert held["full"]["peak_bytes"] > wide.summary["memory_bytes"] >= held["offload"]["peak_bytes"]


def test_a_measured_machine_from_a_file(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    known = find_profile("2-core-cpu")
    write_profile(replace(known, name="slow", device=replace(known.device, layer_seconds=1.0)), tmp_path / "slow.json")
    slow, usual = (
        outgrow("plan", npz, *GCN, "--hardware", each, "--workers", 1, "--json").summary["strategies"][0]
        for each in ("slow.json", "2-core-cpu")
    )
    assert slow["epoch_seconds"] > 100 * usual["epoch_seconds"]


def test_help_names_all_machines_and_knows_its_graphs(outgrow: Command) -> None:
    text = outgrow("plan", "--help").out
    for name in list_machines():
        assert name in text
    for name in ("papers100M", "wikipedia", "mag240M"):
        assert name in text
        assert name in list_known_graphs()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), ("neither", "--workload papers100M")),
        (("cora", "--workload", "reddit"), ("both",)),
        (("--workload", "redit"), ("did you mean", "reddit")),
        (("--workload", "reddit", "--hardware", "4xA10"), ("4xA100",)),
        (("--workload", "reddit", "--hardware", "nowhere.json"), ("outgrow calibrate",)),
        (("--workload", "reddit", "--model", "gcm"), ("gcn",)),
        (("--workload", "reddit", "--set", "depth=3"), ("depth",)),
        (("--workload", "reddit", "--memory", "much"), ("much", "4GiB")),
        (("--workload", "reddit", "--workers", 0), ("workers", "0")),
        (("--workload", "reddit", "--model", "rgcn"), ("relations",)),
        (("nowhere.npz",), ("nowhere.npz",)),
        (("--workload", "reddit", "--hardware", "4xA100", "--workers", 8), ("at most 4 workers",)),
        (("--workload", "reddit", "--layers", 3, "--batch-size", 9, "--fanout", "10"), ("3 hops",)),
    ],
)
def test_mistakes(outgrow: Command, args: tuple[object, ...], words: tuple[str, ...]) -> None:
    result = outgrow("plan", *args)
    assert result.code == 2, result.err
    assert result.out == ""
    for word in words:
        assert word in result.err


def test_no_more_workers_than_nodes(outgrow: Command, npz: Path) -> None:
    result = outgrow("plan", npz, *GCN, "--workers", 1000)
    assert result.code == 2
    assert "at most 240 workers" in result.err


def test_hops_must_be_those_of_the_model(outgrow: Command, npz: Path) -> None:
    result = outgrow("plan", npz, *GCN, "--batch-size", 50, "--fanout", "4,3,2")
    assert result.code == 2
    assert "2 hops, one for each layer" in result.err


@pytest.mark.usefixtures("pooled")
def test_auto_says_why(outgrow: Command, npz: Path) -> None:
    short = (*GCN, "--epochs", 1)
    one = outgrow("train", npz, *short, "--out", "one")
    assert "strategy full: it fits into memory" in one.err
    two = outgrow("train", npz, *short, *BATCHES, "--workers", 2, "--out", "two", "--json")
    assert "an epoch estimated" in two.err
    assert "outgrow calibrate measures this one" in two.err
    assert two.summary["strategy"] in ("sampled", "split", "migrate")
    said = outgrow("train", npz, *short, "--set", "partition=hash", "--workers", 2, "--out", "said", "--json")
    assert said.summary["strategy_options"]["partition"] == "hash"


def test_links_keep_to_a_limit(outgrow: Command) -> None:
    short = ("--hidden", 4, "--epochs", 1, "--set", "val_links=0.01", "--set", "test_links=0.01")
    result = outgrow("train", "products@0.002", "--task", "links", *short, "--memory", "2GiB", "--out", "run", "--json")
    assert result.code == 0, result.err
    assert result.summary["strategy"] == "offload"


def test_links_are_planned(outgrow: Command) -> None:
    """On the whole graph and in batches; `auto` chooses what the plan does."""
    said = outgrow("plan", "products@0.002", "--task", "links", "--hidden", 16, "--workers", 2, "--json")
    assert said.code == 0, said.err
    whole = {each["strategy"]: each for each in json.loads(said.out)["strategies"]}
    assert all(whole[name]["peak_bytes"] for name in ("full", "tensor", "offload"))
    assert any(part["name"] == "scores of links" for part in whole["full"]["parts"])
    graph = og.load("products@0.002")
    model = og.nn.SAGE(graph.num_features, 16, 16).with_decoder(og.nn.Dot())
    batches = og.plan(graph, model, workers=2, batch_size=2000, fanout=(5, 5))
    assert batches.chosen is not None
    found = {each["strategy"]: each for each in batches.as_dict()["strategies"]}
    assert all(found[name]["peak_bytes"] for name in ("sampled", "split", "orchestrate"))
    assert "cannot move" in found["migrate"]["why_not"]
    assert "some steps old" in found["orchestrate"]["why_not"]
    # More steps over the whole graph take longer, by about as much.
    steps = og.plan(graph, model, workers=2, link_steps=4).plan.candidates
    once = og.plan(graph, model, workers=2).plan.candidates
    seconds = [next(each.estimate.epoch_seconds for each in some if each.name == "full") for some in (steps, once)]
    assert 2 < seconds[0] / seconds[1] < 4.5


@pytest.mark.usefixtures("pooled")
def test_auto_compares_strategies_of_links(outgrow: Command) -> None:
    short = ("--hidden", 4, "--epochs", 1, "--set", "val_links=0.01", "--set", "test_links=0.01", "--set", "hide=0.5")
    result = outgrow("train", "products@0.002", "--task", "links", *short, "--workers", 2, "--out", "run", "--json")
    assert result.code == 0, result.err
    assert "an epoch estimated" in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--task", "edges"), "unknown task"),
        (("--task", "nodes", "--set", "decoder=dot"), "a decoder is for links"),
        (("--task", "links", "--batch-size", 10**9), "a batch is larger than the links"),
        (("--task", "links", "--link-relations", "a"), "have no relations"),
        (("--task", "links", "--set", "negatives=9999999", "--set", "negative_sampling=shared"), "more negatives"),
    ],
)
def test_mistakes_of_plans_of_links(outgrow: Command, words: tuple[object, ...], said: str) -> None:
    result = outgrow("plan", "products@0.002", "--hidden", 16, *words)
    text = result.err if result.code == 2 else result.out
    assert said in " ".join(text.replace("│", " ").split())


def test_links_of_a_graph_that_is_not_here(outgrow: Command) -> None:
    words = ("--task", "links", "--batch-size", 4096, "--fanout", "10,10", "--hardware", "4xA100", "--json")
    said = outgrow("plan", "--workload", "papers100M", *words)
    assert said.code == 0, said.err
    found = {each["strategy"]: each for each in json.loads(said.out)["strategies"]}
    assert found["sampled"]["epoch_seconds"] > 100


def test_targets_of_edges_are_not_planned() -> None:
    graph = og.load("products@0.002")
    model = og.nn.SAGE(graph.num_features, 4, 4).with_decoder(og.nn.EdgeMLP(4, 2))
    with pytest.raises(og.InputError, match="targets of edges are not planned"):
        og.plan(graph, model)


@pytest.mark.real_processes
def test_what_fits_nowhere_gets_repairs_by_number(outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, *GCN, "--memory", "60MiB", "--epochs", 1, "--out", "run")
    assert result.code == 2
    assert "no strategy can train this model" in result.err
    assert "1. --memory" in result.err
    assert not Path("run").exists()
    enough = result.err.split("1. --memory ")[1].split("MiB")[0]
    words = [*GCN, "--memory", f"{int(enough) + 120}MiB", "--epochs", 1, "--out", "run"]
    again = subprocess.run(  # in a process that holds nothing else
        [sys.executable, "-m", "outgrow", "train", str(npz), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr


def test_batches_that_fit_nowhere(outgrow: Command) -> None:
    found = outgrow(
        "plan",
        "--workload",
        "mag240M",
        "--model",
        "sage",
        "--hidden",
        1024,
        "--layers",
        3,
        "--batch-size",
        600_000,
        "--fanout",
        "25,20,15",
        "--hardware",
        "V100",
        "--json",
    )
    assert found.code == 0
    assert found.summary["chosen"] is None
    assert "no strategy" in found.summary["why"]
    assert isinstance(found.summary["fixes"], list)


def test_in_python(npz: Path) -> None:
    graph = og.load(npz)
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
    outlook = og.plan(graph, model, workers=2)
    assert isinstance(outlook.chosen, og.Full)
    assert "full *" in str(outlook)
    assert outlook.as_dict() == json.loads(json.dumps(outlook.as_dict()))
    assert "PlanReport(strategy full" in repr(outlook)
    batches = og.plan(graph, model, workers=2, batch_size=50, fanout=(4, 3), hardware="4xA100")
    assert not isinstance(batches.chosen, og.Full)
    with pytest.raises(og.InputError, match="hardwar"):
        og.plan(graph, model, hardware="5xA100")
    with pytest.raises(og.InputError):
        og.plan(graph, model, batch=50)


@pytest.mark.usefixtures("pooled")
def test_the_same_is_trained_whatever_is_chosen(npz: Path) -> None:
    graph = og.load(npz)
    losses = []
    for strategy in ("auto", "full"):
        torch.manual_seed(0)
        model = og.nn.GCN(graph.num_features, 8, graph.num_classes).double()
        losses.append(og.train(graph, model, strategy=strategy, workers=2, epochs=3, progress=False).loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.parametrize(("batches", "sketched"), [({}, True), ({"batch_size": 16, "fanout": (3, 3)}, False)])
def test_chunks_of_a_large_graph_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, npz: Path, batches: dict[str, Any], sketched: bool
) -> None:
    graph = og.load(npz)
    model = og.nn.SAGE(graph.num_features, 8, graph.num_classes)
    site = PlanSite(find_profile("2-core-cpu"), [WorkerLayout(workers=1, hosts=1)])
    asked = query_for_graph(graph, model, TrainConfig(**batches), site)
    assert isinstance(asked.work.partitioning, CountedGraph)
    monkeypatch.setattr("outgrow.app.plan.question._MOST_EDGES_OF_CHUNKS", 10)
    asked = query_for_graph(graph, model, TrainConfig(**batches), site)
    assert isinstance(asked.work.partitioning, AnalyticGraph) == sketched
