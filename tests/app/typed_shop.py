"""A folder of tables of a shop: users of three kinds, items of two, shops with numbers, makers without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import outgrow as og

USERS, ITEMS, SHOPS, MAKERS = 30, 20, 12, 6
KINDS = ("gold", "silver", "bronze")


def write_shop(folder: Path) -> Path:
    """Users of three kinds, items of two, shops with numbers, and makers without labels."""
    draw = np.random.default_rng(0)

    def write(name: str, header: str, rows: list[tuple[Any, ...]]) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")

    write("nodes/user.csv", "id,label,age", [(f"u{i}", KINDS[i % 3], draw.normal() + i % 3) for i in range(USERS)])
    write("nodes/item.csv", "id,label,price", [(f"i{i}", ("toy", "book")[i % 2], draw.normal()) for i in range(ITEMS)])
    write("nodes/shop.csv", "id,label,size", [(f"s{i}", round(draw.normal(), 3), draw.normal()) for i in range(SHOPS)])
    write("nodes/maker.csv", "id,age", [(f"m{i}", draw.normal()) for i in range(MAKERS)])
    for source, name, target, first, second in (
        ("user", "buys", "item", USERS, ITEMS),
        ("item", "sold_by", "shop", ITEMS, SHOPS),
        ("shop", "serves", "user", SHOPS, USERS),
        ("maker", "makes", "item", MAKERS, ITEMS),
    ):
        ends = [(f"{source[0]}{draw.integers(first)}", f"{target[0]}{draw.integers(second)}") for _ in range(90)]
        write(f"edges/{source}__{name}__{target}.csv", f"{source}_id,{target}_id", ends)
    return folder


def model_of(graph: og.Graph) -> og.nn.Model:
    torch.manual_seed(0)
    return og.nn.SAGE(graph.num_features, 8, graph.num_classes)
