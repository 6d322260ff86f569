"""An adapter folder read into fp32 matrices, laid out for the products of linear.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from instar.engines.adapter_folder import WEIGHTS, AdapterHead, read_adapter
from instar.engines.embedded.linear import LoraTerm, Product
from instar.engines.wire import bad
from instar.errors import RequestError


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """One version in memory. It lives as long as a request holds it, whatever its name does meanwhile."""

    name: str
    folder: Path
    terms: dict[str, LoraTerm]


def load_adapter(
    name: str, folder: Path, max_rank: int, products: dict[str, Product], device: torch.device
) -> Adapter:
    """Read, check and lay out an adapter. Raises RequestError (400) saying what is wrong with it."""
    head = read_adapter(folder, max_rank)
    _check_layers(head, products)
    try:
        tensors = load_file(head.folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(folder, f"{WEIGHTS} cannot be read ({error})") from error
    tensors = {key: value.float() for key, value in tensors.items()}
    for key, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise _damaged(folder, f"'{key}' holds values that are not finite")
    by_product: dict[str, list[str]] = {}
    for path in head.modules:
        by_product.setdefault(products[path].name, []).append(path)
    terms = {
        product_name: _term(head, products[product_name], paths, tensors, device)
        for product_name, paths in by_product.items()
    }
    return Adapter(name, head.folder, terms)


def _term(
    head: AdapterHead, product: Product, paths: list[str], tensors: dict[str, Tensor], device: torch.device
) -> LoraTerm:
    down = torch.cat([tensors[head.modules[path][0]] for path in paths]).t().contiguous()
    up = torch.zeros(down.shape[1], product.out_features)
    for place, path in enumerate(paths):
        ranks = slice(place * head.rank, (place + 1) * head.rank)
        up[ranks, product.slices[path]] = tensors[head.modules[path][1]].t() * head.scaling
    return LoraTerm(down.to(device), up.to(device))


def _damaged(folder: Path, why: str) -> RequestError:
    return bad(f"The adapter in {folder} cannot be served: {why}.", "lora_path", "bad_adapter")


def _check_layers(head: AdapterHead, products: dict[str, Product]) -> None:
    for path, (key_a, key_b) in head.modules.items():
        product = products.get(path)
        if product is None:
            raise _damaged(head.folder, f"this model has no linear layer '{path}'")
        outputs = product.slices[path]
        wanted = (product.in_features, outputs.stop - outputs.start)
        found = (head.shapes[key_a][1], head.shapes[key_b][0])
        if wanted != found:
            raise _damaged(head.folder, f"'{path}' is for {found[0]}→{found[1]}, the model has {wanted}")
