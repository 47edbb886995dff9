"""What a run records of its graph, and the checks of a graph against it: names, and a fingerprint of the contents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import GraphSchema
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.alignment import align_graph, describe_schema
from outgrow.graph.graph import Graph
from outgrow.graph.id_summary import compare_summaries, summarize_ids
from outgrow.graph.store.fingerprint import IDS, changed_parts, fingerprint_graph
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import find_embeddings


def graph_record(graph: Graph, seen: Graph | None = None) -> dict[str, Any]:
    """Return the part of ``config.json`` that says what the graph of a run was.

    Args:
        graph: The graph.
        seen: The graph as the model sees it, if that lacks a target among the features of edges; None for the same.
    """
    schema = describe_schema(seen or graph).as_record()
    record: dict[str, Any] = {"graph_schema": schema, "data": fingerprint_graph(graph)}
    return record if graph.ids is None else {**record, "ids": summarize_ids(graph.ids)}


def align_with_record(
    graph: Graph, record: Mapping[str, Any], *, reads_relations: bool, reads_types: bool = False
) -> Graph:
    """Return a graph with relations and feature columns in the order of a recorded run: see `align_graph`.

    Raises:
        InputError: A name is missing or unknown.
    """
    schema = GraphSchema.from_record(record.get("graph_schema"))
    if schema is not None:
        return align_graph(graph, schema, reads_relations=reads_relations, reads_types=reads_types)
    own = describe_schema(graph)
    if own.columns or (reads_relations and own.relations):
        warn_about_data(
            f"the run recorded no names of relations and types: those of {graph.name!r} are taken to be in its order"
        )
    return graph


def require_same_nodes(graph: Graph, model: Model, record: Mapping[str, Any]) -> None:
    """Check that the vectors of a run's model are those of the nodes of a graph, if it has any.

    Raises:
        InputError: The graph has as many nodes, but with other ids.
    """
    known = record.get("ids")
    # A graph that was appended to has more nodes: the first ones are the same, others get the mean of all vectors.
    if not find_embeddings(model) or graph.ids is None or known is None or len(graph.ids) != known["count"]:
        return
    if fingerprint_graph(graph).get(IDS) != record.get("data", {}).get(IDS):
        raise InputError(
            f"the vectors of the model are those of other nodes than {graph.name!r} has",
            needed="the graph of the run, or one that was appended to it",
            got=f"{len(graph.ids):,} nodes with other ids, or in another order",
            repair="give that graph, or train on this one",
        )


def align_with_model(graph: Graph, model: Model) -> Graph:
    """Return a graph with relations and feature columns in the order that a model was trained with, if it was.

    Raises:
        InputError: A name is missing or unknown.
    """
    if model.schema is None:
        return graph
    return align_graph(
        graph, model.schema, reads_relations=model.reads_relations, reads_types=model.first_reader.reads_types
    )


def validate_same_data(
    path: Path, record: Mapping[str, Any], saved: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> None:
    """Check that a run goes on with the data that it was trained on.

    Args:
        path: Path of the run.
        record: Content of its ``config.json``.
        saved: Content of its newest checkpoint; None if there is none.
        given: `graph_record` of the graph to go on with.

    Raises:
        InputError: They have changed.
    """
    before = (saved["progress"].get("data") if saved else None) or record.get("data")
    if not before:
        warn_about_data(f"the run in {path} recorded no fingerprint of its data: whether they changed is not known")
        return
    if changed := changed_parts(before, given["data"]):
        first, second = record.get("ids"), given.get("ids")
        by_id = f"; by their ids, {compare_summaries(first, second)}" if first and second else ""
        raise InputError(
            f"the data of the run in {path} have changed",
            needed=f"the topology, features, labels{', split and ids' if IDS in changed else ' and split'} that it was "
            "trained on",
            got=f"{', '.join('other ids' if part == IDS else f'another {part}' for part in changed)}{by_id}",
            repair="give the data of before; or train on with these by --allow-changed-data (allow_changed_data=True), "
            "which forgets the scores and the best epoch so far; or start a new run",
        )
