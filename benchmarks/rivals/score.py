"""Accuracy of models on the nodes that are held out, over full neighbourhoods, by torch's own sparse products.

python -m rivals.score ARRAYS PLACE...      (in benchmarks/; the last line of output is JSON)

Every place is a folder that holds ``epoch-1.npz`` and so on, the parameters of a SAGE that some library has trained, or
one such file. All are scored by the same code, which is none of theirs.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rivals.batches import Graph
from torch import Tensor

_PARTS = ("val", "test")


class Held(NamedTuple):
    """The graph and its nodes; ``mean_VV`` takes the mean over in-edges, ``mean_x_VD`` is that of the features."""

    mean_VV: Tensor
    x_VD: Tensor
    mean_x_VD: Tensor
    labels: Tensor
    parts: dict[str, Tensor]

    @staticmethod
    def read(folder: Path) -> Held:
        graph = Graph.read(folder)
        degree = np.diff(graph.indptr)
        share = np.repeat(1 / np.maximum(degree, 1), degree).astype(np.float32)
        arrays = (graph.indptr, graph.indices.astype(np.int64), share)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse")  # torch calls its CSR matrices a beta
            mean_VV = torch.sparse_csr_tensor(*map(torch.from_numpy, arrays), size=(len(degree),) * 2)
        x_VD, labels, *parts = (torch.from_numpy(np.load(folder / f"{n}.npy")) for n in ("features", "labels", *_PARTS))
        return Held(mean_VV, x_VD, mean_VV @ x_VD, labels, dict(zip(_PARTS, parts, strict=True)))

    def accuracies(self, file: Path) -> dict[str, float]:
        """Share of the nodes of each part whose class the model finds."""
        with np.load(file) as found:
            values = {name: torch.from_numpy(found[name]) for name in found.files}
        x, count = self.x_VD, len(values) // 3
        for index in range(count):
            itself, neighbour, bias = (values[f"{index}.{name}"] for name in ("itself", "neighbour", "bias"))
            x = x @ itself + self._heard(index, x, neighbour) + bias
            x = torch.relu(x) if index < count - 1 else x
        hit = x.argmax(1) == self.labels
        return {name: hit[nodes].double().mean().item() for name, nodes in self.parts.items()}

    def _heard(self, index: int, x: Tensor, weight: Tensor) -> Tensor:
        """The mean over neighbours, projected; the narrower rows are averaged."""
        if index == 0:
            return self.mean_x_VD @ weight
        narrower = weight.shape[1] < weight.shape[0]
        return self.mean_VV @ (x @ weight) if narrower else (self.mean_VV @ x) @ weight


def main() -> None:
    """Score all epochs of all places, in their order."""
    held = Held.read(Path(sys.argv[1]))
    found = []
    for place in map(Path, sys.argv[2:]):
        count = len(list(place.glob("epoch-*.npz")))
        files = [place / f"epoch-{number}.npz" for number in range(1, count + 1)] if place.is_dir() else [place]
        found.append([held.accuracies(file) for file in files])
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
