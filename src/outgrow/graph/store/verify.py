"""Full check of a graph, whose arrays may be larger than memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import are_columns_of
from outgrow.graph.builders.edge_features import EdgeFeatureCheck
from outgrow.graph.builders.node_tables import iter_dense_blocks
from outgrow.graph.builders.validate import (
    FiniteCheck,
    check_node_types,
    check_split_labels,
    check_split_type_labels,
    validate_held_out_links,
    validate_labels,
    validate_split,
)
from outgrow.graph.graph import Graph
from outgrow.graph.readers.source import LazyMatrix
from outgrow.graph.readers.times import validate_times
from outgrow.graph.store.verify_ids import verify_ids
from outgrow.graph.topology import Topology
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.owned_rows import OwnedRows, held_rows
from outgrow.ops.sampling.time_order import iterate_time_order
from outgrow.ops.sparse import SparseRows

_BLOCK = 1 << 20
_REPAIR = "build the graph again from its source"


def verify_graph(graph: Graph) -> None:
    """Check ranges of nodes, relations, labels and links, row order, splits, ids, and that numbers are finite.

    Reads everything once, in blocks.

    Raises:
        InputError: A value is wrong; gives the number of such values where they can be counted, and the
            first.
    """
    _check_topology(graph.topology, graph.num_nodes, graph.num_relations)
    _check_features(graph)
    labels = None if graph.labels is None else graph.labels.numpy()
    if labels is not None:
        _check_labels(labels, graph.num_classes, graph.class_names, graph.num_nodes)
    counts = {kind.name: kind.last - kind.first for kind in graph.node_types}
    for each in graph.type_labels:
        if each.name not in counts:
            raise _graph_error("labels are those of no node type", f"types {', '.join(counts)}", each.name)
        _check_labels(each.labels.numpy(), each.num_classes, each.class_names, counts[each.name])
    own = {each.name: each.labels.numpy() for each in graph.type_labels}
    for split in (graph.split, *graph.splits):
        parts = validate_split((split.train.numpy(), split.val.numpy(), split.test.numpy()), graph.num_nodes)
        check_split_labels(labels, parts)
        check_split_type_labels(own, graph.node_types, parts)
    validate_held_out_links(graph.held_out_links, graph.num_nodes, graph.num_relations)
    check_node_types(graph.node_types, graph.num_nodes, graph.num_features)
    if graph.ids is not None:
        verify_ids(graph.ids, graph.num_nodes, graph.type_borders)


def _check_labels(labels: NDArray[Any], count: int, class_names: tuple[str, ...], num_nodes: int) -> None:
    if labels.dtype.kind == "f" and len(labels) == num_nodes:
        _check_targets(labels, count)
        return
    # Without class names, the number of classes is that of the largest label.
    _, classes = validate_labels(labels, class_names, num_nodes)
    if classes > count:
        raise _graph_error("a label is out of range", f"labels below {count}", f"label {classes - 1}")


def _check_targets(labels: NDArray[Any], count: int) -> None:
    columns = 1 if labels.ndim == 1 else labels.shape[1]
    if columns != count or np.isinf(labels).any():
        raise _graph_error(
            "targets of a regression are wrong",
            f"{count} columns of finite numbers, or NaN",
            f"{columns} columns, {int(np.isinf(labels).sum())} infinite numbers",
        )


def _check_topology(topology: Topology, num_nodes: int, num_relations: int) -> None:
    # Row ends first: the check of the order looks edges up in them.
    _check_indptr("indptr", topology.indptr, topology.num_edges)
    _check_range("an edge leads to a node that does not exist", topology.indices, num_nodes)
    if topology.relation is not None:
        _check_range("a relation is out of range", topology.relation, num_relations)
    _check_order(topology)
    for what, times, count in (
        ("edge", topology.edge_time, topology.num_edges),
        ("node", topology.node_time, num_nodes),
    ):
        if times is not None:
            validate_times(times.numpy(), count, what)
    _check_time_order(topology)
    if topology.weight is not None:
        weight = topology.weight.numpy()
        for first in range(0, len(weight), _BLOCK):
            good = np.isfinite(weight[first : first + _BLOCK])
            if not good.all():
                raise _graph_error(
                    "an edge weight is not finite", "finite weights", f"another at edge {first + good.argmin()}"
                )
    _check_edge_features(topology)


def _check_time_order(topology: Topology) -> None:
    known = topology.known_time_order
    if known is None:
        return
    edge_time, node_time = (None if each is None else each.numpy() for each in (topology.edge_time, topology.node_time))
    graph, done = (topology.indptr.numpy(), topology.indices.numpy()), 0
    for part in iterate_time_order(graph, edge_time, node_time, _BLOCK):
        end = done + len(part.times)
        pairs = (part.edges, known.edges[done:end]), (part.times, known.times[done:end])
        if not all(np.array_equal(*pair) for pair in pairs):
            raise _graph_error("in-edges are not in the order of their times", "a sorted row", f"edges from {done}")
        done = end


def _check_edge_features(topology: Topology) -> None:
    features, sizes = topology.edge_features, topology.feature_sizes
    if features is None:
        return
    shape = list(features.shape)
    if features.dtype.is_floating_point == bool(sizes) or features.dtype == torch.bool or min(sizes, default=1) < 1:
        needed = "codes with the size of each column (feature_sizes), or floating numbers without sizes"
        raise _graph_error("features of edges are unclear", needed, f"{features.dtype}, sizes {list(sizes)}")
    if len(shape) != 2 or shape[0] != topology.num_edges or not shape[1] or len(sizes) not in (0, shape[1]):
        needed = f"a row for each of {topology.num_edges} edges, of at least one column"
        raise _graph_error("features of edges do not fit the edges", needed, f"shape {shape}, {len(sizes)} sizes")
    columns = topology.feature_columns
    if columns and not are_columns_of(columns, shape[1], sizes):
        needed = f"names of the columns and categories of {shape[1]} columns, {list(sizes)} categories"
        raise _graph_error("names of features of edges do not fit them", needed, f"{len(columns)} columns")
    check = EdgeFeatureCheck(sizes)
    step = max(1, _BLOCK // shape[1])
    for first in range(0, len(features), step):
        rows = features[first : first + step]
        # NumPy has no bfloat16; float32 holds it exactly.
        block = (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()
        check.check_rows(block, first, len(block))
    check.finish(())


def _check_order(topology: Topology) -> None:
    """Check that sources ascend within each row, and relations within each pair of nodes."""
    indptr = topology.indptr.numpy()
    indices = topology.indices.numpy()
    relation = None if topology.relation is None else topology.relation.numpy()
    for first in range(0, len(indices) - 1, _BLOCK):
        last = min(first + _BLOCK, len(indices) - 1)
        # Neighbouring edges are compared across rows, without a loop over rows: most rows are short.
        here = indices[first:last]
        there = indices[first + 1 : last + 1]
        bad = there < here
        if relation is not None:
            bad |= (there == here) & (relation[first + 1 : last + 1] < relation[first:last])
        at = np.flatnonzero(bad) + first + 1
        # A source may only be smaller than the one before it where a new row starts.
        starts = indptr[np.searchsorted(indptr, at)] == at
        if not starts.all():
            raise _graph_error(
                "in-edges are not sorted", "rows sorted by source, then relation", f"edge {at[~starts][0]}"
            )


def _check_features(graph: Graph) -> None:
    features = graph.features
    if features is None:
        return
    if features.shape[0] != graph.num_nodes or not features.dtype.is_floating_point:
        got = f"{features.dtype} of shape {list(features.shape)}"
        raise _graph_error(
            "features do not fit the nodes", f"floating rows, one for each of {graph.num_nodes} nodes", got
        )
    if isinstance(features, OwnedRows):
        _check_part(graph, features)
    features = held_rows(features)
    if isinstance(features, BlockRows):
        _check_blocks(graph, features)
        return
    if not isinstance(features, SparseRows):
        # The blocks are only checked: the last step raises if a value is not finite.
        _check_finite(features)
        return
    _check_indptr("feature_indptr", features.indptr, len(features.indices))
    _check_range("sparse features have a column that does not exist", features.indices, features.num_columns)
    check = FiniteCheck()
    indptr = features.indptr.numpy()
    indices = features.indices.numpy()
    values = features.values.numpy()
    for first in range(0, len(values), _BLOCK):
        part = slice(first, first + _BLOCK)
        # The block is cut by values, not by rows, since a row may be longer than a block.
        row = int(np.searchsorted(indptr, first, side="right")) - 1
        end = int(np.searchsorted(indptr, first + _BLOCK)) + 1
        check.check_sparse(indptr[row:end] - first, indices[part], values[part], row)
    check.raise_if_any()


def _check_part(graph: Graph, features: OwnedRows) -> None:
    """Check that the rows are those of all nodes of a part."""
    part = graph.part
    if part is None:
        raise _graph_error("features are those of some nodes", "a part of a graph, or features of all nodes", "neither")
    _check_range("a node is in no part", part.node_part, part.num_parts)
    own = (part.node_part == part.number).nonzero()[:, 0]
    if len(features.rows) != len(own) or not torch.equal(features.nodes, own):
        needed = f"the {len(own):,} nodes of part {part.number}, ascending"
        raise _graph_error("features are not those of a part", needed, f"{len(features.rows):,} rows of other nodes")


def _check_blocks(graph: Graph, features: BlockRows) -> None:
    kinds = [kind for kind in graph.node_types if kind.num_columns]
    nodes = graph.features.nodes if isinstance(graph.features, OwnedRows) else None
    ends = torch.tensor([[kind.first, kind.last] for kind in kinds])
    spans = [slice(*span) for span in (ends if nodes is None else torch.searchsorted(nodes, ends)).tolist()]
    wanted = [(span, kind.num_columns) for span, kind in zip(spans, kinds, strict=True)]
    found = [(rows, last - first) for rows, (first, last) in zip(features.rows, features.columns, strict=True)]
    sizes = [len(block) for block in features.blocks] == [span.stop - span.start for span in spans]
    if any(isinstance(rows, torch.Tensor) for rows, _ in found) or found != wanted or not sizes:
        raise _graph_error(
            "blocks of features do not fit the types of nodes",
            f"a block for each of {', '.join(kind.name for kind in kinds) or 'no types'}, in their order",
            f"{len(found)} blocks of {', '.join(str(list(block.shape)) for block in features.blocks)}",
        )
    for block, kind in zip(features.blocks, kinds, strict=True):
        _check_finite(block, kind.first)


def _check_finite(rows: torch.Tensor, first_node: int = 0) -> None:
    # The blocks are only checked: the last step raises if a value is not finite.
    given = _Float32Matrix(rows) if rows.dtype == torch.bfloat16 else rows.numpy()
    for _ in iter_dense_blocks(given, first_node):
        pass


class _Float32Matrix(LazyMatrix):
    """Rows of a type that NumPy does not have, converted to float32 when they are read."""

    def __init__(self, rows_VD: Tensor) -> None:
        self._rows_VD = rows_VD

    @property
    def shape(self) -> tuple[int, int]:
        num_rows, width = self._rows_VD.shape
        return num_rows, width

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def read_rows(self, first: int, last: int) -> NDArray[Any]:
        return self._rows_VD[first:last].float().numpy()


def _check_indptr(name: str, ends: Tensor, total: int) -> None:
    values: NDArray[Any] = ends.numpy()
    if int(values[0]) != 0 or int(values[-1]) != total:
        raise _graph_error(f"{name} is broken", f"row ends from 0 to {total}", f"{values[0]} to {values[-1]}")
    for first in range(0, len(values) - 1, _BLOCK):
        here = values[first : first + _BLOCK]
        there = values[first + 1 : first + _BLOCK + 1]
        falls = there < here[: len(there)]  # a difference could be too large for its type
        if falls.any():
            raise _graph_error(
                f"{name} is broken", "row ends that never fall", f"a fall at row {first + falls.argmax()}"
            )


def _check_range(what: str, ids: Tensor, limit: int) -> None:
    values: NDArray[Any] = ids.numpy()
    bad = 0
    first_bad = -1
    for first in range(0, len(values), _BLOCK):
        outside = (values[first : first + _BLOCK] < 0) | (values[first : first + _BLOCK] >= limit)
        if not bad and outside.any():
            first_bad = first + int(outside.argmax())
        # All blocks are counted, so that the error says whether one value is wrong or all are.
        bad += int(np.count_nonzero(outside))
    if bad:
        got = f"{bad} of {len(values)} outside, the first is {values[first_bad]} at position {first_bad}"
        raise _graph_error(what, f"numbers from 0 to {limit - 1}", got)


def _graph_error(what: str, needed: str, got: str) -> InputError:
    return InputError(what, needed=needed, got=got, repair=_REPAIR)
