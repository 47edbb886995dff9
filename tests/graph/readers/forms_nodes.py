"""Forms of node tables, splits and labels, and what becomes of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

EDGES = "src,dst\na,b\nb,c\nc,d\nd,a\n"
NUMBERED = "src,dst\n0,1\n1,2\n2,3\n3,0\n"


class Form(NamedTuple):
    """A form of input.

    Attributes:
        name: What it is.
        make: Writes it below a folder; returns the path to convert.
        options: Options of ``outgrow convert``, as fields of `TableOptions`.
        expected: Attributes of the graph, as lists; or words of the refusal.
    """

    name: str
    make: Callable[[Path], Path]
    options: dict[str, Any]
    expected: dict[str, Any] | tuple[str, ...]


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


def heterophilous(folder: Path) -> Path:
    """A file as the benchmark of Platonov et al. has it."""
    masks = {f"{part}_masks": np.eye(4, dtype=bool)[[at, (at + 1) % 4]] for at, part in enumerate(("train", "val"))}
    arrays = {"edges": np.array([[0, 1], [1, 2], [2, 3]]), "node_features": np.eye(4, dtype=np.float32)}
    np.savez(folder / "g.npz", **arrays, node_labels=np.array([0, 1, 0, 1]), **masks)
    return folder / "g.npz"


def geom_gcn(folder: Path) -> Path:
    """Ten split files with masks, as Geom-GCN has them."""
    files(nodes__csv="id,y,x\na,0,1\nb,1,2\nc,0,3\nd,1,4\n", edges__csv=EDGES)(folder)
    (folder / "splits").mkdir()
    for at in range(11):
        part = np.eye(4, dtype=bool)[at % 4]
        np.savez(folder / "splits" / f"film_split_0.6_0.2_{at}.npz", train_mask=part, val_mask=np.roll(part, 1))
    return folder


PLAIN = "id,label,split,x1,x2\na,cat,train,1,2\nb,dog,val,3,4\nc,cat,test,5,6\nd,,none,7,8\n"
ABCD = ["a", "b", "c", "d"]
FORMS = [
    Form(
        "ids, text labels, words of a split",
        files(nodes__csv=PLAIN, edges__csv=EDGES),
        {},
        {
            "ids": ABCD,
            "labels": [0, 1, 0, -1],
            "class_names": ["cat", "dog"],
            "features": [[1, 2], [3, 4], [5, 6], [7, 8]],
        }
        | {"split": [[0], [1], [2]]},
    ),
    Form(
        "tab-separated, other names",
        files(nodes__tsv="node_id\tclass\tx\na\t1\t.5\nb\t0\t1\nc\t1\t2\nd\t0\t3\n", edges__csv=EDGES),
        {},
        {"ids": ABCD, "labels": [1, 0, 1, 0], "features": [[0.5], [1], [2], [3]]},
    ),
    Form(
        "no ids: nodes are numbered by row",
        files(nodes__csv="label,x\n0,1\n1,2\n0,3\n1,4\n", edges__csv=NUMBERED),
        {},
        {"ids": None, "labels": [0, 1, 0, 1], "edge_index": [[3, 0, 1, 2], [0, 1, 2, 3]]},
    ),
    Form(
        "integer ids in another order",
        files(nodes__csv="id,x\n30,1\n10,2\n20,3\n", edges__csv="src,dst\n10,20\n30,10\n"),
        {},
        {"ids": [30, 10, 20], "edge_index": [[0, 1], [1, 2]]},
    ),
    Form(
        "ids with leading zeros are texts",
        files(nodes__csv="id,x\n007,1\n7,2\n08,3\n", edges__csv="src,dst\n007,7\n08,007\n"),
        {},
        {"ids": ["007", "7", "08"], "edge_index": [[2, 0], [0, 1]]},
    ),
    Form(
        "numbered columns in the order of their numbers",
        files(nodes__csv="id,emb_0,emb_10,emb_2\na,0,10,2\nb,1,11,3\nc,2,12,4\nd,3,13,5\n", edges__csv=EDGES),
        {},
        {"features": [[0, 2, 10], [1, 3, 11], [2, 4, 12], [3, 5, 13]]},
    ),
    Form(
        "chosen features, by name and pattern",
        files(nodes__csv="id,f_1,f_0,age,z\na,1,0,9,5\nb,1,0,9,5\nc,1,0,9,5\nd,1,0,9,5\n", edges__csv=EDGES),
        {"features": ("age", "f_*")},
        {"features": [[9, 0, 1]] * 4, "unread": ["z"]},
    ),
    Form(
        "lists, booleans and numbers",
        parquet(id=ABCD, embedding=[[1.0, 2.0]] * 4, is_new=[True, False, True, False], n=[1, 2, 3, 4]),
        {},
        {"features": [[1, 2, 1, 1], [1, 2, 0, 2], [1, 2, 1, 3], [1, 2, 0, 4]]},
    ),
    Form(
        "lists of several lengths",
        parquet(id=ABCD, embedding=[[1.0, 2.0], [1.0], [2.0], [3.0]]),
        {},
        ("row 1", "embedding", "a list of 1 after one of 2"),
    ),
    Form(
        "texts among the features",
        files(nodes__csv="id,city,x\na,Rome,1\nb,Bern,2\nc,,3\nd,Rome,4\n", edges__csv=EDGES),
        {"features": ("x", "city")},
        ("texts in city", "--categorical onehot"),
    ),
    Form(
        "texts one-hot",
        files(nodes__csv="id,city,x\na,Rome,1\nb,Bern,2\nc,,3\nd,Rome,4\n", edges__csv=EDGES),
        {"features": ("x", "city"), "categorical": "onehot"},
        {"features": [[1, 0, 1], [2, 1, 0], [3, 0, 0], [4, 0, 1]]},
    ),
    Form(
        "texts hashed",
        files(nodes__csv="id,city,x\na,Rome,1\nb,Bern,2\nc,,3\nd,Rome,4\n", edges__csv=EDGES),
        {"categorical": "hash"},
        {"num_features": 257},
    ),
    Form(
        "several columns of zeros and ones",
        files(nodes__csv="id,red,big,x\na,1,0,1\nb,0,0,1\nc,1,1,1\nd,0,1,1\n", edges__csv=EDGES),
        {"label": ("red", "big")},
        {"labels": [[1, 0], [0, 0], [1, 1], [0, 1]], "class_names": ["red", "big"], "multi_label": True},
    ),
    Form(
        "two targets",
        files(nodes__csv="id,w,h,x\na,1.5,0,1\nb,0,,1\nc,1,1,1\nd,0,1,1\n", edges__csv=EDGES),
        {"label": ("w", "h")},
        {"labels": [[1.5, 0], [0, None], [1, 1], [0, 1]], "has_targets": True},
    ),
    Form(
        "two columns that could be the label",
        files(nodes__csv="id,label,y,x\na,0,1,1\nb,1,0,1\n", edges__csv=EDGES),
        {},
        ("label, y", "--label label"),
    ),
    Form(
        "labels that are not known",
        files(nodes__csv="txId,class,x\na,1,1\nb,2,1\nc,unknown,1\nd,1,1\n", edges__csv=EDGES),
        {},
        {"labels": [0, 1, -1, 0], "class_names": ["1", "2"]},
    ),
    Form(
        "masks in columns",
        files(
            nodes__csv="id,train_mask,valid_mask,test_mask\na,True,False,False\nb,False,True,False\n"
            "c,False,False,True\nd,True,False,False\n",
            edges__csv=EDGES,
        ),
        {},
        {"split": [[0, 3], [1], [2]], "features": None},
    ),
    Form(
        "split by time",
        files(nodes__csv="id,year,x\na,2020,1\nb,2018,2\nc,2019,3\nd,2021,4\n", edges__csv=EDGES),
        {"split": "time:year:0.5,0.25,0.25"},
        {"split": [[1, 2], [0], [3]], "features": [[1], [2], [3], [4]]},
    ),
    Form(
        "split by time, of dates",
        files(
            nodes__csv="id,day,x\na,2020-03-01,1\nb,2020-01-01,2\nc,2020-02-01,3\nd,2020-04-01,4\n", edges__csv=EDGES
        ),
        {"split": "time:day:0.5,0.25,0.25"},
        {"split": [[1, 2], [0], [3]]},
    ),
    Form(
        "split by files",
        files(nodes__csv="id,x\na,1\nb,2\nc,3\nd,4\n", edges__csv=EDGES, train__txt="c\na\n", valid__txt="id\nb\n"),
        {},
        {"split": [[0, 2], [1], []]},
    ),
    Form(
        "a column and files of a split",
        files(nodes__csv=PLAIN, edges__csv=EDGES, split_in_train__csv="d\n"),
        {},
        ("has two splits", "--split files"),
    ),
    Form(
        "files of a split preferred to a column",
        files(nodes__csv=PLAIN, edges__csv=EDGES, split_in_train__csv="c\n", split_in_test__csv="a\n"),
        {"split": "files"},
        {"split": [[2], [], [0]]},
    ),
    Form(
        "a file of a split that names an unknown node",
        files(nodes__csv="id,x\na,1\nb,2\nc,3\nd,4\n", edges__csv=EDGES, train__txt="a\nzed\n"),
        {},
        ("train.txt", "1 others", "'zed'"),
    ),
    Form("the heterophilous benchmark", heterophilous, {}, {"split": [[0], [1], []], "num_splits": 2}),
    Form("files of Geom-GCN, the fourth", geom_gcn, {"split_index": 3}, {"split": [[3], [0], []], "num_splits": 11}),
    Form("files of Geom-GCN, the eleventh", geom_gcn, {"split_index": 10}, {"split": [[2], [3], []]}),
    Form("files of Geom-GCN, beyond", geom_gcn, {"split_index": 11}, ("no split 11", "0 to 10")),
    Form(
        "a split drawn by shares",
        files(nodes__csv="id,y\n" + "".join(f"{at},{at % 2}\n" for at in range(20)), edges__csv=NUMBERED),
        {"split": "0.6,0.2,0.2"},
        {"split_sizes": [12, 4, 4]},
    ),
    Form(
        "types in a column",
        files(nodes__csv="id,type,x\na,user,1\nb,item,2\nc,user,3\nd,item,4\n", edges__csv=EDGES),
        {},
        {"ids": ["b", "d", "a", "c"], "node_types": [["item", 0, 2], ["user", 2, 4]], "features": [[2], [4], [1], [3]]},
    ),
    Form(
        "an id twice",
        files(nodes__csv="id,x\na,1\nb,2\na,3\n", edges__csv=EDGES),
        {},
        ("nodes.csv, line 4", "'a' occurs twice", "nodes.csv, line 2"),
    ),
    Form("an id that is missing", files(nodes__csv="id,x\na,1\n,2\n", edges__csv=EDGES), {}, ("line 3", "no id")),
    Form(
        "a feature that is missing",
        files(nodes__csv="id,x,z\na,1,1\nb,2,\nc,3,1\n", edges__csv=EDGES),
        {},
        ("nodes.csv, line 3", "column z", "no value"),
    ),
    Form(
        "a split that names nobody",
        files(nodes__csv="id,split,x\na,none,1\nb,none,2\n", edges__csv=EDGES),
        {},
        ("names nobody", "--split 0.6,0.2,0.2"),
    ),
    Form(
        "words that are no split",
        files(nodes__csv="id,split,x\na,train,1\nb,later,2\n", edges__csv=EDGES),
        {},
        ("'later'", "train, val"),
    ),
    Form(
        "masks that overlap",
        files(nodes__csv="id,train_mask,test_mask\na,1,1\nb,1,0\nc,0,0\nd,0,0\n", edges__csv=EDGES),
        {},
        ("train and test overlap", "node 0"),
    ),
    Form(
        "a label that there is not",
        files(nodes__csv=PLAIN, edges__csv=EDGES),
        {"label": ("lable",)},
        ("lable", "did you mean label"),
    ),
    Form("no rows", files(nodes__csv="id,x\n", edges__csv=EDGES), {}, ("no rows",)),
    Form(
        "a choice that there is not", files(nodes__csv=PLAIN, edges__csv=EDGES), {"categorical": "one-hot"}, ("onehot",)
    ),
    Form(
        "mixed types in a column",
        files(nodes__csv="id,x,z\na,1,2\nb,two,2\nc,3,3\n", edges__csv=EDGES),
        {},
        ("nodes.csv, line 3", "column x has a text among numbers", "2 of 3 rows"),
    ),
]
