"""Vectors learned for nodes, as a user has them: graphs without features, checkpoints, prediction, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.engine.embeddings.row_optimizers import RowOptimizer
from outgrow.nn import GCN, NodeEmbedding
from outgrow.training import embedding_files, embedding_placement
from outgrow.training.embedding_placement import embedding_bytes

NODES, DIM = 40, 4
QUIET = {"progress": False, "lr": 0.05}


def graph(num_nodes: int = NODES, *, features: bool = False) -> og.Graph:
    random = np.random.default_rng(0)
    nodes = np.arange(num_nodes)
    given = {"features": random.random((num_nodes, 3), dtype=np.float32)} if features else {"num_nodes": num_nodes}
    return og.from_arrays(
        random.integers(0, num_nodes, (2, 6 * num_nodes)),
        labels=nodes % 2,
        split={"train": nodes[::2], "val": nodes[1::4], "test": nodes[3::4]},
        **given,
    )


def model(num_features: int = 0) -> og.nn.Model:
    torch.manual_seed(3)
    encoder = NodeEmbedding(DIM, in_features=num_features)
    return og.nn.GCN(encoder.out_features, 8, 2).with_encoder(encoder)


def vectors_of(trained: og.nn.Model) -> torch.Tensor:
    encoder = trained.encoder
    assert isinstance(encoder, NodeEmbedding)
    assert encoder.weight is not None
    return encoder.weight


def test_a_graph_without_features() -> None:
    data, trained = graph(), model()
    run = og.train(data, trained, epochs=20, **QUIET)
    assert run.loss[-1] < 0.7 * run.loss[0]
    assert vectors_of(trained).shape == (NODES, DIM)
    assert run.logits is not None
    assert torch.allclose(og.predict(data, trained), run.logits, atol=1e-6)
    with pytest.raises(og.InputError, match=r"og\.nn\.NodeEmbedding"):
        og.train(data, og.nn.GCN(0 + 1, 8, 2), epochs=1, **QUIET)


def test_nodes_that_were_appended_get_the_mean() -> None:
    small, large = graph(), graph(NODES + 5)
    trained = og.nn.Embedding(0, DIM, DIM).with_decoder(og.nn.Dot())
    og.train(small, trained, epochs=2, **QUIET)
    rows = og.embed(large, trained)
    assert torch.equal(rows[:NODES], vectors_of(trained))
    assert torch.allclose(rows[NODES:], vectors_of(trained).mean(0), atol=1e-6)
    with pytest.raises(og.InputError, match="those of another graph"):
        og.embed(graph(NODES - 1), trained)


def test_another_strategy_goes_on_exactly(tmp_path: Path) -> None:
    data = graph(features=True)
    whole = model(3).double()
    expected = og.train(data, whole, epochs=6, **QUIET)
    og.train(data, model(3).double(), epochs=3, out=tmp_path / "run", checkpoint_every=1, **QUIET)
    files = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    assert files == [f"epoch-0000000{n}{end}" for n in (2, 3) for end in (".encoder.rows.npy", ".pt")]
    resumed = model(3).double()
    chunks = og.Offload(chunks=3, scratch_dir=str(tmp_path))
    run = og.train(data, resumed, epochs=6, strategy=chunks, out=tmp_path / "run", resume=True, **QUIET)
    assert np.allclose(run.loss, expected.loss, rtol=0, atol=1e-10)
    assert torch.allclose(vectors_of(resumed), vectors_of(whole), rtol=0, atol=1e-10)
    opened = og.load_run(tmp_path / "run").model
    assert opened is not None
    assert torch.equal(vectors_of(opened), vectors_of(resumed))


def test_vectors_that_do_not_fit_memory_need_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_placement, "MEMORY_SHARE", 0.0)
    data = graph()
    with pytest.raises(og.InputError, match="do not fit into memory"):
        og.train(data, model(), epochs=1, **QUIET)
    with pytest.raises(og.InputError, match="do not fit into memory"), og.prepare(data, model()):
        pass
    run = og.train(data, model(), epochs=2, out=tmp_path / "run", **QUIET)
    assert run.logits is not None
    read = og.predict(data, og.load_run(tmp_path / "run").model)
    monkeypatch.setattr(embedding_files, "_IN_MEMORY_BYTES", 0)
    mapped = og.load_run(tmp_path / "run").model
    assert mapped is not None
    assert not vectors_of(mapped).is_contiguous()  # columns of the file, in which moments lie beside them
    assert torch.equal(og.predict(data, mapped), read)
    assert torch.allclose(read, run.logits, atol=1e-6)


def test_vectors_that_were_changed_are_refused(tmp_path: Path) -> None:
    data = graph()
    og.train(data, model(), epochs=2, out=tmp_path / "run", **QUIET)
    [path] = (tmp_path / "run" / "checkpoint").glob("*.rows.npy")
    content = path.read_bytes()
    path.write_bytes(content[:-4] + bytes(4))
    with pytest.raises(og.InputError, match="not those of the checkpoint"):
        og.train(data, model(), epochs=4, out=tmp_path / "run", resume=True, **QUIET)
    path.unlink()
    with pytest.raises(og.InputError, match="cannot read the vectors"):
        og.load_run(tmp_path / "run")


def test_a_vector_that_is_not_finite_is_named() -> None:
    trained = model()
    with pytest.raises(og.TrainingError, match=r"the vector of node \d+ in encoder is not finite"):
        og.train(graph(), trained, epochs=3, embedding_lr=1e39, embedding_optimizer="adagrad", **QUIET)


def test_a_loop_of_ones_own_updates_them() -> None:
    data, whole, own = graph(), model(), model()
    expected = og.train(data, whole, epochs=3, optimizer="sgd", embedding_lr=0.1, **QUIET)
    losses = []
    with og.prepare(data, own, embedding_lr=0.1) as training:
        optimizer = torch.optim.SGD(own.parameters(), lr=0.05)
        for epoch in range(3):
            for step in training.steps(epoch):
                optimizer.step()
                optimizer.zero_grad()
                training.update_embeddings()
                losses.append(step.loss)
    assert losses == expected.loss
    with og.prepare(data, own) as training:
        next(steps := training.steps(0))
        with pytest.raises(og.InputError, match="were not updated"):
            next(steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ema": 0.9}, "ema does not go with a NodeEmbedding"),
        ({"embedding_optimizer": "sgd"}, "embedding_optimizer"),
        ({"embedding_lr": 0.0}, "embedding_lr"),
        ({"strategy": "orchestrate", "batch_size": 4, "fanout": (2, 2)}, "cannot train vectors of nodes"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(og.InputError, match=message):
        og.train(graph(), model(), epochs=1, **{**QUIET, **options})  # type: ignore[arg-type]


def test_models_by_name() -> None:
    data = graph(features=True)
    made = build_model("gcn", data, {"hidden": 8, "embedding": 6, "embedding_combine": "concat"})
    assert isinstance(made.encoder, NodeEmbedding)
    assert made.encoder.out_features == 9
    alone = build_model("embedding", replace(data, features=None), {"hidden": 6, "decoder": "dot"})
    assert alone.layers_list()[-1].spec.out_features == 6
    assert not alone.reads_features
    with pytest.raises(og.InputError, match="without their width"):
        build_model("gcn", data, {"hidden": 8, "embedding_std": 0.1})


def test_bytes_are_those_of_the_nodes_that_have_vectors() -> None:
    encoder = NodeEmbedding(6, types="b")
    encoder.ranges = ((10, 30),)
    trained = GCN(6, 8, 2).with_encoder(encoder)
    owned, optimizer = torch.arange(0, 30, 3), RowOptimizer(name="adam")
    of_rows = 6 * 4 * int((owned >= 10).sum())
    assert embedding_bytes(trained, optimizer, owned, 30, gathers_batches=True) == 3 * of_rows
    assert embedding_bytes(trained, optimizer, owned, 30, gathers_batches=False) == 4 * of_rows
