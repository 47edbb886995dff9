"""Tables of random ids, types, separators and encodings, a store of them, and predictions that carry their ids."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import outgrow as og
from outgrow.app.output_request import make_output_request
from outgrow.app.prediction_run import write_prediction_file
from outgrow.app.predictions import PredictionFormat

# Blanks around a name, and marks that begin comments, belong to the separators and to the reader.
_NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=6).filter(
    lambda name: name[0] not in "#%" and not name.isdecimal()
)
_IDS = st.one_of(
    st.lists(_NAMES, min_size=3, max_size=12, unique=True),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=12, unique=True),
)


def write_table(path: Path, header: list[str], rows: list[tuple[Any, ...]], separator: str, encoding: str) -> None:
    """A table of text, with quotes where they are needed; compressed, as its name says."""
    text = io.StringIO()
    table = csv.writer(text, delimiter=separator, lineterminator="\n")
    table.writerows([header, *rows])
    data = text.getvalue().encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ids=_IDS,
    separator=st.sampled_from([",", ";", "\t", "|"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig"]),
    ending=st.sampled_from([".csv", ".csv.gz"]),
    dtype=st.sampled_from(["int8", "uint32", "int64", "float32", "float64", "bool"]),
    seed=st.integers(0, 99),
)
def test_predictions_carry_the_ids_of_the_tables(
    ids: list[Any], separator: str, encoding: str, ending: str, dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    count = len(ids)
    values = random.integers(0, 2 if dtype == "bool" else 100, count).astype(dtype)
    edges = random.integers(0, count, (2, 3 * count))
    model = og.nn.SAGE(1, 4, 3)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -1, 1, generator=torch.Generator().manual_seed(seed))
    # The same graph, whose nodes are rows.
    expected = og.predict(og.from_arrays(edges, features=values.astype("f4")[:, None], num_nodes=count), model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tables"
        folder.mkdir()
        rows = [(ids[at], values[at].item()) for at in random.permutation(count)]
        write_table(folder / f"nodes{ending}", ["id", "x"], rows, separator, encoding)
        links = [(ids[src], ids[dst]) for src, dst in edges.T]
        write_table(folder / f"edges{ending}", ["src", "dst"], links, separator, encoding)
        graph = og.convert(folder, Path(name) / "made.store")
        request = make_output_request(graph, model, None, device="cpu", workers=1)
        out = Path(name) / "logits.parquet"
        write_prediction_file(request, PredictionFormat(what="logits"), out)
        found = {row["id"]: row["logits"] for row in parquet.read_table(out).to_pylist()}
        some = og.predict(graph, model, nodes=graph.index_of(ids[1::2]))
    assert found.keys() == {*ids}
    torch.testing.assert_close(torch.tensor([found[each] for each in ids]), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(some, expected[1::2], rtol=1e-5, atol=1e-5)
