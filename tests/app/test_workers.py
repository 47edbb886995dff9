"""Several workers as users start them: from the command line, a script, standard input, a notebook."""

from __future__ import annotations

import dataclasses
import json
import math
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.app.conftest import Command, planted

import outgrow as og
from outgrow.app.runs import local_workers

SMALL = ("--hidden", 8, "--epochs", 3)
pytestmark = pytest.mark.usefixtures("launched")
PROGRAM = """
import torch
import outgrow as og
from outgrow.nn import Conv, Layer, Model
from outgrow.nn.layer import NodeMessages, ConvSpec
from outgrow.nn.projection import Projection
from outgrow.ops.aggregation.weighted_sum import WeightedSum

class Mean(Conv):
    def __init__(self, width_in, width_out):
        super().__init__()
        self.project = Projection(width_in, width_out)
        self.aggregation = WeightedSum()
        self.spec = ConvSpec(
            in_features=width_in, out_features=width_out, source=(1, width_out), aggregate=(1, width_out),
            static_edge_weight=True, reads_target=False,
        )

    def source(self, x):
        return NodeMessages(self.project(x)[:, None], None)

    def update(self, x, aggregate):
        return aggregate[:, 0] / 10

graph = og.load({path!r})
torch.manual_seed(0)
model = Model([Layer(Mean(graph.num_features, 6)), Layer(Mean(6, graph.num_classes))])
before = [p.detach().clone() for p in model.parameters()]
run = og.train(graph, model, epochs=4, workers={workers})
changed = all(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
same = torch.allclose(og.predict(graph, model), run.logits, atol=1e-5)
print(run.summary["workers"], run.model is model, changed, same, [round(loss, 5) for loss in run.loss])
"""


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the program prints with one worker, but for their number."""
    path = tmp_path_factory.mktemp("one") / "planted.npz"
    np.savez(path, **planted())
    return printed_by(path, 1).removeprefix("1 ")


def printed_by(npz: Path, workers: int, *, piped: bool = False) -> str:
    """What the program prints as a script without a main guard, or from standard input."""
    program = PROGRAM.format(path=str(npz), workers=workers)
    script = npz.parent / "program.py"
    script.write_text(program)
    command = [sys.executable, "-" if piped else str(script)]
    done = subprocess.run(command, input=program, cwd=npz.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("epoch 4/4") == 1
    return done.stdout


@pytest.mark.parametrize("piped", [pytest.param(False, marks=pytest.mark.slow), True], ids=["script", "standard input"])
def test_a_program_with_its_own_layer(piped: bool, npz: Path, scratch: Path, one_worker: str) -> None:
    assert printed_by(npz, 2, piped=piped) == "2 " + one_worker
    assert one_worker.startswith("True True True [")


PYG_PROGRAM = """
import numpy as np, torch
import outgrow as og
from torch_geometric.nn import MessagePassing

class Mine(MessagePassing):
    def __init__(self, width_in, width_out):
        super().__init__(aggr="mean")
        self.linear = torch.nn.Linear(width_in, width_out)

    def forward(self, x, edge_index):
        return self.linear(self.propagate(edge_index, x=x))

graph = og.load({path!r})
for workers in (1, 2):
    torch.manual_seed(0)
    model = og.nn.Model([og.nn.Layer(og.nn.PyGConv(Mine(graph.num_features, graph.num_classes), graph.num_features,
                                                   graph.num_classes))])
    print(*(f"{{loss:.4f}}" for loss in og.train(graph, model, epochs=3, workers=workers, progress=False).loss))
