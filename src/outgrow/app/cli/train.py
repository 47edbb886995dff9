"""``outgrow train``: trains a model on a graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outgrow.app.cli.option_help import HELP_OPTIONS
from outgrow.app.cli.options import (
    ALLOW_OVERLAP,
    ALLOW_UNSEEN_RELATIONS,
    DEVICE,
    parse_assignments,
    require_task_of_decoder,
)
from outgrow.app.cli.train_runs import ResumeChoice, run_local, run_torchrun_worker, train_splits
from outgrow.app.messages import open_messages
from outgrow.core.errors import InputError
from outgrow.core.process import exit_code
from outgrow.core.validation import validate_choice
from outgrow.ops.common_kernels import start_compiling_common_kernels
from outgrow.runtime.system.environment import gc_paused_import, is_torchrun_leader, torchrun_world_size

if TYPE_CHECKING:
    from outgrow.app.runs.new_run import RunPlan
    from outgrow.app.runs.result import Run
    from outgrow.app.runs.split_runs import SplitRuns


TASKS = ("nodes", "links", "classification", "multilabel", "regression")
"""Choices of ``--task``."""


def train(
    graph: Annotated[
        str | None,
        typer.Argument(help="A data set (`outgrow datasets`), a store directory or a graph file; not with --resume."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="gcn, sage, sage-max, gat, gat-relational, gatv2, transformer, gin, gine, edge-network, commnet, "
            "ggcn, ggnn, film, film-relational, rgcn, rgcn-diagonal, rgcn-typed, compgcn, hgt, decoupled, "
            "decoupled-sage, decoupled-gin, decoupled-gat, decoupled-rgcn, sgc, sign, embedding (vectors of nodes "
            "alone) or mlp (features alone).",
            show_default="what suits the data set, else sage",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="What to predict: nodes (their labels, as they are) or links (which edges there are); of nodes also "
            "classification (one class for each), multilabel (any number of classes) or regression (numbers); for "
            "some node types alone: shop=regression,user=classification.",
            show_default="nodes",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="A node type whose labels to predict, such as paper, or author=0.5 with its loss weight; may be given "
            "several times.",
            show_default="all types with labels",
        ),
    ] = None,
    link_relations: Annotated[
        str | None,
        typer.Option(
            help="With --task links: the relations whose links to predict, such as author__writes__paper; edges "
            "of others carry messages alone.",
            show_default="all edges",
        ),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of hidden layers.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout of hidden layers, in [0, 1).")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Most epochs to train.")] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Seeds of a step, over all workers.", show_default="all nodes to train on"),
    ] = None,
    fanout: Annotated[
        str | None,
        typer.Option(
            help="Neighbours to draw for each hop outward from the seeds, such as 10,10; -1 for all. With one number "
            "for each relation: 4:2,10.",
            show_default="all neighbours",
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="How to draw them: neighbor (without replacement), neighbor-with-replacement, labor (LABOR: fewer "
            "nodes in a batch) or fastgcn (layer-wise: --fanout is the number of nodes drawn for a hop).",
            show_default="neighbor",
        ),
    ] = None,
    temporal_strategy: Annotated[
        str | None,
        typer.Option(
            help="Draw only neighbours by edges before the time of the seed: uniform (as --sampler) or last (the most "
            "recent). For graphs with times, see `outgrow convert --time-column`.",
            show_default="edges of any time",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="More metrics of nodes, such as auroc,f1-macro (see docs/metrics.md). --set monitor=auroc chooses the "
            "best epoch by it.",
            show_default="accuracy, micro-F1 of several labels, MRR of links",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="How to train: auto (the fastest that fits, as `outgrow plan` estimates), full, offload (in chunks, "
            "from disk), tensor (feature slices); mini-batches: sampled, split (each computed by all workers), "
            "migrate (seeds computed where features live), orchestrate (the CPU computes a part of the bottom layer).",
            show_default="auto; with --resume as before",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Most memory of one worker, such as 2GiB, on its GPU if it has one: trains in chunks (strategy "
            "offload, or tensor on CPUs) where all at once does not fit; mini-batches have fewer batches ahead.",
            show_default="no limit",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that train. Under torchrun its own are the workers.", show_default="1")
    ] = None,
    device: Annotated[str, DEVICE] = "auto",
    max_restarts: Annotated[
        int, typer.Option(help="How often to start again, from the last checkpoint, after a worker has died.")
    ] = 0,
    heartbeat: Annotated[
        float,
        typer.Option(help="Seconds of silence, 2 at least, after which a worker is dead; a slow one is not silent."),
    ] = 30.0,
    grace: Annotated[
        float,
        typer.Option(help="Seconds to end an epoch and write a checkpoint after SIGTERM, SIGHUP or SIGUSR1."),
    ] = 30.0,
    seed: Annotated[int | None, typer.Option(help="Seed of every random draw.", show_default="0")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other option of the model (heads, attention_dropout, input_dropout, norm, residual, ...), of "
            "the loop (class_weight, numbers or balanced, and label_smoothing; of multilabel pos_weight; of regression "
            "loss: mse, mae or huber; optimizer, any of torch by name, with its options, such as momentum; schedule: "
            "cosine, step, linear, plateau, ..., with its options, warmup and schedule_per; clip_grad_norm, "
            "accumulate, ema, "
            "weight_decay, patience, eval, val and test: auto, exact, sampled, layerwise or none; "
            "eval_fanout, eval_batch_size, eval_every, monitor, monitor_mode, "
            "checkpoint_every, checkpoint_steps, weighted, "
            "precision, full or bfloat16; of links: decoder, dot, distmult, complex, bilinear, transe, rotate, mlp or, "
            "of compgcn, composed-distmult, "
            "link_steps, hide, link_loss, margin, adversarial_temperature, negatives, negative_sampling, "
            "filter_negatives, regularizer, regularizer_weight, exclude, target or none, "
            "val_links, test_links, split_seed, rank_self, ranking_candidates) or of the strategy "
            "(auto: trial and inexact, whether it may choose orchestrate, true or false; "
            "full: partition, overlap; offload: host_memory, chunks, scratch_dir, sharing, reuse, reorganise, "
            "overlap, cache, storage_precision; tensor: chunks, cache_first_aggregate, attention, on_disk, "
            "scratch_dir, nn_device; sampled: partition, cache, cache_by, cache_scope, sampling_threads, prefetch; "
            "split: partition, cache, cache_by, sampling_threads, prefetch, partial_sums; migrate: partition, "
            "move_model, pregather, merge, time_steps, cache, cache_by, cache_scope, sampling_threads, prefetch; "
            "orchestrate: partition, hot_ratio, super_batch, reuse, hot_gradient, gradient_on, latest_parameters, "
            "cache, sampling_threads); may have several, and be given several times. --help-options NAME says what "
            "those of a strategy, of a model or of training mean.",
        ),
    ] = None,
    help_options: Annotated[str | None, HELP_OPTIONS] = None,
    splits: Annotated[
        str | None,
        typer.Option(
            help="Train once on each of several splits of the nodes that the graph has: all, or numbers such as 0,3.",
            show_default="the split that the graph comes with",
        ),
    ] = None,
    inverse_relations: Annotated[
        bool,
        typer.Option("--inverse-relations", help="Add the inverse of every edge, of a relation of its own, in memory."),
    ] = False,
    allow_overlap: Annotated[bool, ALLOW_OVERLAP] = False,
    allow_unseen_relations: Annotated[bool, ALLOW_UNSEEN_RELATIONS] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the run.", show_default="runs/GRAPH-MODEL-TIME")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out, by another --strategy if you like. --resume auto starts it if there is "
            "none, for jobs that a scheduler starts again.",
        ),
    ] = False,
    resume_auto: Annotated[bool, typer.Option("--resume-auto", hidden=True)] = False,
    allow_changed_data: Annotated[
        bool,
        typer.Option(
            "--allow-changed-data",
            help="With --resume: go on though the graph has changed; scores and the best epoch so far are forgotten.",
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show warnings and errors alone: no progress, no other messages.")
    ] = False,
    log_file: Annotated[
        Path | None, typer.Option(help="File to append all messages to, with their times.", show_default="none")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, last on standard output.")
    ] = False,
) -> None:
    """Train a model on a graph.

    Options that are not given come from a recipe that is known to work for the model and the data set.
    """
    start_compiling_common_kernels()
    # Imported only now, so that `--help` and the other commands start without torch.
    with gc_paused_import():
        from outgrow.app.runs.directory import RunDirectory
        from outgrow.app.runs.graph_choice import GraphChoice
        from outgrow.app.runs.new_run import plan_new_run
        from outgrow.app.runs.progress import show_compilation
        from outgrow.app.runs.resume import plan_resumed_run, require_same_load_options
        from outgrow.app.runs.split_runs import SplitRunsRequest, has_split_runs
        from outgrow.app.runs.workers import Workers, resolve_num_workers
        from outgrow.graph.readers.tables.options import TableOptions

    given: dict[str, object] = {
        "layers": layers,
        "hidden": hidden,
        "dropout": dropout,
        "lr": lr,
        "epochs": epochs,
        "seed": seed,
    }
    given |= {"batch_size": batch_size, "fanout": fanout, "sampler": sampler, "memory": memory}
    given |= {"metrics": metric, "targets": ",".join(target) if target else None, "link_relations": link_relations}
    given["temporal_strategy"] = temporal_strategy
    by_type = "=" in (task or "")
    if task is not None and not by_type:
        validate_choice("task", task, dict.fromkeys(TASKS))
    # A decoder is what makes a model one of links; `--set decoder=...` overrides the automatic one.
    given["decoder"] = "auto" if task == "links" else None
    given["task"] = task if by_type or task in TASKS[2:] else None
    options = {name: value for name, value in given.items() if value is not None} | parse_assignments(set_ or [])
    require_task_of_decoder(task, options)
    worker_settings = Workers(
        number=resolve_num_workers(workers),
        device=device,
        max_restarts=max_restarts,
        heartbeat_seconds=heartbeat,
        grace_seconds=grace,
    )

    reading = TableOptions(
        inverse_relations=inverse_relations,
        allow_overlap=allow_overlap,
        allow_unseen_relations=allow_unseen_relations,
    )

    def plan_attempt(again: bool) -> tuple[RunPlan, bool]:
        known = resume_auto and RunDirectory(_require_run_path(out)).exists
        resumes = resume or known or (again and RunDirectory(_require_run_path(out)).has_checkpoint)
        if not resumes:
            planned = plan_new_run(
                GraphChoice(name=_require_graph(graph), data_dir=data_dir, options=reading),
                model,
                options,
                strategy=strategy or "auto",
                out=out,
                workers=worker_settings,
                again=again,
            )
            return planned, False
        require_same_load_options(_require_run_path(out), reading)
        # A restart keeps the strategy that the first attempt chose, instead of choosing again.
        chosen = None if again and strategy == "auto" else strategy
        named = {"graph": graph, "model": model, "strategy": chosen, "task": task}
        requested = {name: value for name, value in {**named, **options}.items() if value is not None}
        # torchrun may have started another number of workers than the run had.
        keep = workers is None and not torchrun_world_size()
        resumed = plan_resumed_run(
            _require_run_path(out),
            requested,
            data_dir,
            worker_settings,
            keep_num_workers=keep,
            # A restart goes on with what this attempt began with.
            allow_changed_data=allow_changed_data or again,
        )
        return resumed, resumed.directory.has_checkpoint

    # One process writes, as to all files.
    with open_messages(quiet=quiet, log_file=log_file if is_torchrun_leader() else None):
        if splits is not None or (out is not None and has_split_runs(out)):
            reading.refuse_all_but((), "training on several splits of the nodes")
            request = SplitRunsRequest(graph, splits or "", model, options, strategy, data_dir)
            choice = ResumeChoice(resume, resume_auto, allow_changed_data, workers is None)
            run: Run | SplitRuns = train_splits(request, out, worker_settings, choice)
        elif torchrun_world_size():
            # Without --out each start has a new directory, named by its time, and begins from scratch.
            run = run_torchrun_worker(plan_attempt, out, worker_settings)
        else:
            with show_compilation():  # of kernels that read the graph
                planned = plan_attempt(False)
            run = run_local(*planned)
    if as_json and run.directory is not None:
        print(json.dumps(run.summary))
    if run.interrupted_by is not None:
        raise typer.Exit(exit_code(run.interrupted_by))


def _require_run_path(out: Path | None) -> Path:
    if out is None:
        raise InputError("--resume needs --out", needed="the directory of the run", got="none", repair="add --out DIR")
    return out


def _require_graph(graph: str | None) -> str:
    if graph is None:
        raise InputError(
            "no graph to train on",
            needed="the name of a data set, a store or a graph file",
            got="nothing",
            repair="for example `outgrow train wordnet`; `outgrow datasets` lists the data sets",
        )
    return graph
