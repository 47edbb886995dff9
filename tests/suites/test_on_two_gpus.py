"""Two workers on two GPUs give the losses of two workers on CPUs, and rows reach the other GPU where some have none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import outgrow as og
from outgrow.core.ledger import Kind
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.launch import run_workers
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.runtime.system.device import use_device
from planted import Planted, planted
from suites.sessions import graph_of, largest_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
STRATEGIES: dict[str, Any] = {
    "full": og.Full(),
    "sampled": og.Sampled(),
    "split": og.SplitParallel(cache=0.3),
    "migrate": og.Migrate(),
    "tensor": og.TensorParallel(),
    "offload": og.Offload(chunks=4),
    "orchestrate": og.Orchestrate(hot_ratio=0.3),
}


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


def exchange(context: WorkerContext) -> list[list[float]]:
    """What a worker receives if worker 0 alone sends rows first, and then both do."""
    comm = context.comm
    use_device("cuda", comm)
    found = []
    for sizes in (SplitSizes((0, 3), (0, 0)), SplitSizes((1, 2), (1, 2))):
        send, receive = sizes if comm.rank == 0 else (sizes.receive[::-1], sizes.send[::-1])
        rows = torch.arange(float(sum(send)), device=comm.device)[:, None] + 10 * comm.rank
        found.append(comm.all_to_all(rows, SplitSizes(send, receive), Kind.IDS).wait().flatten().tolist())
    return found


def test_a_worker_may_have_nothing_to_send_first() -> None:
    first, second = run_workers(exchange, 2)
    assert first == [[], [0.0, 10.0, 11.0]]
    assert second[0] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_gpus_give_the_same_run(world: Planted, strategy: str, kind: str) -> None:
    batches = {"batch_size": 8, "fanout": (3, 2)} if strategy in ("sampled", "split", "migrate", "orchestrate") else {}
    runs = [
        og.train(
            graph_of(world),
            world.problem(kind=kind).model,
            strategy=STRATEGIES[strategy],
            workers=og.Workers(2, device=device),
            epochs=5,
            progress=False,
            **batches,
        )
        for device in ("cpu", "cuda")
    ]
    assert runs[1].summary["device"] == "cuda"
    assert largest_step(runs[1].loss, runs[0].loss) < 1e-8
