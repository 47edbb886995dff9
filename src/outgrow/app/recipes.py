"""Recipes: default options of a model on a data set, which options of the user override."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

from outgrow.app.model_registry import model_options
from outgrow.core.validation import validate_choice
from outgrow.training.config import TrainConfig
from outgrow.training.loop_options import open_option_names

_TRAINING = tuple(field.name for field in fields(TrainConfig))
_OF_LOSS = ("negative_sampling", "negatives", "filter_negatives")
"""Options that suit the loss of a recipe alone, and those behind the first its sampling alone."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Default options of a model on a data set.

    Attributes:
        model: Options of the model.
        train: Options of `TrainConfig`.
        source: Publication or tuning that the options come from.
        links_per_step: Edges of a graph for each optimizer step of an epoch, if it predicts links; None for
            ``link_steps`` as ``train`` has it.
    """

    model: Mapping[str, object] = field(default_factory=dict)
    train: Mapping[str, object] = field(default_factory=dict)
    source: str
    links_per_step: int | None = None

    def fit_to_links(self, num_edges: int, num_candidates: int) -> Recipe:
        """Return the recipe for links of a graph: its number of steps, and no more negatives than candidates.

        Args:
            num_edges: Number of edges of the graph.
            num_candidates: Nodes of the smallest node type that is an end of edges.
        """
        train = dict(self.train)
        if self.links_per_step is not None:
            train["link_steps"] = max(1, round(num_edges / self.links_per_step))
        negatives = train.get("negatives")
        if isinstance(negatives, int):
            train["negatives"] = max(1, min(negatives, num_candidates))
        return replace(self, train=train)


_PLANETOID_GCN = Recipe(
    model={"hidden": 16, "layers": 2, "dropout": 0.5, "input_dropout": 0.5},
    train={"lr": 0.01, "weight_decay": 5e-4, "epochs": 200},
    source="Kipf & Welling, ICLR 2017",
)
_PLANETOID_GAT = Recipe(
    model={"hidden": 64, "layers": 2, "heads": 8, "dropout": 0.6, "input_dropout": 0.6, "attention_dropout": 0.6},
    train={"lr": 0.005, "weight_decay": 5e-4, "epochs": 1000, "patience": 100},
    source="Velickovic et al., ICLR 2018",
)
_ANY_GRAPH = Recipe(
    model={"hidden": 256, "layers": 2, "dropout": 0.5, "input_dropout": 0.5, "norm": True},
    train={"lr": 0.01, "weight_decay": 0.01, "optimizer": "adamw", "epochs": 150},
    source="tuned on the validation nodes of WordNet and Amazon Photo",
)
_WORDNET = Recipe(
    model=_ANY_GRAPH.model,
    train={**_ANY_GRAPH.train, "epochs": 70},
    source="tuned on the validation nodes of WordNet",
)
_DEBIAN = Recipe(
    model={"hidden": 128, "layers": 2, "dropout": 0.4, "input_dropout": 0.6, "norm": True},
    train={"lr": 0.01, "weight_decay": 0.01, "optimizer": "adamw", "epochs": 90},
    source="tuned on the validation nodes of Debian",
)
_LINKS = Recipe(
    model={"hidden": 128, "layers": 2, "dropout": 0.2, "norm": True},
    train={"lr": 0.01, "optimizer": "adamw", "epochs": 100, "eval_every": 20},
    source="a first choice, not tuned",
)
_WORDNET_LINKS = Recipe(
    model={"hidden": 128, "layers": 2, "dropout": 0.2},
    train={"lr": 0.02, "optimizer": "adamw", "epochs": 200, "eval_every": 50},
    source="tuned on links of WordNet that were set aside: R-GCN, with and without norms and dropout",
)
_WORDNET_VECTORS = Recipe(
    model={"hidden": 200, "dropout": 0.2},
    train={
        **{"lr": 0.01, "epochs": 4, "eval_every": 1, "link_loss": "softmax", "link_steps": 64},
        **{"negative_sampling": "shared", "negatives": 512, "regularizer": "n3", "regularizer_weight": 0.005},
    },
    source="validation links of WordNet: benchmarks/link_recipes.py",
)
_LINK_VECTORS = Recipe(
    model={"hidden": 200, "std": 0.05},
    train={
        **{"lr": 0.1, "optimizer": "adagrad", "embedding_lr": 0.1, "embedding_optimizer": "adagrad"},
        **{"epochs": 20, "eval_every": 5, "link_loss": "softmax", "negative_sampling": "shared", "negatives": 1000},
        **{"filter_negatives": False, "regularizer": "n3", "regularizer_weight": 0.02},
    },
    source="validation links of WN18RR and CoDEx-S: benchmarks/link_recipes.py",
    links_per_step=1000,
)
_BY_DATA_SET: Mapping[tuple[str, str], Recipe] = {
    ("cora", "gcn"): _PLANETOID_GCN,
    ("citeseer", "gcn"): _PLANETOID_GCN,
    ("cora", "decoupled"): _PLANETOID_GCN,
    ("citeseer", "decoupled"): _PLANETOID_GCN,
    ("cora", "decoupled-sage"): _PLANETOID_GCN,
    ("citeseer", "decoupled-sage"): _PLANETOID_GCN,
    ("cora", "decoupled-gat"): _PLANETOID_GCN,
    ("citeseer", "decoupled-gat"): _PLANETOID_GCN,
    ("cora", "gat"): _PLANETOID_GAT,
    ("citeseer", "gat"): _PLANETOID_GAT,
    ("debian", "sage-max"): _DEBIAN,
    ("wordnet", "sage"): _WORDNET,
}
_MODELS: Mapping[str, str] = {"debian": "sage-max"}


def choose_model(graph: str) -> str:
    """Return the name of the default model for a data set."""
    return _MODELS.get(graph, "sage")


def find_recipe(graph: str, model: str, *, links: bool = False, given: Mapping[str, object] | None = None) -> Recipe:
    """Return the recipe of a model on a data set, or one for any graph.

    Args:
        graph: Name of the data set.
        model: Name of the model.
        links: Whether links are predicted.
        given: Options of the user; those of the recipe that suit others alone are left out.
    """
    if links:
        found = _LINK_VECTORS if model == "embedding" else _LINKS
        if graph == "wordnet":
            found = _WORDNET_VECTORS if model == "embedding" else _WORDNET_LINKS
        found = _leave_out_negatives(found, given or {})
    else:
        found = _BY_DATA_SET.get((graph, model), _ANY_GRAPH)
    known = model_options(model)
    # A model without layers, such as one of vectors alone, has no use for their number.
    return replace(found, model={name: value for name, value in found.model.items() if name in known})


def _leave_out_negatives(recipe: Recipe, given: Mapping[str, object]) -> Recipe:
    """Return the recipe without the negatives of another loss, or of another sampling, than the user asks for."""
    own = recipe.train
    left_out: tuple[str, ...] = ()
    if given.get("link_loss", own.get("link_loss")) != own.get("link_loss"):
        left_out = _OF_LOSS
    elif given.get("negative_sampling", own.get("negative_sampling")) != own.get("negative_sampling"):
        left_out = _OF_LOSS[1:]
    return replace(recipe, train={name: value for name, value in own.items() if name not in left_out})


def make_train_config(recipe: Recipe, options: Mapping[str, object], others: Collection[str] = ()) -> TrainConfig:
    """Return the options of the training loop: given ones, then those of the recipe, then defaults.

    Args:
        recipe: The recipe.
        options: Options by name, of which some may be no options of the loop.
        others: Names that are options of something else, though an optimizer or a schedule may have them.

    Raises:
        InputError: A value cannot be used.
    """
    given = {**recipe.train, **options}
    optimizer = given.get("optimizer", TrainConfig().optimizer)
    known = {*_TRAINING, *(open_option_names(optimizer, given.get("schedule")) - {*others})}
    return TrainConfig().with_options(**{name: value for name, value in given.items() if name in known})


def split_options(
    model: str,
    options: Mapping[str, object],
    strategy_option_names: Iterable[str] = (),
    loop_option_names: Iterable[str] = (),
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the options of the model, and those of the strategy that takes ``strategy_option_names``.

    Options of the training loop, of which ``loop_option_names`` are those of its optimizer and schedule, are left out.

    Raises:
        InputError: There is no such option.
    """
    groups: tuple[dict[str, object], ...] = {}, {}, {}
    # Later entries win: a name that several take is an option of the model first, then of the loop.
    known = {
        **dict.fromkeys(strategy_option_names, 1),
        **dict.fromkeys(loop_option_names, 2),
        **dict.fromkeys(_TRAINING, 2),
        **dict.fromkeys(model_options(model), 0),
    }
    for name, value in options.items():
        groups[validate_choice("option", name, known)][name] = value
    return groups[0], groups[1]
