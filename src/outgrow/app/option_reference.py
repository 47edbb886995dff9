"""Options of strategies, of training and of models with their meaning, as their docstrings give it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from outgrow.app.model_registry import DECODERS, MODELS, TYPE_ENCODER, model_options
from outgrow.app.strategy_registry import STRATEGIES
from outgrow.core.validation import validate_choice
from outgrow.nn.node_embedding import NodeEmbedding
from outgrow.nn.stack import Stack
from outgrow.training.config import TrainConfig

TRAINING = "training"
_SECTIONS = ("Attributes:", "Args:")
_ENTRY = re.compile(r"(?:\*\*)?(\w+): (.*)")
_COMMON: Mapping[str, tuple[object, str]] = {
    "hidden": ("", "Width of hidden layers; what the recipe of the data set says, else 64."),
    "hetero": (False, "Whether each edge type has a copy of each convolution (`to_hetero`)."),
    TYPE_ENCODER: (
        False,
        "Whether each node type has an input of its own before the first layer: a projection of its features, or a "
        "learned vector for each node. True where some types have features and some have none.",
    ),
    "embedding": (None, "Width of a learned vector for each node before the first layer; None for no vectors."),
    "decoder": (None, f"Of links: {', '.join(DECODERS)}, or auto for what suits the graph."),
}
"""Default and meaning of options that are no parameters of a model."""


_COMMON_DEFAULTS = {option: default for option, (default, _) in _COMMON.items()} | {
    f"embedding_{each.name}": each.default for each in inspect.signature(NodeEmbedding).parameters.values()
}


class OptionDescription(NamedTuple):
    """An option by name.

    Attributes:
        name: As ``--set`` and `og.train` take it.
        default: Its default value; empty if it has none.
        meaning: What it does, in one paragraph of Markdown.
    """

    name: str
    default: str
    meaning: str


def list_option_descriptions(name: str) -> list[OptionDescription]:
    """Return the options of a strategy, of a model, or of training itself (``"training"``).

    Raises:
        InputError: There is nothing of that name.
    """
    validate_choice("help-options", name, {**STRATEGIES, TRAINING: None, **MODELS})
    if name in STRATEGIES or name == TRAINING:
        kind: Any = STRATEGIES.get(name, TrainConfig)
        defaults = {each.name: _default_of_field(each) for each in fields(kind)}
        return [*_describe(defaults, parse_entries(kind))]
    build = MODELS[name].build
    parameters = inspect.signature(build).parameters
    defaults = {
        option: parameters[option].default if option in parameters else _COMMON_DEFAULTS[option]
        for option in model_options(name)
    }
    of_embedding = {f"embedding_{option}": meaning for option, meaning in parse_entries(NodeEmbedding).items()}
    common = {option: meaning for option, (_, meaning) in _COMMON.items()}
    return [*_describe(defaults, {**common, **of_embedding, **parse_entries(Stack), **parse_entries(build)})]


def parse_entries(function: Callable[..., Any] | type) -> dict[str, str]:
    """Return what the docstring of a function or class says about each argument or attribute, in Markdown."""
    lines = iter((inspect.getdoc(function) or "").splitlines())
    found: dict[str, list[str]] = {}
    for line in lines:
        if line in _SECTIONS:
            _read_section(lines, found)
    return {name: " ".join(parts).replace("``", "`") for name, parts in found.items()}


def _read_section(lines: Iterator[str], found: dict[str, list[str]]) -> None:
    parts: list[str] = []
    for line in lines:
        if not line.startswith("    "):
            return
        entry = _ENTRY.fullmatch(line[4:])
        if entry is not None and not line.startswith("     "):
            parts = found.setdefault(entry[1], [])
            parts.append(entry[2])
        else:
            parts.append(line.strip())


def _describe(defaults: Mapping[str, object], meanings: Mapping[str, str]) -> Iterator[OptionDescription]:
    for name, default in defaults.items():
        yield OptionDescription(name, _format_default(default), meanings.get(name, ""))


def _default_of_field(each: Any) -> object:
    if each.default is not MISSING:
        return each.default
    return each.default_factory() if each.default_factory is not MISSING else inspect.Parameter.empty


def _format_default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if callable(value):
        return getattr(value, "__name__", str(value))
    if isinstance(value, tuple | dict) and not value:
        return "none"
    return str(value)
