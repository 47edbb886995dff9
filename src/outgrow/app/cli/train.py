"""``outgrow train``: train a model on a graph."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outgrow.app.cli.options import assignments
from outgrow.core.errors import InputError
from outgrow.runtime.launch import importing

if TYPE_CHECKING:
    from outgrow.app.plan import RunPlan
    from outgrow.app.run import Run

_INTERRUPTED = 128 + signal.SIGINT


def train(
    graph: Annotated[
        str | None,
        typer.Argument(help="A data set (`outgrow datasets`), a store directory or a graph file; not with --resume."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="gcn, sage, sage-max, gat, gat-relational, gin, commnet, ggcn, ggnn, film, film-relational, rgcn or "
            "rgcn-diagonal.",
            show_default="what suits the data set, else sage",
        ),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of hidden layers.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout of hidden layers, in [0, 1).")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Most epochs to train.")] = None,
    strategy: Annotated[str | None, typer.Option(help="How to train: auto or full.", show_default="auto")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random draw.", show_default="0")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other option of the model (heads, attention_dropout, input_dropout, norm, residual, ...) or of "
            "the loop (optimizer, weight_decay, patience, eval_every, checkpoint_every); may be given several times.",
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the run.", show_default="runs/GRAPH-MODEL-TIME")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, last on standard output.")
    ] = False,
) -> None:
    """Train a model on a graph.

    Options that are not given come from a recipe that is known to work for the model and the data set.
    """
    with importing():
        from outgrow.app.plan import new_run, resumed_run

    given = {"layers": layers, "hidden": hidden, "dropout": dropout, "lr": lr, "epochs": epochs, "seed": seed}
    options = {name: value for name, value in given.items() if value is not None} | assignments(set_ or [])
    if resume:
        if out is None:
            raise InputError(
                "--resume needs --out", needed="the directory of the run", got="none", repair="add --out DIR"
            )
        asked = {"graph": graph, "model": model, "strategy": None if strategy == "auto" else strategy}
        plan = resumed_run(out, {name: value for name, value in asked.items() if value} | options, data_dir)
    else:
        plan = new_run(_required(graph), model, options, data_dir=data_dir, strategy=strategy or "auto", out=out)
    run = _execute(plan, resume=resume)
    if as_json:
        print(json.dumps(run.summary))
    if run.summary["stopped"] == "interrupted":
        raise typer.Exit(_INTERRUPTED)


def _execute(plan: RunPlan, *, resume: bool) -> Run:
    from outgrow.app.progress import progress_for
    from outgrow.app.session import Session

    _say(plan.headline())
    session_started = time.perf_counter()
    with progress_for(plan.graph, plan.config, show=True) as listener:
        session = Session(
            graph=plan.graph,
            model=plan.model,
            config=plan.config,
            strategy=plan.strategy,
            directory=plan.directory,
            listeners=(listener,),
        )
        run = session.run(resume=resume)
    _report(run, time.perf_counter() - session_started)
    return run


def _report(run: Run, seconds: float) -> None:
    summary: dict[str, Any] = run.summary
    if summary["stopped"] == "interrupted":
        _say(f"interrupted after epoch {summary['epochs']}; go on with --out {run.directory} --resume")
    metric = summary["metric"].replace("_", " ")
    best = f" (epoch {summary['best_epoch']})" if summary["best_epoch"] else ""
    _say(
        f"test {metric} {run.test_accuracy:.4f}, validation {run.val_accuracy:.4f}{best}; {summary['epochs']} epochs "
        f"in {seconds:.1f} s; peak memory {summary['peak_bytes']['device'] / 2**20:,.0f} MiB"
    )
    _say(f"run directory: {run.directory}")


def _required(graph: str | None) -> str:
    if graph is None:
        raise InputError(
            "no graph to train on",
            needed="the name of a data set, a store or a graph file",
            got="nothing",
            repair="for example `outgrow train wordnet`; `outgrow datasets` lists the data sets",
        )
    return graph


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
