"""Every option is described, on the command line and in the documentation."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from outgrow.app.cli.main import app
from outgrow.app.model_registry import MODELS, model_options
from outgrow.app.option_reference import TRAINING, list_option_descriptions, parse_entries
from outgrow.app.strategy_registry import STRATEGIES
from outgrow.core.errors import InputError
from outgrow.training.config import TrainConfig

ROOT = Path(__file__).parents[2]


def documented() -> None:
    """Do nothing.

    Args:
        first: Some ``words``
            that go on.
        second: Others: with a colon.
        **rest: More.

    Raises:
        ValueError: Never.
    """


def test_entries_of_a_docstring() -> None:
    assert parse_entries(documented) == {
        "first": "Some `words` that go on.",
        "second": "Others: with a colon.",
        "rest": "More.",
    }


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_option_of_a_strategy_has_a_meaning(name: str) -> None:
    described = list_option_descriptions(name)
    assert {each.name for each in described} == {each.name for each in fields(STRATEGIES[name])}  # type: ignore[arg-type]
    assert all(each.meaning and each.default for each in described)


def test_every_option_of_training_has_a_meaning() -> None:
    described = list_option_descriptions(TRAINING)
    assert {each.name for each in described} == {each.name for each in fields(TrainConfig)}
    assert all(each.meaning and each.default for each in described)


@pytest.mark.parametrize("name", MODELS)
def test_every_option_of_a_model_has_a_meaning(name: str) -> None:
    described = list_option_descriptions(name)
    assert {each.name for each in described} == set(model_options(name))
    assert all(each.meaning for each in described)


def test_defaults_are_those_of_the_code() -> None:
    assert {each.name: each.default for each in list_option_descriptions("gat")}["heads"] == "8"
    assert {each.name: each.default for each in list_option_descriptions("sampled")}["prefetch"] == "4"
    assert {each.name: each.default for each in list_option_descriptions(TRAINING)}["lr"] == str(TrainConfig().lr)


def test_the_command_shows_them() -> None:
    done = CliRunner().invoke(app, ["train", "--help-options", "split"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    for each in list_option_descriptions("split"):
        assert each.name in done.output
    assert "partial sums" in done.output


def test_a_name_that_nothing_has() -> None:
    with pytest.raises(InputError, match="did you mean split"):
        list_option_descriptions("splitt")


def options_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("options_page", ROOT / "scripts" / "write_options_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_options_is_up_to_date() -> None:
    """If not, run scripts/write_options_page.py."""
    assert (ROOT / "docs" / "options.md").read_text("utf-8") == options_page().render_page()


def test_the_page_of_models_has_them_all() -> None:
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    assert [name for name in MODELS if f"`{name}`" not in page] == []


def test_the_page_of_the_command_has_all_commands_and_variables() -> None:
    page = (ROOT / "docs" / "command.md").read_text("utf-8")
    commands = [each.name or getattr(each.callback, "__name__", "") for each in app.registered_commands]
    assert [name for name in commands if f"`outgrow {name}`" not in page] == []
    sources = (ROOT / "src" / "outgrow").rglob("*.py")
    variables = {found for path in sources for found in re.findall(r'"(OUTGROW_[A-Z_]+)"', path.read_text("utf-8"))}
    # By this one workers tell each other that a warning was shown.
    assert {name for name in variables if f"`{name}`" not in page} == {"OUTGROW_KERNELS_IN_MEMORY"}
