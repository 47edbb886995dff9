"""The Python interface."""

import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from tests.app.conftest import planted

import outgrow as og

SCRIPT = """
import outgrow as og
graph = og.load({path!r})
model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
print(og.train(graph, model, epochs=3).loss)
"""


def graph_of(**options: object) -> og.Graph:
    arrays = planted()
    split = {name: arrays[f"{name}_idx"] for name in ("train", "val", "test")}
    given = {"features": arrays["features"], "labels": arrays["label"], "split": split, **options}
    return og.from_arrays(arrays["edge_index"], **given)


def mostly_zero() -> np.ndarray:
    features = planted()["features"]
    return np.where(features > 1.3, features, 0).astype(np.float32)


def test_a_relational_model_needs_a_graph_with_as_many_relations() -> None:
    source = planted()["edge_index"][0]
    model = og.nn.RGCN(8, 8, 4, num_relations=3)
    run = og.train(graph_of(relation=source % 3), model, epochs=3, progress=False)
    assert run.loss[-1] < run.loss[0]
    for graph, got in ((graph_of(), "0 relations"), (graph_of(relation=source % 4), "4 relations")):
        fresh = og.nn.RGCN(8, 8, 4, num_relations=3)
        with pytest.raises(og.InputError, match=f"at most 3 relations(.|\n)*{got}(.|\n)*graph.num_relations"):
            og.train(graph, fresh, epochs=3, progress=False)
        with pytest.raises(og.InputError, match=got):
            og.predict(graph, fresh)
        # Of a trained model it is known which relations they should be.
        with pytest.raises(og.InputError, match="not those that the model was trained on"):
            og.predict(graph, model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_features_in_half_precision_train_like_the_same_numbers_in_full(dtype: torch.dtype) -> None:
    stored, losses = torch.as_tensor(planted()["features"]).to(dtype), []
    for features in (stored, stored.float()):
        torch.manual_seed(0)
        graph = graph_of(features=features)
        assert graph.features is not None
        assert graph.features.dtype == features.dtype
        model = og.nn.SAGE(graph.num_features, 16, graph.num_classes)
        losses.append(og.train(graph, model, epochs=4, progress=False).loss)
        assert og.predict(graph, model).dtype == torch.float32
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_model_in_half_precision_is_refused(dtype: torch.dtype) -> None:
    graph = graph_of()
    model = og.nn.GCN(graph.num_features, 16, graph.num_classes).to(dtype)
    for use in (lambda: og.train(graph, model, epochs=1, progress=False), lambda: og.predict(graph, model)):
        with pytest.raises(og.InputError, match=r"float32 or float64(.|\n)*model.float\(\)"):
            use()


def test_a_convolution_of_pyg_trains_and_says_whether_it_is_exact() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        pyg = pytest.importorskip("torch_geometric.nn", reason="needs the extra pyg")
    graph = graph_of(undirected=True)
    for dropped, exact in ((0.0, True), (0.5, False)):
        torch.manual_seed(0)
        convs = [pyg.GATv2Conv(8, 16, add_self_loops=False, dropout=dropped), pyg.GraphConv(16, 4)]
        first = og.nn.Layer(og.nn.PyGConv(convs[0], 8, 16, self_loops=True), og.nn.Epilogue(activation=torch.relu))
        model = og.nn.Model([first, og.nn.Layer(og.nn.PyGConv(convs[1], 16, 4))])
        with nullcontext() if exact else pytest.warns(og.ModelWarning, match="PyGConv"):
            run = og.train(graph, model, epochs=20, progress=False)
        assert run.summary["exact"] is exact
        assert run.loss[-1] < run.loss[0]
        torch.testing.assert_close(og.predict(graph, model), run.logits)


def test_train_and_predict() -> None:
    graph = graph_of(undirected=True)
    torch.manual_seed(0)
    model = og.nn.SAGE(graph.num_features, 16, graph.num_classes)
    run = og.train(graph, model, epochs=40, progress=False)
    assert len(run.loss) == 40
    assert run.test_accuracy > 0.6
    assert run.directory is None
    assert torch.equal(run.logits, og.predict(graph, model))
    assert run.ledger["network"] == {}
    assert "test" in repr(run)


def test_the_same_seed_gives_the_same_curve() -> None:
    curves = []
    for seed in (0, 0, 1):
        torch.manual_seed(7)
        graph = graph_of()
        model = og.nn.GAT(graph.num_features, 16, graph.num_classes, heads=4, attention_dropout=0.3)
        curves.append(og.train(graph, model, epochs=4, seed=seed, progress=False).loss)
    assert curves[0] == curves[1] != curves[2]


def test_a_run_resumes_from_python(tmp_path: Path) -> None:
    graph = graph_of()

    def model() -> og.nn.Model:
        torch.manual_seed(0)
        return og.nn.GCN(graph.num_features, 8, graph.num_classes)

    whole = og.train(graph, model(), epochs=6, progress=False)
    og.train(graph, model(), epochs=3, out=tmp_path / "run", progress=False)
    parts = og.train(graph, model(), epochs=6, out=tmp_path / "run", resume=True, progress=False)
    assert parts.loss == whole.loss


def test_boolean_masks_are_a_split_and_scipy_features_stay_sparse() -> None:
    mask = np.zeros(240, dtype=bool)
    mask[:50] = True
    graph = graph_of(features=csr_array(mostly_zero()), split={"train": mask})
    assert graph.split.train.tolist() == list(range(50))
    assert graph.sparse
    assert not graph_of(features=csr_array(planted()["features"])).sparse


@pytest.mark.parametrize("home", [torch.float32, torch.float64])
def test_the_model_decides_the_precision(home: torch.dtype) -> None:
    graph = graph_of()
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes).to(home)
    assert og.train(graph, model, epochs=1, progress=False).logits.dtype == home


