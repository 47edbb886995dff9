"""Graphs for tests: hand-made, random, and drawn by hypothesis; what the kernels should compute; a folder on a disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.engine.shard import layer_topology
from outgrow.graph.graph import Graph, NodeType
from outgrow.graph.topology import Topology
from outgrow.nn.model import Model
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.storage.scratch_dir import is_in_memory


@contextmanager
def one_kernel_thread() -> Iterator[None]:
    """Kernels run on one thread."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        yield
    finally:
        numba.set_num_threads(before)


def topology_of(
    num_nodes: int, pairs: Iterable[tuple[int, int]], *, index: torch.dtype = torch.int32, weighted: bool = False
) -> Topology:
    """A topology of the edges ``src -> dst``, in the order of a store; weights in [0.5, 1.5) where wanted."""
    edges = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    src, dst = edges[:, 0], edges[:, 1]
    order = np.lexsort((src, dst))
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(dst, minlength=num_nodes), out=indptr[1:])
    weight = torch.from_numpy(0.5 + np.random.default_rng(1).random(len(edges), dtype=np.float32))
    return Topology(
        indptr=torch.from_numpy(indptr),
        indices=torch.from_numpy(src[order]).to(index),
        weight=weight if weighted else None,
    )


def random_topology(
    num_nodes: int, num_edges: int, *, seed: int = 0, index: torch.dtype = torch.int32, weighted: bool = False
) -> Topology:
    """A skewed directed multi-graph with self-loops, parallel edges and (from 8 nodes on) isolated nodes."""
    random = np.random.default_rng(seed)
    crowd = max(1, num_nodes - num_nodes // 4)
    src = (crowd * random.random(num_edges) ** 2).astype(np.int64)
    dst = (crowd * random.random(num_edges) ** 2).astype(np.int64)
    loops = [(v, v) for v in range(0, crowd, 5)] if num_edges else []
    pairs = [*zip(src.tolist(), dst.tolist(), strict=True), *loops, *loops[:1]]
    return topology_of(num_nodes, pairs, index=index, weighted=weighted)


def with_times(topology: Topology) -> Topology:
    """The same graph with few distinct times of nodes and edges."""
    random = np.random.default_rng(5)
    times = (torch.from_numpy(random.integers(0, 12, count)) for count in (topology.num_edges, topology.num_nodes))
    edge_time, node_time = times
    return replace(topology, edge_time=edge_time, node_time=node_time)


def with_relations(topology: Topology, count: int) -> Topology:
    """The same graph with a relation for each edge."""
    relation = np.random.default_rng(2).integers(0, count, topology.num_edges)
    return replace(topology, relation=torch.from_numpy(relation.astype(np.int8)))


def with_edge_features(topology: Topology, count: int = 3, dtype: torch.dtype = torch.float64) -> Topology:
    """The same graph with features of each edge: normal numbers, or codes of 5 categories."""
    if dtype.is_floating_point:
        return replace(topology, edge_features=normal(topology.num_edges, count, seed=3, dtype=dtype))
    codes = torch.from_numpy(np.random.default_rng(6).integers(0, 5, (topology.num_edges, count))).to(dtype)
    return replace(topology, edge_features=codes, feature_sizes=(5,) * count)


class Drawn(NamedTuple):
    """A bipartite multi-graph: not necessarily as many sources as destinations."""

    num_src: int
    num_dst: int
    pairs: list[tuple[int, int]]

    def edges(self, index: torch.dtype = torch.int32) -> Edges:
        """In-edges in compressed columns."""
        ordered = sorted(self.pairs, key=lambda pair: pair[1])
        counts = np.bincount([dst for _, dst in ordered] or np.empty(0, np.int64), minlength=self.num_dst)
        indptr = torch.from_numpy(np.concatenate(([0], np.cumsum(counts))).astype(np.int64))
        indices = torch.tensor([src for src, _ in ordered], dtype=index)
        return Edges(indptr=indptr, indices=indices, num_src=self.num_src)


@st.composite
def bipartite(draw: st.DrawFn, most: int = 7) -> Drawn:
    """Any small bipartite multi-graph, those without edges, sources or destinations included."""
    num_src, num_dst = draw(st.integers(0, most)), draw(st.integers(0, most))
    if num_src == 0 or num_dst == 0:
        return Drawn(num_src, num_dst, [])
    pair = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    return Drawn(num_src, num_dst, draw(st.lists(pair, max_size=3 * most)))


@st.composite
def topologies(draw: st.DrawFn, most: int = 8, *, weighted: bool = False) -> Topology:
    """Any small directed multi-graph: self-loops, parallel edges, isolated nodes, one node, no edges."""
    num_nodes = draw(st.integers(1, most))
    node = st.integers(0, num_nodes - 1)
    return topology_of(num_nodes, draw(st.lists(st.tuples(node, node), max_size=3 * most)), weighted=weighted)


def block_of(edges: Edges) -> Block:
    """A block of edges whose nodes are numbered from 0; its degrees are those of the block."""
    degree = (edges.indptr[1:] - edges.indptr[:-1]).double()
    return Block(
        edges=edges,
        src_nodes=torch.arange(edges.num_src),
        dst_nodes=torch.arange(edges.num_dst),
        src_degree=torch.ones(edges.num_src, dtype=torch.float64),
        dst_degree=degree,
    )


def destinations_of(edges: Edges) -> Tensor:
    """``[E]`` int64: destination of each edge, by a loop."""
    indptr = edges.indptr.tolist()
    return torch.tensor([v for v in range(edges.num_dst) for _ in range(indptr[v], indptr[v + 1])], dtype=torch.int64)


def naive_sum(edges: Edges, src_VCF: Tensor, weight_EK: Tensor | None) -> Tensor:
    """The weighted sum with one row per edge."""
    rows = src_VCF[edges.indices.long()]
    message = rows if weight_EK is None else weight_EK[:, :, None] * rows
    out = torch.zeros(edges.num_dst, *message.shape[1:], dtype=src_VCF.dtype)
    return out.index_add(0, destinations_of(edges), message)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers, the same for the same seed and shape."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def dense_adjacency(topology: Topology) -> NDArray[np.float64]:
    """``[V, V]``: sum of the weights of the edges ``column -> row``."""
    out = np.zeros((topology.num_nodes, topology.num_nodes))
    src, dst = topology.indices.numpy(), destinations_of(topology.block.edges).numpy()
    np.add.at(out, (dst, src), 1.0 if topology.weight is None else topology.weight.double().numpy())
    return out


def whole_blocks(model: Model, topology: Topology) -> list[Block]:
    """One block per layer, each the whole graph as the layer wants it; the arrays derived from them are shared."""
    return [layer_topology(topology, layer).block for layer in model.layers_list()]


@cache
def disk_folder() -> Path:
    """A folder on a disk: that of temporary files, or one in the repository where these are in memory.

    Tests that need one are skipped where there is neither.
    """
    temporary, own = Path(tempfile.gettempdir()), Path(__file__).resolve().parents[1] / ".scratch"
    if not is_in_memory(temporary):
        return temporary
    if is_in_memory(own.parent):
        pytest.skip("neither temporary files nor the repository are on a disk", allow_module_level=True)
    own.mkdir(exist_ok=True)
    return own


def sparse_rows(x_VD: Tensor, *, least: float) -> SparseRows:
    """The elements that are larger than ``least``."""
    rows, columns = (x_VD > least).nonzero(as_tuple=True)
    ends = torch.bincount(rows, minlength=len(x_VD)).cumsum(0)
    return SparseRows(
        indptr=torch.cat([ends.new_zeros(1), ends]),
        indices=columns.int(),
        values=x_VD[rows, columns],
        num_columns=x_VD.shape[1],
    )


def in_blocks(graph: Graph) -> Graph:
    """The graph with two types of nodes, of which each has half of the feature columns."""
    x_VD = graph.features
    assert isinstance(x_VD, Tensor)
    count, width = x_VD.shape[0], x_VD.shape[1] // 2
    middle = count // 3
    kinds = (
        NodeType(name="first", first=0, last=middle, num_columns=width),
        NodeType(name="second", first=middle, last=count, num_columns=x_VD.shape[1] - width),
    )
    blocks = x_VD[:middle, :width].contiguous(), x_VD[middle:, width:].contiguous()
    ranges = slice(0, middle), slice(middle, count)
    return replace(graph, features=BlockRows(blocks=blocks, rows=ranges, num_rows=count), node_types=kinds)
