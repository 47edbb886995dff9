"""Training beyond memory on the command line: `--memory`, chunks, scratch files, and the mistakes that users make."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.app.conftest import Command
from tests.app.traces import spans_of

import outgrow as og
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.synthetic.node_features import SyntheticNodes
from outgrow.graph.synthetic.rmat import RMat
from outgrow.runtime.storage import scratch_dir

SHORT = ("--epochs", 3, "--hidden", 8, "--model", "gcn", "--seed", 1)
TECHNIQUES = ("sharing", "reuse", "reorganise", "overlap", "cache")
MIB = 1 << 20


def in_chunks(disk: Path, chunks: int = 3) -> tuple[object, ...]:
    return (*SHORT, "--strategy", "offload", "--set", f"chunks={chunks}", "--set", f"scratch_dir={disk}")


def test_the_command(outgrow: Command, npz: Path, disk: Path) -> None:
    result = outgrow("train", npz, *in_chunks(disk), "--out", "run", "--json")
    assert result.code == 0, result.err
    summary = result.summary
    whole = outgrow("train", npz, *SHORT, "--out", "whole", "--json").summary
    assert (summary["strategy"], summary["exact"], summary["found"]["chunks"]) == ("offload", True, 3)
    assert summary["loss"] == pytest.approx(whole["loss"], abs=1e-5)
    assert summary["test_accuracy"] == pytest.approx(whole["test_accuracy"], abs=0.05)
    assert summary["found"]["rows_chosen"]["vanilla"] >= summary["found"]["rows_chosen"]["reused"]
    assert {"compute", "load", "store"} <= summary["seconds"].keys()
    assert min(summary["seconds"].values()) >= 0
    for link in ("host_to_device", "device_to_host"):
        assert {"activations", "gradients"} <= summary["ledger"][link].keys()
    assert not summary["ledger"]["peer"]
    assert summary["counters"]["disk_written_bytes"] > 0
    assert json.loads(Path("run/summary.json").read_text()) == summary


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_rows_in_fewer_bytes(precision: str, outgrow: Command, npz: Path, disk: Path) -> None:
    """Nearly the same losses, fewer bytes, and a summary that says so, also after the rest of the run in full."""
    full = outgrow("train", npz, *in_chunks(disk), "--out", "full", "--json").summary
    narrow = ("--set", f"storage_precision={precision}")
    summary = outgrow("train", npz, *in_chunks(disk), *narrow, "--out", "narrow", "--json").summary
    assert (summary["exact"], summary["strategy_options"]["storage_precision"]) == (False, precision)
    assert 0 < max(abs(a - b) for a, b in zip(summary["loss"], full["loss"], strict=True)) < 0.02
    for link in ("host_to_device", "device_to_host"):
        for kind in ("activations", "gradients"):
            assert summary["ledger"][link][kind] < 0.8 * full["ledger"][link][kind]
    resumed = outgrow(
        "train", "--out", "narrow", "--resume", "--epochs", 4, "--set", "storage_precision=full", "--json"
    )
    assert resumed.code == 0, resumed.err
    assert resumed.summary["exact"] is False


def test_the_trace_shows_what_was_under_way(outgrow: Command, npz: Path, disk: Path) -> None:
    for overlap in ("true", "false"):
        outgrow("train", npz, *in_chunks(disk), "--set", f"overlap={overlap}", "--out", overlap)
        events = spans_of(Path(overlap, "trace.json"))
        assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in events)
        lanes = {
            name: {event["lane"] for event in events if event["name"] == name} for name in ("load", "store", "compute")
        }
        beside = overlap == "true"
        assert lanes["compute"] == {"compute"}
        assert lanes["store"] == {"store" if beside else "compute"}
        assert lanes["load"] >= {"load" if beside else "compute"}


@pytest.mark.usefixtures("launched")
def test_several_workers(outgrow: Command, npz: Path, disk: Path) -> None:
    result = outgrow("train", npz, *in_chunks(disk, 2), "--workers", 2, "--out", "run", "--json")
    assert result.code == 0, result.err
    summary = result.summary
    whole = outgrow("train", npz, *SHORT, "--out", "whole", "--json").summary
    assert summary["loss"] == pytest.approx(whole["loss"], abs=1e-5)
    assert summary["ledger"]["peer"]["activations"] > 0
    events = json.loads(Path("run/trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert "chunks 2" in result.err


def test_enough_memory_is_the_same_as_full_to_the_last_bit(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    whole = outgrow("train", npz, *SHORT, "--out", "whole", "--json").summary
    for options in (("--memory", "64GiB"), ("--strategy", "offload")):
        missing = tmp_path / "not-needed"
        result = outgrow(
            "train", npz, *SHORT, *options, "--set", f"scratch_dir={missing}", "--out", options[1], "--json"
        )
        assert result.code == 0, result.err
        summary = result.summary
        assert summary["strategy"] == "offload"
        assert summary["found"]["chunks"] == 0
        assert (summary["loss"], summary["val_accuracy"]) == (whole["loss"], whole["val_accuracy"])
        assert not any(summary["ledger"].values())
        assert not missing.exists()
    reason = outgrow("train", npz, *SHORT, "--memory", "64GiB", "--out", "why").err
    assert "strategy offload: it fits into memory" in reason


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_too_little_memory_names_what_would_do(workers: int, npz: Path, tmp_path: Path, disk: Path) -> None:
    args = (npz, *SHORT, "--workers", workers, "--set", f"scratch_dir={disk}", "--out", tmp_path / "run")
    refused = alone(*args, "--memory", "1MiB")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "run").exists()
    again = alone(*args, "--memory", f"{named_in(refused.stderr)}MiB")
    assert again.returncode == 0, again.stderr


def named_in(text: str) -> int:
    """The memory that an error names, in MiB."""
    found = re.search(r"--memory (\d+)MiB", re.sub(r"\s+", " ", text))
    assert found, text
    return int(found[1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--memory", "abc"), "abc"),
        (("--memory", "1GiB", "--strategy", "full"), "full cannot keep to a limit"),
        (("--memory", "10MiB", "--batch-size", 10), "for strategy sampled"),
        (("--strategy", "offload", "--batch-size", 10), "strategy offload trains on all nodes"),
        (("--strategy", "offload", "--set", "chunks=0"), "chunks"),
        (("--strategy", "offload", "--set", "chunks=many"), "many"),
        (("--strategy", "offload", "--set", "chunk=3"), "chunks"),
        (("--strategy", "offload", "--set", "reorganize=false"), "reorganise"),
        (("--strategy", "offload", "--set", "overlap=maybe"), "maybe"),
        (("--strategy", "offload", "--set", "storage_precision=float8"), "bfloat16"),
        (("--strategy", "full", "--set", "storage_precision=int8"), "storage_precision"),
        (("--strategy", "offload", "--set", "partition=two-level"), "partition"),
        (("--strategy", "full", "--set", "chunks=3"), "chunks"),
        (("--strategy", "ofload"), "offload"),
    ],
    ids=str,
)
def test_mistakes(options: tuple[object, ...], said: str, outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, *SHORT, *options, "--out", "run")
    assert result.code == 2, result.err
    assert said in result.err
    assert "Traceback" not in result.err
    assert not Path("run").exists()


def test_scratch_that_cannot_be(
    outgrow: Command, npz: Path, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, tmp_path / "missing"):
        result = outgrow("train", npz, *in_chunks(place), "--out", "run")
        assert result.code == 2
        assert "is no folder" in result.err
        assert "Traceback" not in result.err
        assert not Path("run").exists()
    monkeypatch.setattr(scratch_dir, "_filesystem_type", lambda path: "tmpfs")
    result = outgrow("train", npz, *in_chunks(disk), "--out", "run")
    assert result.code == 2
    assert "is in memory" in result.err


def test_a_run_goes_on_with_other_techniques(outgrow: Command, npz: Path, disk: Path) -> None:
    whole = outgrow("train", npz, *in_chunks(disk), "--out", "whole", "--json").summary
    outgrow("train", npz, *in_chunks(disk), "--out", "run", "--epochs", 1)
    options = [part for name in TECHNIQUES for part in ("--set", f"{name}=false")]
    result = outgrow("train", "--out", "run", "--resume", "--epochs", 3, *options, "--set", "chunks=5", "--json")
    assert result.code == 0, result.err
    assert result.summary["found"]["chunks"] == 5
    assert result.summary["loss"] == pytest.approx(whole["loss"], abs=1e-5)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_no_scratch_files(npz: Path, tmp_path: Path, disk: Path, workers: int) -> None:
    out, args = tmp_path / "run", [*in_chunks(disk), "--epochs", 100_000, "--workers", workers]
    command = [sys.executable, "-m", "outgrow", "train", npz, *args, "--out", out, "--json"]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 200
        while not (out / "metrics.jsonl").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert list(disk.iterdir())
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 130, stderr
    assert json.loads(stdout.splitlines()[-1])["stopped"] == "interrupted"
    assert not list(disk.iterdir())


def alone(*args: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, whose memory is what is limited."""
    command = [sys.executable, "-m", "outgrow", "train", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_a_graph_that_needs_chunks_keeps_to_its_memory(model: str, tmp_path: Path, disk: Path) -> None:
    store = tmp_path / "rmat.store"
    convert_to_store(RMat(scale=15, node_spec=SyntheticNodes(classes=8, features=64)), store, undirected=True)
    args = (store, "--model", model, "--hidden", 128, "--layers", 3, "--epochs", 2, "--seed", 1, "--json")
    place = ("--set", f"scratch_dir={disk}")
    refused = alone(*args, "--memory", "1MiB", *place, "--out", tmp_path / "refused")
    assert refused.returncode == 2
    least = named_in(refused.stderr)
    whole = json.loads(alone(*args, "--out", tmp_path / "whole").stdout.splitlines()[-1])
    assert whole["peak_bytes"]["device"] > least * MIB
    assert alone(*args, "--memory", f"{least}MiB", *place, "--out", tmp_path / "compiles").returncode == 0
    for memory in (least, (least + whole["peak_bytes"]["device"] // MIB) // 2):
        done = alone(*args, "--memory", f"{memory}MiB", *place, "--out", tmp_path / str(memory))
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout.splitlines()[-1])
        assert summary["found"]["chunks"] > 1
        assert summary["peak_bytes"]["device"] <= memory * MIB
        assert summary["loss"] == pytest.approx(whole["loss"], rel=1e-4)


def test_in_python(npz: Path, disk: Path) -> None:
    graph = og.load(npz)
    runs = []
    for strategy in ("full", og.Offload(chunks=2, scratch_dir=str(disk)), "offload"):
        model = og.nn.GAT(graph.num_features, 8, graph.num_classes, heads=2)
        runs.append(og.train(graph, model, strategy=strategy, epochs=2, progress=False, seed=3))
    assert [run.summary["found"].get("chunks") for run in runs] == [None, 2, 0]
    assert runs[1].logits is None
    assert runs[2].logits is not None
