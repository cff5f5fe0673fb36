"""The stateful interpreter of `python` cells, in the guest. Standard library only.

Started as `python3 -u interpreter.py REQUESTS ANSWERS`, two descriptors on which frames travel (a length, then JSON). What a cell
prints, and what its child processes print, goes to descriptors 1 and 2, which are one pipe.
"""

import ast
import base64
import io
import json
import os
import struct
import sys
import traceback
from types import TracebackType
from typing import Any

images: list[bytes] = []


def png_of(value: Any) -> bytes | None:
    """What a notebook would show as a picture."""
    if type(value).__module__.startswith("PIL."):
        buffer = io.BytesIO()
        value.save(buffer, "PNG")
        return buffer.getvalue()
    method = getattr(value, "_repr_png_", None)
    png = method() if callable(method) else None
    return base64.b64decode(png) if isinstance(png, str) else png


def display(*values: Any) -> None:
    """Show values as a notebook does: a picture where there is one, else their repr."""
    for value in values:
        png = png_of(value)
        if png is None:
            print(repr(value))
        else:
            images.append(png)


def figures() -> None:
    """Collect and close what matplotlib has open."""
    plot = sys.modules.get("matplotlib.pyplot")
    if plot is not None:
        for number in plot.get_fignums():
            buffer = io.BytesIO()
            plot.figure(number).savefig(buffer, format="png")
            images.append(buffer.getvalue())
        plot.close("all")


def reseed(seed: int) -> None:
    """A fork's random numbers must not be its sibling's."""
    os.environ["NINEFOLD_SEED"] = str(seed)
    import random  # one of the slower imports, and the cells may never need it

    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def run(code: str, space: dict[str, Any]) -> None:
    """Execute a cell; the value of a last expression is displayed."""
    tree = ast.parse(code, "<cell>")
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None  # type: ignore[attr-defined]
    exec(compile(tree, "<cell>", "exec"), space)
    if last is not None:
        value = eval(compile(last, "<cell>", "eval"), space)
        if value is not None:
            display(value)


def main() -> None:
    for fd in sys.argv[1:3]:
        os.set_inheritable(int(fd), False)
    requests, answers = os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb")
    sys.argv[:] = [""]
    sys.path[0] = ""
    space: dict[str, Any] = {"__name__": "__main__", "display": display}
    while head := requests.read(4):
        request = json.loads(requests.read(struct.unpack(">I", head)[0]))
        error = ""
        images.clear()
        try:
            if "seed" in request:
                reseed(request["seed"])
            else:
                run(request["code"], space)
            figures()
        except BaseException as caught:  # noqa: BLE001 - whatever a cell raises is its result, SystemExit and Ctrl-C too
            shown: TracebackType | None = caught.__traceback__
            while shown is not None and shown.tb_frame.f_code.co_filename != "<cell>":
                shown = shown.tb_next
            error = "".join(traceback.format_exception(type(caught), caught, shown))
        sys.stdout.flush()
        sys.stderr.flush()
        body = json.dumps({"error": error, "images": [base64.b64encode(image).decode() for image in images]}).encode()
        answers.write(struct.pack(">I", len(body)) + body)
        answers.flush()


main()
