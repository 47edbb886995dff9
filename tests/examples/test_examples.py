"""Every example runs, at a small size, and prints what it should; at its own size where that takes longer."""

from __future__ import annotations

import ast
import io
import os
import re
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.app.conftest import planted

from support import disk_folder

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
FULL_SIZE = 1800


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder on a disk, where examples run and keep temporary files."""
    with tempfile.TemporaryDirectory(prefix="outgrow-test-", dir=disk_folder()) as name:
        yield Path(name)
        assert not list(Path(name).glob("outgrow-*"))


@pytest.fixture
def npz(place: Path) -> Path:
    """A small graph with four classes that are easy to tell."""
    np.savez(place / "planted.npz", **planted())
    return place / "planted.npz"


@pytest.fixture
def related(place: Path) -> Path:
    """The same with five relations."""
    arrays = planted()
    np.savez(place / "related.npz", **arrays, edge_type=arrays["edge_index"].sum(0) % 5)
    return place / "related.npz"


def begun(place: Path, *command: object, **more: str) -> subprocess.Popen[str]:
    """A command begun in a folder, without settings of threads."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**kept, "TMPDIR": str(place), "PATH": path, **more}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*map(str, command)], cwd=place, env=settings, text=True, **streams)


def ended(process: subprocess.Popen[str], seconds: float) -> str:
    """What a process has printed by its end, which must be a good one."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out


def printed(place: Path, name: str, *options: object, start: tuple[str, ...] = (), seconds: float = 240) -> str:
    """What an example prints."""
    return ended(begun(place, sys.executable, *start, EXAMPLES / name, *options), seconds)


def shown(place: Path, name: str, *options: object) -> str:
    """What an example prints in this process, where torch is loaded and kernels are at hand."""
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(text):
        patch.chdir(place)
        patch.setenv("TMPDIR", str(place))
        patch.setattr(tempfile, "tempdir", str(place))
        patch.setattr(sys, "argv", [str(EXAMPLES / name), *map(str, options)])
        runpy.run_path(sys.argv[0], run_name="__main__")
    return text.getvalue()


def number(pattern: str, text: str) -> float:
    """The number that comes after a pattern."""
    found = re.search(rf"{pattern}\s*([-+.\de]*\d)", text)
    assert found is not None, text
    return float(found[1])


def last_loss(text: str) -> float:
    return number("after the first epoch,", text)


def test_quickstart(npz: Path) -> None:
    text = printed(npz.parent, "quickstart.py", "--graph", npz, "--epochs", 20, "--out", "run")
    assert "240 nodes" in text
    assert number("test accuracy:", text) > 0.7
    assert len(ast.literal_eval(text.partition("nearest to it: ")[2].splitlines()[0])) == 5
    folder = npz.parent / text.partition("files of the run: ")[2].strip()
    assert len((folder / "metrics.jsonl").read_text("utf-8").splitlines()) == 20
    assert (folder / "summary.json").is_file()


@pytest.mark.slow
@pytest.mark.timeout(FULL_SIZE)
def test_quickstart_on_wordnet(place: Path) -> None:
    text = printed(place, "quickstart.py", seconds=FULL_SIZE)
    assert number("test accuracy:", text) > 0.8
    assert "files of the run" not in text
    assert re.search(r"node \d+: class \d+, with probability", text)


@pytest.mark.usefixtures("pooled")
def test_own_layer(npz: Path) -> None:
    text = shown(npz.parent, "own_layer.py", "--graph", npz, "--epochs", 4, "--chunks", 3)
    assert text.count("last loss") == 3
    assert number("difference of a loss:", text) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(FULL_SIZE)
def test_own_layer_on_wordnet(place: Path) -> None:
    text = printed(place, "own_layer.py", seconds=FULL_SIZE)
    assert min(map(float, re.findall(r"test: ([\d.]+)", text))) > 0.6
    assert number("difference of a loss:", text) < 1e-4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyG
def test_pyg_model(npz: Path) -> None:
    pytest.importorskip("torch_geometric", reason="needs the extra pyg")
    sizes = ("--epochs", 20, "--batch-epochs", 10)
    text = shown(npz.parent, "pyg_model.py", "--graph", npz, *sizes)
    assert number("the whole graph: test accuracy", text) > 0.7
    assert number("mini-batches: test accuracy", text) > 0.7


@pytest.mark.slow
@pytest.mark.timeout(FULL_SIZE)
def test_pyg_model_on_wordnet(place: Path) -> None:
    pytest.importorskip("torch_geometric", reason="needs the extra pyg")
    text = printed(place, "pyg_model.py", seconds=FULL_SIZE)
    assert number("the whole graph: test accuracy", text) > 0.6
    assert number("mini-batches: test accuracy", text) > 0.7


def test_links(related: Path) -> None:
    text = shown(related.parent, "links.py", "--graph", related, "--epochs", 10)
    assert last_loss(text) < number("loss:", text)
    assert number("filtered MRR:", text) > number("by chance", text)


@pytest.mark.slow
@pytest.mark.timeout(FULL_SIZE)
def test_links_of_wordnet(place: Path) -> None:
    text = printed(place, "links.py", seconds=FULL_SIZE)
    assert number("filtered MRR:", text) > 10 * number("by chance", text)
    assert "relations: " in text


def test_ogbn_train(npz: Path) -> None:
    """On a generated graph, too small to learn much from: a score that stays the same lowers the rate."""
    sizes = ("--epochs", 6, "--hidden", 16, "--batch-size", 256, "--patience", 1)
    text = shown(npz.parent, "ogbn_train.py", "--graph", "products@0.005", *sizes)
    rates = [float(rate) for rate in re.findall(r"learning rate: ([-.e\d]+),", text)]
    assert len(rates) == 6
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < rates[0] == 3e-3
    learnt = shown(npz.parent, "ogbn_train.py", "--graph", npz, "--epochs", 30, "--batch-size", 30)
    assert number("test accuracy:", learnt) > 0.7


def test_gcn2_cora(npz: Path) -> None:
    text = shown(npz.parent, "gcn2_cora.py", "--graph", npz, "--layers", 16, "--epochs", 40)
    assert last_loss(text) < number("loss:", text)
    assert number("test accuracy:", text) > 0.6


def test_correct_and_smooth(npz: Path) -> None:
    text = shown(npz.parent, "correct_and_smooth.py", "--graph", npz)
    alone, corrected, smoothed = map(float, re.findall(r"test accuracy ([\d.]+)", text))
    assert smoothed > max(alone, 0.7)
    assert corrected >= alone - 0.05


@pytest.mark.slow
@pytest.mark.usefixtures("pooled")
def test_correct_and_smooth_on_two_workers(npz: Path) -> None:
    """Layers of a script are sent to the workers, who compute the same."""
    alone, together = (
        shown(npz.parent, "correct_and_smooth.py", "--graph", npz, "--epochs", 10, "--workers", workers)
        for workers in (1, 2)
    )
    assert alone == together


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyG
def test_reddit(npz: Path) -> None:
    pytest.importorskip("torch_geometric", reason="needs the extra pyg")
    text = shown(npz.parent, "reddit.py", "--graph", npz, "--epochs", 20, "--batch-size", 30)
    assert text.count("epoch ") == 20
    assert number("test accuracy:", text.splitlines()[-1]) > 0.7


@pytest.mark.usefixtures("pooled")
def test_distributed_sampling(npz: Path) -> None:
    """The last loss is the same on one worker."""
    options = ("--graph", npz, "--epochs", 8, "--batch-size", 30)
    alone, together = (
        shown(npz.parent, "distributed_sampling.py", *options, "--workers", workers) for workers in (1, 2)
    )
    assert (number("workers:", alone), number("workers:", together)) == (1, 2)
    assert number("last loss:", together) == pytest.approx(number("last loss:", alone), rel=1e-4)
    assert number("test accuracy:", together) > 0.6


@pytest.mark.parametrize("name", ["hgt_dblp.py", "hetero_conv_dblp.py", "to_hetero_mag.py"])
def test_typed_graphs(place: Path, name: str) -> None:
    """A small one of many classes: enough to see that the loss falls."""
    text = shown(place, name, "--graph", "ogbn-mag@0.0012", "--epochs", 6)
    assert last_loss(text) < number("loss:", text)
    assert 0 <= number("test accuracy:", text) <= 1


def test_ogbn_proteins_deepgcn(place: Path) -> None:
    sizes = ("--layers", 3, "--hidden", 32, "--epochs", 60)
    text = shown(place, "ogbn_proteins_deepgcn.py", "--graph", "edge-signal-10", *sizes)
    assert number("test score:", text) > 0.6


def test_ogbn_proteins_deepgcn_without_features_of_nodes(place: Path) -> None:
    """Nodes get the sums of the features of their in-edges."""
    ends = np.arange(40) // 4
    features = np.random.default_rng(0).standard_normal((40, 3), dtype=np.float32) + (ends % 2)[:, None] * 2
    edge_index = np.stack([np.arange(40) % 10, ends])
    arrays = {"edge_index": edge_index, "edge_features": features, "labels": ends[::4] % 2}
    splits = {"train_idx": np.arange(6), "val_idx": np.arange(6, 8), "test_idx": np.arange(8, 10)}
    np.savez(place / "edges.npz", **arrays, **splits)
    sizes = ("--layers", 2, "--hidden", 8, "--epochs", 30)
    text = shown(place, "ogbn_proteins_deepgcn.py", "--graph", place / "edges.npz", *sizes)
    assert last_loss(text) < number("loss:", text)


def papers(place: Path, *options: object, run: Callable[..., str] = printed) -> str:
    """What the example of papers100M prints; the store that it names must be there, and scratch files gone."""
    text = run(place, "papers100m_from_disk.py", "--data-dir", place / "data", *options)
    assert (Path(text.partition("store: ")[2].splitlines()[0]) / "manifest.json").is_file()
    assert not list((place / "data" / "scratch").iterdir())
    return text


def test_papers100m_from_disk(place: Path) -> None:
    text = papers(place, "--scale", 0.0005, "--hidden", 32, "--epochs", 2, "--memory", "450MiB")
    assert "papers100M@0.0005" in text
    assert number("chunks:", text) >= 1
    assert number("scratch files:", text) > 0
    assert number("rows of features read:", text) > 0


def test_papers100m_from_a_folder_of_ogb(place: Path) -> None:
    """A small folder of the same form; all of it fits into memory, so there are no chunks."""
    arrays, folder = planted(), place / "ogbn_small"
    tables = {
        "raw/num-node-list": np.array([240]),
        "raw/edge": arrays["edge_index"].T,
        "raw/node-feat": arrays["features"],
        "raw/node-label": arrays["label"],
        **{f"split/time/{name}": arrays[f"{name.removesuffix('id')}_idx"] for name in ("train", "valid", "test")},
    }
    for name, table in tables.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(folder / f"{name}.csv.gz", table, fmt="%g", delimiter=",")
    text = papers(place, "--ogb", folder, "--hidden", 16, "--epochs", 20, "--memory", "64GiB", run=shown)
    assert "240 nodes" in text
    assert number("chunks:", text) == 0
    assert min(map(float, re.findall(r"test accuracy ([\d.]+)", text))) > 0.5


@pytest.mark.slow
@pytest.mark.timeout(FULL_SIZE)
def test_papers100m_from_disk_at_its_size(place: Path) -> None:
    run = partial(printed, seconds=FULL_SIZE)
    text = papers(place, run=run)
    peaks = [float(found) for found in re.findall(r"peak memory (\d+) MiB", text)]
    assert number("chunks:", text) > 1
    assert peaks[0] <= 600
    again = papers(place, "--epochs", 1, run=run)  # from the store that is there
    assert number("chunks:", again) > 1


def test_two_hosts_are_two_workers_on_one_machine(npz: Path) -> None:
    """The losses of one process, which needs no torchrun, are those of two under torchrun."""
    options = ("--graph", npz, "--epochs", 10, "--hidden", 16)
    alone = shown(npz.parent, "two_hosts.py", *options)
    text = printed(npz.parent, "two_hosts.py", *options, "--out", "run", start=TORCHRUN)
    assert (number("workers:", alone), number("workers:", text)) == (1, 2)
    assert last_loss(text) == pytest.approx(last_loss(alone), abs=1e-5)
    assert number("peer:", text) > 0
    folder = npz.parent / text.partition("files of the run: ")[2].strip()
    assert (folder / "summary.json").is_file()


@pytest.mark.slow
def test_the_command_for_two_hosts(npz: Path) -> None:
    """Both hosts are this machine; the first to come opens the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = ("sh", EXAMPLES / "two_hosts.sh", "127.0.0.1", "--graph", npz, "--epochs", 5)
    hosts = [begun(npz.parent, *command, PORT=port) for _ in "12"]
    texts = [ended(host, 240) for host in hosts]
    assert [number("workers:", text) for text in texts if text] == [2]


def test_the_command_for_two_hosts_asks_for_the_first(place: Path) -> None:
    process = begun(place, "sh", EXAMPLES / "two_hosts.sh")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "FIRST-HOST" in err


def test_the_readme_names_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    assert len(SCRIPTS) >= 6
    missing = [path.name for path in (*SCRIPTS, *EXAMPLES.glob("*.sh")) if f"]({path.name})" not in text]
    assert not missing
    named = re.findall(r"\]\(([\w.]+\.(?:py|sh))\)", text)
    assert all((EXAMPLES / name).is_file() for name in named)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_short_and_starts_nothing_when_it_is_imported(script: Path) -> None:
    text = script.read_text("utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 100
    assert ast.get_docstring(tree)
    assert f"python examples/{script.name}" in text or f"torchrun --nproc-per-node 2 examples/{script.name}" in text
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.ClassDef, ast.FunctionDef, ast.If)
    assert all(isinstance(node, allowed) for node in tree.body)
    assert ast.unparse(tree.body[-1]).startswith("if __name__ == '__main__':")
