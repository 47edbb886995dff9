"""Mistakes in link prediction: on the command line and in Python; each is refused before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.app.conftest import Command, Result, planted

import outgrow as og
from outgrow.graph.graph import NodeType
from outgrow.graph.link_split import HeldOutLinks, LinkCandidates
from outgrow.nn import GCN, DistMult, Dot
from suites.held_out import graph_of, model_of

SMALL = ("--task", "links", "--hidden", 16, "--epochs", 6)


@pytest.fixture
def related(tmp_path: Path) -> Path:
    """A graph whose edges have one of three relations."""
    arrays = planted()
    np.savez(tmp_path / "related.npz", **arrays, edge_type=arrays["edge_index"].sum(0) % 3)
    return tmp_path / "related.npz"


def refused(result: Result, *words: str) -> None:
    assert result.code == 2, result.err
    for word in ("needed:", "got:", "repair:", *words):
        assert word in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "option", ["decoder=dot", "negatives=2", "val_links=0.1", "test_links=0.2", "split_seed=3", "hide=0.2"]
)
def test_a_resumed_run_keeps_its_options(option: str, outgrow: Command, related: Path) -> None:
    assert outgrow("train", related, *SMALL, "--out", "run").code == 0
    name = option.partition("=")[0]
    refused(outgrow("train", "--out", "run", "--resume", "--epochs", 9, "--set", option), f"another {name}")


def test_a_run_of_nodes_does_not_go_on_with_links(outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, *SMALL[2:], "--out", "run").code == 0
    refused(outgrow("train", "--out", "run", "--resume", "--task", "links", "--epochs", 9), "task")


@pytest.mark.parametrize("option", ["hide=0.5", "link_steps=2", "link_loss=softmax", "regularizer=n3"])
def test_training_of_links_is_not_for_nodes(option: str, outgrow: Command, npz: Path) -> None:
    refused(outgrow("train", npz, *SMALL[2:], "--set", option, "--out", "run"), "belong to models of links")
    assert not Path("run").exists()


def test_a_decoder_is_not_for_nodes(outgrow: Command, npz: Path) -> None:
    refused(outgrow("train", npz, "--task", "nodes", "--set", "decoder=dot", "--out", "run"), "decoder", "--task links")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "what", [(), ("--what", "classes"), ("--what", "probabilities"), ("--what", "logits")], ids=str
)
@pytest.mark.parametrize("name", ["p.npy", "p.parquet"])
def test_a_run_of_links_predicts_no_classes(what: tuple[str, ...], name: str, outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, *SMALL, "--out", "run").code == 0
    refused(outgrow("predict", "run", "--out", name, *what), "--what embeddings")
    assert not list(Path().glob("p.*")) + list(Path().glob(".*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--task", "edges"), "edges"),
        (("--task", "link"), "did you mean links"),
        (("--batch-size", 100_000), "larger than the links to train on"),
        (("--batch-size", 10, "--strategy", "full"), "trains on all nodes and neighbours at once"),
        (("--fanout", "5,5", "--set", "link_steps=2"), "draws batches of links"),
        (("--strategy", "sampled", "--set", "hide=0.2"), "draws batches of links"),
        (("--strategy", "split", "--set", "link_loss=k-vs-all"), "not those of all nodes"),
        (("--batch-size", 10, "--set", "negative_sampling=all"), "not those of all nodes"),
        (("--batch-size", 10, "--set", "temporal_strategy=last"), "temporal draws"),
        (("--strategy", "migrate", "--set", "move_model=true"), "cannot move"),
        (("--set", "exclude=target"), "excludes nothing by batch"),
        (("--batch-size", 10, "--set", "exclude=targets"), "did you mean target"),
        (("--set", "ranking_candidates=0"), "ranking_candidates"),
        (("--set", "ranking_candidates=some"), "ranking_candidates"),
        (("--set", "eval=exact"), "links cannot be evaluated by"),
        (("--set", "decoder=distmult"), "no relations"),
        (("--set", "decoder=dots"), "did you mean dot"),
        (("--set", "decoder=3"), "decoder"),
        (("--model", "rgcn"), "no relations"),
        (("--set", "val_links=0.9", "--set", "test_links=0.2"), "val_links + test_links"),
        (("--set", "val_links=-0.1"), "val_links"),
        (("--set", "test_links=1"), "test_links"),
        (("--set", "test_links=nan"), "test_links"),
        (("--set", "negatives=0"), "negatives"),
        (("--set", "negatives=1.5"), "negatives"),
        (("--set", "split_seed=-1"), "split_seed"),
        (("--set", "negative=2"), "negatives"),
        (("--set", "link_steps=0"), "link_steps"),
        (("--set", "hide=1"), "hide"),
        (("--set", "hide=-0.1"), "hide"),
        (("--set", "hide=nan"), "hide"),
        (("--set", "link_loss=softmx"), "did you mean softmax"),
        (("--set", "negative_sampling=share"), "did you mean shared"),
        (("--set", "negative_sampling=shared", "--set", "negatives=100000"), "more negatives"),
        (("--set", "negative_sampling=degree", "--set", "negatives=100000"), "more negatives"),
        (("--set", "filter_negatives=false"), "over candidates alone"),
        (("--set", "negative_sampling=all", "--set", "negatives=2"), "no negatives are drawn"),
        (("--set", "link_loss=k-vs-all", "--set", "negative_sampling=shared"), "no negatives are drawn"),
        (("--set", "margin=2"), "margin belongs to another loss"),
        (("--set", "link_loss=margin", "--set", "margin=-2"), "margin"),
        (("--set", "link_loss=margin", "--set", "adversarial_temperature=2"), "adversarial_temperature belongs"),
        (("--set", "label_smoothing=0.1"), "label_smoothing"),
        (("--set", "regularizer=l3"), "regularizer"),
        (("--set", "regularizer_weight=0.1"), "without a regularizer"),
        (("--set", "hide=0.5", "--strategy", "tensor", "--set", "on_disk=edges"), "cannot hide edges"),
    ],
    ids=str,
)
def test_mistakes(options: tuple[object, ...], said: str, outgrow: Command, npz: Path) -> None:
    refused(outgrow("train", npz, *SMALL, *options, "--out", "run"), said)
    assert not Path("run").exists()


LOOPS = np.tile(np.arange(240), (2, 1))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shares", [(), ("--set", "val_links=0", "--set", "test_links=0")], ids=["shares", "none"])
@pytest.mark.parametrize("edges", [LOOPS, LOOPS[:, :0]], ids=["loops", "no edges"])
def test_graphs_without_links(
    edges: np.ndarray, shares: tuple[object, ...], workers: int, outgrow: Command, tmp_path: Path
) -> None:
    np.savez(tmp_path / "few.npz", **{**planted(), "edge_index": edges})
    refused(outgrow("train", "few.npz", *SMALL, *shares, "--workers", workers, "--out", "run"), "edges")
    assert not Path("run").exists()


def test_a_graph_without_features(outgrow: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", edge_index=planted()["edge_index"])
    refused(outgrow("train", "bare.npz", *SMALL, "--out", "run"), "features")
    assert not Path("run").exists()


def test_classes_of_a_model_of_links_are_refused_in_python(npz: Path) -> None:
    graph, model = og.load(npz), GCN(8, 8, 4).with_decoder(Dot())
    with pytest.raises(og.InputError, match=r"needed: (.|\n)*got: (.|\n)*Dot(.|\n)*repair: (.|\n)*og.embed"):
        og.predict(graph, model)
    assert og.embed(graph, model).shape == (240, 4)


@pytest.mark.parametrize(
    ("options", "relations", "said"),
    [({"batch_size": 100_000}, 0, "larger"), ({"exclude": "none"}, 0, "excludes"), ({}, 2, "relations")],
    ids=str,
)
def test_mistakes_in_python(options: dict[str, Any], relations: int, said: str, npz: Path, tmp_path: Path) -> None:
    decoder = DistMult(4, relations) if relations else Dot()
    with pytest.raises(og.InputError, match=said) as caught:
        og.train(og.load(npz), GCN(8, 8, 4).with_decoder(decoder), out=tmp_path / "run", progress=False, **options)
    assert caught.value.needed
    assert caught.value.got
    assert caught.value.repair
    assert not (tmp_path / "run").exists()


def test_a_decoder_of_too_few_relations_is_refused(related: Path) -> None:
    graph = og.load(related)
    with pytest.raises(og.InputError, match="at most 2 relations"):
        og.train(graph, GCN(8, 8, 4).with_decoder(DistMult(4, 2)), epochs=1, progress=False)
    assert og.train(graph, GCN(8, 8, 4).with_decoder(DistMult(4, 4)), epochs=1, progress=False).loss[0] > 0


def test_a_relation_without_links_is_refused(related: Path) -> None:
    graph = og.load(related)
    names = ("a", "b", "c", "unused")
    typed = replace(graph, relation_names=names)
    model = GCN(8, 8, 4).with_decoder(DistMult(4, 4))
    with pytest.raises(og.InputError, match="have no links") as caught:
        og.train(typed, model, link_relations="a,unused", epochs=1, progress=False)
    assert "unused" in caught.value.got


@pytest.mark.parametrize("options", [{}, {"batch_size": 20}, {"negative_sampling": "shared"}], ids=str)
def test_negatives_of_a_type_with_one_node_are_refused(options: dict[str, Any]) -> None:
    """There is nothing to draw in the place of the one node."""
    graph = suppliers()
    model = GCN(4, 4, 4).with_decoder(Dot())
    with pytest.raises(og.InputError, match="no negatives can be drawn of market: there is one node"):
        og.train(graph, model, epochs=1, progress=False, **options)


def suppliers() -> og.Graph:
    """Forty shops that one market supplies."""
    tail = np.arange(40)
    graph = og.from_arrays(np.stack([np.full(40, 40), tail]), num_nodes=41, features=np.ones((41, 4), "f4"))
    kinds = NodeType(name="shop", first=0, last=40), NodeType(name="market", first=40, last=41)
    return replace(graph, node_types=kinds)


def test_candidates_that_hold_the_answer_twice_are_refused() -> None:
    graph = graph_of("typed")
    assert graph.held_out_links is not None
    val, test = graph.held_out_links
    among = torch.stack([test.tail, (test.tail + 1) % graph.num_nodes, test.tail], 1)
    held = HeldOutLinks(val, test, None, LinkCandidates(tail=among))
    with pytest.raises(og.InputError, match="hold the answer twice"):
        og.train(replace(graph, held_out_links=held), model_of("typed"), epochs=1, progress=False)
    once = HeldOutLinks(val, test, None, LinkCandidates(tail=among[:, :2]))
    og.train(replace(graph, held_out_links=once), model_of("typed"), epochs=1, progress=False)
