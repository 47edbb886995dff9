"""Strategies by name, and their options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import get_type_hints

from outgrow.core.deprecation import renamed_options_of, use_new_names, warn_renamed
from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice, validate_types
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel

STRATEGIES: dict[str, type[Strategy]] = {
    "full": Full,
    "offload": Offload,
    "tensor": TensorParallel,
    "sampled": Sampled,
    "split": SplitParallel,
    "migrate": Migrate,
    "orchestrate": Orchestrate,
}
_REASONS = {
    "full": "every worker holds its share of the graph in memory",
    "offload": "memory is limited",
    "sampled": "mini-batches are asked for",
}


def changed_options(strategy: Strategy) -> dict[str, object]:
    """Return the options of a strategy that are not the usual ones."""
    usual = type(strategy)().options()
    return {name: value for name, value in strategy.options().items() if usual[name] != value}


def format_options(options: Mapping[str, object]) -> str:
    """Format options for people: ``"cache=0.2, prefetch=2"``."""
    return ", ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()
    )


def resolve_strategy(
    choice: str | Strategy, options: Mapping[str, object] | None = None, *, batches: bool = False
) -> tuple[Strategy, str]:
    """Return the strategy to train with, and one sentence on why.

    Args:
        choice: ``"auto"``, a name, or a strategy.
        options: Options of a strategy given by name.
        batches: Whether to train in mini-batches.

    Raises:
        InputError: There is no such strategy, or it does not take an option.
    """
    if isinstance(choice, Strategy):
        return choice, f"strategy {choice.name}, as given"
    if not isinstance(choice, str):
        raise InputError(
            f"not a strategy: {choice!r}",
            needed="a name, or a strategy with its options such as og.Full()",
            got=type(choice).__name__,
            repair='give strategy="auto"',
        )
    given = options or {}
    kind = find_strategy_class(choice, batches=batches, memory="memory" in given)
    reason = _REASONS[kind.name] if choice == "auto" else "as given"
    return make_strategy(kind, given), f"strategy {kind.name}: {reason}"


def find_strategy_class(name: str, *, batches: bool, memory: bool) -> type[Strategy]:
    """Return the class of a strategy by name, ``"auto"`` included.

    Args:
        name: Name of the strategy.
        batches: Whether to train in mini-batches.
        memory: Whether memory is limited.

    Raises:
        InputError: There is no such strategy, or it cannot keep to a memory limit.
    """
    # Mini-batches decide before memory: they keep to a limit, too.
    auto: type[Strategy] = Sampled if batches else Offload if memory else Full
    kind = validate_choice("strategy", name, {"auto": auto, **STRATEGIES})
    if memory and "memory" not in list_strategy_options(kind):
        raise InputError(
            f"strategy {kind.name} cannot keep to a limit of memory",
            needed="no limit, or a strategy that trains in chunks",
            got=f"strategy {kind.name} with memory",
            repair="leave memory out, or choose strategy offload, without batch_size and fanout",
        )
    return kind


def list_strategy_options(kind: type[Strategy]) -> Mapping[str, object]:
    """Return the options that a strategy takes, by name."""
    # The constructor is the only list of options: a strategy need not declare them twice.
    return {name: each for name, each in inspect.signature(kind).parameters.items() if each.kind == each.KEYWORD_ONLY}


def use_new_option_names(kind: type[Strategy], given: Mapping[str, object]) -> dict[str, object]:
    """Return the given options under their current names; warn about each old one.

    Raises:
        InputError: An option is given by its old name and by its new one.
    """
    for old in given.keys() & renamed_options_of(kind).keys():
        warn_renamed(f"option {old} of strategy {kind.name}", renamed_options_of(kind)[old])
    return use_new_names(kind, given)


def make_strategy(kind: type[Strategy], options: Mapping[str, object]) -> Strategy:
    """Make a strategy with these options.

    Raises:
        InputError: The strategy lacks an option, or a value has the wrong type.
    """
    # Without warnings: old names may come from the record of an old run, which the user cannot change.
    options = use_new_names(kind, options)
    for name in options:
        validate_choice(f"option of {kind.name}", name, list_strategy_options(kind))
    validate_types(options, get_type_hints(kind.__init__))
    return kind(**options)