"""


def test_a_layer_of_pyg_that_a_script_defines(npz: Path, scratch: Path) -> None:
    pytest.importorskip("torch_geometric")
    script = npz.parent / "pyg_program.py"
    script.write_text(PYG_PROGRAM.format(path=str(npz)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one, two = done.stdout.splitlines()
    assert one == two


@contextmanager
def notebook() -> Iterator[Any]:
    """A client of a real kernel."""
    manager_of = pytest.importorskip("jupyter_client.manager", reason="needs jupyter_client and ipykernel")
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    manager, client = manager_of.start_new_kernel(kernel_name="python3")
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def shown_by(client: Any, cell: str) -> dict[str, str]:
    """What a cell shows on each stream."""
    sent, shown = client.execute(cell), {"stdout": "", "stderr": ""}
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != sent:
            continue
        content = message["content"]
        assert message["msg_type"] != "error", "\n".join(content["traceback"])
        if message["msg_type"] == "stream":
            shown[content["name"]] += content["text"]
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            return shown
    raise TimeoutError(cell)


@pytest.mark.filterwarnings("default")
def test_a_notebook(npz: Path, scratch: Path, one_worker: str) -> None:
    definitions, _, calls = PROGRAM.format(path=str(npz), workers=2).partition("graph = ")
    with notebook() as client:
        shown_by(client, definitions)
        shown = shown_by(client, "graph = " + calls)
    assert shown["stdout"] == "2 " + one_worker
    assert "epoch 4/4" in shown["stderr"]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> set[str]:
    """Names of the arrays and stores that a run had in its scratch folder after an epoch."""
    found: set[str] = set()
    hear = local_workers._dispatch_message

    def look(*given: Any) -> None:
        found.update(str(path.relative_to(scratch).relative_to(*path.relative_to(scratch).parts[:1]))
                     for path in scratch.rglob("*.npy"))  # fmt: skip
        hear(*given)

    monkeypatch.setattr(local_workers, "_dispatch_message", look)
    return found


def trained(graph: og.Graph, workers: int, **options: Any) -> og.Run:
    """A short run from the same initial weights."""
    torch.manual_seed(1)
    model = og.nn.SAGE(graph.num_features, 8, graph.num_classes)
    return og.train(graph, model, epochs=3, workers=workers, progress=False, **options)


def test_the_graph_of_a_store_is_not_copied(npz: Path, watched: set[str]) -> None:
    og.convert(npz, npz.parent / "my.store")
    graph = og.load(npz.parent / "my.store")
    run = trained(graph, 2)
    assert watched == set()
    assert run.loss == pytest.approx(trained(graph, 1).loss, rel=1e-5)


def test_a_graph_that_was_changed_is_copied(npz: Path, watched: set[str]) -> None:
    og.convert(npz, npz.parent / "my.store")
    graph, plain = og.load(npz.parent / "my.store"), og.load(npz.parent / "my.store")
    assert isinstance(graph.features, torch.Tensor)
    graph.features.mul_(2)
    run = trained(graph, 2)
    assert "graph/features.npy" in watched
    assert run.loss == pytest.approx(trained(graph, 1).loss, rel=1e-5)
    assert run.loss != pytest.approx(trained(plain, 1).loss, rel=1e-3)


@pytest.mark.slow
def test_a_replaced_part_of_a_graph_is_copied(npz: Path, watched: set[str]) -> None:
    og.convert(npz, npz.parent / "my.store")
    stored = og.load(npz.parent / "my.store")
    assert isinstance(stored.features, torch.Tensor)
    graph = dataclasses.replace(stored, features=stored.features * 2)
    assert trained(graph, 2).loss == pytest.approx(trained(graph, 1).loss, rel=1e-5)
    assert "graph/features.npy" in watched


def test_the_command(outgrow: Command, scratch: Path) -> None:
    summaries = {}
    for workers in (1, 2):
        result = outgrow("train", "wordnet", *SMALL, "--workers", workers, "--out", f"run{workers}", "--json")
        assert result.code == 0, result.err
        summaries[workers] = result.summary
        assert json.loads(Path(f"run{workers}/summary.json").read_text()) == result.summary
    two = summaries[2]
    assert (two["workers"], summaries[1]["workers"]) == (2, 1)
    assert two["loss"] == pytest.approx(summaries[1]["loss"], abs=1e-5)
    assert two["ledger"]["peer"].keys() >= {"activations", "gradients", "parameters", "topology", "ids", "metrics"}
    assert not any(table for link, table in two["ledger"].items() if link != "peer")
    assert not any(summaries[1]["ledger"].values())
    assert two["counters"]["edges_aggregated"] == summaries[1]["counters"]["edges_aggregated"]
    assert two["strategy_options"] == {"partition": "metis", "overlap": True, "first_aggregate": "auto"}
    assert "2 workers" in result.err


def test_options_of_the_strategy(outgrow: Command, npz: Path, scratch: Path) -> None:
    options = ("--workers", 2, "--set", "partition=hash", "--set", "overlap=false")
    result = outgrow("train", npz, *SMALL, *options, "--out", "run", "--json")
    assert result.code == 0, result.err
    assert result.summary["strategy_options"] == {"partition": "hash", "overlap": False, "first_aggregate": "auto"}
    config = json.loads(Path("run/config.json").read_text())
    assert (config["workers"], config["strategy"]["options"]["partition"]) == (2, "hash")
    assert math.isfinite(result.summary["loss"][-1])


@pytest.mark.parametrize(
    ("options", "got"),
    [
        (("--workers", 0), "0"),
        (("--workers", -2), "-2"),
        (("--workers", 2, "--heartbeat", 0), "0"),
        (("--workers", 2, "--max-restarts", -1), "-1"),
        (("--set", "partition=nonsense"), "nonsense"),
        (("--set", "overlap=maybe"), "maybe"),
        (("--set", "partitoin=hash"), "partitoin"),
    ],
    ids=str,
)
def test_mistakes(options: tuple[object, ...], got: str, outgrow: Command, npz: Path, scratch: Path) -> None:
    result = outgrow("train", npz, *SMALL, *options, "--out", "run")
    assert result.code == 2, result.err
    assert all(word in result.err for word in ("needed:", "got:", "repair:", got))
    assert "Traceback" not in result.err
    assert not Path("run").exists()


def two_nodes() -> og.Graph:
    """A graph for at most two workers."""
    return og.from_arrays(
        torch.tensor([[0, 1], [1, 0]]),
        features=torch.ones(2, 3),
        labels=torch.tensor([0, 1]),
        split={"train": [0], "val": [1], "test": []},
    )


def test_more_workers_than_nodes(scratch: Path) -> None:
    with pytest.raises(og.InputError) as caught:
        trained(two_nodes(), 3)
    assert "2" in caught.value.needed
    assert "3" in caught.value.got
    assert caught.value.repair


def test_more_workers_than_nodes_leave_no_directory(tmp_path: Path, scratch: Path) -> None:
    with pytest.raises(og.InputError):
        trained(two_nodes(), 3, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_features_in_bfloat16(scratch: Path) -> None:
    arrays = planted()
    split = {name: arrays[f"{name}_idx"] for name in ("train", "val", "test")}
    features = torch.as_tensor(arrays["features"]).bfloat16()
    graph = og.from_arrays(arrays["edge_index"], features=features, labels=arrays["label"], split=split)
    assert trained(graph, 2).loss == pytest.approx(trained(graph, 1).loss, abs=1e-5)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "two"])
def test_numbers_of_workers_that_are_none(workers: Any, npz: Path) -> None:
    with pytest.raises(og.InputError, match=r"needed: (.|\n)*got: (.|\n)*repair: "):
        trained(og.load(npz), workers)
