"""Rows in pinned memory in part, or read and written there by other workers: gradients are those of `full`.

Workers are threads; the memory that they have in common is that of files in memory, as between processes.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

import pytest
import torch

from outgrow.runtime.storage.shared_memory import map_shared_rows, shared_memory_directory
from suites import exactness
from suites.cases import Case
from suites.exactness import WAYS, Way, offload, references
from suites.exactness_in_threads import in_threads

PINNED: dict[str, Way] = {
    "in-part": offload(3, host_memory="5KiB")._replace(pinned=True),
    "without-sharing": offload(3, sharing=False)._replace(pinned=True),
    "in-part-without-sharing": offload(4, sharing=False, host_memory="5KiB")._replace(pinned=True),
}
CONVS = ("gcn-aggregate-first", "sage-project-first", "gat-concatenated")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs files in memory")


@on_linux
@pytest.mark.parametrize("workers", [1, 3])
def test_gradients_are_those_of_full(workers: int) -> None:
    with patch.dict(WAYS, PINNED):
        keys = [(way, Case(conv, "weighted")) for way in PINNED for conv in CONVS]
        expected = references(keys)
        for found in in_threads(keys, workers):
            assert found.keys() == expected.keys()
            for key, gradient in found.items():
                assert gradient.difference(expected[key]) <= key[1].tolerance, key


@on_linux
def test_rows_of_others_that_are_not_written_are_missed() -> None:
    """Memory of its own for each worker would not do."""
    key = ("without-sharing", Case("gcn-aggregate-first", "weighted"))

    def alone(path: object, num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(num_rows, width, dtype=dtype)

    with patch.dict(WAYS, PINNED), patch.object(exactness.storage, "map_shared_rows", alone):
        expected = references([key])
        found = in_threads([key], 3)
    assert all(each[key].difference(expected[key]) > 1e-6 for each in found)


@on_linux
def test_changes_are_seen_by_all() -> None:
    with shared_memory_directory() as folder:
        ours, theirs = (map_shared_rows(folder / "rows", 3, 2, torch.float32) for _ in range(2))
        assert not ours.any()
        ours[1] = 5
        assert theirs.tolist() == [[0, 0], [5, 5], [0, 0]]
        assert map_shared_rows(folder / "none", 0, 4, torch.float64).shape == (0, 4)
    assert not folder.exists()
    assert theirs[1].tolist() == [5, 5]
