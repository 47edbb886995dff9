"""A forked child computes after its parent has: on one thread, with the same results."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
PROGRAM = """
import multiprocessing as mp, warnings
import numpy as np, torch
import outgrow as og

warnings.simplefilter("ignore")  # newer versions of Python warn of any fork of a process that has threads
random = np.random.default_rng(0)
graph = og.from_arrays(random.integers(0, 300, (2, 1500)), features=random.normal(size=(300, 8)).astype("f4"),
                       labels=random.integers(0, 3, 300), split={"train": np.arange(150), "val": np.arange(150, 300)})

def losses(seed):
    torch.manual_seed(seed)
    return og.train(graph, og.nn.GCN(8, 16, 3), epochs=3, seed=seed, progress=False).loss

before = [losses(seed) for seed in range(3)]
with mp.get_context("fork").Pool(2) as pool:
    assert pool.map(losses, range(3)) == before
assert losses(1) == before[1]
print("the same")
"""


@pytest.mark.real_processes
def test_a_sweep_in_a_pool_after_a_run() -> None:
    # As users have them: only loops on several threads can hang.
    settings = {name: value for name, value in os.environ.items() if name != "OUTGROW_KERNELS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=settings, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "the same\n", done.stderr
