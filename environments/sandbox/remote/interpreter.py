"""A stateful Python inside a sandbox whose server offers none. Runs inside, with the standard library only.

Started once per cell as `python3 -c SOURCE SOCKET`, with the cell as JSON on standard input and its result as JSON on standard
output. The first one leaves the interpreter behind, listening on SOCKET: it survives reconnects, pauses and forks of the box.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import io
import json
import linecache
import os
import random
import socket
import sys
import tempfile
import traceback
from typing import Any


def png_of(value: Any) -> bytes | None:
    """A PNG of what can show itself as one: IPython's protocol, which PIL images have too."""
    method = getattr(value, "_repr_png_", None)
    data = method() if callable(method) and not isinstance(value, type) else None
    return data if isinstance(data, bytes) else None


class Interpreter:
    def __init__(self) -> None:
        self.variables: dict[str, Any] = {"__name__": "__main__"}
        self.images: list[bytes] = []
        self.count = 0
        builtins.display = self.display  # type: ignore[attr-defined]

    def display(self, *values: Any) -> None:
        for value in values:
            image = png_of(value)
            if image is None:
                print(repr(value))
            else:
                self.images.append(image)

    def figures(self) -> None:
        """Take every open matplotlib figure."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            for number in pyplot.get_fignums():
                buffer = io.BytesIO()
                pyplot.figure(number).savefig(buffer, format="png")
                self.images.append(buffer.getvalue())
            pyplot.close("all")

    def run(self, code: str) -> str:
        """Run a cell; its traceback, empty when it ran to its end."""
        self.count += 1
        name = f"<cell {self.count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            tree = ast.parse(code, name)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, name, "exec"), self.variables)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), name, "eval"), self.variables)
                if value is not None:
                    self.variables["_"] = value
                    self.display(value)
            self.figures()
        except BaseException as error:  # noqa: BLE001 - whatever a cell raises is its result
            frames = error.__traceback__.tb_next if error.__traceback__ else None
            return "".join(traceback.format_exception(type(error), error, frames))
        return ""

    def cell(self, request: dict[str, Any]) -> dict[str, Any]:
        self.images = []
        if os.environ.get("NINEFOLD_SEED") != str(request["seed"]):  # a fork of the box: it draws other numbers from here on
            os.environ["NINEFOLD_SEED"] = str(request["seed"])
            random.seed(request["seed"])
        # At the descriptors: what child processes and C code print belongs to the cell too.
        with tempfile.TemporaryFile() as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            error = self.run(request["code"])
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            output.seek(0)
            text = output.read(request["cap"]).decode(errors="replace")
        images = [base64.b64encode(image).decode() for image in self.images]
        return {"stdout": text, "error": error, "images": images}


def serve(listener: socket.socket) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    sys.stdout = os.fdopen(1, "w", closefd=False, errors="replace", buffering=1)
    sys.stderr = os.fdopen(2, "w", closefd=False, errors="replace", buffering=1)
    sys.argv = [""]
    os.environ.setdefault("MPLBACKEND", "Agg")
    interpreter = Interpreter()
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):  # whoever asked may be gone by the time of the answer
            request = json.loads(connection.makefile("rb").read())
            connection.sendall(json.dumps(interpreter.cell(request)).encode())


def connected(path: str) -> socket.socket:
    """A connection to the interpreter, which is started if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen()
        if os.fork() == 0:
            connection.close()
            serve(listener)
        listener.close()
        connection.connect(path)
    return connection


def main() -> None:
    request = sys.stdin.buffer.read()
    with connected(sys.argv[1]) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    sys.stdout.buffer.write(answer or b'{"stdout": "", "error": "the interpreter ended: its variables are gone\\n", "images": []}')


if __name__ == "__main__":
    main()
