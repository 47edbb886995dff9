"""Features of edges from a table to what ``outgrow info`` tells of them, by commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.app.conftest import Command

import outgrow as og

pytest.importorskip("pyarrow")


def test_from_a_table_to_facts(outgrow: Command, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("payer,payee,amount,kind\na,b,1.5,cash\nb,c,2,card\nc,a,3,cash\n")
    columns = ("--columns", "src=payer,dst=payee")
    made = outgrow("convert", "e.csv", "both", *columns, "--edge-features", "amount,kind", "--undirected")
    assert made.code == 0, made.err
    told = json.loads(outgrow("info", "both", "--json", "--verify").out)
    assert (told["edges"], told["edge_features"], told["edge_features_are"]) == (6, 3, "float32 numbers")
    assert told["edge_feature_range"] == [0, 3]
    assert told["read"]["edge features"] == "e.csv, columns amount, kind (0 'cash', 1 'card')"
    shown = outgrow("info", "both").out
    assert "edge feature quantiles" in shown
    assert outgrow("convert", "e.csv", "codes", *columns, "--edge-features", "kind").code == 0
    assert "column 0: [2, 1]" in outgrow("info", "codes").out

    assert outgrow("convert", "e.csv", "numbers", *columns, "--edge-features", "amount").code == 0
    (tmp_path / "more.csv").write_text("payer,payee,amount\na,c,7\n")
    refused = outgrow("append", "numbers", "more.csv", *columns)
    assert (refused.code, "edges have features in the graph" in refused.err) == (2, True)
    assert outgrow("append", "numbers", "more.csv", *columns, "--edge-features", "amount").code == 0
    assert og.load("numbers").edge_features.tolist() == [[3], [1.5], [7], [2]]
    refused = outgrow("append", "codes", "more.csv", *columns, "--edge-features", "amount")
    assert (refused.code, "the columns kind" in refused.err) == (2, True)
    refused = outgrow("convert", "e.csv", "other", *columns, "--edge-features", "amont")
    assert (refused.code, "did you mean amount?" in refused.err) == (2, True)
