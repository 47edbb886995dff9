"""``outgrow train`` from end to end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from tests.app.conftest import Command, planted

from outgrow.app.cli import train as train_command
from outgrow.app.model_registry import MODELS
from outgrow.app.strategy_registry import STRATEGIES

KEYS = {
    "strategy", "strategy_options", "workers", "device", "seed", "epochs", "loss", "val_accuracy", "test_accuracy",
    "epoch_seconds", "peak_bytes", "ledger", "counters", "exact",
}  # fmt: skip
SMALL = ("--hidden", 16, "--epochs", 8)
PROPAGATE_FIRST = {"sgc", "sign"}
"""Models whose first layers sum features as they are."""


def test_the_summary_has_the_promised_keys_and_the_run_directory_its_files(outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, *SMALL, "--model", "gcn", "--out", "run", "--json")
    assert result.code == 0, result.err
    summary = result.summary
    assert summary.keys() >= KEYS
    assert summary["epochs"] == 8 == len(summary["loss"]) == len(summary["epoch_seconds"])
    assert summary["strategy"] == "full"
    assert summary["exact"] is True
    assert 0 <= summary["test_accuracy"] <= 1
    assert summary["peak_bytes"]["device"] > 50 << 20
    run = Path("run")
    assert json.loads((run / "summary.json").read_text()) == summary
    assert json.loads((run / "ledger.json").read_text())["counters"] == summary["counters"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == summary["loss"]
    assert list((run / "checkpoint").glob("epoch-*.pt"))
    assert list((run / "tensorboard").glob("events.*"))


def test_options_that_are_given_go_before_the_recipe(outgrow: Command, npz: Path) -> None:
    args = ("--model", "gat", "--set", "heads=2", "--set", "optimizer=adam", "--lr", 0.02, "--out", "run")
    result = outgrow("train", npz, *SMALL, *args)
    assert result.code == 0, result.err
    config = json.loads(Path("run/config.json").read_text())
    assert config["model"]["options"]["heads"] == 2
    assert config["train"]["optimizer"] == "adam"
    assert config["train"]["lr"] == 0.02


def edge_data(edge_index: np.ndarray, model: str) -> dict[str, np.ndarray]:
    """Relations of edges, and features of them for a model that reads these: numbers, of which some are the same."""
    total = edge_index.sum(0)
    features = np.stack([total % 5, total % 3], 1).astype(np.float32)
    return {"edge_type": total % 3} | ({"edge_features": features} if "edge_dim" in MODELS[model].graph_options else {})


@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_and_predicts(outgrow: Command, tmp_path: Path, model: str) -> None:
    arrays = planted()
    arrays |= edge_data(arrays["edge_index"], model)
    np.savez(tmp_path / "typed.npz", **arrays)
    result = outgrow("train", tmp_path / "typed.npz", *SMALL, "--model", model, "--out", "run", "--json")
    assert result.code == 0, result.err
    assert result.summary["loss"][-1] < result.summary["loss"][0]
    assert result.summary["exact"] is True
    assert outgrow("predict", "run", "--out", "predictions.parquet").code == 0


def write_sparse(file: Path, model: str) -> Path:
    arrays = planted()
    ones = np.where(arrays.pop("features") > 0.8, 1, 0).astype(np.float32)
    sparse = csr_array(np.pad(ones, ((0, 0), (0, 8))))
    arrays |= {"feat_indptr": sparse.indptr, "feat_indices": sparse.indices, "feat_data": sparse.data}
    arrays |= {"feat_shape": np.array(sparse.shape), **edge_data(arrays["edge_index"], model)}
    np.savez(file, **arrays)
    return file


@pytest.mark.parametrize("model", sorted(MODELS.keys() - PROPAGATE_FIRST))
def test_models_take_sparse_features(outgrow: Command, tmp_path: Path, model: str) -> None:
    result = outgrow("train", write_sparse(tmp_path / "sparse.npz", model), *SMALL, "--model", model, "--json")
    assert result.code == 0, result.err
    assert "sparse" in result.err
    assert result.summary["loss"][-1] < result.summary["loss"][0]


@pytest.mark.parametrize("model", sorted(PROPAGATE_FIRST))
def test_models_that_propagate_features_take_dense_ones(outgrow: Command, tmp_path: Path, model: str) -> None:
    result = outgrow("train", write_sparse(tmp_path / "sparse.npz", model), *SMALL, "--model", model)
    assert result.code == 2
    assert "sparse features" in result.err
    assert "give dense features" in result.err


def test_deep_stacks_have_residuals(outgrow: Command, npz: Path) -> None:
    deep = ("--layers", 7, "--set", "residual=true", "--set", "norm=true")
    result = outgrow("train", npz, *SMALL, "--model", "gcn", *deep, "--json")
    assert result.code == 0, result.err
    assert result.summary["loss"][-1] < result.summary["loss"][0]


def test_several_labels_per_node(outgrow: Command, tmp_path: Path) -> None:
    arrays = planted()
    arrays["label"] = np.eye(4, dtype=np.uint8)[arrays["label"]]
    np.savez(tmp_path / "multi.npz", **arrays)
    result = outgrow("train", tmp_path / "multi.npz", *SMALL, "--json")
    assert result.code == 0, result.err
    assert result.summary["metric"] == "micro_f1"


def test_resuming_longer_gives_the_curve_of_one_long_run(outgrow: Command, npz: Path) -> None:
    whole = outgrow("train", npz, "--hidden", 16, "--epochs", 9, "--out", "whole", "--json").summary
    assert outgrow("train", npz, "--hidden", 16, "--epochs", 4, "--out", "parts").code == 0
    parts = outgrow("train", "--out", "parts", "--resume", "--epochs", 9, "--json").summary
    for key in ("loss", "val_accuracy", "test_accuracy", "best_epoch"):
        assert parts[key] == whole[key]
    assert len(Path("parts/metrics.jsonl").read_text().splitlines()) == 9


def test_a_killed_run_resumes_to_the_same_losses_to_the_last_bit(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    args = ("train", str(npz), "--hidden", "16", "--epochs", "600", "--set", "checkpoint_every=7")
    whole = outgrow(*args, "--out", "whole", "--json").summary
    killed = tmp_path / "killed"
    with subprocess.Popen([sys.executable, "-m", "outgrow", *args, "--out", str(killed)]) as process:
        _wait_for(lambda: len(list(killed.glob("checkpoint/epoch-*.pt"))) > 1, process)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "summary.json").exists()
    resumed = outgrow("train", "--out", killed, "--resume", "--json").summary
    assert resumed["loss"] == whole["loss"]
    assert resumed["test_accuracy"] == whole["test_accuracy"]


def test_ctrl_c_stops_with_a_checkpoint(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = ["train", str(npz), "--hidden", "16", "--epochs", "100000", "--out", str(out), "--json"]
    command = [sys.executable, "-m", "outgrow", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _wait_for((out / "metrics.jsonl").exists, process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    summary = json.loads(stdout.splitlines()[-1])
    assert summary["stopped"] == "interrupted"
    assert "--resume" in stderr
    assert (out / "checkpoint" / f"epoch-{summary['epochs']:08d}.pt").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nosuch",), ("unknown data set", "nosuch")),
        (("wordnte",), ("wordnet",)),
        (("GRAPH", "--model", "gnc"), ("unknown model", "gcn")),
        (("GRAPH", "--strategy", "ful"), ("unknown strategy", "full")),
        (("GRAPH", "--set", "head=8", "--model", "gat"), ("unknown option", "heads")),
        (("GRAPH", "--set", "heads"), ("NAME=VALUE",)),
        (("GRAPH", "--set", "optimizer=adan"), ("adam",)),
        (("GRAPH", "--epochs", "0"), ("epochs", "at least 1")),
        (("GRAPH", "--lr", "nan"), ("lr", "positive")),
        (("GRAPH", "--dropout", "1"), ("dropout",)),
        (("GRAPH", "--dropout", "0.5", "--set", "norm=7"), ("norm",)),
        (("GRAPH", "--layers", "0"), ("option layers is out of range",)),
        (("GRAPH", "--model", "rgcn"), ("relations", "another model")),
        (("GRAPH", "--model", "rgcn-diagonal"), ("relations", "another model")),
        (("GRAPH", "--model", "gcn", "--set", "num_relations=3"), ("num_relations",)),
        (("GRAPH", "--hidden", "0"), ("hidden",)),
        (("GRAPH", "--hidden", "20", "--model", "gat"), ("heads",)),
        (("GRAPH", "--resume"), ("--out",)),
        (("GRAPH", "--resume", "--out", "nowhere"), ("no run in",)),
        ((), ("no graph",)),
        (("GRAPH", "--epoch", "3"), ("--epochs",)),
    ],
)
def test_mistakes_end_with_code_2_and_a_repair_and_leave_nothing(
    outgrow: Command, npz: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = outgrow("train", *(str(npz) if arg == "GRAPH" else arg for arg in args))
    assert result.code == 2, result.err
    for word in words:
        assert word in result.err
    assert "Traceback" not in result.err
    assert [path.name for path in Path().iterdir()] == [npz.name]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_idx": np.empty(0, dtype=np.int64)}, ("training",)),
        ({"features": None}, ("features",)),
        ({"label": None}, ("labels",)),
    ],
)
def test_a_graph_that_cannot_be_trained_on_is_refused(
    outgrow: Command, tmp_path: Path, change: dict[str, np.ndarray | None], words: tuple[str, ...]
) -> None:
    arrays = {name: array for name, array in {**planted(), **change}.items() if array is not None}
    if "label" not in arrays:
        arrays = {name: array for name, array in arrays.items() if not name.endswith("_idx")}
    if "features" not in arrays:
        arrays["num_nodes"] = np.array(240)
    np.savez(tmp_path / "graph.npz", **arrays)
    result = outgrow("train", tmp_path / "graph.npz")
    assert result.code == 2, result.err
    for word in words:
        assert word in result.err
    assert not Path("runs").exists()


def test_a_used_directory_is_not_overwritten(outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, *SMALL, "--out", "run").code == 0
    before = Path("run/summary.json").read_text()
    again = outgrow("train", npz, *SMALL, "--out", "run")
    assert again.code == 2
    assert "--resume" in again.err
    assert Path("run/summary.json").read_text() == before


def test_a_resumed_run_keeps_its_options(outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, *SMALL, "--out", "run").code == 0
    refused = outgrow("train", "--out", "run", "--resume", "--hidden", 32)
    assert refused.code == 2
    assert "hidden 16" in refused.err


def test_a_diverging_run_ends_with_code_1_and_says_what_to_do(outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, "--lr", "1e30", "--set", "norm=false", "--epochs", 30, "--set", "optimizer=adam")
    assert result.code == 1
    assert "diverged" in result.err
    assert "lower the learning rate" in result.err
    assert "epoch " in result.err
    assert "layer " in result.err
    assert "worker 0 of 1" in result.err


def test_a_run_goes_on_with_a_lower_learning_rate(outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, *SMALL, "--lr", 0.5, "--out", "run").code == 0
    assert outgrow("train", "--out", "run", "--resume", "--lr", 0.001, "--epochs", 4).code == 0
    assert json.loads(Path("run/summary.json").read_text())["train"]["lr"] == 0.001


def test_training_in_bfloat16(outgrow: Command, npz: Path) -> None:
    found = []
    for run, precision in (("full", "full"), ("narrow", "bfloat16")):
        assert outgrow("train", npz, *SMALL, "--set", f"precision={precision}", "--out", run).code == 0
        found.append(json.loads(Path(run, "summary.json").read_text()))
    assert found[0]["loss"] != found[1]["loss"]
    assert found[1]["loss"] == pytest.approx(found[0]["loss"], rel=0.02)
    assert [each["exact"] for each in found] == [True, False]
    refused = outgrow("train", npz, *SMALL, "--set", "precision=float16")
    assert refused.code == 2
    assert "bfloat16" in refused.err


def test_the_flags_do_not_multiply() -> None:
    flags = set(train_command.train.__annotations__) - {"return"}
    assert flags == {
        "graph", "model", "layers", "hidden", "dropout", "lr", "epochs", "strategy", "seed", "set_", "data_dir", "out",
        "resume", "as_json", "workers", "max_restarts", "heartbeat", "batch_size", "fanout", "sampler", "memory",
        "device", "task", "metric", "grace", "allow_changed_data", "resume_auto", "quiet", "log_file",
        "splits", "target", "link_relations", "temporal_strategy", "inverse_relations", "allow_overlap",
        "allow_unseen_relations", "help_options",
    }  # fmt: skip


def _wait_for(condition: object, process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    assert callable(condition)
    end = time.monotonic() + 90
    while not condition():
        assert process.poll() is None, f"the run ended with {process.returncode}"
        assert time.monotonic() < end
        os.sched_yield()
        time.sleep(0.005)


def test_the_log_says_what_is_computed_once(outgrow: Command, npz: Path) -> None:
    constant = outgrow("train", npz, *SMALL, "--model", "gcn", "--set", "input_dropout=0", "--out", "constant")
    assert "computed once" in constant.err
    dropped = outgrow("train", npz, *SMALL, "--model", "gcn", "--set", "input_dropout=0.5", "--out", "dropped")
    assert "computed once" not in dropped.err


def test_the_help_names_every_model_and_strategy(outgrow: Command) -> None:
    text = outgrow("train", "--help").out
    words = set(re.findall(r"[a-z0-9-]+", text))
    assert {*MODELS, *STRATEGIES} <= words


def test_runs_that_begin_in_the_same_second(outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000")
    for _ in range(2):
        assert outgrow("train", npz, "--epochs", 1).code == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "planted-sage-20260101-000000",
        "planted-sage-20260101-000000-2",
    ]
