"""Edge lists, valid and not."""

from __future__ import annotations

import gzip
from dataclasses import replace
from random import Random
from typing import Any

from cases import ACCEPTED, REFUSED, Case, Kind
from mutations import MARKS, changed, other_number

_NAMED = {"columns": {"src": "0", "dst": "1", "weight": "3"}}
_PAIRS = "".join(f"{a} {b}\n" for a, b in ((0, 1), (1, 2), (2, 0), (3, 3), (2, 1), (4, 0), (0, 1)))
_TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "spaces": (_PAIRS, {}),
    "tabs": (_PAIRS.replace(" ", "\t"), {"num_nodes": 9}),
    "commas": (_PAIRS.replace(" ", ","), {"relabel": True}),
    "semicolons and returns": (_PAIRS.replace(" ", ";").replace("\n", "\r\n"), {}),
    "SNAP": ("# Directed graph\n# FromNodeId\tToNodeId\n" + _PAIRS.replace(" ", "\t"), {}),
    "KONECT": ("% sym unweighted\n" + _PAIRS, {}),
    "header": ("src,dst,weight,type\n" + "".join(f"{a},{a + 1},0.5,{a % 3}\n" for a in range(40)), {}),
    "other columns": ("when,src,what,dst\n9,0,x y,1\n8,2,,3\n", {}),
    "columns by name": ("".join(f"{a} {a * 7 % 50} 17 0.5\n" for a in range(50)), _NAMED),
    "any ids": ("-5 100000000000\n7 -5\n9223372036854775807 -9223372036854775808\n", {"relabel": True}),
    "byte order mark": ("\ufeffsource;target\n0;1\n1;0\n", {}),
    "names": ("ada\tbob\nbob\tcy\ncy\tada\n", {}),
    "triples": ('h,r,t\nada,knows,bob\n"b,c",likes,"say ""hi"""\n', {}),
    "decimal commas": ("src;dst;w\n0;1;0,5\n1;2;2\n", {}),
    "floats": ("src,dst\n0.0,1e0\n1.0,2.0\n", {}),
    "leading zeros": ("007 08\n08 007\n", {}),
    "ragged": ("  0   1 \n# between\n2 \t 3\t\n\n", {}),
}
_HEADS = (
    b"src dst\n",
    b"src,dst\n",
    b"from;to;weight\n",
    b"a,b,c\n",
    b"# c\n",
    b"src,src\n",
    b"source\ttarget\ttype\n",
)


def seeds() -> list[Case]:
    """Each form of text, half of them packed too."""
    made = []
    for at, (note, (text, options)) in enumerate(_TEXTS.items()):
        case = Case(main="e.csv", files={"e.csv": text.encode()}, options=options, expected=ACCEPTED, note=note)
        made.append(case)
        if at % 2 == 0:
            made.append(_packed(case))
    return made


def _packed(case: Case) -> Case:
    (text,) = case.files.values()
    packed = gzip.compress(text, mtime=0)
    note = f"{case.note}, packed"
    return replace(case, main="e.csv.gz", files={"e.csv.gz": packed}, unpacked=len(text), note=note)


def hostile() -> list[Case]:
    """Texts that somebody has thought of."""
    many = b"0 1\n" * 500_000
    texts = {
        "the largest id": b"0 4294967294\n",
        "an id of 10^9": b"0 1\n1 1000000000\n",
        "the largest relation": b"src,dst,type\n0,1,1073741823\n",
        "a relation of 10^8": b"src,dst,type\n0,1,100000000\n",
        "a million columns": b"src,dst" + b"," * 1_000_000 + b"\n0,1" + b"," * 1_000_000 + b"\n",
        "a million columns without a name": b"0 " * 1_000_000 + b"\n",
        "a long name": b"src," + b"x" * 2_000_000 + b"\n0,1\n",
        "a bad line late": many + b"x y\n",
        "a ragged line late": many + b"1\n",
        "one line of blanks": b" " * 20_000_000,
        "one line of a comment": b"#" * 20_000_000,
        "one line of digits": b"9" * 20_000_000,
        "digits that are words": "\u0663 \u0664\n".encode(),
        "zeros in front": b"0" * 1_000_000 + b"1 2\n",
        "nothing but nulls": b"\0" * 1000,
        "a quote": b'"0" "1"\n"2" "3"\n',
        "a quote that is not closed": b'src,dst\n"a,b\n' + b"c,d\n" * 200_000,
        "quotes in every line": b'5" disk,bob\n' * 200_000,
        "a long id": b"x" * 3_000_000 + b",y\n",
        "UTF-16": "src,dst\n0,1\n".encode("utf-16"),
        "digits without end": b"src,dst\n1,2\n1e999999999,3\n",
        "a line within quotes": b'src,dst\n"0\n1",2\n',
        "a return in a line": b"0 1\r2 3\r\n",
        "not UTF-8": b"src,d\xff\n0,1\n",
        "codes of a terminal": b"src,\x1b[2J\x1b]0;owned\x07\n0,1\n",
    }
    made = [Case(main="e.csv", files={"e.csv": text}, note=note) for note, text in texts.items()]
    made += [replace(case, expected=REFUSED) for case in made[:4]]
    zeros = gzip.compress(b" " * 40_000_000, mtime=0)
    made.append(Case(main="e.csv.gz", files={"e.csv.gz": zeros}, note="40 MB of blanks", expected=REFUSED))
    return [*made, *(_packed(case) for case in made[8:12]), _pipe()]


def _pipe() -> Case:
    return Case(main="e.csv", files={}, pipes=("e.csv",), expected=REFUSED, note="a named pipe")


def mutated(draw: Random, case: Case, others: list[Case]) -> Case:
    """Lines, tokens and bytes; packed ones before they are packed, or afterwards."""
    if case.size > 1 << 20 or not case.files:
        case = draw.choice(others)
    content = case.files[case.main]
    packed = case.main.endswith(".gz")
    options = draw.choice(others).options if draw.random() < 0.1 else case.options
    case = replace(case, options=options)
    if packed and draw.random() < 0.4:
        return case.with_file(case.main, changed(draw, content, [content]), "packed bytes")
    text = gzip.decompress(content) if packed else content
    for _ in range(draw.choice((1, 1, 2, 4))):
        text = draw.choice(_CHANGES)(draw, text)
    new = gzip.compress(text, mtime=0) if packed else text
    return replace(case.with_file(case.main, new, "text"), unpacked=len(text) if packed else 0)


def _lines(draw: Random, text: bytes) -> bytes:
    lines = text.split(b"\n")
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[one] = draw.choice((lines[other], b"", b"# c", lines[one] + draw.choice(MARKS) + lines[other], *_HEADS))
    return b"\n".join(lines)


def _tokens(draw: Random, text: bytes) -> bytes:
    lines = text.split(b"\n")
    at = draw.randrange(len(lines))
    mark = draw.choice((b" ", b",", b"\t", b";"))
    fields = lines[at].split(mark)
    fields[draw.randrange(len(fields))] = draw.choice((b"", b"0", b"-1", b"x", b"1.5", b"1e9", b"\xff", b'"', b"0 0"))
    lines[at] = mark.join(fields)
    return b"\n".join(lines)


def _marks(draw: Random, text: bytes) -> bytes:
    return text.replace(draw.choice(MARKS[1:7]), draw.choice(MARKS), draw.choice((1, 2, -1)))


_CHANGES = (_lines, _tokens, _marks, other_number, other_number, lambda draw, text: changed(draw, text, [text]))
KIND = Kind(seeds, hostile, mutated)
