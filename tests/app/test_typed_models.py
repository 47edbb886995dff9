"""Models with modules per type from end to end: runs, the command line, other graphs by name, and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import outgrow as og
from outgrow.app.cli.main import app
from outgrow.app.model_probe import probe_model
from outgrow.nn import HeteroConv, Layer, Model, PyGConv, SAGEConv

pytest.importorskip("torch_geometric")
WIDTHS = {"paper": 6, "author": 4, "venue": 3}
NUMBERS = {"paper": 40, "author": 25, "venue": 5}
RELATIONS = (
    ("author", "writes", "paper"),
    ("paper", "rev_writes", "author"),
    ("paper", "cites", "paper"),
    ("paper", "in", "venue"),
    ("venue", "rev_in", "paper"),
)


def typed_data(order: int = 1, leave_out: str | None = None, **numbers: int) -> Any:
    """A `HeteroData` of three types; types and relations in one order, or with -1 in the other."""
    from torch_geometric.data import HeteroData

    draw, data = np.random.default_rng(0), HeteroData()
    counts = NUMBERS | numbers
    features = {name: draw.normal(size=(counts[name], width)).astype("f4") for name, width in WIDTHS.items()}
    edges = {each: draw.integers(0, (counts[each[0]], counts[each[2]]), (90, 2)).T for each in RELATIONS}
    for name in list(WIDTHS)[::order]:
        data[name].x = torch.from_numpy(features[name])
    paper, count = data["paper"], counts["paper"]
    paper.y = torch.from_numpy(draw.integers(0, 3, count))
    place = torch.arange(count)
    paper.train_mask, paper.val_mask, paper.test_mask = place < 20, (place >= 20) & (place < 30), place >= 30
    for each in RELATIONS[::order]:
        if each[1] != leave_out:
            data[each].edge_index = torch.from_numpy(edges[each])
    return data


def typed_model(graph: og.Graph) -> Model:
    torch.manual_seed(0)
    return og.nn.to_hetero(og.nn.SAGE(graph.num_features, 8, 3, dropout=0.1), graph)


def rows_of(graph: og.Graph, rows: torch.Tensor, name: str) -> torch.Tensor:
    return rows[slice(*graph.types.type_nodes(name))]


def test_another_graph_is_matched_by_name(tmp_path: Path) -> None:
    first, other = og.load(typed_data()), og.load(typed_data(-1))
    assert first.types.names != other.types.names
    run = og.train(first, typed_model(first), strategy="full", epochs=2, out=tmp_path / "run", progress=False)
    mine, theirs = og.predict(first, run.model), og.predict(other, run.model)
    for name in WIDTHS:
        assert torch.allclose(rows_of(first, mine, name), rows_of(other, theirs, name), atol=1e-5)
    again = og.load_run(tmp_path / "run").model
    assert torch.allclose(og.predict(first, again), mine, atol=1e-6)
    more = og.train(
        first, typed_model(first), strategy="full", epochs=3, out=tmp_path / "run", resume=True, progress=False
    )
    assert more.summary["exact"]


def test_a_model_by_name(tmp_path: Path) -> None:
    store, run = str(tmp_path / "store"), str(tmp_path / "run")
    og.save_graph(og.load(typed_data()), store)
    call = CliRunner().invoke
    options = ["--model", "sage", "--set", "hetero=true", "--hidden", "8", "--epochs", "2"]
    assert call(app, ["train", store, *options, "--out", run]).exit_code == 0
    assert call(app, ["train", "--out", run, "--resume", "--epochs", "3"]).exit_code == 0
    assert call(app, ["predict", run, "--out", str(tmp_path / "p.npy")]).exit_code == 0
    assert len(np.load(tmp_path / "p.npy")) == sum(NUMBERS.values())
    refused = call(app, ["train", store, "--model", "gcn", "--set", "hetero=true"])
    assert isinstance(refused.exception, og.InputError) or refused.exit_code == 2


@pytest.mark.parametrize("name", ["sage", "rgcn"])
def test_types_without_features_get_vectors(name: str, tmp_path: Path) -> None:
    """Unasked, of models by name: recorded with the run, and refused beside vectors of all nodes."""
    data = typed_data()
    del data["venue"].x
    data["venue"].num_nodes = NUMBERS["venue"]
    store, run = str(tmp_path / "store"), str(tmp_path / "run")
    og.save_graph(og.load(data), store)
    call = CliRunner().invoke
    hetero = ["--set", "hetero=true"] if name == "sage" else []
    start = ["train", store, "--model", name, *hetero, "--hidden", "8", "--epochs", "2"]
    assert call(app, [*start, "--out", run]).exit_code == 0
    assert call(app, ["train", "--out", run, "--resume", "--epochs", "3"]).exit_code == 0
    model = og.load_run(Path(run)).model
    encoder = model.encoder
    assert isinstance(encoder, og.nn.HeteroEncoder)
    assert (encoder.widths, encoder.numbers) == ({"paper": 6, "author": 4}, {"venue": NUMBERS["venue"]})
    assert call(app, ["predict", run, "--out", str(tmp_path / "p.npy")]).exit_code == 0
    refused = call(app, [*start, "--set", "type_encoder=true", "--set", "embedding=4"])
    assert isinstance(refused.exception, og.InputError) or refused.exit_code == 2
    without = [*start, "--set", "type_encoder=false", "--out", str(tmp_path / "other")]
    if name == "rgcn":  # rows of the type are zeros
        assert call(app, without).exit_code == 0
        assert og.load_run(tmp_path / "other").model.encoder is None


def test_mistakes_are_refused() -> None:
    graph = og.load(typed_data())
    with pytest.raises(og.InputError, match=r"a convolution for \('venue', 'rev_in', 'paper'\)"):
        og.predict(og.load(typed_data(leave_out="rev_in")), typed_model(graph))
    lacking = og.load(typed_data(leave_out="rev_in"))
    with pytest.raises(og.InputError, match=r"no convolution for \('venue', 'rev_in', 'paper'\)"):
        og.train(graph, typed_model(lacking), epochs=1, progress=False)
    unread = og.load(typed_data(leave_out="rev_writes"))
    with pytest.raises(og.InputError, match="no relation enters author, of which layer 2 reads"):
        typed_model(unread)
    one = {each: SAGEConv((WIDTHS[each[0]], WIDTHS[each[2]]), 3) for each in RELATIONS if each[2] != "paper"}
    data = typed_data()
    for each in RELATIONS:
        if each[2] == "paper":
            del data[each]
    with pytest.raises(og.InputError, match="no relation enters 'paper', of which the last layer"):
        og.train(og.load(data), Model([Layer(HeteroConv(one))]), epochs=1, progress=False)


def test_inputs_of_a_type_that_came_without_features() -> None:
    """It must be named, and have no width."""
    data = typed_data()
    del data["venue"].x
    data["venue"].num_nodes = NUMBERS["venue"]
    graph = og.load(data)

    def model(given: dict[str, int], **inputs: Any) -> Model:
        torch.manual_seed(0)
        encoder = og.nn.HeteroEncoder(given, 8, **inputs)
        return Model([Layer(HeteroConv({each: SAGEConv(8, 3) for each in graph.types.edge_types}))], encoder=encoder)

    known = {"paper": 6, "author": 4}
    for wrong, got in (
        (model(known), "none for venue"),
        (model({**known, "venue": 3}), "3 of venue"),
        (model(known, embeddings={"venue": 6}), "6 rows"),
        (model(known, without_input=["venue", "shop"]), "one for shop"),
    ):
        with pytest.raises(og.InputError) as error:
            og.train(graph, wrong, epochs=1, progress=False)
        assert got in error.value.got
    losses = {}
    for name, inputs in (("row", {"without_input": ["venue"]}), ("rows", {"embeddings": {"venue": 5}})):
        runs = [
            og.train(graph, model(known, **inputs), strategy=strategy, epochs=2, progress=False)
            for strategy in ("full", "offload")
        ]
        assert runs[0].summary["loss"] == pytest.approx(runs[1].summary["loss"], rel=1e-5)
        losses[name] = runs[0].summary["loss"]
    assert losses["row"] != losses["rows"]


def test_modules_of_each_type_are_probed() -> None:
    graph = og.load(typed_data())

    class Mixing(torch.nn.Module):
        def forward(self, x: tuple[torch.Tensor, torch.Tensor], edge_index: torch.Tensor) -> torch.Tensor:
            return x[1] + x[0].mean(0)

    class Plain(torch.nn.Module):
        def forward(self, x: tuple[torch.Tensor, torch.Tensor], edge_index: torch.Tensor) -> torch.Tensor:
            return x[1].index_add(0, edge_index[1], x[0][edge_index[0]])

    convs = {each: PyGConv(Mixing() if each[1] == "cites" else Plain(), 4, 4) for each in RELATIONS}
    model = Model([Layer(HeteroConv(convs))])
    model.bind_types(graph.types)
    [said] = probe_model(model).inexact
    assert "paper__cites__paper" in said
    assert not probe_model(typed_model(graph), trust_own=False).inexact
