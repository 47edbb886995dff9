"""Forms of edge tables: how each is made, the options that read it, and its edges or words of the refusal.

A row is (name, make(folder) -> path, options of ``outgrow convert``, expected). Expected is a list of edges, by id
where nodes have ids, with the relation's name and the weight if there are any; or words of the error.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, ipc, parquet

Edge = tuple[Any, ...]
Form = tuple[str, Callable[[Path], Path], str, list[Edge] | str]

NUMBERS: list[Edge] = [(0, 1), (1, 2), (2, 0)]
NAMES: list[Edge] = [("ada", "bob"), ("bob", "cy"), ("cy", "ada")]
KNOWS: list[Edge] = [("ada", "bob", "knows"), ("bob", "cy", "likes")]
COLUMNS = {"src": [0, 1, 2], "dst": [1, 2, 0]}
NAMED = {"source": ["ada", "bob", "cy"], "target": ["bob", "cy", "ada"]}


def text(name: str, content: str | bytes) -> Callable[[Path], Path]:
    """A file of text, compressed as its name says."""

    def make(folder: Path) -> Path:
        path = folder / name
        data = content.encode() if isinstance(content, str) else content
        if path.suffix == ".gz":
            data = gzip.compress(data)
        if path.suffix == ".zst":
            data = pa.compress(data, "zstd", asbytes=True)
        path.write_bytes(data)
        return path

    return make


def cut(make: Callable[[Path], Path], count: int) -> Callable[[Path], Path]:
    """A file without its last bytes."""

    def made(folder: Path) -> Path:
        path = make(folder)
        path.write_bytes(path.read_bytes()[:-count])
        return path

    return made


def table(name: str, columns: dict[str, Any], **how: Any) -> Callable[[Path], Path]:
    """A file of parquet or Arrow."""

    def make(folder: Path) -> Path:
        path, made = folder / name, pa.table(columns)
        if path.suffix == ".parquet":
            parquet.write_table(made, path, **how)
            return path
        opened = ipc.new_stream if path.suffix == ".arrows" else ipc.new_file
        with opened(path, made.schema, options=ipc.IpcWriteOptions(**how)) as file:
            file.write_table(made, max_chunksize=2)
        return path

    return make


def parts(form: str, contents: Sequence[Any], marks: Sequence[str] = ()) -> Callable[[Path], Path]:
    """A folder of files, which are parts of one table; and empty ones, as Spark leaves them."""

    def make(folder: Path) -> Path:
        made = folder / "edges"
        made.mkdir()
        for at, content in enumerate(contents):
            name = f"part-{at:05}.{form}"
            (table(name, content) if isinstance(content, dict) else text(name, content))(made)
        for mark in marks:
            (made / mark).touch()
        return made

    return make


def polars_like(folder: Path) -> Path:
    """A file as ``pyarrow.csv`` writes it: all texts in quotes."""
    csv.write_csv(pa.table(NAMED), folder / "e.csv")
    return folder / "e.csv"


def lines_of_json(rows: list[dict[str, Any]]) -> str:
    """Lines of JSON."""
    return "".join(json.dumps(row) + "\n" for row in rows)


MTX = "%%MatrixMarket matrix coordinate {} {}\n% made by hand\n"
TRIPLES = "ada\tknows\tbob\nbob\tlikes\tcy\n"
RATED = "user,item,rating,timestamp\n5,7,3.5,99\n7,5,4,98\n"

FORMS: list[Form] = [
    # Case 13 of the bug reports.
    ("kg.tsv: triples without header", text("kg.tsv", TRIPLES), "", "src=0,dst=2,relation=1"),
    ("kg.tsv: triples, told", text("kg.tsv", TRIPLES), "--columns src=0,dst=2,relation=1", KNOWS),
    ("kg.csv: head,relation,tail", text("kg.csv", "head,relation,tail\nada,knows,bob\nbob,likes,cy\n"), "", KNOWS),
    ("musae.csv: id_1,id_2", text("musae.csv", "id_1,id_2\n0,1\n1,2\n2,0\n"), "", NUMBERS),
    (
        "tx.csv: large integers",
        text("tx.csv", "src,dst\n230425980,5530458\n5530458,232022460\n"),
        "",
        "leave out nearly all numbers",
    ),
    (
        "tx.csv --relabel",
        text("tx.csv", "src,dst\n230425980,5530458\n5530458,232022460\n"),
        "--relabel",
        [(230425980, 5530458), (5530458, 232022460)],
    ),
    # Names of columns.
    (
        "Elliptic: txId1,txId2",
        text("e.csv", "txId1,txId2\n9,7\n7,8\n"),
        "--relabel",
        [(9, 7), (7, 8)],
    ),
    ("h,r,t", text("e.csv", "h,r,t\nada,knows,bob\nbob,likes,cy\n"), "", KNOWS),
    (
        "subject,predicate,object",
        text("e.csv", "subject,predicate,object\nada,knows,bob\nbob,likes,cy\n"),
        "",
        KNOWS,
    ),
    (
        "STRING: protein1 protein2",
        text("e.txt", "protein1 protein2 combined_score\nada bob 9\nbob cy 8\n"),
        "",
        NAMES[:2],
    ),
    (
        "Neo4j: :START_ID,:END_ID,:TYPE",
        text("e.csv", ":START_ID,:TYPE,:END_ID\nada,knows,bob\nbob,likes,cy\n"),
        "",
        KNOWS,
    ),
    (
        "Gephi",
        text("e.csv", "Source,Target,Type,Id,Label,timeset,Weight\n0,1,Directed,0,,,1.5\n1,2,Directed,1,,,2\n"),
        "",
        [(0, 1, 1.5), (1, 2, 2.0)],
    ),
    (
        "MovieLens: columns that only the user knows",
        text("e.csv", RATED),
        "",
        "--columns src=COLUMN,dst=COLUMN,weight=rating",
    ),
    (
        "MovieLens, told",
        text("e.csv", RATED),
        "--columns src=user,dst=item,weight=rating --relabel",
        [(5, 7, 3.5), (7, 5, 4.0)],
    ),
    (
        "a bank's transfers, told",
        text("e.csv", "when,payer,payee,amount,kind\n1,ada,bob,2.5,card\n2,bob,cy,1,cash\n"),
        "--columns src=payer,dst=payee,weight=amount,relation=kind",
        [("ada", "bob", "card", 2.5), ("bob", "cy", "cash", 1.0)],
    ),
    ("two columns for one role", text("e.csv", "src,source,dst\n0,1,2\n"), "", "two columns for src: src, source"),
    ("a column that is not there", text("e.csv", "src,dst\n0,1\n"), "--columns weight=w", "no column w"),
    ("three columns without header", text("e.txt", "0 1 0.5\n1 2 2\n"), "", "src=0,dst=1,weight=2"),
    (
        "three columns without header, told",
        text("e.txt", "0 1 0.5\n1 2 2\n"),
        "--columns src=0,dst=1,weight=2",
        [(0, 1, 0.5), (1, 2, 2.0)],
    ),
    (
        "relations as integers",
        text("e.csv", "src,dst,type\n0,1,1\n1,2,0\n"),
        "",
        [(0, 1, "1"), (1, 2, "0")],
    ),
    # Separators, comments, quotes and marks.
    ("SNAP", text("e.txt", "# Directed graph\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n2\t0\n"), "", NUMBERS),
    ("SNAP, header", text("e.txt", "# c\nFromNodeId\tToNodeId\n0\t1\n1\t2\n2\t0\n"), "", NUMBERS),
    ("KONECT", text("out.edges", "% sym unweighted\n% 3 3\n0 1\n1 2\n2 0\n"), "", NUMBERS),
    (
        "KONECT with weights and times",
        text("out.edges", "% asym posweighted\n1 2\t5\t99\n2 1\t4\t98\n"),
        "--columns src=0,dst=1,weight=2 --relabel",
        [(1, 2, 5.0), (2, 1, 4.0)],
    ),
    ("NetworkX' edge list", text("e.edgelist", "0 1 {}\n1 2 {}\n2 0 {}\n"), "--columns src=0,dst=1", NUMBERS),
    ("names by tabs", text("e.tsv", "ada\tbob\nbob\tcy\ncy\tada\n"), "", NAMES),
    ("names by blanks", text("e.el", "ada bob\n  bob   cy\ncy\tada  \n"), "", NAMES),
    ("blanks after commas", text("e.csv", 'src, dst\nada, "bob"\nbob, cy\ncy, ada\n'), "", NAMES),
    ("pipes", text("e.csv", "src|dst\n0|1\n1|2\n2|0\n"), "", NUMBERS),
    (
        "semicolons and decimal commas",
        text("e.csv", "src;dst;weight\n0;1;0,5\n1;2;2\n"),
        "",
        [(0, 1, 0.5), (1, 2, 2.0)],
    ),
    ("tabs and decimal commas", text("e.tsv", "src\tdst\tw\n0\t1\t0,25\n1\t2\t2,5\n"), "", [(0, 1, 0.25), (1, 2, 2.5)]),
    ("thousands", text("e.tsv", "src\tdst\tw\n0\t1\t1,250\n1\t2\t2,500\n"), "", "line 2, column w"),
    ("quotes", polars_like, "", NAMES),
    (
        "quotes with all that separates",
        text("e.csv", 'src,dst\n"a,b","say ""hi"""\n"say ""hi""","a,b"\n'),
        "",
        [("a,b", 'say "hi"'), ('say "hi"', "a,b")],
    ),
    (
        "quotes that are part of names",
        text("e.tsv", 'src\tdst\n"Weird Al" Yankovic\tbob\nbob\t5" disk\n'),
        "",
        [('"Weird Al" Yankovic', "bob"), ("bob", '5" disk')],
    ),
    ("integers in quotes", text("e.csv", 'src,dst\n"0","1"\n"1","2"\n"2","0"\n'), "", NUMBERS),
    ("byte order mark", text("e.csv", b"\xef\xbb\xbfsrc,dst\r\n0,1\r\n1,2\r\n2,0\r\n"), "", NUMBERS),
    ("names and CRLF", text("e.csv", "src,dst\r\nada,bob\r\nbob,cy\r\ncy,ada\r\n"), "", NAMES),
    ("hashtags", text("e.csv", "src,dst\n#a,#b\n# a comment\n#b,c\n"), "", [("#a", "#b"), ("#b", "c")]),
    ("index of pandas", text("e.csv", ",source,target\n0,ada,bob\n1,bob,cy\n2,cy,ada\n"), "", NAMES),
    # Ids.
    ("floats", text("e.csv", "src,dst\n0.0,1.0\n1.0,2.0\n2.0,0.0\n"), "", NUMBERS),
    ("exponents", text("e.csv", "src,dst\n1e3,2\n2,1E+3\n"), "--relabel", [(1000, 2), (2, 1000)]),
    ("fractions", text("e.csv", "src,dst\n0,1\n1,1.5\n"), "", "line 3, column dst: not an integer"),
    ("leading zeros", text("e.csv", "src,dst\n007,7\n7,08\n"), "", [("007", "7"), ("7", "08")]),
    ("a word among integers", text("e.csv", "src,dst\n0,1\n1,2\n2,x\n"), "", "line 4, column dst: not an integer"),
    (
        "a word among integers, told",
        text("e.csv", "src,dst\n0,1\n1,2\n2,x\n"),
        "--relabel",
        [("0", "1"), ("1", "2"), ("2", "x")],
    ),
    ("beyond 2^63", text("e.csv", "src,dst\n1,99999999999999999999\n"), "", "line 2, column dst: not an integer"),
    (
        "beyond 2^63, told",
        text("e.csv", "src,dst\n1,99999999999999999999\n"),
        "--relabel",
        [("1", "99999999999999999999")],
    ),
    ("integers and texts", text("e.csv", "src,dst\n1,B01\n2,B01\n"), "", [("1", "B01"), ("2", "B01")]),
    ("no value", text("e.csv", "src,dst\nada,bob\n,cy\n"), "", "line 3, column src: no value"),
    ("no weight", text("e.csv", "src,dst,weight\n0,1,1\n1,2,\n"), "", "line 3, column weight: no value"),
    ("a weight that is a word", text("e.csv", "src,dst,weight\n0,1,1\n1,2,heavy\n"), "", "line 3, column weight"),
    # Compression and other forms.
    ("gzip", text("e.csv.gz", "src,dst\n0,1\n1,2\n2,0\n"), "", NUMBERS),
    ("zstd", text("e.tsv.zst", "ada\tbob\nbob\tcy\ncy\tada\n"), "", NAMES),
    ("gzip, cut off", cut(text("e.csv.gz", "src,dst\n0,1\n" * 99), 9), "", "e.csv.gz cannot be read"),
    ("zstd, cut off", cut(text("e.csv.zst", "src,dst\n0,1\n" * 99), 9), "", "e.csv.zst cannot be read"),
    ("UTF-16", text("e.csv", "src,dst\nada,bob\n".encode("utf-16")), "", "iconv -f UTF-16"),
    ("Latin-1", text("e.csv", "src,dst\nada,bob\nJos\xe9,ada\n".encode("latin-1")), "", "line 3: not UTF-8"),
    ("parquet", table("e.parquet", COLUMNS), "", NUMBERS),
    ("parquet of names", table("e.parquet", NAMED), "", NAMES),
    (
        "parquet with dictionaries",
        table("e.parquet", {k: pa.array(v).dictionary_encode() for k, v in NAMED.items()}),
        "",
        NAMES,
    ),
    ("parquet of floats", table("e.parquet", {"src": [0.0, 1.0, 2.0], "dst": [1, 2, 0]}), "", NUMBERS),
    (
        "parquet of floats with a gap",
        table("e.parquet", {"src": [0.0, None, 2.0], "dst": [1, 2, 0]}),
        "",
        "row group 0, row 1, column src: no value",
    ),
    ("parquet, cut off", cut(table("e.parquet", COLUMNS), 9), "", "e.parquet cannot be read"),
    ("Arrow IPC", table("e.arrow", NAMED, compression="zstd"), "", NAMES),
    ("feather", table("e.feather", COLUMNS, compression="lz4"), "", NUMBERS),
    ("stream of Arrow IPC", table("e.arrows", NAMED), "", NAMES),
    ("Arrow IPC, cut off", cut(table("e.arrow", NAMED), 30), "", "e.arrow cannot be read"),
    (
        "JSON lines",
        text("e.jsonl", lines_of_json([{"src": "ada", "dst": "bob"}, {"dst": "cy", "src": "bob"}])),
        "",
        NAMES[:2],
    ),
    (
        "Spark's parts",
        parts("parquet", [{"src": [0, 1], "dst": [1, 2]}, {"src": [2], "dst": [0]}], ["_SUCCESS"]),
        "",
        NUMBERS,
    ),
    ("parts of text", parts("csv.gz", ["src,dst\n0,1\n1,2\n", "src,dst\n2,0\n"]), "", NUMBERS),
    ("parts, a header in the first", parts("csv", ["src,dst\nada,bob\nbob,cy\n", "cy,ada\n"]), "", NAMES),
    (
        "parts, names that a later one has in another order",
        parts("csv", ["src,dst\nada,bob\nbob,cy\n", "dst,src\nada,cy\n"]),
        "",
        NAMES,
    ),
    ("parts of several tables", parts("csv", ["src,dst\n0,1\n", "id,label\n2,0\n"]), "", "differ from those of"),
    ("mtx: pattern", text("g.mtx", MTX.format("pattern", "general") + "3 3 3\n1 2\n2 3\n3 1\n"), "", NUMBERS),
    (
        "mtx: real",
        text("g.mtx.gz", MTX.format("real", "general") + "3 3 2\n1 2 0.5\n2 3 -1e0\n"),
        "",
        [(0, 1, 0.5), (1, 2, -1.0)],
    ),
    (
        "mtx: integer, symmetric",
        text("g.mtx", MTX.format("integer", "symmetric") + "3 3 2\n2 1 5\n3 3 7\n"),
        "",
        [(0, 1, 5.0), (1, 0, 5.0), (2, 2, 7.0)],
    ),
    (
        "mtx: complex",
        text("g.mtx", MTX.format("complex", "general") + "1 1 1\n1 1 1 0\n"),
        "",
        "another kind of matrix",
    ),
    ("mtx: array", text("g.mtx", "%%MatrixMarket matrix array real general\n1 1\n1\n"), "", "another kind of matrix"),
    ("mtx: not square", text("g.mtx", MTX.format("pattern", "general") + "3 2 1\n1 2\n"), "", "is not square"),
    ("mtx: cut off", text("g.mtx", MTX.format("pattern", "general") + "3 3 3\n1 2\n2 3\n"), "", "is cut off"),
    ("mtx: beyond the size", text("g.mtx", MTX.format("pattern", "general") + "3 3 1\n1 4\n"), "", "g.mtx, line 4"),
]
assert len({name for name, *_ in FORMS}) == len(FORMS)
assert np.all([len(form) == 4 for form in FORMS])
