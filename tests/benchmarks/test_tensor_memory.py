"""`tensor` keeps to a third of the memory that it takes without a limit, with the losses of `full`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensor_memory

ROUNDING = 1e-4
"""Of losses in float32, whose sums have another order."""
NODES = 20_000


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", tensor_memory.MODELS)
def test_a_graph_three_times_the_limit(name: str, tmp_path: Path) -> None:
    """Every run is a process of its own, so that what one holds is not counted for another.

    The limit is a third of what the run without one held.
    """
    for row in tensor_memory.memory_table(tmp_path, [name], [1, 2, 4], 1.0, NODES):
        assert row["held_mib"] <= row["limit_mib"], row
        assert row["held_mib"] <= row["estimated_mib"], row
        assert row["in_files"] != "nothing", row
        assert row["loss_difference"] < ROUNDING, row


def test_every_pass_over_the_graph_reads_the_same_edges() -> None:
    graph = tensor_memory.DenseGraph(50, 3 * tensor_memory.CHUNK // 2)
    first, second = (list(graph.read_edges()) for _ in range(2))
    assert [len(chunk.src) for chunk in first] == [tensor_memory.CHUNK, tensor_memory.CHUNK // 2]
    for one, other in zip(first, second, strict=True):
        for name in ("src", "dst", "relation"):
            values = getattr(one, name)
            assert np.array_equal(values, getattr(other, name))
            most = tensor_memory.RELATIONS if name == "relation" else graph.nodes
            assert values.min() == 0
            assert values.max() == most - 1
