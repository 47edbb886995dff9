"""Vectors of nodes in files: runs that go on from a checkpoint, steps that read some rows, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.strategies.offload.nodewise import NodewiseExecution
from outgrow.training import embedding_placement

NODES, DIM = 60, 4
QUIET: dict[str, Any] = {"progress": False, "lr": 0.05}
LINKS: dict[str, Any] = {"link_steps": 3, "embedding_optimizer": "sparse-adam", "negative_sampling": "shared"}
LINKS |= {"negatives": 8, "link_loss": "softmax"}


def graph() -> og.Graph:
    random = np.random.default_rng(0)
    nodes = np.arange(NODES)
    split = {"train": nodes[::2], "val": nodes[1::4], "test": nodes[3::4]}
    return og.from_arrays(random.integers(0, NODES, (2, 4 * NODES)), labels=nodes % 2, split=split, num_nodes=NODES)


def link_model() -> og.nn.Model:
    torch.manual_seed(3)
    return og.nn.Embedding(0, DIM, DIM).with_decoder(og.nn.Dot()).double()


def node_model() -> og.nn.Model:
    torch.manual_seed(3)
    return og.nn.SAGE(DIM, DIM, 2, layers=1).with_encoder(og.nn.NodeEmbedding(DIM)).double()


@pytest.fixture(params=["offload", "sampled"])
def training(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A strategy with its options, which takes files for any vectors."""
    if request.param == "offload":
        return {"strategy": og.Offload(), "model": link_model, **LINKS}
    return {"strategy": og.Sampled(), "model": node_model, "batch_size": 8, "fanout": (3,)}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_placement, "MEMORY_SHARE", 0.0)


def test_rows_in_files_go_on_exactly(training: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = training.pop("model")
    expected = og.train(graph(), make(), epochs=4, out=tmp_path / "whole", **training, **QUIET)
    assert expected.summary["strategy_facts"]["embeddings_on_disk"] is False
    monkeypatch.setattr(embedding_placement, "MEMORY_SHARE", 0.0)
    og.train(graph(), make(), epochs=2, out=tmp_path / "run", **training, **QUIET)
    run = og.train(graph(), make(), epochs=4, out=tmp_path / "run", resume=True, **training, **QUIET)
    assert run.summary["strategy_facts"]["embeddings_on_disk"] is True
    assert run.loss == expected.loss
    counters = run.summary["counters"]
    assert counters["embedding_read_bytes"] > 0
    assert counters["embedding_written_bytes"] > NODES * 3 * DIM * 8
    rows = [np.load(next((tmp_path / name / "checkpoint").glob("*4.*.npy"))) for name in ("whole", "run")]
    assert np.array_equal(*rows)


@pytest.mark.usefixtures("files")
def test_a_vector_in_a_file_that_is_not_finite_is_named(training: dict[str, Any], tmp_path: Path) -> None:
    make = training.pop("model")
    training |= {"embedding_lr": 1e308, "embedding_optimizer": "adagrad", "epochs": 6}
    with pytest.raises(og.TrainingError, match=r"the vector of node \d+ in encoder is not finite|diverged"):
        og.train(graph(), make(), out=tmp_path / "run", **training, **QUIET)


@pytest.mark.usefixtures("files")
def test_without_links_to_rank_no_row_is_computed_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all nodes may be more than memory holds."""

    def fail(execution: NodewiseExecution) -> Any:
        raise AssertionError

    monkeypatch.setattr(NodewiseExecution, "inference", fail)
    none = {**LINKS, "val_links": 0.0, "test_links": 0.0}
    run = og.train(graph(), link_model(), strategy=og.Offload(), epochs=1, out=tmp_path / "run", **none, **QUIET)
    assert run.logits is None
    with pytest.raises(AssertionError):
        og.train(graph(), link_model(), strategy=og.Offload(), epochs=1, out=tmp_path / "other", **LINKS, **QUIET)


def test_rows_of_a_step_that_do_not_fit_are_refused() -> None:
    with pytest.raises(og.InputError, match=r"rows of the nodes of a step do not fit(.|\n)*link_steps"):
        og.train(graph(), link_model(), strategy=og.Offload(memory="2MiB"), epochs=1, **QUIET)


def test_batches_of_a_graph_without_features_keep_to_a_limit() -> None:
    limited = og.Sampled(memory="3GiB")
    run = og.train(graph(), node_model(), strategy=limited, epochs=1, batch_size=8, fanout=(3,), **QUIET)
    assert np.isfinite(run.loss).all()
