"""Command lines with mistakes, each drawn from a seed: exit code 0, 1 or 2, and never a traceback."""

from __future__ import annotations

import io
import re
import shutil
import sys
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from tests.app.conftest import planted

LARGE = "3000000000"
ODD = (
    "", " ", "0", "1", "-1", "2.5", "-0.5", "3", LARGE, "1e300", "nan", "inf", "x", "None", "true", "1,2", "2,2",
    "-1,3", "1:2,1", "auto", "cuda", "gcn", "gat", "metis", "./", "/", "/dev/null", "no/such/file", "s3://bucket/x",
    "é", "\u2028", "a" * 300, "1GiB", "1", "2KiB", "--json", "--", "-h-", "[red]x[/]", "{}", "%s", "$HOME", "*",
    "cora ", "labor", "fastgcn",
)  # fmt: skip
OPTIONS = (
    "--epoch", "--model", "--hidden", "--layers", "--dropout", "--lr", "--batch-size", "--fanout", "--strategy",
    "--sampler", "--memory", "--workers", "--device", "--max-restarts", "--heartbeat", "--grace", "--seed", "--set",
    "--task", "--out", "--resume", "--json", "--parts", "--method", "--what", "--graph", "--nodes", "--relabel",
    "--undirected", "--verify", "--bogus", "-x",
)  # fmt: skip
SETTINGS = (
    "heads=0", "heads=x", "norm=batch", "norm=true", "patience=0", "weighted=1", "chunks=-1", "residual=yes",
    "=", "x", "dropout", "partition=none", "cache=2", "hot_ratio=9", "super_batch=0", "prefetch=-1",
    "precision=half", "decoder=dot", "negatives=0", "eval_every=0", "checkpoint_every=1e9", "val_links=0.9",
    "optimizer=sgd", "imbalance=-1", "seed=-1", "num_layers=3", "gamma=2",
)  # fmt: skip


class Verdict(NamedTuple):
    """What a command line came to.

    Attributes:
        code: Its exit code; None if an exception came out.
        output: What was printed.
    """

    code: int | None
    output: str

    @property
    def is_kept(self) -> bool:
        """Whether it ended as promised: well, or with one error that says what is needed, got and to be done."""
        if self.code == 0:
            return "Traceback" not in self.output
        own = re.search(r"error: .*\n +needed: +.*\n(.*\n)* +got: ", self.output) is not None
        parser = "─ Error ─" in self.output
        return self.code in (1, 2) and "Traceback" not in self.output and (own or parser)


def list_command_lines(folder: Path) -> list[list[str]]:
    """Valid command lines, on a small graph that is written to the folder, which is the current one."""
    arrays = planted()
    np.savez(folder / "g.npz", **arrays)
    np.savetxt(folder / "e.csv", arrays["edge_index"].T, "%d", delimiter=",")
    train = ["train", "g.npz", "--model", "gcn", "--hidden", "4", "--epochs", "1"]
    return [
        [*train, "--layers", "2", "--dropout", "0.1", "--lr", "0.1", "--seed", "1", "--out", "run-a", "--json"],
        [*train, "--batch-size", "8", "--fanout", "2,2", "--strategy", "sampled", "--out", "run-b"],
        [*train, "--strategy", "offload", "--memory", "8GiB", "--set", "chunks=2", "--out", "run-c"],
        [*train, "--set", "norm=true", "--device", "cpu", "--grace", "3", "--heartbeat", "4", "--out", "run-d"],
        ["train", "g.npz", "--task", "links", "--model", "gcn", "--hidden", "4", "--epochs", "1", "--out", "run-e"],
        ["train", "--resume", "--out", "finished", "--epochs", "2"],
        ["plan", "g.npz", "--model", "gcn", "--hidden", "4", "--workers", "2", "--memory", "1GiB", "--json"],
        ["plan", "--workload", "products", "--hardware", "4xA100", "--layers", "2"],
        ["predict", "finished", "--out", "p.npy", "--what", "logits", "--graph", "g.npz", "--workers", "1"],
        ["links", "linked", "--head", "3", "--top", "3", "--out", "l.csv", "--include-known"],
        ["report", "finished", "--out", "r.html"],
        ["info", "g.npz", "--json"],
        ["convert", "e.csv", "s.store", "--undirected", "--nodes", "300", "--memory", "64MiB", "--overwrite"],
        ["partition", "g.npz", "--parts", "2", "--method", "hash", "--set", "seed=1"],
        ["append", "s.store", "e.csv", "--undirected", "--out", "t.store", "--memory", "64MiB"],
        ["info", "g.npz", "--full"],
        ["datasets", "--data-dir", "."],
    ]


def draw_command_line(lines: list[list[str]], seed: int) -> list[str]:
    """Return the command line of a seed."""
    draw = Random(seed)
    words = list(draw.choice(lines))
    for _ in range(draw.choice((1, 1, 2, 3))):
        values = [place for place in range(1, len(words)) if not words[place].startswith("-")]
        action = draw.random()
        # Mistakes that the parser finds are few: they hide what is behind it.
        if action < 0.6 and values:
            place = draw.choice(values)
            numbers = [word for word in ODD if _is_number(word)]
            words[place] = draw.choice(numbers if _is_number(words[place]) and draw.random() < 0.8 else ODD)
        elif action < 0.65:
            del words[draw.randrange(1, len(words))]
        elif action < 0.85 and words[0] in {"train", "plan", "partition"}:
            words += ["--set", draw.choice(SETTINGS)]
        else:
            words += [draw.choice(OPTIONS), draw.choice(ODD)]
    # As many epochs as asked for are trained.
    return ["5" if word == LARGE and before.startswith("--e") else word for before, word in pairwise(["", *words])]


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?[0-9.]+(e[0-9]+)?", word) is not None


def run(words: list[str]) -> Verdict:
    """Run a command line in this process, in the current folder."""
    from outgrow.app.cli.main import run_cli

    # Else it would be in use, which hides all other mistakes.
    for folder in Path().glob("run-*"):
        shutil.rmtree(folder)
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["outgrow", *words]
    try:
        with redirect_stdout(printed), redirect_stderr(printed), warnings.catch_warnings():
            run_cli()
        code: int | None = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        code = None
        printed.write(traceback.format_exc())
    finally:
        sys.argv = before
    return Verdict(code, printed.getvalue())
