"""Forms of edge tables with columns of features of edges; rows as in `forms_tables`.

An edge ends with its features, in a tuple: floats, or integers that are codes.
"""

from __future__ import annotations

from graph.readers.forms_tables import COLUMNS, Form, table, text

FORMS: list[Form] = [
    (
        "a bank's transfers, with features of edges",
        text("e.csv", "when,payer,payee,amount,kind\n1,ada,bob,2.5,card\n2,bob,cy,1,cash\n"),
        "--columns src=payer,dst=payee --edge-features amount,when",
        [("ada", "bob", (2.5, 1.0)), ("bob", "cy", (1.0, 2.0))],
    ),
    (
        "a category of edges",
        text("e.csv", "src,dst,kind\n0,1,card\n1,2,cash\n2,0,card\n"),
        "--edge-features kind",
        [(0, 1, (0,)), (1, 2, (1,)), (2, 0, (0,))],
    ),
    (
        "categories that are integers",
        text("e.csv", "src,dst,kind\n0,1,3\n1,2,0\n"),
        "--edge-features kind:category",
        [(0, 1, (3,)), (1, 2, (0,))],
    ),
    (
        "numbers and a category of edges",
        text("e.csv", "src,dst,amount,kind\n0,1,7,card\n1,2,8,\n2,0,9,card\n"),
        "--edge-features amount,kind",
        [(0, 1, (7.0, 1.0, 0.0)), (1, 2, (8.0, 0.0, 1.0)), (2, 0, (9.0, 1.0, 0.0))],
    ),
    (
        "lists and patterns of features of edges",
        table("e.parquet", {**COLUMNS, "f_2": [1, 2, 3], "f_1": [0.5, 1, 2], "l": [[1, 2], [3, 4], [5, 6]]}),
        "--edge-features l,f_*",
        [(0, 1, (1.0, 2.0, 0.5, 1.0)), (1, 2, (3.0, 4.0, 1.0, 2.0)), (2, 0, (5.0, 6.0, 2.0, 3.0))],
    ),
    (
        "features of edges by number",
        text("e.txt", "0 1 7\n1 2 8\n"),
        "--columns src=0,dst=1 --edge-features 2",
        [(0, 1, (7.0,)), (1, 2, (8.0,))],
    ),
    (
        "a feature that is missing",
        text("e.csv", "src,dst,amount\n0,1,7\n1,2,\n"),
        "--edge-features amount",
        "line 3: the column amount",
    ),
    (
        "a feature that is a word",
        text("e.csv", "src,dst,amount\n0,1,7\n1,2,8\n1,2,many\n"),
        "--edge-features amount",
        "line 4: the column amount has a text among numbers",
    ),
    (
        "codes below 0",
        text("e.csv", "src,dst,kind\n0,1,-2\n"),
        "--edge-features kind:category",
        "line 2: the column kind",
    ),
    ("a feature that is not there", text("e.csv", "src,dst,amount\n0,1,2\n"), "--edge-features amont", "mean amount"),
    (
        "a column for two purposes",
        text("e.csv", "src,dst,w\n0,1,2\n"),
        "--columns weight=w --edge-features w",
        "w as a feature",
    ),
]