def test_mistakes_are_told() -> None:
    graph = graph_of()
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
    with pytest.raises(og.InputError, match="epochs"):
        og.train(graph, model, epoch=3)
    with pytest.raises(og.InputError, match=r"graph\.num_classes"):
        og.train(graph, og.nn.GCN(graph.num_features, 8, 3))
    with pytest.raises(og.InputError, match=r"graph\.num_features"):
        og.train(graph, og.nn.GCN(5, 8, graph.num_classes))
    with pytest.raises(og.InputError, match="nothing to resume"):
        og.train(graph, model, resume=True)
    sparse = graph_of(features=csr_array(mostly_zero()))
    with pytest.raises(og.InputError, match="leave the residual out"):
        og.train(sparse, og.nn.SAGE(graph.num_features, graph.num_features, graph.num_classes, residual=True))
    with pytest.raises(og.InputError, match=r"og\.from_arrays"):
        og.load(np.zeros(3))
    with pytest.raises(og.InputError, match=r"\[2, E\]"):
        og.from_arrays(np.zeros((5, 2), dtype=np.int64))


@pytest.mark.parametrize("name", ["GCN", "SAGE", "GIN"])
def test_sparse_features_need_no_option(name: str) -> None:
    """Wide hidden layers aggregate first, which sparse rows must not: the order is taken from the graph."""
    dense, sparse = graph_of(features=mostly_zero()), graph_of(features=csr_array(mostly_zero()))
    curves = []
    for graph, options in ((dense, {}), (sparse, {}), (sparse, {"sparse_input": True})):
        torch.manual_seed(0)
        model = getattr(og.nn, name)(graph.num_features, 32, graph.num_classes, **options).double()
        curves.append(og.train(graph, model, epochs=3, progress=False).loss)
    assert curves[1] == curves[2]
    assert curves[0] == pytest.approx(curves[1], rel=1e-9)


@pytest.mark.parametrize("how", ["file", "stdin"])
def test_a_plain_script_needs_no_main_guard(tmp_path: Path, how: str) -> None:
    np.savez(tmp_path / "graph.npz", **planted())
    script = SCRIPT.format(path=str(tmp_path / "graph.npz"))
    if how == "file":
        (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "script.py" if how == "file" else "-"]
    done = subprocess.run(
        command, cwd=tmp_path, input=script if how == "stdin" else None, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.strip("[]\n").split(",")) == 3
    assert "epoch 3/3" in done.stderr


def test_import_is_quick_and_unknown_names_are_errors() -> None:
    code = "import sys, outgrow; assert 'torch' not in sys.modules; outgrow.nn; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "train" in dir(og)
    with pytest.raises(AttributeError):
        og.nothing  # noqa: B018


def test_a_refused_model_leaves_no_directory(tmp_path: Path) -> None:
    graph = graph_of()
    with pytest.raises(og.InputError, match=r"graph\.num_classes"):
        og.train(graph, og.nn.GCN(graph.num_features, 8, 3), out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
