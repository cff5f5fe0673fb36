"""Inputs for differential tests, made from documented ones: values of the same shape, other in size, order, sign and content."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

_LETTERS = "abcxyzABZ019 _-.,/"
MAX_LENGTH = 40


def variations(rng: random.Random, seeds: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    """`count` distinct argument lists at most, none of them a seed; deterministic for a seeded `rng`.

    Args:
        seeds: documented arguments, plain JSON values.
    """
    texts = [v for seed in seeds for v in _strings(list(seed))]
    known = {repr(list(seed)) for seed in seeds}
    found: list[list[Any]] = []
    for _ in range(count * 8):
        if len(found) == count:
            break
        arguments = list(rng.choice(seeds))
        # An argument from another example, in the same place, combines what the examples show apart.
        other = rng.choice(seeds)
        arguments = [other[i] if i < len(other) and rng.random() < 0.2 else v for i, v in enumerate(arguments)]
        for i in rng.sample(range(len(arguments)), rng.randint(1, len(arguments))):
            for _ in range(rng.randint(1, 3)):
                arguments[i] = varied(rng, arguments[i], texts)
        if repr(arguments) not in known:
            known.add(repr(arguments))
            found.append(arguments)
    return found


def varied(rng: random.Random, value: Any, texts: Sequence[str] = ()) -> Any:
    """A value of the same type that is a little other."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        bound = max(12, 3 * abs(value))
        low = -bound if value < 0 or rng.random() < 0.2 else 0
        return rng.choice([value + 1, value - 1, rng.randint(low, bound), rng.randint(0, 9)])
    if isinstance(value, str):
        return _text(rng, value, texts)
    if isinstance(value, list):
        return _items(rng, value, texts)
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        if rng.random() < 0.3 and len(value) > 1:
            return {k: v for k, v in value.items() if k != key}
        if rng.random() < 0.3:
            return {**value, _text(rng, key, texts): value[key]}
        return {**value, key: varied(rng, value[key], texts)}
    return value


def _text(rng: random.Random, value: str, texts: Sequence[str]) -> str:
    at = rng.randint(0, len(value))
    end = rng.randint(at, len(value))
    changed = rng.choice(
        [
            value[:at] + rng.choice((value or _LETTERS) + _LETTERS) + value[at:],
            value[:at] + value[end:] if end > at else value[::-1],
            value[at:] + value[:at],
            value.swapcase(),
            value + (rng.choice(texts) if texts else value),
            rng.choice(texts) if texts else value[::-1],
            value[:at] + value[at:end] * 2 + value[end:],
        ]
    )
    return changed[: max(MAX_LENGTH, len(value) + 4)]


def _items(rng: random.Random, value: list[Any], texts: Sequence[str]) -> list[Any]:
    if not value:
        return value
    items = list(value)
    at = rng.randrange(len(items))
    kind = rng.randrange(6)
    if kind == 0:
        rng.shuffle(items)
    elif kind == 1:
        del items[at]
    elif kind == 2:
        items.insert(at, items[rng.randrange(len(items))])
    elif kind == 3:
        items.append(varied(rng, items[at], texts))
    else:
        items[at] = varied(rng, items[at], texts)
    return items[:MAX_LENGTH]


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return [s for v in value for s in _strings(v)] if isinstance(value, list) else []
