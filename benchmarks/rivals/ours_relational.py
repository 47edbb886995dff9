"""Outgrow's R-GCN, as `og.train` runs it; raw features stay sparse."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rivals.common import Job, main, read_arrays, set_start
from rivals.ours import (
    make_graph,
    make_sparse_rows,
    make_trainer,
    measure,
)  # sets up the threads, so it comes before whatever loads torch
from rivals.wordnet import RAW, Facts, read_facts, read_raw, read_relation

if TYPE_CHECKING:
    from outgrow.graph.graph import Graph
    from outgrow.nn.model import Model


def _graph(job: Job, facts: Facts) -> Graph:
    import torch

    graph = make_graph("wordnet", read_arrays(job.folder), facts.widths[2])
    relation = torch.from_numpy(read_relation(job.folder))
    features = graph.features
    if job.model == RAW:
        features = make_sparse_rows(read_raw(job.folder))
    return replace(
        graph,
        topology=replace(graph.topology, relation=relation),
        features=features,
        relation_names=tuple(f"relation {number}" for number in range(facts.relations)),
    )


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
    set_start(job, [_named(layer.conv) for layer in model.layers_list()])
    return model


def _named(conv: Any) -> dict[str, Any]:
    basis_DBO = conv.basis.weight.view(conv.widths.in_features, conv.bases, conv.widths.out_features)
    return {
        "basis": basis_DBO.transpose(0, 1),
        "share": conv.share,
        "itself": conv.itself.weight,
        "bias": conv.itself.bias,
    }


def work(job: Job) -> dict[str, Any]:
    """Train; see `rivals.common.main`."""
    facts = read_facts(job)
    return measure(job, make_trainer(job, _graph(job, facts), _model(job, facts)))


if __name__ == "__main__":
    main(work, ("outgrow", "numba", "scipy"))
