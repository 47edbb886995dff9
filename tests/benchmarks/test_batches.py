"""What the comparisons of mini-batches trust: batches are checked, all models are scored by the same right code."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rounds
import sampling
from rivals.batches import Graph, Hop
from rivals.score import Held

BENCHMARKS = Path(rounds.__file__).parent


def graph() -> Graph:
    """In-edges of 0: 1, 2, 3; of 1: 0, 2; of 2: 3; of 3: none."""
    return Graph(np.array([0, 3, 5, 6, 6]), np.array([1, 2, 3, 0, 2, 3], dtype=np.int32))


def hop(dst: list[int], counts: list[int], src: list[int]) -> Hop:
    return Hop(np.array(dst), np.concatenate([[0], np.cumsum(counts)]), np.array(src))


def test_a_batch_that_draws_what_it_should_passes() -> None:
    graph().require_drawn([hop([1, 0], [2, 2], [2, 0, 3, 1]), hop([1, 0, 2, 3], [1, 1, 1, 0], [0, 2, 3])], [2, 1])


@pytest.mark.parametrize(
    ("drawn", "wrong"),
    [
        (hop([0], [1], [1]), "was to draw 2"),
        (hop([0], [3], [1, 2, 3]), "was to draw 2"),
        (hop([0], [2], [1, 1]), "twice"),
        (hop([0], [2], [1, 0]), "does not have"),
        (hop([0, 2], [2, 1], [1, 2, 2]), "does not have"),
    ],
)
def test_a_batch_that_does_not_is_refused(drawn: Hop, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        graph().require_drawn([drawn], [2])


def test_forms_that_are_the_fastest_at_something_stay() -> None:
    speeds = {"a:1": [3.0, 1.0], "a:2": [2.0, 2.0], "a:3": [1.0, 1.5], "b": [0.1, 0.1]}
    assert rounds.fastest(speeds) == {"a:1", "a:2", "b"}


def test_other_numbers_of_edges_are_found() -> None:
    def row(rival: str, edges: float) -> dict[str, Any]:
        return {"fanout": "2-2", "rival": rival, "edges_per_batch": edges}

    same = [row("outgrow", 100), row("graphbolt:x", 101), row("neighborloader:y", 80)]
    assert sampling._other_work(same) == []
    assert len(sampling._other_work([*same, row("graphbolt:z", 103)])) == 1


def test_scores_are_those_of_the_formula(tmp_path: Path) -> None:
    rng, edges = np.random.default_rng(0), graph()
    adjacency = np.zeros((4, 4))
    adjacency[np.repeat(np.arange(4), np.diff(edges.indptr)), edges.indices] = 1
    mean = adjacency / np.maximum(adjacency.sum(1, keepdims=True), 1)
    widths, values = [3, 5, 2], {}
    x = features = rng.standard_normal((4, 3)).astype(np.float32)
    for index in range(2):
        shape = (widths[index], widths[index + 1])
        itself, neighbour, bias = rng.normal(size=shape), rng.normal(size=shape), rng.normal(size=shape[1])
        x = np.maximum(x, 0) if index else x
        x = x @ itself + mean @ x @ neighbour + bias
        values |= {f"{index}.itself": itself, f"{index}.neighbour": neighbour, f"{index}.bias": bias}
    labels = x.argmax(1)
    labels[3] = 1 - labels[3]
    arrays = {"features": features, "labels": labels, "val": np.array([0, 1]), "test": np.array([2, 3])}
    for name, array in {**edges._asdict(), **arrays}.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "epoch-1.npz", **{name: value.astype(np.float32) for name, value in values.items()})
    assert Held.read(tmp_path).accuracies(tmp_path / "epoch-1.npz") == {"val": 1.0, "test": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("sampling", ["--scale", "9", "--fanouts", "4-3,2-2-2", "--count", "3"]),
        ("minibatch", ["--graph", "products@0.0005", "--fanout", "4-3-2", "--hidden", "16", "--count", "2"]),
    ],
)
def test_ours_runs(script: str, options: list[str], tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, BENCHMARKS / f"{script}.py", "--only", "outgrow", "--rounds", "2", "--batch-size", "64"]
    done = subprocess.run([*command, *options, "--out", out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {row["rounds"] for row in rows} == {2}
    assert all(row.get("ours_over_it_edges", row.get("it_over_ours")) == 1 for row in rows)
