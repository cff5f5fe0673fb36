"""Written addition in three lengths: what a demonstration thinks before it states a sum."""

from __future__ import annotations

from typing import Literal

Style = Literal["none", "short", "long"]
STYLES: tuple[Style, ...] = ("long", "short", "none")


def add(a: int, b: int, style: Style) -> str:
    """The working of a + b, from the last column to the first.

    `long` writes every column with its carry (``9+7=16,1+8+1=10``), `short` only the digits of the sum in
    that order (``19+87:601``), `none` nothing.
    """
    if style == "none":
        return ""
    width = max(len(str(a)), len(str(b)))
    left, right = str(a).zfill(width), str(b).zfill(width)  # equal widths keep a column's digits at a fixed distance
    if style == "short":
        return f"{left}+{right}:{str(a + b)[::-1]}"
    columns, carry = [], 0
    for x, y in zip(reversed(left), reversed(right), strict=True):
        column = int(x) + int(y) + carry
        columns.append(f"{x}+{y}{'+1' if carry else ''}={column}")
        carry = column // 10
    return f"{left}+{right}:{','.join(columns)}"
