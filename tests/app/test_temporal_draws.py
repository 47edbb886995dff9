"""Training, evaluation and prediction on in-edges before the time of each node: nothing of the future gets through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch
from pyarrow import parquet
from tests.app.conftest import Command

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.topology import NO_TIME

BATCHES: dict[str, Any] = {"batch_size": 64, "fanout": (4, 4)}
NODES = 240


def graph_of_future_labels() -> og.Graph:
    """A graph whose labels only edges after the time of a node tell: by their sources, their number, and two hops off.

    Every node has edges from noise before its time. After it come edges from nodes whose features are its label, more
    of them for label 1. Nodes before its time get such edges too, after its time but before their own.
    """
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, NODES)
    time = random.integers(100, 200, NODES)
    features = random.standard_normal((2 * NODES + 2, 4)).astype(np.float32)
    features[-2:] = [[9, 0, 0, 0], [0, 9, 0, 0]]
    edges: list[tuple[int, int, int]] = []
    for node in range(NODES):
        relay = NODES + node
        edges += [(int(random.integers(NODES, 2 * NODES)), node, int(time[node]) - 50) for _ in range(3)]
        edges.append((relay, node, int(time[node]) - 1))
        teller = 2 * NODES + int(labels[node])
        # At the time of the node, after it, and into the neighbour that it does have.
        edges += [(teller, node, int(time[node])), (teller, relay, int(time[node]) + 1)]
        edges += [(teller, node, int(time[node]) + 1 + later) for later in range(6 * int(labels[node]))]
    src, dst, when = np.array(edges).T
    order = random.permutation(NODES)
    return og.from_arrays(
        np.stack([src, dst]),
        features=features,
        labels=np.concatenate([labels, np.full(NODES + 2, -1)]),
        split={"train": order[:120], "val": order[120:160], "test": order[160:]},
        edge_time=when,
        # Those of the neighbours are late: draws for the time of a destination would see what tells.
        node_time=np.concatenate([time, np.full(NODES + 2, 1000)]),
    )


def model_of(graph: og.Graph, kind: str = "SAGE") -> Any:
    torch.manual_seed(1)
    return getattr(og.nn, kind)(graph.num_features, 16, graph.num_classes, dropout=0.0)


def measure_accuracy(graph: og.Graph, model: Any) -> float:
    assert graph.labels is not None
    nodes = graph.split.test
    return float((og.predict(graph, model, nodes).argmax(1) == graph.labels[nodes]).double().mean())


@pytest.mark.parametrize("kind", ["SAGE", "GCN"])
def test_labels_of_the_future_are_not_learned(kind: str) -> None:
    graph = graph_of_future_labels()
    accuracy = {}
    for strategy in (None, "uniform", "last"):
        options: Any = {"strategy": "sampled", "temporal_strategy": strategy, "epochs": 25, "lr": 0.02, **BATCHES}
        run = og.train(graph, model_of(graph, kind), progress=False, **options)
        accuracy[strategy] = run.summary["test_score"]
        # Predictions are of the same edges.
        assert measure_accuracy(graph, run.model) == pytest.approx(accuracy[strategy], abs=1e-6)
    assert accuracy[None] > 0.9
    assert max(accuracy["uniform"], accuracy["last"]) < 0.65


@pytest.mark.parametrize(
    ("strategy", "part"),
    [
        (og.Full(), "computes each node once for all times"),
        (og.Offload(chunks=2), "computes each node once for all times"),
        (og.TensorParallel(), "computes each node once for all times"),
        (og.Orchestrate(), "reuses the rows of nodes"),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_strategies_that_reuse_rows_refuse(strategy: Any, part: str) -> None:
    graph = graph_of_future_labels()
    options = BATCHES if strategy.uses_minibatches else {}
    with pytest.raises(InputError) as error:
        og.train(graph, model_of(graph), strategy=strategy, temporal_strategy="uniform", progress=False, **options)
    assert "cannot train on temporal draws" in error.value.what
    assert part in error.value.got


@pytest.mark.parametrize("way", [{"eval": "layerwise"}, {"test": "layerwise"}])
def test_evaluation_of_whole_layers_is_refused(way: dict[str, str]) -> None:
    graph = graph_of_future_labels()
    with pytest.raises(InputError, match="temporal draws cannot be evaluated"):
        og.train(graph, model_of(graph), strategy="sampled", temporal_strategy="uniform", **BATCHES, **way)


def test_auto_chooses_a_strategy_that_draws_by_time() -> None:
    graph = graph_of_future_labels()
    run = og.train(graph, model_of(graph), epochs=1, temporal_strategy="uniform", progress=False, **BATCHES)
    assert run.summary["strategy"] in ("sampled", "split", "migrate")
    shown = str(og.plan(graph, model_of(graph), temporal_strategy="uniform", workers=2, **BATCHES))
    assert "cannot train on temporal draws" in shown


def test_nodes_without_a_time_are_no_seeds() -> None:
    graph = graph_of_future_labels()
    assert graph.node_time is not None
    times = graph.node_time.clone()
    times[graph.split.test[0]] = NO_TIME
    changed = og.from_arrays(
        graph.edge_index,
        features=graph.features,
        labels=graph.labels,
        split={name: getattr(graph.split, name) for name in ("train", "val", "test")},
        edge_time=graph.edge_time,
        node_time=times,
    )
    with pytest.raises(InputError, match="a node without a time cannot be a seed"):
        og.train(changed, model_of(changed), strategy="sampled", temporal_strategy="uniform", **BATCHES)
    model = model_of(changed)
    model.temporal_strategy = "uniform"
    with pytest.raises(InputError, match="a node without a time cannot be a seed"):
        og.predict(changed, model)
    og.predict(changed, model, graph.split.test[1:])
    plain = og.from_arrays(graph.edge_index, features=graph.features)
    with pytest.raises(InputError, match="temporal draws need times"):
        og.predict(plain, model)


def test_sampled_evaluation_and_prediction_see_the_same_past() -> None:
    graph = graph_of_future_labels()
    model = model_of(graph)
    model.temporal_strategy = "uniform"
    whole = og.predict(graph, model)
    some = graph.split.test[:7]
    assert torch.allclose(og.predict(graph, model, some), whole[some], atol=1e-5)
    hidden = og.embed(graph, model)
    assert torch.allclose(og.embed(graph, model, some), hidden[some], atol=1e-5)
    features, inputs = og.export_inputs(graph, model, some)
    exported = og.nn.ExportableModel(model)(features, inputs)
    assert torch.allclose(exported, whole[some], atol=1e-5)
    model.temporal_strategy = None
    assert not torch.allclose(og.predict(graph, model, some), whole[some], atol=1e-2)


def test_the_loader_has_the_batches_of_training() -> None:
    graph = graph_of_future_labels()
    options: Any = {"batch_size": 32, "fanout": (3, 3), "temporal_strategy": "uniform"}
    assert graph.node_time is not None
    assert graph.edge_time is not None
    for data in og.NeighborLoader(graph, "train", **options):
        assert torch.equal(data.seed_time, graph.node_time[data.n_id[: data.batch_size]])
        assert (graph.edge_time[data.e_id] < data.row_time[data.edge_index[1]]).all()
    for batch in og.NeighborLoader(graph, "train", output="block", **options):
        last = batch.blocks[-1]
        times = graph.node_time[batch.seeds].repeat_interleave(last.edges.indptr.diff())
        assert (graph.edge_time[last.edge_ids] < times).all()
        assert batch.x is not None
        assert len(batch.x) == len(batch.blocks[0].src_nodes)
    with pytest.raises(InputError, match="temporal draws need times"):
        og.NeighborLoader(og.from_arrays(graph.edge_index), **options)


def write_tables(folder: Path, *, dates: bool) -> None:
    """Tables of the graph: times as numbers in CSV, or as dates in parquet."""
    graph = graph_of_future_labels()
    assert graph.edge_time is not None
    assert graph.node_time is not None
    assert graph.labels is not None
    folder.mkdir()
    numbers = (graph.node_time.numpy(), graph.edge_time.numpy())
    when = [pa.array(times.astype("datetime64[D]") if dates else times) for times in numbers]
    part = np.full(graph.num_nodes, "none", object)
    for name in ("train", "val", "test"):
        part[getattr(graph.split, name)] = name
    features = {f"x{column}": graph.features[:, column].numpy() for column in range(4)}  # type: ignore[index]
    labels = pa.array([None if label < 0 else f"kind {label}" for label in graph.labels.tolist()])
    nodes = {"id": np.arange(graph.num_nodes), "label": labels, "split": pa.array(part), "t": when[0], **features}
    edges = {"src": graph.edge_index[0].numpy(), "dst": graph.edge_index[1].numpy(), "t": when[1]}
    for name, columns in (("nodes", nodes), ("edges", edges)):
        table = pa.table(columns)
        if dates:
            parquet.write_table(table, folder / f"{name}.parquet")
        else:
            pa.csv.write_csv(table, folder / f"{name}.csv")


@pytest.mark.parametrize("dates", [False, True])
def test_from_tables_to_predictions(outgrow: Command, tmp_path: Path, dates: bool) -> None:
    write_tables(tmp_path / "tables", dates=dates)
    made = outgrow("convert", "tables", "store", "--time-column", "t")
    assert made.code == 0, made.err
    store, expected = og.load("store"), graph_of_future_labels()
    unit = 86_400_000_000 if dates else 1
    assert store.num_features == 4
    assert store.node_time is not None
    assert store.edge_time is not None
    assert expected.node_time is not None
    assert expected.edge_time is not None
    assert torch.equal(store.node_time, expected.node_time * unit)
    assert torch.equal(store.edge_time, expected.edge_time * unit)
    facts = json.loads(outgrow("info", "store", "--verify", "--json").out)
    assert facts["node_times"] == {"earliest": 100 * unit, "latest": 1000 * unit, "missing": 0}
    assert facts["edge_times"]["missing"] == 0
    assert "node times" in outgrow("info", "store").out
    arguments = ["--model", "sage", "--hidden", 8, "--dropout", 0, "--batch-size", 64, "--fanout", "4,4"]
    train = ["train", "store", *arguments, "--temporal-strategy", "uniform", "--strategy", "sampled", "--out"]
    whole = outgrow(*train, "run", "--epochs", 3, "--json")
    assert whole.code == 0, whole.err
    assert whole.summary["train"]["temporal_strategy"] == "uniform"
    # Interrupted and resumed, it is the same run.
    assert outgrow(*train, "again", "--epochs", 2).code == 0
    resumed = outgrow("train", "--out", "again", "--resume", "--epochs", 3, "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.summary["loss"] == whole.summary["loss"]
    predicted = outgrow("predict", "run", "--out", "classes.npy")
    assert predicted.code == 0, predicted.err
    found = np.load("classes.npy")[expected.split.test.numpy()]
    assert expected.labels is not None
    right = (found == expected.labels[expected.split.test].numpy()).mean()
    assert right == pytest.approx(whole.summary["test_accuracy"])
    assert outgrow("report", "run").code == 0
    refused = outgrow("train", "store", *arguments, "--temporal-strategy", "uniform", "--strategy", "full")
    assert refused.code == 2
    plan = outgrow("plan", "store", *arguments[:4], *arguments[6:], "--temporal-strategy", "uniform", "--workers", 2)
    assert plan.code == 0, plan.err


@pytest.mark.parametrize(
    ("nodes", "edges", "part"),
    [
        ("id,when\n0,3\n1,4\n", "src,dst\n0,1\n", "has no column t"),
        ("id,t\n0,3\n1,2024-05-01\n", "src,dst,t\n0,1,2\n", "has no time"),
        ("id,t\n0,3\n1,4.5\n", "src,dst,t\n0,1,2\n", "has no time"),
        ("id,t\n0,2024-05-01\n1,2024-05-02\n", "src,dst,t\n0,1,2\n", "cannot be compared"),
        ("id,t\n0,3\n1,4\n", "src,dst,t\n0,1,soon\n", "has no time"),
    ],
)
def test_columns_that_are_no_times_are_refused(
    outgrow: Command, tmp_path: Path, nodes: str, edges: str, part: str
) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "nodes.csv").write_text(nodes)
    (tmp_path / "tables" / "edges.csv").write_text(edges)
    made = outgrow("convert", "tables", "store", "--time-column", "t")
    assert made.code == 2
    assert part in made.err
    assert not (tmp_path / "store").exists()
