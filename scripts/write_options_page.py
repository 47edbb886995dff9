"""Write `docs/options.md`, the reference of all options, from docstrings.

    python scripts/write_options_page.py

A test holds the page against what this would write.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from outgrow.app.model_registry import MODELS
from outgrow.app.option_reference import TRAINING, OptionDescription, list_option_descriptions
from outgrow.app.strategy_registry import STRATEGIES

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
_HEAD = """# Options

<!-- Written by scripts/write_options_page.py from the docstrings of the code. -->

All options by name, with their defaults. On the command line they are given by `--set NAME=VALUE`, or by an option of
their own that `outgrow train --help` shows (`batch_size` is `--batch-size`); in Python as arguments of `og.train`, of a
strategy (`og.Sampled(cache=0.1)`) or of a model. `none` stands for `None`. `outgrow train --help-options NAME` shows
those of one strategy, of one model, or of training.
"""


def render_page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for name in STRATEGIES:
        parts += [f"## Strategy `{name}`\n", *_render_table(list_option_descriptions(name))]
    parts += ["## Training\n", *_render_table(list_option_descriptions(TRAINING))]
    shared = list_option_descriptions("sage")
    parts += ["## All models\n", *_render_table(shared)]
    parts += ["`embedding` has no layers, and only the models of one kind of edges have `hetero`.\n"]
    for name in MODELS:
        own = [each for each in list_option_descriptions(name) if each not in shared]
        if own:
            parts += [f"## Model `{name}`\n", *_render_table(own)]
    return "\n".join(parts)


def _render_table(options: Iterable[OptionDescription]) -> list[str]:
    rows = [f"| `{each.name}` | {_cell(each.default)} | {_cell(each.meaning)} |" for each in options]
    return ["| option | default | meaning |", "|---|---|---|", *rows, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(render_page(), "utf-8")
