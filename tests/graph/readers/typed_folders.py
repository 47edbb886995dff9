"""Folders of tables of several types, for the tests of their readers."""

import json
from pathlib import Path

import torch

PAPERS = "id,venue,split,year,cited\np1,ml,train,2001,5\np2,db,val,2003,1\np3,ml,test,2002,0\n"
AUTHORS = "author_id,h\na1,10\na2,20\n"
WRITES = "author_id,paper_id,weight\na1,p1,2\na2,p3,3\na1,p3,1\n"
CITES = "src,dst\np3,p1\np2,p1\n"


def make_folder(folder: Path) -> Path:
    """Papers, authors and three edges between them, two among papers."""
    for name, text in (
        ("nodes/paper.csv", PAPERS),
        ("nodes/author.csv", AUTHORS),
        ("edges/author__writes__paper.csv", WRITES),
        ("edges/paper__cites__paper.csv", CITES),
    ):
        write(folder / name, text)
    return folder


def make_config():
    """The construction config of the same tables, papers first."""
    return {
        "version": "gconstruct-v0.1",
        "nodes": [
            {
                "node_type": "paper",
                "format": {"name": "csv"},
                "files": "nodes/paper.csv",
                "node_id_col": "id",
                "features": [{"feature_col": ["year", "cited"]}],
                "labels": [{"label_col": "venue", "task_type": "classification", "split_pct": [0.34, 0.33, 0.33]}],
            },
            {
                "node_type": "author",
                "format": {"name": "csv"},
                "files": ["nodes/auth*.csv"],
                "node_id_col": "author_id",
                "features": [{"feature_col": "h"}],
            },
        ],
        "edges": [
            {
                "relation": ["author", "writes", "paper"],
                "format": {"name": "csv"},
                "files": "edges/author__writes__paper.csv",
                "source_id_col": "author_id",
                "dest_id_col": "paper_id",
                "features": [{"feature_col": "weight", "feature_name": "weight"}],
            },
            {
                "relation": ["paper", "cites", "paper"],
                "format": {"name": "csv"},
                "files": "edges/paper__cites__paper.csv",
                "source_id_col": "src",
                "dest_id_col": "dst",
            },
        ],
    }


def write_config(folder: Path, config, name="graph.json") -> Path:
    make_folder(folder)
    return write(folder / name, json.dumps(config))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def dense(graph):
    """Features as an array."""
    rows = graph.features
    return (rows if isinstance(rows, torch.Tensor) else rows.to_dense()).numpy()


def named_edges(graph):
    """Every edge with the ids of its ends, the name of its relation and its weight."""
    weight = graph.topology.weight
    weights = [1.0] * graph.num_edges if weight is None else weight.tolist()
    relations = [graph.relation_names[number] for number in graph.topology.relation.tolist()]
    return sorted(
        (graph.ids[src], name, graph.ids[dst], each)
        for (src, dst), name, each in zip(graph.edge_index.T.tolist(), relations, weights, strict=True)
    )
