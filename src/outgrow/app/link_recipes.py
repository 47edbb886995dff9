"""Recipes of models of links, fitted to a graph."""

from __future__ import annotations

from collections.abc import Mapping

from outgrow.app.link_task import find_smallest_end_type, validate_link_graph, validate_link_options
from outgrow.app.model_registry import AUTO, adds_vectors, choose_decoder, model_options
from outgrow.app.recipes import Recipe, make_train_config
from outgrow.graph.graph import Graph
from outgrow.training.config import TrainConfig


def fit_to_links(
    graph: Graph, model: str, recipe: Recipe, options: Mapping[str, object], settings: Mapping[str, object]
) -> tuple[TrainConfig, dict[str, object]]:
    """Return the options of the training loop and of the model for the links of a graph.

    Args:
        graph: The graph.
        model: Name of the model.
        recipe: The recipe.
        options: Options of the user, of the loop and of others.
        settings: Options of the model, with a decoder.

    Raises:
        InputError: The graph has no links to train on, or an option does not fit them.
    """
    # Link models learn from the edges alone and need no labels.
    validate_link_graph(graph, needs_features=not adds_vectors(model, settings))
    recipe = recipe.fit_to_links(graph.num_edges, find_smallest_end_type(graph)[1])
    config = make_train_config(recipe, options, model_options(model))
    validate_link_options(graph, config, options)
    # Resolved before it is recorded, so that a resumed run builds the same model.
    if settings["decoder"] == AUTO:
        settings = {**settings, "decoder": choose_decoder(graph)}
    return config, dict(settings)
