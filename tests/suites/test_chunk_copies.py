"""`tensor` as it runs where a GPU has no memory for the graph, every chunk copied to it: here from files to the CPU."""

from __future__ import annotations

from functools import partial

import pytest

from outgrow.strategies.tensor.chunk_blocks import ChunkBlock
from outgrow.strategies.tensor.pipelines import ChunkPipelines
from suites.exactness import EVERY_WAY, Found, references, steps
from thread_group import run_in_threads

WAY = "tensor-files"
BY_LAYER = {case.conv: case for case in EVERY_WAY[WAY]}
KEYS = [(WAY, case) for case in BY_LAYER.values()]


@pytest.fixture(scope="module")
def expected() -> Found:
    return references(KEYS)


@pytest.mark.parametrize("workers", [1, 2])
def test_gradients(workers: int, expected: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    move = ChunkBlock.to

    def count(chunk: ChunkBlock, device: object) -> ChunkBlock:
        copied.append(chunk)
        return move(chunk, device)

    monkeypatch.setattr(ChunkBlock, "to", count)
    monkeypatch.setattr(ChunkPipelines, "copies_chunks", property(lambda pipelines: pipelines.mapped_graph is not None))
    for found in run_in_threads(partial(steps, keys=KEYS), workers):
        differences = {key: gradient.difference(expected[key]) for key, gradient in found.items()}
        assert not {key: value for key, value in differences.items() if not value <= key[1].tolerance}
    assert copied
