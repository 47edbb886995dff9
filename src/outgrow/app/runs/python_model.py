"""How a model that was made in Python is kept in its run, so that another process can make it again.

Models of `outgrow.nn` are kept by their constructor and its arguments, others pickled: their classes by reference, or
by value where no other process can import them. A pickle runs code when it is read, so only runs of one's own, or of
people one trusts, may be opened.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from outgrow import nn as models
from outgrow.app.node_task import describe_outputs
from outgrow.app.runs.directory import convert_write_errors
from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write
from outgrow.graph.graph import Graph
from outgrow.nn.edge_tasks import EdgeTask
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeTask
from outgrow.runtime.distributed.job_files import serialize_by_value

PYTHON = "python"
"""Name of a model that was made in Python, where models of the command line have names of their own."""
_PARAMETERS = "model.pt"
_PICKLE = "model.pkl"
_PLAIN = (str, int, float, bool, type(None))


def describe_python_model(model: Model, graph: Graph, task: NodeTask | EdgeTask | None) -> dict[str, Any]:
    """Return what ``config.json`` records of a model: of those of the command line, what it records too.

    Args:
        model: The model.
        graph: The graph that it is trained on.
        task: Its task; None for a model of links.
    """
    made = _find_constructor(model)
    return {
        "name": PYTHON,
        "options": {},
        "constructor": made,
        **describe_outputs(graph, task),
    }


def describe_model(model: Model) -> str:
    """Return constructor and arguments of a model, or its layers, in one line for people."""
    if model.constructor is not None:
        name, arguments = model.constructor
        return f"{name}({', '.join(f'{key}={_name(value)}' for key, value in arguments.items())})"
    layers = ", ".join(
        f"{type(layer.conv).__name__} {layer.spec.in_features} to {layer.spec.out_features}"
        for layer in model.layers_list()
    )
    return f"Model({layers})"


def _name(value: object) -> object:
    return getattr(value, "__name__", value)


def _find_constructor(model: Model) -> dict[str, Any] | None:
    if model.constructor is None:
        return None
    name, arguments = model.constructor
    signature = inspect.signature(getattr(models, name))
    # Defaults that are no plain values, such as an activation, need no record.
    given = {key: value for key, value in arguments.items() if value is not signature.parameters[key].default}
    if not all(isinstance(value, _PLAIN) for value in given.values()):
        return None
    made = {"name": name, "arguments": given}
    # A model that was changed after it was made is another one.
    return made if str(_construct(made)) == str(model) else None


def _construct(made: Mapping[str, Any]) -> Model:
    # Draws parameters, which are replaced: draws of the program must not depend on it.
    with torch.random.fork_rng(devices=[]):
        built: Model = getattr(models, made["name"])(**made["arguments"])
        return built


def save_python_model(model: Model, record: Mapping[str, Any], folder: Path) -> None:
    """Write the model of a new run, with the parameters that it starts with.

    Raises:
        InputError: The file cannot be written, or the model cannot be pickled.
    """
    if record["constructor"] is not None:
        path = folder / _PARAMETERS
        with convert_write_errors(path), atomic_write(path, temporary=f".{path.name}.partial") as temporary:
            torch.save(model.state_dict(), temporary)
        return
    path = folder / _PICKLE
    try:
        data = serialize_by_value(model)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(
            "the model cannot be kept in its run",
            needed="a model that can be pickled",
            got=str(error),
            repair="keep files, locks and lambdas out of its modules, or train without out",
        ) from error
    with convert_write_errors(path), atomic_write(path, temporary=f".{path.name}.partial") as temporary:
        temporary.write_bytes(data)


def load_python_model(record: Mapping[str, Any], folder: Path) -> Model:
    """Make the model of a run again, with the parameters that it started with.

    Raises:
        InputError: Its file is missing or broken, or its class cannot be imported any more.
    """
    made = record.get("constructor")
    path = folder / (_PICKLE if made is None else _PARAMETERS)
    try:
        if made is None:
            # Written by the user's own run: see the warning of the module.
            return _require_model(pickle.loads(path.read_bytes()))
        model = _construct(made)
        model.load_state_dict(torch.load(path, weights_only=True))
        return model
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"the model of the run in {folder} cannot be made again",
            needed="the module and the class that it was made of, as they were",
            got=str(error),
            repair="run from the folder that the module is in, or name it by PYTHONPATH; give a class that was renamed "
            "its former name too",
        ) from error
    except (OSError, EOFError, RuntimeError, ValueError, TypeError, KeyError, pickle.UnpicklingError) as error:
        raise InputError(
            f"cannot read {path}",
            needed="the model of the run, as og.train wrote it",
            got=str(error).partition("\n")[0],
            repair="restore the file, or use og.train(..., resume=True) or og.predict with the same model",
        ) from error


def _require_model(found: object) -> Model:
    if isinstance(found, Model):
        return found
    raise ValueError(f"a {type(found).__name__}")
