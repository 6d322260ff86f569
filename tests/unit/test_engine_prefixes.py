"""Kept prefixes: the right tokens, under the right version, within the bound."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from instar.engines.embedded.adapters import Adapter
from instar.engines.embedded.kv import Layout, StreamCache
from instar.engines.embedded.prefixes import Prefixes

V1 = Adapter("v1", Path("/v1"), {})
PLAIN = Layout(((2, 4, 4), (2, 4, 4)), torch.float32, torch.device("cpu"))
UNEVEN = Layout(((2, 4, 4), (1, 8, 4)), torch.float32, torch.device("cpu"))


def written(layout: Layout, length: int, value: float) -> StreamCache:
    cache = StreamCache(layout, length + 10)
    for place, view in enumerate(cache.views(0, length)):
        view.fill_(value + place)
    cache.length = length
    return cache


@pytest.mark.parametrize("layout", [PLAIN, UNEVEN])
def test_longest_common_prefix_is_copied(layout: Layout) -> None:
    prefixes = Prefixes(layout, 1_000)
    ids = list(range(50))
    prefixes.keep(written(layout, 40, 1.0), None, ids[:40])
    prefixes.keep(written(layout, 45, 5.0), None, ids[:36] + [99] * 9)
    cache = StreamCache(layout, 60)
    prefixes.fill(cache, None, ids)
    assert cache.length == 40
    assert all(bool((view == 1.0 + place).all()) for place, view in enumerate(cache.views(0, 40)))


def test_one_token_is_always_left_to_compute() -> None:
    prefixes = Prefixes(PLAIN, 1_000)
    ids = list(range(40))
    prefixes.keep(written(PLAIN, 40, 1.0), None, ids)
    cache = StreamCache(PLAIN, 60)
    prefixes.fill(cache, None, ids)
    assert cache.length == 39


def test_versions_share_nothing() -> None:
    prefixes = Prefixes(PLAIN, 1_000)
    ids = list(range(40))
    prefixes.keep(written(PLAIN, 40, 1.0), V1, ids)
    same_name_later = Adapter("v1", Path("/other"), {})
    for adapter in (None, same_name_later):
        cache = StreamCache(PLAIN, 60)
        prefixes.fill(cache, adapter, ids)
        assert cache.length == 0
    prefixes.forget(V1)
    cache = StreamCache(PLAIN, 60)
    prefixes.fill(cache, V1, ids)
    assert cache.length == 0


def test_oldest_goes_first_when_the_memory_is_full() -> None:
    prefixes = Prefixes(PLAIN, 100)
    first, second, third = ([i * 1_000 + k for k in range(40)] for i in range(3))
    prefixes.keep(written(PLAIN, 40, 1.0), None, first)
    prefixes.keep(written(PLAIN, 40, 2.0), None, second)
    prefixes.fill(StreamCache(PLAIN, 60), None, first)  # used: now the second is the oldest
    prefixes.keep(written(PLAIN, 40, 3.0), None, third)
    lengths = []
    for ids in (first, second, third):
        cache = StreamCache(PLAIN, 60)
        prefixes.fill(cache, None, ids)
        lengths.append(cache.length)
    assert lengths == [39, 0, 39]
    prefixes.make_room(0)
    cache = StreamCache(PLAIN, 60)
    prefixes.fill(cache, None, third)
    assert cache.length == 0


def test_longer_conversation_replaces_its_beginning() -> None:
    prefixes = Prefixes(PLAIN, 100)
    ids = list(range(60))
    prefixes.keep(written(PLAIN, 40, 1.0), None, ids[:40])
    prefixes.keep(written(PLAIN, 60, 2.0), None, ids)
    other = [500 + i for i in range(40)]
    prefixes.keep(written(PLAIN, 40, 3.0), None, other)  # fits only if the 40 were given up
    cache = StreamCache(PLAIN, 80)
    prefixes.fill(cache, None, [*ids, 1])
    assert cache.length == 60
