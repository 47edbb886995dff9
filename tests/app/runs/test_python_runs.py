"""Runs of `og.train` in a fresh process: predicted from, reported, resumed and loaded by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.app.conftest import Command

import outgrow as og
from outgrow.app.runs.provenance import find_commit
from outgrow.core.errors import InputError
from outgrow.graph.graph import NodeType
from outgrow.graph.store.fingerprint import fingerprint_graph
from outgrow.ops.sparse import SparseRows
from support import normal, random_topology

SCRIPT = """
import sys, torch
import outgrow as og
from outgrow.nn import Layer, Model, SAGEConv

class Mine(SAGEConv):
    pass

graph = og.load(sys.argv[1])
own = lambda: Model([Layer(Mine(graph.num_features, graph.num_classes))])
torch.manual_seed(7)
model = own() if sys.argv[3] == "own" else og.nn.GCN(graph.num_features, 8, graph.num_classes, dropout=0.5)
og.train(graph, model, epochs=int(sys.argv[4]), out=sys.argv[2], progress=False)
torch.save(og.predict(graph, model), sys.argv[2] + "/expected.pt")
"""


def graph_of() -> og.Graph:
    nodes = torch.arange(60)
    return og.Graph(
        name="random",
        topology=random_topology(60, 400),
        features=normal(60, 5, dtype=torch.float32),
        labels=nodes % 3,
        split=og.Split(train=nodes[:40], val=nodes[40:50], test=nodes[50:]),
        num_classes=3,
    )


def train_in_a_process(folder: Path, out: str, kind: str, epochs: int) -> Path:
    words = [sys.executable, "-c", SCRIPT, str(folder / "store"), str(folder / out), kind, str(epochs)]
    subprocess.run(words, check=True, timeout=120)
    return folder / out


@pytest.mark.parametrize("kind", ["own", pytest.param("built in", marks=pytest.mark.slow)])
def test_the_command_line_goes_on_with_a_run_of_python(kind: str, tmp_path: Path, outgrow: Command) -> None:
    og.save_graph(graph_of(), tmp_path / "store")
    whole = train_in_a_process(tmp_path, "whole", kind, 5)
    part = train_in_a_process(tmp_path, "part", kind, 3)
    assert (part / "model.pkl").exists() == (kind == "own")
    assert outgrow("predict", part, "--out", "logits.npy", "--what", "logits").code == 0
    assert torch.allclose(torch.from_numpy(np.load("logits.npy")), torch.load(part / "expected.pt"), atol=1e-6)
    assert outgrow("train", "--resume", "--out", part, "--epochs", 5).code == 0
    run, expected = og.load_run(part), og.load_run(whole)
    assert run.loss == expected.loss
    assert [line["loss"] for line in run.metrics] == run.loss
    assert not run.model.training
    assert torch.equal(og.predict(run.graph(), run.model), torch.load(whole / "expected.pt"))
    assert outgrow("report", part).code == 0
    page = (part / "report.html").read_text()
    assert run.summary["model"] in page
    assert run.summary["date"] in page
    assert run.config["train"]["epochs"] == 5


def test_summary_says_where_a_run_comes_from(tmp_path: Path) -> None:
    graph = graph_of()
    run = og.train(graph, og.nn.SAGE(5, 8, 3), epochs=1, out=tmp_path / "run", progress=False)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["model"].startswith("SAGE(in_features=5, hidden=8, out_features=3")
    assert summary["versions"].keys() == {"outgrow", "python", "torch", "numba", "numpy"}
    assert summary["data"] == fingerprint_graph(graph)
    assert summary["host"]["cores"] > 0
    assert summary["date"].endswith("+00:00")
    with pytest.raises(InputError, match="was in memory"):
        run.graph()


def test_commits_are_read_from_files(tmp_path: Path) -> None:
    assert find_commit(tmp_path) is None
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert find_commit(tmp_path) is None
    (git / "packed-refs").write_text("# pack-refs\nabc refs/heads/main\n")
    assert find_commit(tmp_path) == "abc"
    (git / "refs" / "heads" / "main").write_text("def\n")
    (tmp_path / "deep").mkdir()
    assert find_commit(tmp_path / "deep") == "def"
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / ".git").write_text(f"gitdir: {git}\n")
    assert find_commit(tmp_path / "tree") == "def"


def test_bad_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no run"):
        og.load_run(tmp_path)
    (tmp_path / "gone.py").write_text("from outgrow.nn import SAGEConv\nclass Gone(SAGEConv):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import gone  # type: ignore[import-not-found]

    model = og.nn.Model([og.nn.Layer(gone.Gone(5, 3))])
    og.train(graph_of(), model, epochs=1, out=tmp_path / "run", progress=False)
    assert og.load_run(tmp_path / "run").model is not model
    monkeypatch.delattr(gone, "Gone")
    with pytest.raises(InputError, match="cannot be made again"):
        og.load_run(tmp_path / "run")
    (tmp_path / "run" / "model.pkl").unlink()
    with pytest.raises(InputError, match="cannot read"):
        og.load_run(tmp_path / "run")


def test_a_task_of_objects_is_resumed_in_python_alone(tmp_path: Path, outgrow: Command) -> None:
    og.save_graph(graph_of(), tmp_path / "store")
    graph = og.load(tmp_path / "store")
    task = og.NodeClassification(sample_weight=torch.ones(60))
    og.train(graph, og.nn.GCN(5, 8, 3), task=task, epochs=1, out=tmp_path / "run", progress=False)
    refused = outgrow("train", "--resume", "--out", tmp_path / "run", "--epochs", 2)
    assert refused.code == 2
    assert "objects given as sample_weight" in refused.err
    run = og.train(graph, og.nn.GCN(5, 8, 3), task=task, epochs=2, out=tmp_path / "run", progress=False, resume=True)
    assert len(run.loss) == 2


def test_numbers_of_a_regression_are_predicted_by_the_command_line(tmp_path: Path, outgrow: Command) -> None:
    og.save_graph(replace(graph_of(), labels=normal(60), num_classes=1), tmp_path / "store")
    graph, model = og.load(tmp_path / "store"), og.nn.SAGE(5, 8, 1)
    og.train(graph, model, task=og.NodeRegression(), epochs=2, out=tmp_path / "run", progress=False)
    assert outgrow("predict", tmp_path / "run", "--out", "values.npy").code == 0
    torch.testing.assert_close(torch.from_numpy(np.load("values.npy")), og.predict(graph, model)[:, 0])


def test_a_saved_graph_is_the_graph(tmp_path: Path) -> None:
    topology = random_topology(60, 300, weighted=True)
    # By the source, so that edges stay sorted.
    topology = replace(topology, relation=(topology.indices % 2).to(torch.int8))
    nodes = torch.arange(60)
    sparse = SparseRows(
        indptr=torch.arange(61), indices=torch.zeros(60, dtype=torch.int32), values=torch.ones(60), num_columns=4
    )
    for features in (normal(60, 4).half(), normal(60, 4).bfloat16(), sparse):
        graph = og.Graph(
            name="mine",
            topology=topology,
            features=features,
            labels=nodes % 2,
            split=og.Split(train=nodes[:9], val=nodes[9:12], test=nodes[12:20]),
            num_classes=2,
            class_names=("a", "b"),
            relation_names=("r", "s"),
            node_types=(NodeType(name="u", first=0, last=30), NodeType(name="v", first=30, last=60)),
        )
        saved = og.save_graph(graph, tmp_path / "store", overwrite=True)
        again = og.load(tmp_path / "store")
        assert fingerprint_graph(again) == fingerprint_graph(graph) == fingerprint_graph(saved)
        assert again.features.dtype == graph.features.dtype
        assert (again.name, again.class_names, again.node_types) == (graph.name, graph.class_names, graph.node_types)
    with pytest.raises(InputError, match="store"):
        og.save_graph(graph, tmp_path / "store")
