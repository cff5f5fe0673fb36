"""When two plain JSON values are the same."""

from __future__ import annotations

import math
from typing import Any


def same_value(left: Any, right: Any) -> bool:
    """Equal with equal types all the way down: `True` is not `1`, `1.0` is not `1`, a tuple is not a list.

    A NaN equals a NaN, because an expected NaN must be reachable; it equals nothing else. `0.0` equals `-0.0`.
    Only the builtin types compare equal, so no object's own `__eq__` is ever asked.
    """
    if type(left) is not type(right):
        return False
    if type(left) is list:
        return len(left) == len(right) and all(map(same_value, left, right))
    if type(left) is dict:
        return left.keys() == right.keys() and all(type(k) is str and same_value(v, right[k]) for k, v in left.items())
    if type(left) is float:
        return left == right or (math.isnan(left) and math.isnan(right))
    return type(left) in (bool, int, str, type(None)) and bool(left == right)
