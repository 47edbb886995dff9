"""``outgrow plan``: estimates time, memory and traffic of every strategy, before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from outgrow.app.cli.options import parse_assignments, require_task_of_decoder
from outgrow.app.messages import log_message
from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice


def plan(
    graph: Annotated[
        str | None, typer.Argument(help="A data set (`outgrow datasets`), a store directory or a graph file.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="As of `outgrow train`.", show_default="what suits the data set, else sage")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="What is predicted: nodes (their labels) or links (which edges there are).", show_default="nodes"
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="A node type whose labels are predicted, as of `outgrow train`.", show_default="all with labels"
        ),
    ] = None,
    link_relations: Annotated[
        str | None,
        typer.Option(help="With --task links: as of `outgrow train`.", show_default="all edges"),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of hidden layers.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Nodes or links of a step, over all workers.", show_default="all to train on")
    ] = None,
    fanout: Annotated[
        str | None, typer.Option(help="Neighbours to draw for each hop, such as 10,10.", show_default="all neighbours")
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="How to draw them, as of `outgrow train`: neighbor, neighbor-with-replacement, labor or fastgcn.",
            show_default="neighbor",
        ),
    ] = None,
    temporal_strategy: Annotated[
        str | None,
        typer.Option(help="As of `outgrow train`: uniform or last.", show_default="edges of any time"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="How many processes train.", show_default="the best number for each strategy")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Most memory of one worker, such as 2GiB.", show_default="what the machine has")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            help="Another machine: 16xT4, 4xA100, 4xA100-10GbE, 4xV100, 4x3090, V100, H200, 2-core-cpu, or a file "
            "that outgrow calibrate has written.",
            show_default="this one",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="A graph that is not here, by its published sizes: papers100M, friendster, it-2004, products, reddit, "
            "wikipedia, orkut, mag240M, ...; instead of a graph."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="What workers compute on here: auto, cpu or cuda.")] = "auto",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other option of the model or of training, such as decoder, negatives or link_steps of links; may "
            "be given several times.",
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what an epoch takes by every strategy, with its best options: time, memory and bytes, or why it cannot run.

    Nothing is trained. Of this machine, what `outgrow calibrate` has measured is used.
    """
    from outgrow.app.plan.question import PlanRequest, answer_request
    from outgrow.app.plan.table import format_plan, plan_to_dict

    if (graph is None) == (workload is None):
        raise InputError(
            "a plan is for one graph",
            needed="a graph, or --workload with the name of one that is not here",
            got="neither" if graph is None else "both",
            repair="for example `outgrow plan wordnet`, or `outgrow plan --workload papers100M --hardware 4xA100`",
        )
    given: dict[str, object] = {
        "layers": layers,
        "hidden": hidden,
        "batch_size": batch_size,
        "fanout": fanout,
        "sampler": sampler,
    }
    if task is not None:
        validate_choice("task", task, dict.fromkeys(("nodes", "links")))
    # A decoder is what makes a model one of links, as of `outgrow train`.
    given |= {"decoder": "auto" if task == "links" else None, "link_relations": link_relations}
    given |= {"targets": ",".join(target) if target else None, "temporal_strategy": temporal_strategy}
    options = {name: value for name, value in given.items() if value is not None} | parse_assignments(set_ or [])
    require_task_of_decoder(task, options)
    request = PlanRequest(
        graph=graph,
        workload=workload,
        model=model,
        options=options,
        workers=workers,
        memory=memory,
        hardware=hardware,
        device=device,
        data_dir=data_dir,
    )
    found, measured = answer_request(request)
    if not measured:
        log_message("this machine was not measured, so a typical one is assumed; outgrow calibrate measures it")
    if as_json:
        print(json.dumps(plan_to_dict(found)))
    else:
        print(format_plan(found), end="")
