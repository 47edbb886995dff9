"""Forms of graphs of several types and of objects of other packages, and what becomes of each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from graph.readers.dgl_files import write_dgl_file
from graph.readers.typed_folders import AUTHORS, CITES, PAPERS, WRITES, make_config, make_folder, write, write_config

EDGES = [["author__writes__paper", 3], ["paper__cites__paper", 2]]
TYPES = [["author", 2], ["paper", 3]]
IDS = ["a1", "a2", "p1", "p2", "p3"]


class Form(NamedTuple):
    """A form of input.

    Attributes:
        name: What it is.
        make: Writes it below a folder and returns the path to convert; or returns an object for ``og.load``.
        options: Options of ``outgrow convert``, as fields of `TableOptions`.
        expected: Attributes of the graph, as lists; or words of the refusal.
    """

    name: str
    make: Callable[[Path], Any]
    options: dict[str, Any]
    expected: dict[str, Any] | tuple[str, ...]


def parquet(folder: Path) -> Path:
    """The folder with parquet files."""
    from pyarrow import parquet as files

    make_folder(folder)
    for path in [*folder.glob("*/*.csv")]:
        files.write_table(arrow_table(path), path.with_suffix(".parquet"))
        path.unlink()
    return folder


def arrow_table(path: Path) -> Any:
    """A csv file as a table of pyarrow."""
    from pyarrow import csv

    return csv.read_csv(path)


def parts_and_gzip(folder: Path) -> Path:
    """Papers in a folder of parts, authors in a packed file with tabs."""
    make_folder(folder)
    header, *rows = PAPERS.splitlines(keepends=True)
    (folder / "nodes/paper.csv").unlink()
    for at, row in enumerate(rows):
        write(folder / f"nodes/paper/part-{at}.csv", header + row)
    (folder / "nodes/author.csv").unlink()
    (folder / "nodes/author.tsv.gz").write_bytes(gzip.compress(AUTHORS.replace(",", "\t").encode()))
    return folder


def changed(name: str, text: str | None) -> Callable[[Path], Path]:
    """The folder with another file."""

    def make(folder: Path) -> Path:
        make_folder(folder)
        if text is None:
            (folder / name).unlink()
        else:
            write(folder / name, text)
        return folder

    return make


def numbered(folder: Path) -> Path:
    """Tables without ids."""
    write(folder / "nodes/user.csv", "x\n1\n2\n")
    write(folder / "nodes/item.csv", "x\n5\n6\n7\n")
    write(folder / "edges/user__buys__item.csv", "user,item\n1,2\n")
    return folder


def config(name: str, **changes: Any) -> Callable[[Path], Path]:
    """A construction config; ``changes`` are keys of its first node type."""

    def make(folder: Path) -> Path:
        made = make_config()
        made["nodes"][0] |= changes
        if name.endswith("json"):
            write_config(folder, made, name)
        else:
            import yaml

            write(make_folder(folder) / name, yaml.safe_dump(made))
        return folder if name.startswith("graph") else folder / name

    return make


def json_lines(folder: Path) -> Path:
    """A config whose papers are JSON lines in two files."""
    for at, row in enumerate(({"id": "p1", "year": 1, "cited": 2}, {"id": "p3", "year": 4, "cited": 5})):
        write(folder / f"paper{at}.json", json.dumps(row) + "\n")
    made = make_config()
    made["nodes"][0] |= {"format": {"name": "json"}, "files": "paper*.json", "labels": []}
    made["edges"][1]["files"] = "none.csv"
    write_config(folder, made)
    write(folder / "none.csv", "src,dst\np3,p1\n")
    return folder


def dgl(name: str) -> Callable[[Path], Path]:
    """A file of DGL."""
    return lambda folder: write_dgl_file(folder, name)


def hetero_data(**changes: Any) -> Callable[[Path], Any]:
    """A HeteroData of the same graph; ``changes`` are attributes of its papers."""

    def make(folder: Path) -> Any:
        from torch_geometric.data import HeteroData

        data = HeteroData()
        data["author"].x = torch.tensor([[10.0], [20.0]])
        data["paper"].x = torch.tensor([[2001.0, 5], [2003, 1], [2002, 0]])
        data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 0], [0, 2, 2]])
        data["paper", "cites", "paper"].edge_index = torch.tensor([[2, 1], [0, 0]])
        for name, value in changes.items():
            data["paper"][name] = value
        return data

    return make


def multigraph(folder: Path) -> Any:
    """A multi-graph of NetworkX with names and text keys."""
    import networkx as nx

    graph = nx.MultiDiGraph()
    graph.add_edge("ann", "bob", key="knows")
    graph.add_edge("ann", "bob", key="likes")
    return graph


def sparse_matrix(folder: Path) -> Any:
    """A matrix of SciPy."""
    from scipy.sparse import coo_array

    return coo_array((np.array([2.0, 1.0]), (np.array([0, 2]), np.array([1, 0]))), shape=(4, 4))


def frames(*, typed: bool = False, arrow: bool = False) -> Callable[[Path], Any]:
    """Tables of nodes and edges in memory."""

    def make(folder: Path) -> Any:
        make_folder(folder)
        tables = {path.stem: arrow_table(path) for path in folder.glob("*/*.csv")}
        found = tables if arrow else {name: table.to_pandas() for name, table in tables.items()}
        if not typed:
            return {"nodes": found["paper"], "edges": found["paper__cites__paper"]}
        edges = {
            ("author", "writes", "paper"): found["author__writes__paper"],
            ("paper", "cites", "paper"): found["paper__cites__paper"],
        }
        return {"nodes": {"author": found["author"], "paper": found["paper"]}, "edges": edges}

    return make


def edge_frame(folder: Path) -> Any:
    """A frame of edges."""
    import pandas as pd

    return pd.DataFrame({"from_account": ["x", "y"], "to_account": ["y", "z"], "amount": [1.5, 2.5]})


WHOLE = {"types": TYPES, "ids": IDS, "edges": EDGES, "widths": [1, 2]}
ADDED = {"types": [["author", 2], ["paper", 4]], "edges": [["author__writes__paper", 3], ["paper__cites__paper", 1]]}
FEW = [["author__writes__paper", 3], ["paper__cites__paper", 1]]
FORMS = [
    Form("a folder of csv files", make_folder, {}, WHOLE),
    Form("a folder of parquet files", parquet, {}, WHOLE),
    Form("parts, and gzip with tabs", parts_and_gzip, {}, WHOLE),
    Form("a label of one type, a split drawn of it", make_folder, {"label": ("venue",), "split": "0.4,0.3,0.3"}, WHOLE),
    Form("features by name", make_folder, {"features": ("h", "cited")}, {"types": TYPES, "widths": [0, 0]}),
    Form("categories", make_folder, {"categorical": "onehot"}, {"types": TYPES, "widths": [1, 4]}),
    Form("a type column is that of the file", changed("nodes/author.csv", "id,type\na1,x\na2,y\n"), {}, {"ids": IDS}),
    Form("numbers of rows instead of ids", numbered, {}, {"ids": None, "types": [["item", 3], ["user", 2]]}),
    Form("a type without a table", changed("nodes/author.csv", None), {}, ("without a table", "--unknown-nodes add")),
    Form(
        "a type of edges alone",
        changed("nodes/author.csv", None),
        {"unknown_nodes": "add"},
        {"types": [["paper", 3], ["author", 2]], "ids": ["p1", "p2", "p3", "a1", "a2"]},
    ),
    Form("an unknown node", changed("edges/paper__cites__paper.csv", "src,dst\np9,p1\n"), {}, ("'p9'", "line 2")),
    Form(
        "an unknown node, dropped",
        changed("edges/paper__cites__paper.csv", CITES + "p9,p1\n"),
        {"unknown_nodes": "drop"},
        WHOLE,
    ),
    Form(
        "an unknown node, added",
        changed("edges/paper__cites__paper.csv", "src,dst\np9,p1\n"),
        {"unknown_nodes": "add"},
        ADDED,
    ),
    Form("an id twice", changed("nodes/author.csv", AUTHORS + "a1,3\n"), {}, ("'a1' occurs twice", "line 4")),
    Form("weights of one type", make_folder, {}, {"weights": [[1.0, 2.0, 3.0], [1.0, 1.0]]}),
    Form("a name without types", changed("edges/likes.csv", WRITES), {}, ("SOURCE__RELATION__DESTINATION",)),
    Form(
        "graph.json of GraphStorm", config("graph.json"), {}, {"types": [["paper", 3], ["author", 2]], "edges": EDGES}
    ),
    Form("the same as graph.yaml", config("graph.yaml"), {}, {"types": [["paper", 3], ["author", 2]], "edges": EDGES}),
    Form("a config of another name", config("mine.yml"), {}, {"types": [["paper", 3], ["author", 2]], "edges": EDGES}),
    Form("JSON lines in two files", json_lines, {}, {"types": [["paper", 2], ["author", 2]], "edges": FEW}),
    Form("HDF5", config("graph.json", format={"name": "hdf5"}), {}, ("parquet or json", "hdf5")),
    Form("an unknown key", config("graph.json", node_id="id"), {}, ("did you mean node_id_col",)),
    Form("a file of DGL", dgl("plain"), {}, {"ids": None, "types": [], "count": 5}),
    Form("a file of DGL with types", dgl("typed"), {}, {"types": [["author", 3], ["paper", 4], ["venue", 1]]}),
    Form("a file of DGL with two graphs", dgl("two"), {}, ("2 graphs", "save one graph")),
    Form("HeteroData", hetero_data(), {}, {"types": TYPES, "edges": EDGES, "widths": [1, 2]}),
    Form(
        "HeteroData with several labels a node",
        hetero_data(y=torch.eye(3)),
        {},
        {"types": TYPES, "labels": [[0, 0, 0]] * 2 + torch.eye(3).int().tolist()},
    ),
    Form("HeteroData with times", hetero_data(time=torch.arange(3)), {}, {"unread": []}),
    Form("keys of a multi-graph", multigraph, {}, {"ids": ["ann", "bob"], "edges": [["knows", 1], ["likes", 1]]}),
    Form("a sparse matrix", sparse_matrix, {}, {"count": 4, "edge_index": [[2, 0], [0, 1]]}),
    Form("a frame of edges", edge_frame, {"columns": {"src": "from_account", "dst": "to_account"}}, {"count": 3}),
    Form("frames of nodes and edges", frames(), {}, {"ids": ["p1", "p2", "p3"], "types": []}),
    Form("frames of types", frames(typed=True), {}, WHOLE),
    Form("tables of pyarrow of types", frames(typed=True, arrow=True), {}, WHOLE),
    Form("a list of two graphs", lambda _: [1, 2], {}, ("holds 2 graphs", "graphs[0]")),
    Form("frames under other keys", lambda _: {"vertices": 1}, {}, ('{"nodes": frame, "edges": frame}',)),
]
