"""What the passes compute a chunk from, as it is loaded beside the computation of the chunk before."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from outgrow.core.block import Block
from outgrow.nn.layer import Features
from outgrow.ops.csc import cached_transpose
from outgrow.strategies.offload.wave import Wave
from outgrow.strategies.offload.wave_file import WaveFile


class ChunkInputs(NamedTuple):
    """What a wave computes with.

    Attributes:
        number: Of the wave.
        wave: The wave.
        block: Its chunk.
        x: ``[n, D]`` input of the destinations; empty where the layer does not read it.
        source: ``[B, W]`` source rows, where they were brought; else None.
        aggregate: ``[n, C, F]`` aggregate, where it was read; else None.
        gradients: Gradients of what the layer's output goes into: ``[n, W]`` of the next layer's source rows,
            and ``[n, O]`` of the input that its destinations read; empty forward and in the last layer.
    """

    number: int
    wave: Wave
    block: Block
    x: Features
    source: Tensor | None
    aggregate: Tensor | None
    gradients: tuple[Tensor, ...]


def load_wave(wave_file: WaveFile, number: int, *, transposes: bool) -> Wave:
    """Read a wave, with all that can be computed of it while the wave before is computed."""
    wave = wave_file.read_wave(number)
    wave_file.prefetch_ids(wave)
    if transposes:
        cached_transpose(wave.edges)
    return wave
