"""Folders with node tables of many forms, for tests."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

EDGES = "src,dst\na,b\nb,c\nc,d\nd,a\n"
PLAIN = "id,label,split,x1,x2\na,cat,train,1,2\nb,dog,val,3,4\nc,cat,test,5,6\nd,,none,7,8\n"
NUMBERED = "src,dst\n0,1\n1,2\n2,3\n3,0\n"


def files(**texts: str) -> Callable[[Path], Path]:
    """Makes a folder of text files; ``__`` in a name is a dot, ``_in_`` a folder."""

    def make(folder: Path) -> Path:
        for name, text in texts.items():
            path = folder / name.replace("_in_", "/").replace("__", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return folder

    return make


def parquet(**columns: Any) -> Callable[[Path], Path]:
    """Makes a folder with edges.csv, and nodes.parquet of these columns."""

    def make(folder: Path) -> Path:
        import pyarrow as pa
        from pyarrow import parquet as written

        (folder / "edges.csv").write_text(EDGES)
        written.write_table(pa.table(columns), folder / "nodes.parquet")
        return folder

    return make


def packed(keep: int | None = None) -> Callable[[Path], Path]:
    """Makes a folder with nodes.csv.gz, of which the first bytes are kept."""

    def make(folder: Path) -> Path:
        (folder / "edges.csv").write_text(EDGES)
        (folder / "nodes.csv.gz").write_bytes(gzip.compress(PLAIN.encode())[:keep])
        return folder

    return make


def in_parts(folder: Path) -> Path:
    """A folder of parts for the nodes, and an Arrow file for the edges."""
    import pyarrow as pa
    from pyarrow import feather

    head, *rows = PLAIN.splitlines()
    (folder / "nodes").mkdir()
    for at, part in enumerate((rows[:2], rows[2:])):
        (folder / "nodes" / f"part-{at}.csv").write_text("\n".join([head, *part]))
    feather.write_feather(pa.table({"src": ["a", "b"], "dst": ["b", "d"]}), folder / "edges.feather")
    return folder


def latin(folder: Path) -> Path:
    """Nodes in another encoding."""
    (folder / "edges.csv").write_text(EDGES)
    (folder / "nodes.csv").write_bytes("id,label\na,Zürich\nb,Bern\n".encode("latin-1"))
    return folder


def heterophilous(folder: Path) -> Path:
    """A file as the benchmark of Platonov et al. has it."""
    masks = {f"{part}_masks": np.eye(4, dtype=bool)[[at, (at + 1) % 4]] for at, part in enumerate(("train", "val"))}
    arrays = {"edges": np.array([[0, 1], [1, 2], [2, 3]]), "node_features": np.eye(4, dtype=np.float32)}
    np.savez(folder / "g.npz", **arrays, node_labels=np.array([0, 1, 0, 1]), **masks)
    return folder / "g.npz"


def folders_of_splits(folder: Path) -> Path:
    """Two splits, a folder each."""
    texts = {"edges.csv": EDGES, "nodes.csv": "id,x\na,1\nb,2\nc,3\nd,4\n"}
    for at, names in enumerate((("train", "a\nb"), ("train", "d"), ("test", "a"))):
        texts[f"split/{min(at, 1)}/{names[0]}.csv"] = f"node\n{names[1]}\n"
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def geom_gcn(folder: Path) -> Path:
    """Ten split files with masks, as Geom-GCN has them."""
    files(nodes__csv="id,y,x\na,0,1\nb,1,2\nc,0,3\nd,1,4\n", edges__csv=EDGES)(folder)
    (folder / "splits").mkdir()
    for at in range(11):
        part = np.eye(4, dtype=bool)[at % 4]
        np.savez(folder / "splits" / f"film_split_0.6_0.2_{at}.npz", train_mask=part, val_mask=np.roll(part, 1))
    return folder
