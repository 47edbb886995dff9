"""`og.top_links` and ``outgrow links``: the most likely links of a node, by id."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from scipy import sparse
from tests.app.conftest import Command, Result, planted
from torch import Tensor

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.graph import Graph, NodeType
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.link_triples import LinkTriples
from outgrow.inference import top_links as blocks
from outgrow.nn import GCN, RGCN, DistMult, Dot
from outgrow.nn.model import Model

NODES = 40


def related(seed: int = 0, *, inverses: bool = False) -> Graph:
    """A graph of three relations, perhaps with their inverses, and links to validate and to test on."""
    rng = np.random.default_rng(seed)
    heads, tails, number = rng.integers(0, NODES, 150), rng.integers(0, NODES, 150), rng.integers(0, 3, 150)
    names = ["r", "s", "t"]
    if inverses:
        heads, tails = np.concatenate([heads, tails]), np.concatenate([tails, heads])
        number = np.concatenate([number, number + 3])
        names += [f"{name}^-1" for name in names]
    graph = og.from_arrays(np.stack([heads, tails]), features=rng.normal(size=(NODES, 5)).astype("f4"), relation=number)
    links = [LinkTriples(*(torch.from_numpy(rng.integers(0, n, 20)) for n in (NODES, NODES, 3))) for _ in range(2)]
    return replace(graph, relation_names=tuple(names), held_out_links=HeldOutLinks(*links))


def model_for(graph: Graph, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    made = RGCN(graph.num_features, 6, 4, num_relations=graph.num_relations)
    return made.with_decoder(DistMult(4, graph.num_relations))


def known_triples(graph: Graph) -> set[tuple[int, int, int]]:
    assert graph.topology.relation is not None
    edges = zip(*graph.edge_index.tolist(), graph.topology.relation.tolist(), strict=True)
    found = {(head, number, tail) for head, tail, number in edges}
    for part in graph.held_out_links or ():
        found |= set(zip(part.head.tolist(), part.relation.tolist(), part.tail.tolist(), strict=True))
    if graph.relation_names[-1].endswith("^-1"):
        half = graph.num_relations // 2
        found |= {(tail, (number + half) % (2 * half), head) for head, number, tail in found}
    return found


def best_by_loops(
    graph: Graph, model: Model, node: int, number: int, *, tails: bool, leave_out: bool = True
) -> list[tuple[float, int]]:
    """Minus the score and the number of every possible answer, the best ones first."""
    rows, known, found = og.embed(graph, model).double(), known_triples(graph), []
    assert model.decoder is not None
    scale = model.decoder.relation.double()[number]
    for other in range(graph.num_nodes):
        link = (node, number, other) if tails else (other, number, node)
        if other != node and not (leave_out and link in known):
            found.append((-float((rows[node] * scale * rows[other]).sum().detach().float()), other))
    return sorted(found)


@pytest.mark.parametrize("inverses", [False, True], ids=["plain", "inverses"])
@given(seed=st.integers(0, 9), tails=st.booleans(), top=st.integers(1, NODES + 3), rows=st.integers(1, 60))
@settings(max_examples=20, deadline=None)
def test_the_best_are_those_of_loops_over_all_nodes(
    inverses: bool, seed: int, tails: bool, top: int, rows: int
) -> None:
    graph = related(seed, inverses=inverses)
    model = model_for(graph, seed)
    asked, number = [seed, seed + 7, seed], seed % graph.num_relations
    with pytest.MonkeyPatch.context() as patch:
        # Blocks of a few nodes and questions.
        patch.setattr(blocks, "_BLOCK_BYTES", 8 * 4 * rows)
        options = {"heads" if tails else "tails": asked}
        found = og.top_links(graph, model, **options, relation=number, top=top)
    for node, nodes, scores in zip(asked, found.nodes.tolist(), found.scores.tolist(), strict=True):
        expected = best_by_loops(graph, model, node, number, tails=tails)[:top]
        count = len(expected)
        assert nodes == [other for _, other in expected] + [-1] * (top - count)
        assert scores[:count] == pytest.approx([-score for score, _ in expected], abs=1e-6)
        assert all(score == -np.inf for score in scores[count:])
    assert not found.known.any()


def test_equal_scores_are_ordered_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = related()
    graph = replace(graph, features=torch.ones(NODES, 5), held_out_links=None)
    model = model_for(graph)
    for parameter in model.parameters():
        parameter.data.zero_()
    for size in (1 << 20, 8 * 4 * 3):
        monkeypatch.setattr(blocks, "_BLOCK_BYTES", size)
        found = og.top_links(graph, model, heads=3, relation="r", top=5, include_known=True)
        assert found.nodes.tolist() == [[0, 1, 2, 4, 5]]


def test_known_links_are_shown_and_marked_if_asked_for() -> None:
    graph = related()
    model = model_for(graph)
    found = og.top_links(graph, model, heads=[4], relation="s", top=NODES, include_known=True)
    expected = best_by_loops(graph, model, 4, 1, tails=True, leave_out=False)
    assert found.nodes[0, :-1].tolist() == [other for _, other in expected]
    known = known_triples(graph)
    assert found.known[0].tolist() == [(4, 1, node) in known for node in found.nodes[0].tolist()]
    assert found.known.any()


def test_without_relations_a_link_is_known_in_both_directions() -> None:
    graph = og.from_arrays(np.array([[0, 1, 5], [1, 2, 0]]), features=np.eye(6, dtype="f4"))
    model = GCN(6, 4, 4).with_decoder(Dot())
    for options in ({"heads": 0}, {"tails": 0}):
        assert {*og.top_links(graph, model, **options, top=9).nodes[0].tolist()} == {2, 3, 4, -1}


def test_answers_are_of_the_type_that_the_relation_leads_to() -> None:
    features = np.random.default_rng(0).normal(size=(10, 3)).astype("f4")
    graph = og.from_arrays(np.array([[0, 1, 2, 5], [5, 6, 7, 9]]), features=features, relation=np.array([0, 0, 0, 1]))
    types = [
        NodeType(name=name, first=first, last=last) for name, first, last in (("a", 0, 4), ("b", 4, 8), ("c", 8, 10))
    ]
    graph = replace(graph, relation_names=("a__to__b", "b__to__c"), node_types=tuple(types))
    model = RGCN(3, 4, 4, num_relations=2).with_decoder(DistMult(4, 2))
    everything = {"relation": "a__to__b", "top": 10, "include_known": True}
    assert {*og.top_links(graph, model, heads=3, **everything).nodes[0].tolist()} == {4, 5, 6, 7, -1}
    assert {*og.top_links(graph, model, tails=4, **everything).nodes[0].tolist()} == {0, 1, 2, 3, -1}
    with pytest.raises(InputError, match="no heads of the type 'b'"):
        og.top_links(graph, model, heads=4, **everything)
    table = og.top_links(graph, model, tails=4, **everything).to_table().to_pydict()
    assert {*table["head_type"]} == {"a"}
    assert {*table["tail_type"]} == {"b"}


def test_workers_find_what_one_does() -> None:
    graph = related()
    model = model_for(graph)
    one, two = (og.top_links(graph, model, heads=[1, 2], relation="t", workers=number) for number in (1, 2))
    assert torch.equal(one.nodes, two.nodes)
    assert torch.equal(one.scores, two.scores)


def test_a_score_that_is_not_a_number_is_named() -> None:
    graph = related()
    features = graph.features
    assert isinstance(features, Tensor)
    features = features.clone()
    features[7] = torch.nan
    with pytest.raises(InputError, match="not a number"):
        og.top_links(replace(graph, features=features), model_for(graph), heads=7, relation="r")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ("neither", "heads")),
        ({"heads": 1, "tails": 2, "relation": "r"}, ("both",)),
        ({"heads": 1}, ("no relation is given", "r, s, t")),
        ({"heads": 1, "relation": "rr"}, ("unknown relation", "did you mean r?")),
        ({"heads": 1, "relation": 3}, ("from 0 to 2",)),
        ({"heads": NODES, "relation": "r"}, ("no such node",)),
        ({"heads": [], "relation": "r"}, ("no node is given",)),
        ({"heads": "x", "relation": "r"}, ("have no ids",)),
        ({"heads": 1, "relation": "r", "top": 0}, ("out of range",)),
        ({"heads": 1, "relation": "r", "worker": 2}, ("did you mean workers",)),
        ({"heads": 1, "relation": "r", "workers": "2"}, ("wrong type",)),
    ],
    ids=str,
)
def test_bad_questions_are_refused(options: dict[str, object], words: tuple[str, ...]) -> None:
    graph = related()
    with pytest.raises(InputError) as error:
        og.top_links(graph, model_for(graph), **options)
    for word in words:
        assert word in str(error.value)


def test_a_model_of_nodes_has_no_links() -> None:
    graph = related()
    with pytest.raises(InputError, match="predicts no links"):
        og.top_links(graph, GCN(5, 4, 4), heads=1)


NAMES = [f"entity {number}" for number in range(30)]


@pytest.fixture
def run(outgrow: Command, tmp_path: Path) -> str:
    """A run on a folder of triples with ids."""
    folder, rng = tmp_path / "facts", np.random.default_rng(0)
    folder.mkdir()
    # Head, relation and tail as one number, each drawn once.
    codes = rng.permutation(30 * 3 * 30)[:245]
    for part, mine in zip(("train", "valid", "test"), np.split(codes, (200, 220)), strict=True):
        rows = zip(mine // 90, mine // 30 % 3, mine % 30, strict=True)
        (folder / f"{part}.txt").write_text("".join(f"{NAMES[h]}\t{'rst'[r]}\t{NAMES[t]}\n" for h, r, t in rows))
    with pytest.warns(DataWarning, match="leaks"):
        graph = og.load(folder)
    units = og.from_arrays(graph.edge_index, features=sparse.eye_array(30, dtype=np.float32, format="csr")).features
    og.save_graph(replace(graph, features=units), tmp_path / "facts.store")
    options = ("--task", "links", "--hidden", 8, "--epochs", 2, "--model", "rgcn", "--out", "run")
    result = outgrow("train", "facts.store", *options)
    assert result.code == 0, result.err
    return "run"


def refused(result: Result, *words: str) -> None:
    assert result.code == 2, result.err
    for word in ("needed:", "got:", "repair:", *words):
        assert word in result.err


def test_the_command_shows_and_writes_links_by_id(outgrow: Command, run: str) -> None:
    graph, model = og.load("facts.store"), og.load_run(run).model
    found = og.top_links(graph, model, heads=["entity 3", "entity 9"], relation="s", top=4)
    rows = {}
    for ending in (".csv", ".json", ".parquet"):
        names = ("--head", "entity 3", "--head", "entity 9", "--relation", "s", "--top", 4)
        result = outgrow("links", run, *names, "--out", f"links{ending}")
        assert result.code == 0, result.err
        path = Path(f"links{ending}")
        if ending == ".csv":
            with path.open(newline="") as file:
                rows[ending] = list(csv.DictReader(file))
        else:
            rows[ending] = json.loads(path.read_text()) if ending == ".json" else parquet.read_table(path).to_pylist()
        tails = [row["tail_id"] for row in rows[ending]]
        assert tails == [name for names in found.ids for name in names]
        assert [row["head_id"] for row in rows[ending]] == ["entity 3"] * 4 + ["entity 9"] * 4
        assert all(tail in result.out for tail in tails)
    assert rows[".json"] == rows[".parquet"]
    assert [float(row["score"]) for row in rows[".csv"]] == pytest.approx(found.scores.flatten().tolist())
    assert [row["rank"] for row in rows[".json"]] == [1, 2, 3, 4] * 2
    assert next(iter(found)) == list(zip(found.ids[0], found.scores[0].tolist(), strict=True))


def test_the_command_refuses_bad_questions(outgrow: Command, run: str, npz: Path) -> None:
    refused(outgrow("links", run, "--relation", "r"), "neither")
    refused(outgrow("links", run, "--head", "entity 1", "--tail", "entity 2", "--relation", "r"), "both")
    refused(
        outgrow("links", run, "--head", "Entity 31", "--relation", "r"),
        "no node has such an id",
        "did you mean 'entity",
    )
    refused(outgrow("links", run, "--head", "entity 1", "--relation", "q"), "unknown relation")
    refused(outgrow("links", run, "--head", "entity 1"), "no relation is given")
    refused(outgrow("links", run, "--head", "entity 1", "--relation", "r", "--out", "links.txt"), ".csv or .json")
    assert outgrow("train", npz, "--model", "gcn", "--hidden", 4, "--epochs", 1, "--out", "nodes").code == 0
    refused(outgrow("links", "nodes", "--head", 1), "predicts no links", "--task links")
    assert not Path("links.txt").exists()


def test_the_command_asks_for_heads_and_numbers(outgrow: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", **planted())
    train = ("--task", "links", "--model", "gcn", "--hidden", 8, "--epochs", 1, "--out", "plain")
    assert outgrow("train", "plain.npz", *train).code == 0
    result = outgrow("links", "plain", "--tail", 5, "--top", 3, "--include-known", "--out", "links.json")
    assert result.code == 0, result.err
    rows = json.loads(Path("links.json").read_text())
    assert [row["tail"] for row in rows] == [5, 5, 5]
    assert "known" in result.out
    refused(outgrow("links", "plain", "--tail", "five"), "have no ids", "'five'")


def test_links_of_relations_that_were_not_trained_on_are_refused(outgrow: Command, run: str) -> None:
    options = ("--task", "links", "--hidden", 4, "--epochs", 1, "--model", "rgcn", "--link-relations", "s")
    assert outgrow("train", "facts.store", *options, "--out", "some").code == 0
    refused(outgrow("links", "some", "--head", "entity 1", "--relation", "r"), "not learned", "one of s")
    assert outgrow("links", "some", "--head", "entity 1").code == 0


def test_embeddings_are_written_with_ids(run: str) -> None:
    graph, model = og.load("facts.store"), og.load_run(run).model
    og.save_embeddings(graph, model, "rows.parquet")
    table = parquet.read_table("rows.parquet")
    assert table.column_names == ["node", "id", "embedding"]
    assert table["id"].to_pylist() == list(graph.ids or ())
    rows = np.stack(table["embedding"].to_pandas().to_list())
    np.testing.assert_array_equal(rows, og.embed(graph, model).numpy())
    og.save_embeddings(graph, model, "some.npy", nodes=["entity 9", "entity 2"], workers=2)
    expected = og.embed(graph, model, ["entity 9", "entity 2"])
    np.testing.assert_allclose(np.load("some.npy"), expected.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="cannot write"):
        og.save_embeddings(graph, model, "rows.txt")


def test_embeddings_of_a_model_of_nodes_have_no_labels(npz: Path, tmp_path: Path) -> None:
    graph = og.load(npz)
    og.save_embeddings(graph, GCN(8, 4, 4), tmp_path / "rows.parquet")
    assert parquet.read_table(tmp_path / "rows.parquet").column_names == ["node", "embedding"]
