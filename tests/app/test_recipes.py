"""Recipes name options that exist."""

import pytest
from tests.app.conftest import planted

import outgrow as og
from outgrow.app.model_registry import MODELS, build_model, model_options
from outgrow.app.recipes import choose_model, find_recipe, make_train_config
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
    layers = recipe.model.get("layers", 1)
    # These propagate in front of the layers that are trained, and drop out in between.
    before = layers + 1 if model in ("sgc", "sign") else 0
    assert len(built.layers_list()) == layers + before
    assert ("layers" in recipe.model) == MODELS[model].is_stack
    TrainConfig().with_options(**recipe.train)
    assert recipe.source
    assert choose_model(graph) in MODELS


def test_a_recipe_fits_the_links_of_a_graph() -> None:
    recipe = find_recipe("facts", "embedding", links=True)
    fitted = recipe.fit_to_links(86_835, 40_943).train
    assert (fitted["link_steps"], fitted["negatives"], fitted["filter_negatives"]) == (87, 1000, False)
    few = recipe.fit_to_links(300, 80).train
    assert (few["link_steps"], few["negatives"]) == (1, 80)
    for links in (few, find_recipe("wordnet", "embedding", links=True).train):
        TrainConfig().with_options(**links)


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({"link_loss": "bce"}, {"negative_sampling", "negatives", "filter_negatives"}),
        ({"link_loss": "margin", "negatives": 3}, {"negative_sampling", "negatives", "filter_negatives"}),
        ({"negative_sampling": "uniform"}, {"negatives", "filter_negatives"}),
        ({"link_loss": "softmax", "negative_sampling": "shared", "lr": 0.2}, set()),
    ],
)
def test_a_recipe_leaves_out_what_suits_another_loss(given: dict[str, object], left_out: set[str]) -> None:
    whole, found = (find_recipe("facts", "embedding", links=True, given=each) for each in (None, given))
    assert set(whole.train) - set(found.train) == left_out
    make_train_config(found, given)


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
