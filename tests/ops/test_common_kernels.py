"""The list of common kernels has what a first run needs, in the types it needs it in; it is asked for once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import outgrow as og
from outgrow.ops import common_kernels
from outgrow.ops.backend import LoopKernel, find_kernel
from outgrow.ops.common_kernels import COMMON_KERNELS, common_signatures, start_compiling_common_kernels
from outgrow.ops.compile_processes import NUMBER_VARIABLE, CompileProcesses, CompileRequest, KernelName
from outgrow.ops.kernel_cache import MODE_VARIABLE
from outgrow.ops.kernel_folder import FOLDER_VARIABLE, STATE_PREFIX

pytestmark = pytest.mark.skipif(os.name != "posix", reason="on Windows nothing is compiled elsewhere")


def form_of(name: KernelName) -> Any:
    kernel = find_kernel(name)
    return kernel.in_series if isinstance(kernel, LoopKernel) else kernel


def test_a_run_uses_every_kernel_in_the_listed_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE_VARIABLE, "serial")
    rng = np.random.default_rng(0)
    features = scipy.sparse.random(60, 40, 0.1, format="csr", dtype=np.float32, random_state=rng)
    graph = og.from_arrays(
        rng.integers(0, 60, (2, 240)), features=features, labels=np.arange(60) % 3, split={"train": np.arange(40)}
    )
    torch.manual_seed(0)
    model = og.nn.GCN(40, 8, 3, dropout=0.5, input_dropout=0.5)
    og.train(graph, model, strategy="full", epochs=2, progress=False)
    for name in COMMON_KERNELS:
        signatures = [*common_signatures(name)]
        assert signatures
        assert set(signatures) <= set(form_of(name).signatures), name


class _Processes:
    def __init__(self) -> None:
        self.requests = list[CompileRequest]()

    def submit(self, request: CompileRequest) -> bool:
        self.requests.append(request)
        return True


def test_they_are_asked_for_where_nothing_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = _Processes()
    monkeypatch.setattr(common_kernels, "compile_processes", processes)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "kernels"))
    start_compiling_common_kernels()
    assert [request.kernel for request in processes.requests] == [*COMMON_KERNELS]
    (tmp_path / "kernels" / f"{STATE_PREFIX}0").mkdir(parents=True)
    start_compiling_common_kernels()
    assert len(processes.requests) == len(COMMON_KERNELS)


def test_without_a_home_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = _Processes()
    monkeypatch.setattr(common_kernels, "compile_processes", processes)
    monkeypatch.setattr(common_kernels, "has_kernels", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    start_compiling_common_kernels()
    assert processes.requests == []


def test_another_process_compiles_them_for_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(NUMBER_VARIABLE, "1")
    processes = CompileProcesses()
    try:
        for name in ("_count_edges", "sort_edges"):
            assert processes.submit(CompileRequest(KernelName("outgrow.ops.csc", name)))
        processes.wait(lambda *state: None)
        assert (processes.num_kernels, processes.num_missing) == (1, 1)
    finally:
        processes.close()
    assert ["_count_edges" in path.name for path in tmp_path.rglob("*.nbc")] == [True]
