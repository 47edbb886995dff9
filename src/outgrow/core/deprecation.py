"""Old names of options, attributes and methods, which work for one more version with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeVar

from outgrow.core.synonyms import rename_keys, translate_keywords

Kind = TypeVar("Kind", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])

_RENAMED = "__renamed_options__"


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warn the caller's caller that a name is an old one.

    Args:
        old: The name that was used.
        new: The name to use.
        stacklevel: How many calls above the caller the old name was written.
    """
    warnings.warn(f"{old} is now called {new}", DeprecationWarning, stacklevel=stacklevel + 1)


def renamed_options(**names: str) -> Callable[[Kind], Kind]:
    """Class decorator: the constructor and the instances also know options by their old names, with a warning.

    Args:
        **names: The new name of each old name.
    """

    def decorate(kind: Kind) -> Kind:
        constructor = "__new__" if issubclass(kind, tuple) else "__init__"
        setattr(kind, constructor, _accept_old_keywords(kind.__name__, getattr(kind, constructor), names))
        setattr(kind, _RENAMED, names)
        for old, new in names.items():
            setattr(kind, old, _RenamedAttribute(kind, old, new))
        return kind

    return decorate


def renamed_options_of(kind: type) -> Mapping[str, str]:
    """The new name of each old name of an option of a class."""
    names: Mapping[str, str] = getattr(kind, _RENAMED, {})
    return names


def use_new_names(kind: type, options: Mapping[str, object]) -> dict[str, object]:
    """Options of a class, by their new names, without a warning.

    Raises:
        InputError: An option is given by its old name and by its new one.
    """
    return rename_keys(kind.__name__, options, renamed_options_of(kind))


def renamed_members(**names: str) -> Callable[[Kind], Kind]:
    """Class decorator: attributes and methods have their old names too, with a warning; subclasses may define these.

    Args:
        **names: The new name of each old name.
    """

    def decorate(kind: Kind) -> Kind:
        for old, new in names.items():
            is_method = isinstance(vars(kind).get(new), FunctionType)
            setattr(kind, old, (_RenamedMethod if is_method else _RenamedAttribute)(kind, old, new))
        setattr(kind, "__init_subclass__", classmethod(_subclass_hook(kind, names)))  # noqa: B010 - mypy refuses it
        return kind

    return decorate


def renamed_arguments(**names: str) -> Callable[[Function], Function]:
    """Decorator of a function, which also takes arguments by their old names, with a warning.

    Args:
        **names: The new name of each old name.
    """

    def decorate(function: Function) -> Function:
        accept: Any = _accept_old_keywords(function.__name__, function, names)
        return accept  # type: ignore[no-any-return]

    return decorate


def renamed_names(module: str, names: Mapping[str, str], new_module: str | None = None) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module whose names have changed: an old name warns once in a process.

    Args:
        module: Full name of the module.
        names: The new name of each old name.
        new_module: Where the new names are; None for the same module.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = new_module or module
        warn_renamed(f"{module}.{name}", f"{home}.{names[name]}")
        value = getattr(importlib.import_module(home), names[name])
        # `from package import name` asks twice.
        setattr(sys.modules[module], name, value)
        return value

    return find


class _RenamedMethod:
    """A method by its old name. Instances may have an attribute of this name."""

    def __init__(self, owner: type, old: str, new: str) -> None:
        self.owner, self.old, self.new = owner, old, new

    def __get__(self, instance: object, kind: type) -> Any:
        warn_renamed(f"{self.owner.__name__}.{self.old}", self.new)
        if instance is None:
            return getattr(kind, self.new)
        # A subclass that defines the old name is here only through `super()`: its own method would call itself.
        if any(self.old in vars(each) for each in _classes_below(type(instance), self.owner)):
            return vars(self.owner)[self.new].__get__(instance, kind)
        return getattr(instance, self.new)


class _RenamedAttribute:
    """An attribute by its old name: it is also set by this name."""

    def __init__(self, owner: type, old: str, new: str) -> None:
        self.owner, self.old, self.new = owner, old, new

    def __get__(self, instance: object, kind: type) -> Any:
        warn_renamed(f"{self.owner.__name__}.{self.old}", self.new)
        if instance is not None and any(self.old in vars(each) for each in _classes_below(type(instance), self.owner)):
            return vars(self.owner)[self.new].__get__(instance, kind)
        return getattr(kind if instance is None else instance, self.new)

    def __set__(self, instance: object, value: object) -> None:
        warn_renamed(f"{self.owner.__name__}.{self.old}", self.new)
        setattr(instance, self.new, value)


def _classes_below(kind: type, owner: type) -> tuple[type, ...]:
    return kind.__mro__[: kind.__mro__.index(owner)]


def _accept_old_keywords(owner: str, function: Callable[..., Any], names: Mapping[str, str]) -> Callable[..., Any]:
    def warn(old: str) -> None:
        warn_renamed(f"option {old} of {owner}", names[old], stacklevel=3)

    return translate_keywords(owner, function, names, warn)


def _subclass_hook(kind: Any, names: Mapping[str, str]) -> Callable[..., None]:
    def define_by_new_names(cls: type, **options: Any) -> None:
        super(kind, cls).__init_subclass__(**options)
        for old in vars(cls).keys() & names.keys():
            new, defined = names[old], vars(cls)[old]
            is_method = isinstance(vars(kind).get(new), FunctionType)
            if is_method and not isinstance(defined, FunctionType):
                continue  # a name of its own: what it would have replaced is a method
            warn_renamed(f"{kind.__name__}.{old}", new)
            setattr(cls, new, defined)
            if not isinstance(defined, FunctionType | property):
                delattr(cls, old)

    return define_by_new_names
