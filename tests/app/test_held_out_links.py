"""Links that a graph comes with, from end to end: folders of triples, stores, runs that resume, loops of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.app.conftest import Command, Result

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.app.runs.directory import RunDirectory
from outgrow.app.runs.torchrun import validate_same_graph
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.alignment import describe_schema
from outgrow.graph.graph import Graph
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.link_triples import LinkTriples
from outgrow.graph.store.fingerprint import changed_parts, fingerprint_graph
from outgrow.nn import GCN, DistMult, Dot
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.comm import SingleProcessComm
from suites.held_out import scores_by_loops

SMALL = ("--task", "links", "--hidden", 8, "--epochs", 4, "--set", "eval_every=2")
NAMES = [f"e{number}" for number in range(30)]


def triples(count: int, seed: int) -> list[tuple[str, str, str]]:
    rng = np.random.default_rng(seed)
    rows = zip(rng.integers(0, 30, count), rng.integers(0, 3, count), rng.integers(0, 30, count), strict=True)
    return [(NAMES[h], "rst"[r], NAMES[t]) for h, r, t in rows if h != t]


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """A folder of triples with a split."""
    folder = tmp_path / "facts"
    folder.mkdir()
    seen: set[tuple[str, str, str]] = set()
    for part, count, seed in (("train", 200, 0), ("valid", 20, 1), ("test", 25, 2)):
        mine = [each for each in triples(count, seed) if each not in seen]
        (folder / f"{part}.txt").write_text("".join("\t".join(each) + "\n" for each in mine))
        seen |= {*mine}
    return folder


def with_vectors(graph: Graph) -> Graph:
    """A graph whose features name its nodes, so that the first layer has a trained vector for each."""
    count = graph.num_nodes
    names = torch.arange(count, dtype=torch.int32)
    eye = SparseRows(indptr=torch.arange(count + 1), indices=names, values=torch.ones(count), num_columns=count)
    return replace(graph, features=eye)


@pytest.fixture
def store(facts: Path, tmp_path: Path) -> Path:
    with pytest.warns(DataWarning, match="leaks"):
        graph = og.load(facts)
    og.save_graph(with_vectors(graph), tmp_path / "facts.store")
    return tmp_path / "facts.store"


def done(result: Result) -> dict[str, Any]:
    assert result.code == 0, result.err
    return result.summary


def refused(result: Result, *words: str) -> None:
    assert result.code == 2, result.err
    for word in ("needed:", "got:", "repair:", *words):
        assert word in result.err


@pytest.mark.parametrize("options", [(), ("--strategy", "offload"), ("--strategy", "tensor")], ids=str)
def test_the_command_ranks_the_links_as_they_are_given(outgrow: Command, store: Path, options: Sequence[str]) -> None:
    summary = done(outgrow("train", store, *SMALL, "--model", "rgcn", *options, "--out", "run", "--json"))
    graph = og.load(store)
    assert graph.held_out_links is not None
    directory = RunDirectory.open(Path("run"))
    recorded = directory.config["model"]
    model = build_model(recorded["name"], graph, recorded["options"])
    directory.load_best(model)
    for part, links in zip(("val", "test"), graph.held_out_links, strict=True):
        expected = scores_by_loops(graph, og.embed(graph, model), links, model)
        found = {name: summary["scores"][part][name] for name in expected}
        assert found == pytest.approx(expected, abs=2e-3)


def test_workers_have_the_figures_of_one(outgrow: Command, store: Path, scratch: Path) -> None:
    one, two = (
        done(outgrow("train", store, *SMALL, "--model", "gcn", "--workers", number, "--out", f"run{number}", "--json"))
        for number in (1, 2)
    )
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
    assert two["scores"]["test"] == pytest.approx(one["scores"]["test"], abs=0.01)


@pytest.mark.parametrize("option", ["val_links=0.05", "val_links=0", "test_links=0.3", "split_seed=1"])
def test_options_of_a_split_are_refused(outgrow: Command, store: Path, option: str) -> None:
    words = (option.partition("=")[0], "split already", "links to validate on")
    refused(outgrow("train", store, *SMALL, "--set", option, "--out", "run"), *words)
    assert not Path("run").exists()
    name, _, value = option.partition("=")
    graph = og.load(store)
    model = GCN(30, 8, 8, sparse_input=True).with_decoder(Dot())
    number = int(value) if name == "split_seed" else float(value)
    with pytest.raises(InputError, match="split already"):
        og.train(graph, model, epochs=1, progress=False, **{name: number})
    with pytest.raises(InputError, match="split already"):
        og.prepare(graph, model, **{name: number})
    og.train(replace(graph, held_out_links=None), model, epochs=1, progress=False, **{name: number})


def test_a_split_that_overlaps_is_refused_unless_allowed(outgrow: Command, facts: Path) -> None:
    first, second, *_ = (facts / "train.txt").read_text().splitlines()
    with (facts / "valid.txt").open("a") as file:
        file.write(f"{first}\n")
    with (facts / "test.txt").open("a") as file:
        file.write(f"{first}\n{second}\n")
    counts = ("1 are training links too", "2 are training links too", "1 are validation links too")
    words = ("overlap", *counts, "--allow-overlap")
    refused(outgrow("convert", facts, "facts.store"), *words)
    refused(outgrow("train", facts, *SMALL), *words)
    # Nothing is left of a store that was written before its split was known, and one that was there is kept.
    assert [path.name for path in Path().iterdir()] == ["facts"]
    assert outgrow("convert", facts, "facts.store", "--allow-overlap").code == 0
    before = (Path("facts.store") / "manifest.json").read_bytes()
    refused(outgrow("convert", facts, "facts.store", "--overwrite"), *words)
    assert (Path("facts.store") / "manifest.json").read_bytes() == before
    with pytest.raises(InputError, match="overlap"):
        og.load(facts)
    with pytest.warns(DataWarning, match="are training links too"):
        assert og.load(facts, allow_overlap=True).num_edges == og.load("facts.store").num_edges


def test_relations_without_training_links_are_refused_unless_allowed(outgrow: Command, facts: Path) -> None:
    with (facts / "test.txt").open("a") as file:
        file.write("e1\tnever\te2\ne2\tnever\te3\n")
    words = ("no training links of 1 of the relations", "'never' (2 test links)", "--allow-unseen-relations")
    refused(outgrow("convert", facts, "facts.store"), *words)
    assert not Path("facts.store").exists()
    with pytest.raises(InputError, match="never"):
        og.load(facts)
    with pytest.warns(DataWarning) as said:
        graph = og.load(facts, allow_unseen_relations=True)
    assert any("'never'" in str(each.message) for each in said)
    assert graph.relation_names[-1] == "never"
    result = outgrow("convert", facts, "facts.store", "--allow-unseen-relations")
    assert (result.code, "'never'" in result.err) == (0, True)


def test_inverse_relations_are_an_option_of_any_graph(outgrow: Command, facts: Path, store: Path) -> None:
    with pytest.warns(DataWarning, match="leaks"):
        converted = og.convert(facts, "both.store", inverse_relations=True)
    graph = og.load(store)
    for added in (og.add_inverse_relations(graph), og.load(store, inverse_relations=True)):
        assert added.relation_names == converted.relation_names
        for name in ("indptr", "indices", "relation"):
            assert torch.equal(getattr(added.topology, name), getattr(converted.topology, name))
        assert added.store is None
        assert added.num_features == graph.num_features
        same = replace(added, topology=graph.topology, relation_names=graph.relation_names)
        assert fingerprint_graph(same) == fingerprint_graph(graph)
    summary = done(outgrow("train", store, *SMALL, "--model", "rgcn", "--inverse-relations", "--out", "run", "--json"))
    assert RunDirectory.open(Path("run")).config["load_options"] == {"inverse_relations": True}
    assert summary["scores"]["test"]["mrr"] > 0
    assert outgrow("train", "--resume", "--out", "run", "--epochs", 5).code == 0
    assert outgrow("links", "run", "--head", "e1", "--relation", "r^-1").code == 0
    assert outgrow("predict", "run", "--what", "embeddings", "--out", "rows.npy").code == 0
    with pytest.raises(InputError, match="inverse relations already"):
        og.add_inverse_relations(converted)
    with pytest.raises(InputError, match="no relations"):
        og.add_inverse_relations(replace(graph, topology=replace(graph.topology, relation=None), relation_names=()))


def test_a_run_goes_on_with_the_inverses_that_it_has(outgrow: Command, store: Path) -> None:
    assert outgrow("train", store, *SMALL, "--model", "rgcn", "--out", "run").code == 0
    refused(outgrow("train", "--resume", "--inverse-relations", "--out", "run"), "in another way", "inverse_relations")


def test_a_task_without_options_is_taken(store: Path) -> None:
    graph, model = og.load(store), GCN(30, 8, 8, sparse_input=True).with_decoder(DistMult(8, 3))
    run = og.train(graph, model, epochs=1, task=og.LinkPrediction(negatives=2), progress=False)
    assert run.test_score > 0
    with pytest.raises(InputError, match="split already"):
        og.train(graph, model, epochs=1, task=og.LinkPrediction(test_links=0.3), progress=False)


def test_a_loop_of_ones_own_has_the_figures_of_a_run(store: Path) -> None:
    def make() -> tuple[Graph, Any]:
        torch.manual_seed(0)
        return og.load(store), GCN(30, 8, 8, sparse_input=True).with_decoder(DistMult(8, 3)).double()

    graph, model = make()
    run = og.train(graph, model, epochs=2, lr=0.1, optimizer="sgd", weight_decay=0.0, eval_every=2, progress=False)
    graph, model = make()
    with og.prepare(graph, model) as training:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for epoch in range(2):
            for step in training.steps(epoch):
                losses.append(step.loss)
                optimizer.step()
                optimizer.zero_grad()
        marks = {part: training.evaluate(part) for part in ("val", "test")}
    assert losses == pytest.approx(run.summary["loss"])
    for part, figures in marks.items():
        expected = run.summary["scores"][part]
        assert {name: figures[name] for name in ("mrr", "hits@10")} == pytest.approx(
            {name: expected[name] for name in ("mrr", "hits@10")}
        )


def launched(store: str) -> dict[str, float]:
    graph = og.load(store)
    torch.manual_seed(0)
    model = GCN(30, 8, 8, sparse_input=True).with_decoder(DistMult(8, 3)).double()
    with og.prepare(graph, model) as training:
        for _ in training.steps(0):
            pass
        return training.evaluate("test")


@pytest.mark.slow
def test_launched_workers_have_the_figures_of_one(store: Path) -> None:
    assert og.launch(launched, str(store), workers=2) == pytest.approx(launched(str(store)))


def test_a_run_goes_on_with_the_same_links_alone(outgrow: Command, store: Path, tmp_path: Path) -> None:
    whole = done(outgrow("train", store, *SMALL, "--epochs", 6, "--out", "whole", "--json"))
    assert outgrow("train", store, *SMALL, "--out", "run").code == 0
    parts = done(outgrow("train", "--out", "run", "--resume", "--epochs", 6, "--json"))
    assert (parts["loss"], parts["scores"]) == (whole["loss"], whole["scores"])
    graph = og.load(store)
    val, test = graph.held_out_links or ()
    fewer = replace(graph, held_out_links=HeldOutLinks(val, test.select_links(slice(1, None))))
    og.save_graph(fewer, store, overwrite=True)
    refused(outgrow("train", "--out", "run", "--resume", "--epochs", 9), "have changed", "another split")
    refused(outgrow("train", "--out", "run", "--resume", "--epochs", 9, "--set", "test_links=0.2"), "test_links")


def test_the_fingerprint_knows_the_links(store: Path) -> None:
    graph = og.load(store)
    assert graph.held_out_links is not None
    known, val = fingerprint_graph(graph), graph.held_out_links.val
    without = replace(graph, held_out_links=None)
    swapped = replace(graph, held_out_links=HeldOutLinks(graph.held_out_links.test, val))
    assert changed_parts(known, fingerprint_graph(replace(graph))) == []
    assert changed_parts(known, fingerprint_graph(without)) == ["split"]
    assert changed_parts(known, fingerprint_graph(swapped)) == ["split"]


def test_the_fingerprint_of_other_graphs_is_that_of_the_version_before() -> None:
    graph = og.from_arrays(np.array([[0, 1], [1, 0]]), labels=np.array([0, 1]), split={"train": [0], "val": [1]})
    assert fingerprint_graph(graph)["split"] == BEFORE


BEFORE = "ddcfeabc5feee8e246a5a083e2e594a182db02b3136509eb6f01a42347221e83"


def test_a_graph_without_features_is_refused_with_what_would_do(outgrow: Command, facts: Path) -> None:
    refused(outgrow("train", facts, *SMALL), "cannot be trained on", "0 features", "--set embedding=64")


def test_links_that_do_not_fit_the_graph(store: Path) -> None:
    graph = og.load(store)
    model = GCN(30, 8, 8, sparse_input=True).with_decoder(Dot())
    one = torch.tensor([1])
    for bad in (LinkTriples(one, one + 29, one), LinkTriples(one, one, one + 2), LinkTriples(-one, one, one)):
        broken = replace(graph, held_out_links=HeldOutLinks(bad, bad))
        with pytest.raises(InputError, match="does not exist"):
            og.train(broken, model, epochs=1, progress=False)
        with pytest.raises(InputError, match="does not exist"):
            og.save_graph(broken, store.parent / "broken.store")


def test_nothing_but_loops_to_train_on(tmp_path: Path) -> None:
    graph = og.from_arrays(np.array([[0, 1], [0, 1]]), features=np.eye(2, dtype=np.float32))
    one = torch.tensor([0])
    graph = replace(graph, held_out_links=HeldOutLinks(*2 * [LinkTriples(one, one + 1, one)]))
    with pytest.raises(InputError, match="too few edges"):
        og.train(graph, GCN(2, 4, 4).with_decoder(Dot()), epochs=1, progress=False)


def test_what_is_monitored_needs_validation_links(store: Path) -> None:
    graph, model = og.load(store), GCN(30, 8, 8, sparse_input=True).with_decoder(Dot())
    assert graph.held_out_links is not None
    val, test = graph.held_out_links
    none = replace(graph, held_out_links=HeldOutLinks(val.select_links(slice(0, 0)), test))
    with pytest.raises(InputError, match="nothing to monitor"):
        og.train(none, model, epochs=1, monitor="hits@10", progress=False)
    run = og.train(none, model, epochs=1, progress=False)
    assert np.isnan(run.val_score)
    assert run.test_score > 0


def test_inverse_relations_from_end_to_end(outgrow: Command, facts: Path, tmp_path: Path) -> None:
    assert outgrow("convert", facts, "plain.store").code == 0
    assert outgrow("convert", facts, "both.store", "--inverse-relations").code == 0
    plain, both = (og.load(tmp_path / f"{name}.store") for name in ("plain", "both"))
    assert both.num_edges == 2 * plain.num_edges
    assert both.relation_names == (*plain.relation_names, *(f"{name}^-1" for name in plain.relation_names))
    assert fingerprint_graph(plain)["split"] == fingerprint_graph(both)["split"]
    og.save_graph(with_vectors(both), tmp_path / "ready.store")
    summary = done(outgrow("train", "ready.store", *SMALL, "--model", "rgcn", "--out", "run", "--json"))
    assert summary["scores"]["test"]["mrr"] > 0
    model = RunDirectory.open(Path("run")).config["graph_schema"]
    assert len(model["relations"]) == 6


def test_relations_are_matched_by_name_among_held_out_links(store: Path) -> None:
    """A model that was trained on another order of relations ranks the same links."""
    graph = og.load(store)
    assert graph.held_out_links is not None
    assert graph.topology.relation is not None
    model = GCN(30, 8, 8, sparse_input=True).with_decoder(DistMult(8, 3))
    run = og.train(graph, model, epochs=2, progress=False)
    model.schema = describe_schema(graph)
    turned = tuple(reversed(graph.relation_names))
    links = HeldOutLinks(*(LinkTriples(part.head, part.tail, 2 - part.relation) for part in graph.held_out_links))
    edges, relation = torch.stack([*graph.edge_index]), 2 - graph.topology.relation
    other = og.from_arrays(edges, relation=relation, num_nodes=graph.num_nodes)
    other = replace(other, relation_names=turned, held_out_links=links, features=graph.features)
    with pytest.warns(DataWarning, match="matched by name"):
        again = og.train(other, model, epochs=1, lr=1e-30, progress=False)
    assert again.test_score == pytest.approx(run.test_score, rel=1e-3)


def test_workers_of_torchrun_compare_the_number_of_links(store: Path) -> None:
    class Two(SingleProcessComm):
        def all_gather_object(self, value: Any) -> list[Any]:
            return [value, (*value[:3], 1, 1)]

    with pytest.raises(InputError, match="different graphs"):
        validate_same_graph(og.load(store), Two())


def test_the_record_of_a_run_has_no_shares_of_its_own(outgrow: Command, store: Path) -> None:
    assert outgrow("train", store, *SMALL, "--out", "run").code == 0
    assert json.loads(Path("run/config.json").read_text())["data"] == fingerprint_graph(og.load(store))
    assert outgrow("predict", "run", "--what", "embeddings", "--out", "rows.npy").code == 0
    assert np.load("rows.npy").shape == (30, 8)
