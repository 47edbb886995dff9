"""Outgrow's R-GCN, as `og.train` runs it; raw features stay sparse."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rivals.common import Job, main, read_arrays, set_start
from rivals.ours import (
    add_relations,
    make_graph,
    make_sparse_rows,
    make_trainer,
    measure,
    name_relational,
)  # sets up the threads, so it comes before whatever loads torch
from rivals.wordnet import RAW, Facts, read_facts, read_raw

if TYPE_CHECKING:
    from outgrow.graph.graph import Graph
    from outgrow.nn.model import Model


def _graph(job: Job, facts: Facts) -> Graph:
    graph = add_relations(make_graph("wordnet", read_arrays(job.folder), facts.widths[2]), job)
    return replace(graph, features=make_sparse_rows(read_raw(job.folder))) if job.model == RAW else graph


def _model(job: Job, facts: Facts) -> Model:
    import outgrow as og

    model = og.nn.RGCN(
        *facts.widths,
        num_relations=facts.relations,
        bases=facts.bases,
        sparse_input=job.model == RAW,
        layers=2,
        dropout=0.0,
    )
    set_start(job, [name_relational(layer.conv) for layer in model.layers_list()])
    return model


def work(job: Job) -> dict[str, Any]:
    """Train; see `rivals.common.main`."""
    facts = read_facts(job)
    return measure(job, make_trainer(job, _graph(job, facts), _model(job, facts)))


if __name__ == "__main__":
    main(work, ("outgrow", "numba", "scipy"))
