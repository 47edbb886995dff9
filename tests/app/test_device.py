"""What runs compute on: ``--device``, ``og.train(device=...)``, ``og.Workers(device=...)``. CUDA against the CPU."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

import outgrow as og
from outgrow.app.runs.result import Run
from outgrow.core.errors import InputError, TrainingError
from outgrow.strategies.full import Full
from planted import Planted, planted
from suites.sessions import graph_of, largest_step

HAS_DEVICE = torch.cuda.is_available()
STRATEGIES: dict[str, Any] = {
    "full": og.Full(),
    "sampled": og.Sampled(),
    "split": og.SplitParallel(cache=0.3),
    "offload": og.Offload(chunks=4),
    "offload-on-disk": og.Offload(chunks=4, host_memory="0"),
    "tensor": og.TensorParallel(),
    "tensor-nn-on-the-cpu": og.TensorParallel(nn_device="cpu"),
    "migrate": og.Migrate(),
    "orchestrate": og.Orchestrate(hot_ratio=0.3),
}
MINIBATCHES = ("sampled", "split", "migrate", "orchestrate")


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


def run_of(world: Planted, kind: str, **options: Any) -> Run:
    return og.train(graph_of(world), world.problem(kind=kind).model, epochs=5, progress=False, **options)


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"workers": og.Workers(device="cpu")}, {}])
def test_the_summary_says_where(world: Planted, options: dict[str, Any]) -> None:
    run = run_of(world, "gcn", **options)
    assert run.summary["device"] == ("cuda" if HAS_DEVICE and not options else "cpu")
    assert run.summary["peak_bytes"]["device"] > 0


@pytest.mark.parametrize(("device", "says"), [("cude", "cuda"), ("tpu", "auto"), (0, "device")])
def test_no_such_device(world: Planted, device: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        run_of(world, "gcn", device=device)


@pytest.mark.skipif(HAS_DEVICE, reason="there is a device")
def test_no_device_there(world: Planted, tmp_path: Any) -> None:
    with pytest.raises(InputError, match="1 CUDA devices"):
        run_of(world, "gcn", device="cuda", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_too_small(world: Planted) -> None:
    with (
        patch.object(Full, "prepare", side_effect=torch.OutOfMemoryError("CUDA out of memory.")),
        pytest.raises(TrainingError, match="offload"),
    ):
        run_of(world, "gcn", device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_cuda_gives_the_same_run(world: Planted, strategy: str, kind: str) -> None:
    batches = {"batch_size": 8, "fanout": (3, 2)} if strategy in MINIBATCHES else {}
    runs = [run_of(world, kind, strategy=STRATEGIES[strategy], device=device, **batches) for device in ("cpu", "cuda")]
    assert runs[1].summary["device"] == "cuda"
    assert largest_step(runs[1].loss, runs[0].loss) < 1e-8
    assert next(runs[1].model.parameters()).device.type == "cpu"
    if strategy.startswith("offload"):
        assert runs[1].summary["found"]["pinned"] != [] or strategy != "offload"
