"""Of processes that need the same kernel at the same time, one compiles it."""

import os
import subprocess
import sys
import time
from pathlib import Path

from outgrow.ops.kernel_folder import FOLDER_VARIABLE

SCRIPT = """
import sys, time, torch
from outgrow.ops import rng
while time.time() < float(sys.argv[1]):
    time.sleep(0.001)
out = rng.dropout(torch.ones(30, 4), torch.arange(30), 5, 0.5)
kernels = rng._dropout_kernel.in_parallel, rng.hash64, rng.keeps_element
print(sum(sum(each.stats.cache_misses.values()) for each in kernels), int((out > 0).sum()))
"""


def test_one_compiles_and_the_others_load(tmp_path: Path) -> None:
    settings = {**os.environ, FOLDER_VARIABLE: str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT, str(time.time() + 6)]
    started = [subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=100)[0].split() for process in started]
    misses, kept = zip(*said, strict=True)
    assert sorted(misses)[:2] == ["0", "0"]
    assert int(max(misses)) > 0
    assert len(set(kept)) == 1
