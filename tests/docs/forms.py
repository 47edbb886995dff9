"""The page of forms of tables, made of the forms that the tests of readers read.

``python tests/docs/forms.py`` writes it; a test finds where it is not what the forms say.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "table-forms.md"
_HEAD = """# Forms of tables

What the tests of readers read, or refuse by an error that names the options or the repair, with the command. The
files are those of `tests/graph/readers/forms_*.py`, where each is made; this page is made of them by
`python tests/docs/forms.py`. See [tables](tables.md) for what the options mean.
"""
_FLAGS = {"num_nodes": "--nodes"}


class Row(NamedTuple):
    """A form as a row of the page."""

    name: str
    command: str
    result: str


def edge_rows() -> Iterator[Row]:
    """Forms of edge tables, last those with features of edges."""
    from graph.readers.forms_edge_features import FORMS as EDGE_FEATURES
    from graph.readers.forms_tables import FORMS

    for name, make, options, expected in (*FORMS, *EDGE_FEATURES):
        read = expected if isinstance(expected, str) else _describe_edges(expected)
        yield Row(name, _command(_made(make), options), f"refused: {read}" if isinstance(expected, str) else read)


def node_rows() -> Iterator[Row]:
    """Forms of node tables and splits."""
    from tests.graph.readers.forms_nodes import FORMS

    yield from map(_row_of_facts, FORMS)


def link_rows() -> Iterator[Row]:
    """Forms of triples."""
    from graph.readers.forms_links import FORMS

    for form in FORMS:
        result = "read, with its split" if form.expected is None else f"refused: {form.expected}"
        yield Row(form.name, _command(_made(form.make), shlex.join(form.options)), result)


def typed_rows() -> Iterator[Row]:
    """Forms of typed graphs, and objects of other packages."""
    from graph.readers.forms_typed import FORMS

    yield from map(_row_of_facts, FORMS)


def make_page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for title, rows in (
        ("Edge tables", edge_rows()),
        ("Node tables, labels and splits", node_rows()),
        ("Triples with given splits", link_rows()),
        ("Typed graphs and objects", typed_rows()),
    ):
        lines = [f"| {_escape(row.name)} | `{_escape(row.command)}` | {_escape(row.result)} |" for row in rows]
        parts.append("\n".join([f"## {title}", "", "| form | command | result |", "|---|---|---|", *lines, ""]))
    return "\n".join(parts)


def _row_of_facts(form: Any) -> Row:
    made = _made(form.make)
    options = dict(form.options)
    if isinstance(made, Path):
        command = _command(made, " ".join(_flag(name, value) for name, value in options.items()))
    else:
        given = "".join(f", {name}={value!r}" for name, value in options.items())
        command = f"og.load({made}{given})"
    if isinstance(form.expected, tuple):
        return Row(form.name, command, f"refused: {', '.join(form.expected)}")
    return Row(form.name, command, f"read: {', '.join(form.expected).replace('_', ' ')}")


def _describe_edges(edges: list[Any]) -> str:
    facts = ["names as ids"] if edges and isinstance(edges[0][0], str) else []
    facts += ["relations"] if edges and any(isinstance(value, str) for value in edges[0][2:]) else []
    facts += ["weights"] if edges and any(isinstance(value, float) for value in edges[0][2:]) else []
    features = [value for value in edges[0][2:] if isinstance(value, tuple)] if edges else []
    facts += ["codes of edges" if isinstance(row[0], int) else f"{len(row)} features of edges" for row in features]
    return f"read: {', '.join([f'{len(edges)} edges', *facts])}"


def _made(make: Any) -> Path | str:
    """Return the name of the file or folder that is read; of an object, its type."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "folder"
        folder.mkdir()
        made = make(folder)
        if not isinstance(made, Path):
            return type(made).__name__
        # A form that fills the folder is read as a whole.
        return made.relative_to(Path(scratch)) if made == folder else made.relative_to(folder)


def _command(path: Path | str, options: str) -> str:
    return f"outgrow convert {shlex.quote(str(path))} my.store {options}".strip()


def _flag(name: str, value: Any) -> str:
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    if value is True:
        return flag
    if isinstance(value, dict):
        value = ",".join(f"{role}={column}" for role, column in value.items())
    return f"{flag} {shlex.quote(','.join(value) if isinstance(value, tuple | list) else str(value))}"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    PAGE.write_text(make_page(), "utf-8")
