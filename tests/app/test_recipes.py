"""Recipes name options that exist."""

import pytest
from tests.app.conftest import planted

import outgrow as og
from outgrow.app.model_registry import MODELS, build_model, model_options
from outgrow.app.recipes import choose_model, find_recipe
from outgrow.training.config import TrainConfig


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("graph", ["cora", "citeseer", "debian", "wordnet", "anything"])
def test_a_recipe_builds_its_model_and_its_loop(graph: str, model: str) -> None:
    arrays = planted()
    small = og.from_arrays(
        arrays["edge_index"],
        features=arrays["features"],
        labels=arrays["label"],
        relation=arrays["edge_index"][0] % 3,
        edge_features=arrays["edge_index"].T.astype("f4"),
    )
    recipe = find_recipe(graph, model)
    built = build_model(model, small, recipe.model)
    assert len(built.layers_list()) == recipe.model.get("layers", 1)
    assert ("layers" in recipe.model) == MODELS[model].is_stack
    TrainConfig().with_options(**recipe.train)
    assert recipe.source
    assert choose_model(graph) in MODELS


def test_options_of_a_model_have_types() -> None:
    assert model_options("gat") == {
        "hidden": int,
        "layers": int,
        "dropout": float,
        "input_dropout": float,
        "norm": bool,
        "residual": bool,
        "heads": int,
        "out_heads": int,
        "attention_dropout": float,
        "edge_weights": bool,
        "hetero": bool,
        "type_encoder": bool,
        "embedding": int,
        "embedding_combine": str,
        "embedding_std": float,
        "decoder": str,
    }
