"""`top_links`: the best answers of a link model, by the ids of nodes and the names of relations."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_type_hints

import numpy as np
import torch
from torch import Tensor

from outgrow.app.compatibility import validate_argument_types
from outgrow.app.node_names import NodeNames, find_nodes
from outgrow.app.node_outputs import compute_output_tables
from outgrow.app.output_request import embedding_depth, make_output_request, to_ids
from outgrow.app.predictions import validate_output_path
from outgrow.app.runs.data import align_with_model
from outgrow.app.runs.directory import convert_write_errors
from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write
from outgrow.core.validation import validate_choice, validate_positive, validate_types
from outgrow.graph.graph import Graph
from outgrow.graph.link_answers import KnownAnswers, LinkQuestions, find_answer_ranges, find_known_answers
from outgrow.inference.top_links import EmbeddedNodes, find_best_answers
from outgrow.nn.decoder import Decoder
from outgrow.nn.model import Model

NodesAskedAbout = int | str | Sequence[int] | Sequence[str] | Tensor | None


class TopLinkOptions(TypedDict, total=False):
    """Options of `top_links` beside the question itself."""

    node_type: str | None
    device: str
    workers: int
    memory: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class TopLinks:
    """The best links of some nodes, by falling score.

    Attributes:
        graph: The graph whose nodes these are.
        asked: ``[Q]`` int64, the nodes asked about.
        asks_tails: Whether these are the heads of the links; else their tails.
        relation: Name of the relation; None for any.
        nodes: ``[Q, k]`` int64, the nodes at the other end; -1 where there are fewer than ``k``.
        scores: ``[Q, k]`` float32, what the decoder gives; -inf where there are fewer.
        known: ``[Q, k]`` bool: whether a link is known; always False unless known links were asked for.
    """

    graph: Graph
    asked: Tensor
    asks_tails: bool
    relation: str | None
    nodes: Tensor
    scores: Tensor
    known: Tensor

    @property
    def ids(self) -> list[list[int | str]]:
        """``[Q]`` lists of at most ``k`` ids of the nodes at the other end: numbers if the graph keeps no ids."""
        names = self.graph.ids
        return [[int(node) if names is None else names[int(node)] for node in row if node >= 0] for row in self.nodes]

    def to_table(self) -> Any:
        """Return a table of pyarrow with a row for each link.

        Its columns are ``head`` (a number), ``head_id`` and ``head_type`` (where the graph has ids and types),
        ``relation``, the same three of the ``tail``, ``rank`` (from 1), ``score`` and ``known``.
        """
        import pyarrow as pa

        there = self.nodes >= 0
        row, place = there.nonzero(as_tuple=True)
        names = NodeNames(self.graph)
        ends = {"head": self.asked[row], "tail": self.nodes[there]}
        if not self.asks_tails:
            ends = {"head": ends["tail"], "tail": ends["head"]}
        columns = {"head": ends["head"], "relation": None, "tail": ends["tail"]}
        made: dict[str, Any] = {}
        for end, numbers in columns.items():
            if numbers is None:
                made |= {} if self.relation is None else {end: pa.array([self.relation] * len(row), pa.string())}
                continue
            own = names.make_columns(numbers)
            made |= {end if name == "node" else f"{end}_{name}": each for name, each in own.items()}
        made |= {"rank": (place + 1).numpy(), "score": self.scores[there].numpy(), "known": self.known[there].numpy()}
        return pa.table(made)

    def save_table(self, path: str | Path) -> None:
        """Write the table to a file, which appears complete or not at all.

        Args:
            path: File to write or replace: ``.csv``, ``.json`` (a list of objects) or ``.parquet``.

        Raises:
            InputError: The name has another ending, or the file cannot be written.
        """
        from pyarrow import csv, parquet

        out = Path(path)
        validate_output_path(out, (".csv", ".json", ".parquet"))
        table = self.to_table()
        with convert_write_errors(out), atomic_write(out) as written:
            if out.suffix == ".json":
                written.write_text(json.dumps(table.to_pylist(), ensure_ascii=False, indent=1), "utf-8")
            elif out.suffix == ".csv":
                csv.write_csv(table, str(written))
            else:
                parquet.write_table(table, str(written))

    def __iter__(self) -> Iterator[list[tuple[int | str, float]]]:
        """Yield for each node asked about a list of pairs of an id and a score."""
        for ids, scores in zip(self.ids, self.scores.tolist(), strict=True):
            yield list(zip(ids, scores, strict=False))


@check_arguments(unchecked=("graph", "model", "heads", "tails"))
def top_links(
    graph: Graph,
    model: Model,
    *,
    heads: NodesAskedAbout = None,
    tails: NodesAskedAbout = None,
    relation: str | int | None = None,
    top: int = 10,
    include_known: bool = False,
    **options: Unpack[TopLinkOptions],
) -> TopLinks:
    """Return the most likely links of some nodes: of all nodes that may be the other end, exactly, in blocks.

    These are the nodes of each type that edges of the relation lead to. The node itself is none of them, since loops
    are no links. Known links are left out: edges of the graph, and those that it comes with to validate and to test on.

    Args:
        graph: Graph with what the model reads.
        model: Model with a decoder.
        heads: Nodes whose tails are asked for: a number or an id that is a text, or several. Ids that are integers are
            numbers here: ``graph.index_of`` finds them.
        tails: Nodes whose heads are asked for. Either these or ``heads`` are given.
        relation: Name or number of the relation; None if there is none or one, or the decoder does not read it.
        top: ``k``, the number of links of each node.
        include_known: Whether known links are among the answers too, marked.
        **options: ``node_type``, the type of the nodes asked about, where types share ids; and ``device``, ``workers``
            and ``memory`` of those who compute the embeddings: see `predict`.

    Raises:
        InputError: Both or neither of ``heads`` and ``tails`` are given; there is no such node or relation; the model
            has no decoder or does not fit the graph; or a score is not a number. Or see `predict`.
        WorkerError: A worker has died.
    """
    validate_argument_types(graph, model)
    hints = get_type_hints(TopLinkOptions)
    for name in options:
        validate_choice("option of og.top_links", name, {**inspect.signature(top_links).parameters, **hints})
    validate_types(options, hints)
    validate_positive("top_links", top=top)
    require_decoder(model)
    require_one_end(heads, tails)
    # Before the nodes are looked up: the model may know relations by another order.
    graph = align_with_model(graph, model)
    asked = to_ids(find_nodes(graph, tails if heads is None else heads, options.get("node_type")), graph.num_nodes)
    if not len(asked):
        raise InputError(
            "no node is given", needed="at least one head or tail", got="none", repair="give the nodes to ask about"
        )
    questions = LinkQuestions(asked, _find_relation(graph, model, relation), heads is not None)
    ranges = find_answer_ranges(graph, questions)
    needed = torch.unique(torch.cat([asked, *(torch.arange(*each) for each in ranges)]))
    request = make_output_request(
        graph,
        model,
        None if len(needed) == graph.num_nodes else needed,
        device=options.get("device", "auto"),
        workers=options.get("workers", 1),
        memory=options.get("memory"),
    )
    (rows,) = compute_output_tables(request, [embedding_depth(model)])
    assert isinstance(model.decoder, Decoder)
    known = find_known_answers(graph, questions)
    nothing = KnownAnswers(known.question[:0], known.answer[:0])
    best = find_best_answers(
        EmbeddedNodes(needed, rows), model.decoder, questions, ranges, nothing if include_known else known, top
    )
    return TopLinks(
        graph=graph,
        asked=asked,
        asks_tails=questions.asks_tails,
        relation=None if questions.relation is None else graph.relation_names[questions.relation],
        nodes=best.nodes,
        scores=best.scores,
        known=_mark_known(best.nodes, known, graph.num_nodes),
    )


def require_one_end(heads: object, tails: object) -> None:
    """Check that either heads or tails are given, not None.

    Raises:
        InputError: Both are, or neither.
    """
    if (heads is None) == (tails is None):
        raise InputError(
            "one end of the links must be given",
            needed="heads (--head), to ask for tails; or tails (--tail), to ask for heads",
            got="neither" if heads is None else "both",
            repair="give one of them",
        )


def require_decoder(model: Model) -> None:
    """Check that a model predicts links.

    Raises:
        InputError: It has no decoder.
    """
    if not isinstance(model.decoder, Decoder):
        has = "none" if model.decoder is None else f"{type(model.decoder).__name__}, which predicts targets of edges"
        raise InputError(
            "the model predicts no links",
            needed="a model with a decoder of links",
            got=f"{type(model).__name__} with {has}",
            repair="train with --task links, or model.with_decoder(og.nn.DistMult(width, relations))",
        )


def _find_relation(graph: Graph, model: Model, relation: str | int | None) -> int | None:
    """Return the number of a relation, None if any is asked for."""
    names = {name: number for number, name in enumerate(graph.relation_names)}
    if relation is None:
        assert model.decoder is not None
        if not model.decoder.num_relations or len(names) == 1:
            return 0 if len(names) == 1 else None
        shown = list(names)[:5]
        raise InputError(
            "no relation is given",
            needed=f"one of {len(names):,} relations: {', '.join(shown)}{', ...' if len(names) > len(shown) else ''}",
            got="none, and a decoder whose scores depend on it",
            repair="give --relation (relation=)",
        )
    if not names:
        raise InputError(
            f"the edges of {graph.name!r} have no relations",
            needed="no relation",
            got=repr(relation),
            repair="leave --relation (relation) out",
        )
    if isinstance(relation, int):
        if not 0 <= relation < len(names):
            raise InputError(
                "there is no such relation",
                needed=f"a name, or a number from 0 to {len(names) - 1}",
                got=str(relation),
                repair="give one of these",
            )
        return relation
    return validate_choice("relation", relation, names)


def _mark_known(nodes_QK: Tensor, known: KnownAnswers, num_nodes: int) -> Tensor:
    codes = np.sort((known.question * num_nodes + known.answer).numpy())
    found = (torch.arange(len(nodes_QK))[:, None] * num_nodes + nodes_QK).numpy()
    return torch.from_numpy(np.isin(found, codes)) & (nodes_QK >= 0)
