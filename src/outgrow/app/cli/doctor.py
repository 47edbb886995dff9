"""``outgrow doctor``: shows what Outgrow finds on this machine, and checks that it works."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer


def doctor(
    device: Annotated[
        str, typer.Option(help="cuda also compares all kernels of the GPU with those of the CPU; cpu leaves it out.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what Outgrow finds on this machine, and check that its kernels work. Exits with 1 if they do not."""
    report = examine_machine(device)
    if as_json:
        print(json.dumps(report))
    else:
        _print_report(report)
    if any(check != "ok" for check in report["checks"].values()):
        raise typer.Exit(1)


def examine_machine(device: str = "auto") -> dict[str, Any]:
    """Run all checks; return facts on this machine and the results, by name.

    Args:
        device: ``"auto"`` checks a GPU briefly if there is one, ``"cuda"`` compares all its kernels with those of the
            CPU, ``"cpu"`` leaves it out.

    Raises:
        InputError: There is no such device.
    """
    import importlib.util
    import os

    import torch

    from outgrow.core.validation import validate_choice
    from outgrow.ops import backend
    from outgrow.runtime.distributed.comm import SingleProcessComm
    from outgrow.runtime.system.device import DEVICES, choose_device
    from outgrow.runtime.system.hardware import describe_machine

    if validate_choice("device", device, {name: name for name in DEVICES}) == "cuda":
        choose_device(device, SingleProcessComm())
    machine = describe_machine()
    started = time.perf_counter()
    of_gpu = {"auto": {"gpu, if any": _check_gpu}, "cuda": {"kernels of the gpu": _check_gpu_kernels}, "cpu": {}}
    checks = {name: _run_check(check) for name, check in {**_CHECKS, **of_gpu[device]}.items()}
    return {
        "system": machine.system,
        "processor": machine.processor,
        "cores": machine.cores,
        "memory_gib": round(machine.memory_bytes / 2**30, 1),
        "gpus": list(machine.gpus),
        "versions": machine.versions,
        "kernels": "numba on the CPU" + (", triton on the GPU" if machine.gpus else ""),
        "threading_layer": backend.threading_layer(),
        "threads": {"kernels": backend.num_threads(), "torch": torch.get_num_threads()},
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "not set"),
        "extras": {
            name: importlib.util.find_spec(module) is not None
            for name, module in (("pyg", "torch_geometric"), ("ogb", "ogb"))
        },
        "checks": checks,
        "check_seconds": round(time.perf_counter() - started, 2),
    }


def _run_check(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception as error:
        # Any error is a result: the report must list every check even if one fails unexpectedly.
        return f"{type(error).__name__}: {error}"
    return "ok"


def _check_aggregation(device: str = "cpu") -> None:
    import torch

    from outgrow.graph.topology import Topology
    from outgrow.ops.aggregation.weighted_sum import WeightedSum

    # On a directed ring each node's sum is its predecessor's row, and each gradient is one.
    ring = Topology(indptr=torch.arange(5), indices=torch.tensor([3, 0, 1, 2], dtype=torch.int32))
    x = torch.arange(8.0, device=device).view(4, 1, 2).requires_grad_()
    out = WeightedSum()(ring.block.to(x.device), x, None, None)
    torch.autograd.backward(out.sum())
    gradient = x.grad
    assert gradient is not None
    if not torch.equal(out.detach(), x.detach().roll(1, 0)) or not torch.equal(gradient, torch.ones_like(gradient)):
        raise RuntimeError("the weighted sum over a ring of four nodes is wrong")


def _check_keyed_dropout() -> None:
    import torch

    from outgrow.ops.rng import dropout, fold_in

    x = torch.ones(1000, 16)
    nodes = torch.arange(1000)
    # Strategies agree only if a node's mask does not depend on the rows computed with it.
    whole = dropout(x, nodes, fold_in(0, 1), 0.5)
    part = dropout(x[500:], nodes[500:], fold_in(0, 1), 0.5)
    if not torch.equal(whole[500:], part) or abs(whole.mean().item() - 1) > 0.05:
        raise RuntimeError("dropout does not depend on its key alone")


def _check_workers() -> None:
    import torch

    from outgrow.runtime.distributed.launch import run_workers

    sums = run_workers(lambda context: int(context.comm.all_reduce(torch.tensor(context.comm.rank + 1))), 2)
    if sums != [3, 3]:
        raise RuntimeError(f"two workers must agree that 1 + 2 is 3, got {sums}")


def _check_gpu() -> None:
    from outgrow.runtime.distributed.comm import SingleProcessComm
    from outgrow.runtime.system.device import choose_device

    comm = SingleProcessComm()
    if comm.gpu_counts[0]:
        _check_aggregation(str(choose_device("cuda", comm)))


def _check_gpu_kernels() -> None:
    import secrets

    from outgrow.app.gpu_check import check_gpu
    from outgrow.runtime.distributed.comm import SingleProcessComm
    from outgrow.runtime.system.device import choose_device

    verdict = check_gpu(choose_device("cuda", SingleProcessComm()), secrets.randbits(32))
    if verdict.differences:
        wrong = "; ".join(f"{name}: {difference}" for name, difference in verdict.differences.items())
        raise RuntimeError(
            f"{len(verdict.differences)} of {verdict.num_kernels} kernels (seed {verdict.seed}): {wrong}"
        )


_CHECKS: dict[str, Callable[[], None]] = {
    "aggregation": _check_aggregation,
    "keyed draws": _check_keyed_dropout,
    "two workers": _check_workers,
}


def _print_report(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    for key, value in report.items():
        table.add_row(key.replace("_", " "), _format_value(value))
    Console().print(table)


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_value(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "installed" if value else "not installed"
    return str(value)
