"""Link prediction from end to end: the command, its summary, its scores and its predictions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from tests.app.conftest import Command, Result, planted

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.app.runs.directory import RunDirectory
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.graph import Graph, NodeType
from outgrow.graph.link_split import split_links
from outgrow.graph.store.reader import write_store
from outgrow.inference.link_ranking import KnownLinks, LinkRanker
from outgrow.inference.link_ranks import LINK_METRICS
from outgrow.nn import GCN, RGCN, ComposedDistMult, DistMult, Dot
from outgrow.nn.model import Model

SMALL = ("--task", "links", "--hidden", 16, "--epochs", 6, "--set", "eval_every=2")
FIGURES = {*LINK_METRICS}


@pytest.fixture
def related(tmp_path: Path) -> Path:
    """A graph whose edges have one of three relations."""
    arrays = planted()
    np.savez(tmp_path / "related.npz", **arrays, edge_type=arrays["edge_index"].sum(0) % 3)
    return tmp_path / "related.npz"


@pytest.fixture
def typed(related: Path) -> Path:
    """A store of nodes of two types."""
    given = og.load(related)
    types = (NodeType(name="left", first=0, last=90), NodeType(name="right", first=90, last=240))
    names = {"relation_names": given.relation_names, "node_types": types}
    graph = Graph(name="typed", topology=given.topology, features=given.features, **names)
    write_store(graph, related.parent / "typed.store")
    return related.parent / "typed.store"


def done(result: Result) -> dict[str, Any]:
    assert result.code == 0, result.err
    return result.summary


def trained(run: str) -> tuple[Graph, Model]:
    """The graph of a run, and its best model."""
    directory = RunDirectory.open(Path(run))
    graph, recorded = og.load(directory.config["graph"]), directory.config["model"]
    model = build_model(recorded["name"], graph, recorded["options"])
    directory.load_best(model)
    return graph, model


def test_the_summary_says_what_was_trained_and_how_good_it_is(outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, *SMALL, "--out", "run", "--json")
    summary = done(result)
    assert (summary["task"], summary["metric"], summary["exact"]) == ("links", "mrr", True)
    assert summary["scores"].keys() == {"val", "test"}
    for figures in summary["scores"].values():
        assert figures.keys() == FIGURES
        assert 0 < figures["mrr"] <= 1
        assert 0 <= figures["hits@1"] <= figures["hits@3"] <= figures["hits@10"] <= 1
    assert summary["val_accuracy"] == summary["scores"]["val"]["mrr"]
    assert summary["test_accuracy"] == summary["scores"]["test"]["mrr"]
    assert summary["best_epoch"] in (2, 4, 6)
    assert len(summary["loss"]) == 6
    assert summary["loss"][-1] < summary["loss"][0]
    assert "test mrr" in result.err
    assert json.loads(Path("run/summary.json").read_text()) == summary


def test_a_run_of_nodes_says_so(outgrow: Command, npz: Path) -> None:
    summary = done(outgrow("train", npz, *SMALL[2:], "--task", "nodes", "--json"))
    assert (summary["task"], summary["metric"]) == ("nodes", "accuracy")
    assert summary["scores"]["test"] == {"accuracy": summary["test_accuracy"]}


def test_a_graph_needs_no_labels_and_no_split(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    arrays = planted()
    np.savez(tmp_path / "bare.npz", edge_index=arrays["edge_index"], features=arrays["features"])
    bare = done(outgrow("train", "bare.npz", *SMALL, "--out", "bare", "--json"))
    whole = done(outgrow("train", npz, *SMALL, "--out", "whole", "--json"))
    assert (bare["loss"], bare["scores"]) == (whole["loss"], whole["scores"])


@pytest.mark.parametrize(
    ("options", "decoder"), [((), None), (("--set", "decoder=dot"), "dot"), (("--set", "decoder=distmult"), "distmult")]
)
def test_the_decoder_is_the_one_that_suits_or_the_one_asked_for(
    options: tuple[object, ...], decoder: str | None, outgrow: Command, npz: Path, related: Path
) -> None:
    for graph, suits in ((npz, "dot"), (related, "distmult")):
        if (graph, decoder) != (npz, "distmult"):
            assert done(outgrow("train", graph, *SMALL, *options, "--out", graph.stem, "--json"))
            recorded = json.loads(Path(graph.stem, "config.json").read_text())["model"]["options"]["decoder"]
            assert recorded == (decoder or suits)
            _, model = trained(graph.stem)
            assert isinstance(model.decoder, Dot if recorded == "dot" else DistMult)


def test_options_of_links_make_a_difference(outgrow: Command, npz: Path) -> None:
    args = ("train", npz, *SMALL, "--json", "--out")
    plain = done(outgrow(*args, "plain"))
    assert done(outgrow(*args, "again"))["loss"] == plain["loss"]
    options = ("negatives=3", "split_seed=1", "val_links=0.2", "test_links=0.3")
    found = {option: done(outgrow(*args, option, "--set", option)) for option in options}
    losses = [plain["loss"], *(summary["loss"] for summary in found.values())]
    assert len({tuple(loss) for loss in losses}) == len(losses)
    for option, summary in found.items():
        name, _, value = option.partition("=")
        assert summary["train"][name] == float(value)


@pytest.mark.parametrize("name", ["planted", "related"])
def test_scores_are_those_of_the_output_on_the_links_set_aside(name: str, npz: Path, related: Path) -> None:
    graph, directed = og.load(npz.parent / f"{name}.npz"), name == "related"
    model = GCN(8, 12, 6).with_decoder(DistMult(6, 3) if directed else Dot())
    run = og.train(graph, model, epochs=4, eval_every=2, val_links=0.2, test_links=0.3, split_seed=9, progress=False)
    split, ends = split_links(graph.topology, val=0.2, test=0.3, seed=9), torch.tensor([0, 240])
    assert model.decoder is not None
    assert run.logits is not None
    for part, links in (("val", split.val), ("test", split.test)):
        answers = KnownLinks(split.known_links, graph.num_nodes, directed=directed)
        ranking = LinkRanker(FullGraphShard(graph.topology), model.decoder, links, answers, ends)
        assert run.summary["scores"][part] == pytest.approx(ranking.rank_links(run.logits).compute_metrics(), rel=1e-9)


def test_the_split_depends_on_its_own_seed_alone(outgrow: Command, npz: Path) -> None:
    """A model that learns no more has the scores of its run under another seed, and others on another split."""
    recorded = done(outgrow("train", npz, *SMALL, "--seed", 1, "--out", "run", "--json"))["scores"]["test"]["mrr"]
    graph, model = trained("run")
    same, other = (
        og.train(graph, model, epochs=1, lr=1e-30, split_seed=split_seed, seed=5, progress=False).test_accuracy
        for split_seed in (0, 1)
    )
    assert same == pytest.approx(recorded, rel=1e-3)
    assert other != pytest.approx(recorded, rel=1e-3)


def test_without_links_set_aside_there_is_no_score(outgrow: Command, npz: Path) -> None:
    none = ("--set", "val_links=0", "--set", "test_links=0")
    summary = done(outgrow("train", npz, *SMALL, *none, "--out", "run", "--json"))
    assert all(value is None for figures in summary["scores"].values() for value in figures.values())
    assert (summary["val_accuracy"], summary["test_accuracy"], summary["best_epoch"]) == (None, None, 0)
    only = done(outgrow("train", npz, *SMALL, *none[:2], "--out", "tested", "--json"))
    assert only["scores"]["val"]["mrr"] is None
    assert only["scores"]["test"]["mrr"] > 0


def ways(disk: Path) -> dict[str, og.Full | og.Offload | og.TensorParallel]:
    return {
        "full": og.Full(),
        "offload": og.Offload(chunks=3, scratch_dir=str(disk)),
        "tensor": og.TensorParallel(),
    }


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize(("workers", "names"), [(1, ("full", "offload", "tensor")), (2, ("offload", "tensor"))])
def test_all_ways_train_the_same_model(
    workers: int, names: tuple[str, ...], typed: Path, disk: Path, scratch: Path
) -> None:
    """In float64, on nodes of two types and edges of three relations."""
    graph = og.load(typed)

    def run(strategy: Any, workers: int) -> dict[str, Any]:
        torch.manual_seed(0)
        layers = RGCN(graph.num_features, 12, 8, num_relations=3, dropout=0.3)
        model = layers.with_decoder(DistMult(8, 3)).double()
        options = {"epochs": 5, "negatives": 2, "eval_every": 2, "lr": 0.02}
        return og.train(graph, model, strategy=strategy, workers=workers, progress=False, **options).summary

    expected = run(og.Full(), 1)
    for name in names:
        found = run(ways(disk)[name], workers)
        assert (found["strategy"], found["workers"]) == (name, workers)
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-10)
        assert found["best_epoch"] == expected["best_epoch"]
        for part, figures in expected["scores"].items():
            assert found["scores"][part] == pytest.approx(figures, rel=1e-12)


def test_the_command_on_two_workers(outgrow: Command, related: Path, scratch: Path) -> None:
    one, two = (
        done(outgrow("train", related, *SMALL, "--workers", workers, "--out", f"run{workers}", "--json"))
        for workers in (1, 2)
    )
    assert (one["workers"], two["workers"], two["task"]) == (1, 2, "links")
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
    for part, figures in one["scores"].items():
        assert two["scores"][part] == pytest.approx(figures, abs=0.01)
    assert two["ledger"]["peer"]["activations"] > 0


def test_types_of_nodes_are_what_links_are_ranked_among(outgrow: Command, typed: Path, related: Path) -> None:
    fewer, more = (
        done(outgrow("train", graph, *SMALL, "--set", "lr=1e-12", "--out", graph.stem, "--json"))["scores"]["test"]
        for graph in (typed, related)
    )
    assert fewer["mrr"] > more["mrr"]


def test_resuming_longer_gives_the_curve_of_one_long_run(outgrow: Command, related: Path) -> None:
    args = ("train", related, "--task", "links", "--hidden", 16, "--set", "eval_every=2")
    whole = done(outgrow(*args, "--epochs", 9, "--out", "whole", "--json"))
    assert outgrow(*args, "--epochs", 4, "--out", "parts").code == 0
    parts = done(outgrow("train", "--out", "parts", "--resume", "--epochs", 7, "--json"))
    assert parts["task"] == "links"
    parts = done(outgrow("train", related, "--task", "links", "--out", "parts", "--resume", "--epochs", 9, "--json"))
    for key in ("loss", "scores", "best_epoch", "task"):
        assert parts[key] == whole[key]


@pytest.mark.parametrize("model", ["gcn", "decoupled"])
def test_embeddings_are_what_the_decoder_takes(model: str, outgrow: Command, related: Path) -> None:
    assert outgrow("train", related, *SMALL, "--model", model, "--out", "run").code == 0
    graph, best = trained("run")
    expected = og.embed(graph, best).numpy()
    assert expected.shape == (240, 16)
    assert outgrow("predict", "run", "--what", "embeddings", "--out", "e.npy").code == 0
    np.testing.assert_array_equal(np.load("e.npy"), expected)
    assert outgrow("predict", "run", "--what", "embeddings", "--out", "e.parquet").code == 0
    table = parquet.read_table("e.parquet")
    assert table.column_names == ["node", "embedding"]
    np.testing.assert_array_equal(table["node"], np.arange(240))
    np.testing.assert_array_equal(table["embedding"].combine_chunks().flatten(), expected.ravel())


def test_embeddings_of_the_graph_that_was_trained_on_are_the_output_of_the_run(npz: Path) -> None:
    graph, model = og.load(npz), GCN(8, 12, 6).with_decoder(Dot())
    run = og.train(graph, model, epochs=3, val_links=0.0, test_links=0.0, progress=False)
    assert run.logits is not None
    torch.testing.assert_close(og.embed(graph, run.model), run.logits)
    assert math.isnan(run.test_accuracy)


def test_cora_learns(outgrow: Command, data_dir: Path) -> None:
    args = ("train", "cora", "--task", "links", "--model", "gcn", "--data-dir", data_dir, "--json", "--out")
    barely, well = (
        done(outgrow(*args, f"run{epochs}", "--epochs", epochs, "--set", f"eval_every={epochs}")) for epochs in (1, 100)
    )
    assert well["scores"]["test"]["mrr"] > max(0.05, 2 * barely["scores"]["test"]["mrr"])
    assert well["loss"][-1] < 0.6


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_wordnet_learns_its_relations(outgrow: Command) -> None:
    few = ("--hidden", 64, "--epochs", 30, "--set", "val_links=0.005", "--set", "test_links=0.005")
    summary = done(outgrow("train", "wordnet", "--task", "links", *few, "--json"))
    assert summary["loss"][-1] < 0.6
    assert summary["scores"]["test"]["mrr"] > 100 / 117_659


def test_python_does_not_go_on_with_another_split(npz: Path, tmp_path: Path) -> None:
    graph, out = og.load(npz), tmp_path / "run"
    model = GCN(8, 12, 6).with_decoder(Dot())
    og.train(graph, model, epochs=2, out=out, progress=False)
    with pytest.raises(og.InputError, match="another split_seed"):
        og.train(graph, model, epochs=4, out=out, resume=True, split_seed=1, progress=False)
    assert og.train(graph, model, epochs=4, out=out, resume=True, progress=False).summary["epochs"] == 4


def test_a_decoder_has_the_relations_of_its_encoder(outgrow: Command, related: Path) -> None:
    options = ("--task", "links", "--hidden", 6, "--epochs", 1, "--set", "decoder=composed-distmult")
    result = outgrow("train", related, *options, "--model", "compgcn", "--out", "run", "--json")
    assert result.code == 0, result.err
    assert result.summary["scores"]["test"]["mrr"] > 0
    model = og.load_run(Path("run")).model
    assert isinstance(model.decoder, ComposedDistMult)
    other = outgrow("train", related, *options, "--model", "rgcn", "--out", "other")
    assert other.code == 2
    for word in ("another encoder", "CompGCNConv", "--model compgcn"):
        assert word in other.err
    assert not Path("other").exists()
