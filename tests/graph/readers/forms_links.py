"""Forms of triples with given splits: how each is written, the options that read it, and what it becomes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Triple = tuple[str, str, str]
TRAIN: Sequence[Triple] = [
    ("ada", "knows", "bob"),
    ("bob", "likes", "cy"),
    ("cy", "knows", "dee"),
    ("dee", "likes", "eve"),
]
VALID: Sequence[Triple] = [("ada", "likes", "cy")]
TEST: Sequence[Triple] = [("bob", "knows", "eve"), ("ada", "knows", "eve")]
PARTS = {"train": TRAIN, "valid": VALID, "test": TEST}
Make = Callable[[Path], Path]


class Form(NamedTuple):
    """A form of triples.

    Attributes:
        name: What it is.
        make: Writes it into a folder, and returns the path to read.
        options: Options of ``outgrow convert``.
        expected: Words of the refusal; None if it is read as `PARTS`.
    """

    name: str
    make: Make
    options: tuple[str, ...] = ()
    expected: str | None = None


def text(
    ending: str = ".txt",
    by: str = "\t",
    header: Sequence[str] = (),
    *,
    order: Sequence[int] = (0, 1, 2),
    names: Mapping[str, str] | None = None,
    pack: Callable[[bytes], bytes] = bytes,
    end: str = "\n",
    start: bytes = b"",
    more: Sequence[str] = (),
    quote: str = "",
    others: Mapping[str, str] | None = None,
) -> Make:
    """Return what writes text files of triples.

    Args:
        ending: Ending of the files' names.
        by: What separates columns.
        header: Names of the columns; empty for none.
        order: Which of head, relation and tail each column is.
        names: Names of the parts; None for train, valid and test.
        pack: Compresses a file.
        end: End of a line.
        start: First bytes of a file.
        more: Further columns.
        quote: What stands around each field.
        others: Text of further files by name.
    """

    def make(folder: Path) -> Path:
        for part, triples in PARTS.items():
            rows = [header, *([triple[at] for at in order] + [*more] for triple in triples)]
            lines = "".join(by.join(f"{quote}{each}{quote}" for each in row) + end for row in rows if row)
            (folder / f"{(names or {}).get(part, part)}{ending}").write_bytes(pack(start + lines.encode()))
        for name, content in (others or {}).items():
            (folder / name).write_text(content)
        return folder

    return make


def zstd(data: bytes) -> bytes:
    import pyarrow as pa

    return pa.Codec("zstd").compress(data, asbytes=True)


def parts(folder: Path) -> Path:
    """Write a folder of two parquet files for each part."""
    import pyarrow as pa
    from pyarrow import parquet

    for part, triples in PARTS.items():
        (folder / part).mkdir()
        for at, some in enumerate((triples[:1], triples[1:])):
            columns = {name: pa.array([row[place] for row in some], pa.string()) for place, name in enumerate("hrt")}
            parquet.write_table(pa.table(columns), folder / part / f"part-{at}.parquet")
    return folder


def json_lines(folder: Path) -> Path:
    """Write a file of JSON for each part."""
    for part, triples in PARTS.items():
        rows = (json.dumps(dict(zip(("subject", "predicate", "object"), row, strict=True))) for row in triples)
        (folder / f"{part}.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return folder


def tables(names: Sequence[str]) -> Make:
    """Return what writes parquet files of triples."""

    def make(folder: Path) -> Path:
        import pyarrow as pa
        from pyarrow import parquet

        for part, triples in PARTS.items():
            columns = {name: [triple[at] for triple in triples] for at, name in enumerate(names)}
            parquet.write_table(pa.table(columns), folder / f"{part}.parquet")
        return folder

    return make


def changed(path: str, content: str, of: Make | None = None) -> Make:
    """Return what writes the usual files, but one with another content."""

    def make(folder: Path) -> Path:
        (of or text())(folder)
        (folder / path).write_text(content)
        return folder

    return make


DICTIONARIES = {
    "entities.dict": "0\tada\n1\tbob\n2\tcy\n3\tdee\n4\teve\n",
    "relations.dict": "0\tknows\n1\tlikes\n",
}
OPENKE = {"entity2id.txt": "5\nada\t0\nbob\t1\ncy\t2\ndee\t3\neve\t4\n", "relation2id.txt": "2\nknows\t0\nlikes\t1\n"}

FORMS = [
    Form("tabs, no header (WN18RR, FB15k-237, CoDEx)", text()),
    Form("tabs, .tsv", text(".tsv")),
    Form("tabs, gzip", text(".txt.gz", pack=gzip.compress)),
    Form("tabs, zstd", text(".tsv.zst", pack=zstd)),
    Form("commas, no header", text(".csv", ",")),
    Form("commas, quotation marks", text(".csv", ",", quote='"')),
    Form("commas and blanks", text(".csv", ", ")),
    Form("blanks", text(by=" ")),
    Form("several blanks", text(by="   ")),
    Form("bars", text(by="|")),
    Form("semicolons", text(".csv", ";")),
    Form("header h,r,t", text(".csv", ",", ["h", "r", "t"])),
    Form("header head,relation,tail", text(".csv", ",", ["head", "relation", "tail"])),
    Form("header subject,predicate,object", text(".tsv", "\t", ["subject", "predicate", "object"])),
    Form("header in another order", text(".csv", ",", ["head", "tail", "relation"], order=[0, 2, 1])),
    Form("header of other names", text(".csv", ",", ["a", "b", "c"]), ("--columns", "head=a,relation=b,tail=c")),
    Form(
        "tail before relation, no header",
        text(order=[0, 2, 1]),
        ("--columns", "head=0,tail=1,relation=2"),
    ),
    Form("a fourth column with a header", text(".csv", ",", ["h", "r", "t", "year"], more=["1999"])),
    Form("a fourth column without", text(more=["1"]), (), "no columns of triples"),
    Form("a fourth column without, named", text(more=["1"]), ("--columns", "head=0,relation=1,tail=2")),
    Form("val instead of valid", text(names={"valid": "val"})),
    Form("dev instead of valid", text(names={"valid": "dev"})),
    Form("byte order mark, CRLF", text(".csv", ",", ["h", "r", "t"], end="\r\n", start=b"\xef\xbb\xbf")),
    Form("parquet", tables(["head", "relation", "tail"])),
    Form("folders of parquet files", parts),
    Form("JSON lines", json_lines),
    Form("parquet of other names", tables(["x", "y", "z"]), ("--columns", "head=x,relation=y,tail=z")),
    Form("parquet of other names, not told", tables(["x", "y", "z"]), (), "no columns of triples"),
    Form("entities.dict and relations.dict", text(others=DICTIONARIES)),
    Form("entity2id.txt and relation2id.txt", text(others=OPENKE)),
    Form(
        "a dictionary that lacks a name",
        text(others={"entities.dict": "0\tada\n1\tbob\n"}),
        (),
        "does not have every entity",
    ),
    Form(
        "a dictionary that lacks a relation",
        text(others={"relations.dict": "0\tknows\n"}),
        (),
        "does not have every relation",
    ),
    Form("a dictionary with gaps", text(others={"entities.dict": "0\tada\n2\tbob\n"}), (), "from 0"),
    Form("a dictionary of another form", text(others={"entities.dict": "ada\tbob\n"}), (), "line 1"),
    Form("two columns in one row", changed("train.txt", "ada\tknows\tbob\nbob\tlikes\n"), (), "line 2"),
    Form("two columns in all rows", changed("valid.txt", "ada\tbob\n"), (), "valid.txt has no columns of triples"),
    Form("an empty field", changed("test.txt", "ada\tknows\tbob\nbob\t\tcy\n"), (), "no relation"),
    Form("an empty file", changed("valid.txt", ""), (), "valid.txt has no triples"),
    Form(
        "a file of a header",
        changed("valid.csv", "h,r,t\n", text(".csv", ",", ["h", "r", "t"])),
        (),
        "valid.csv has no triples",
    ),
    Form("two validation files", changed("val.txt", "ada\tlikes\tcy\n"), (), "valid.txt"),
    Form("two files of one part", changed("train.tsv", "ada\tlikes\tcy\n"), (), "train.tsv"),
    Form(
        "the same file twice",
        changed("test.txt", "".join("\t".join(each) + "\n" for each in TRAIN)),
        (),
        "the same triples in two parts",
    ),
    Form(
        "a column that is not there",
        text(".csv", ",", ["h", "r", "t"]),
        ("--columns", "relation=kind"),
        "no such columns",
    ),
    Form("a role that is none", text(), ("--columns", "weight=2"), "no column weight"),
    Form("an option of other tables", text(), ("--relabel",), "does not take these options"),
    Form("gzip that is cut off", text(".txt.gz", pack=lambda data: gzip.compress(data)[:-9]), (), "cannot be read"),
    Form("another encoding", text(pack=lambda data: data.replace(b"bob", b"b\xf6b")), (), "not UTF-8"),
]
"""Each is read as `PARTS`, or refused."""
