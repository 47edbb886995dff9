"""The command on real graphs: what it reaches, in one run each. `benchmarks/accuracy.py` has means over seeds."""

from pathlib import Path

import pytest
from tests.app.conftest import Command


def test_cora_reaches_what_is_published(outgrow: Command, data_dir: Path) -> None:
    summary = outgrow("train", "cora", "--model", "gcn", "--data-dir", data_dir, "--json").summary
    assert summary["test_accuracy"] > 0.80
    assert summary["epochs"] == 200


def test_citeseer_trains(outgrow: Command, data_dir: Path) -> None:
    summary = outgrow("train", "citeseer", "--model", "gcn", "--data-dir", data_dir, "--json").summary
    assert summary["test_accuracy"] > 0.67


@pytest.mark.slow
def test_amazon_photo_trains(outgrow: Command, data_dir: Path) -> None:
    args = ("--model", "gcn", "--epochs", 80, "--data-dir", data_dir, "--json")
    assert outgrow("train", "amazon-photo", *args).summary["test_accuracy"] > 0.9


def test_wordnet_learns_in_a_few_epochs(outgrow: Command) -> None:
    summary = outgrow("train", "wordnet", "--hidden", 64, "--epochs", 6, "--json").summary
    assert summary["test_accuracy"] > 0.6
    assert summary["loss"][-1] < summary["loss"][0] / 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_wordnet_reaches_its_accuracy(outgrow: Command) -> None:
    assert outgrow("train", "wordnet", "--json").summary["test_accuracy"] >= 0.87


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_debian_reaches_its_accuracy(outgrow: Command, data_dir: Path) -> None:
    assert outgrow("train", "debian", "--data-dir", data_dir, "--json").summary["test_accuracy"] >= 0.82


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_attention_on_cora_reaches_what_is_published(outgrow: Command, data_dir: Path) -> None:
    summary = outgrow("train", "cora", "--model", "gat", "--data-dir", data_dir, "--json").summary
    assert summary["test_accuracy"] > 0.80
