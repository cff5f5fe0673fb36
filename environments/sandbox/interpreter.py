"""The stateful Python interpreter of a sandbox: cells in, results out; its variables can be pickled, and its memory forked.

Runs inside, under the same limits as any command, as a program of its own that no other process of the sandbox needs.
Whatever the cells print goes to the output pipe (descriptors 1 and 2), also from programs that they start; requests and
results are frames of `wire.py` on descriptor 3. Nothing it says is trusted outside.
"""

from __future__ import annotations

import _posixsubprocess
import _socket
import ast
import contextlib
import ctypes
import gc
import importlib
import io
import linecache
import marshal
import os
import pickle
import random
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, BinaryIO

from environments.sandbox.wire import Closed, close_all, receive_frame, send_frame

MAX_IMAGES, MAX_IMAGE_BYTES = 16, 8 << 20
NEWNS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x8000000, 0x20000000, 0x40000000
SYS_SETNS = {"x86_64": 308, "aarch64": 268}
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_RESTRICT_SELF = 444, 446
SCOPE_SIGNAL = 2
BRANCH, TREE = 4, 5
"""Descriptors of the pid namespaces of this interpreter's children, and of all interpreters; in a forkable sandbox only."""
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

main_module = types.ModuleType("__main__")
space: dict[str, Any] = main_module.__dict__
images: list[bytes] = []
copies: set[int] = set()
copying = False
libc = ctypes.CDLL(None, use_errno=True)


# --- cells -------------------------------------------------------------------------------------------------------------


def picture(value: object) -> bytes | None:
    """The PNG of a displayed object: `_repr_png_` (as IPython names it; PIL images have it) or a matplotlib figure."""
    method = getattr(value, "_repr_png_", None)
    if callable(method) and not isinstance(value, type) and isinstance(data := method(), bytes):
        return data
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    if figure is not None and isinstance(value, figure):
        buffer = io.BytesIO()
        value.savefig(buffer, format="png")
        return buffer.getvalue()
    return None


def display(value: object) -> None:
    """Show a value: as a picture when it is one, else as text. The cells can call it."""
    data = picture(value)
    if data is None:
        print(repr(value))
    elif len(images) < MAX_IMAGES and sum(map(len, images)) + len(data) <= MAX_IMAGE_BYTES:
        images.append(data)
    else:
        print(f"[a picture of {len(data)} bytes was left out: at most {MAX_IMAGES}, {MAX_IMAGE_BYTES >> 20} MiB together]")


def open_figures() -> None:
    """Show and close every figure that pyplot still holds, in the order of their numbers."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        for number in pyplot.get_fignums():
            display(pyplot.figure(number))
        pyplot.close("all")


def run_cell(request: dict[str, Any]) -> dict[str, Any]:
    """Execute a cell; the value of a last expression is shown."""
    name = f"<cell {request['number']}>"
    linecache.cache[name] = (len(request["code"]), None, request["code"].splitlines(keepends=True), name)
    error = ""
    try:
        tree = ast.parse(request["code"], name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)
            if value is not None:
                space["_"] = value
                display(value)
        open_figures()
    except BaseException as caught:  # noqa: BLE001 - whatever the cell raises is its result
        error = told(caught)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return {"error": error}


def told(error: BaseException) -> str:
    """The traceback without the frames of this program."""
    try:
        frames = error.__traceback__
        while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<cell "):
            frames = frames.tb_next
        return "".join(traceback.format_exception(type(error), error, frames))[-20_000:]
    except BaseException:  # noqa: BLE001 - an exception may have methods of its own
        return f"{type(error).__name__}: an error that cannot be printed"


# --- variables as a pickle -----------------------------------------------------------------------------------------------


def make_function(code: bytes, name: str, cells: int, home: str) -> types.FunctionType:
    names = importlib.import_module(home).__dict__ if home else space
    return types.FunctionType(marshal.loads(code), names, name, None, tuple(types.CellType() for _ in range(cells)))


def fill_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    for cell, content in zip(function.__closure__ or (), state.pop("cells"), strict=True):
        if content:
            cell.cell_contents = content[0]
    for name, value in state.items():
        setattr(function, name, value)


def make_class(metaclass: type, name: str, bases: tuple[type, ...], slots: dict[str, Any]) -> type:
    made: type = metaclass(name, bases, {**slots, "__module__": "__main__"})
    return made


def fill_class(made: type, state: dict[str, Any]) -> None:
    for name, value in state.items():
        with contextlib.suppress(AttributeError, TypeError):
            setattr(made, name, value)


def make_proxy(items: dict[Any, Any]) -> types.MappingProxyType[Any, Any]:
    return types.MappingProxyType(items)


class VariablePickler(pickle.Pickler):
    """Pickles modules by name, and the functions and classes of cells by value: the reader has no module to find them in."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, types.MappingProxyType):
            return make_proxy, (dict(value),)
        if type(value).__module__ == "dataclasses":  # its markers count by identity
            module = sys.modules["dataclasses"]
            for name, item in vars(module).items():
                if item is value:
                    return getattr, (module, name)
        if isinstance(value, types.FunctionType) and (value.__globals__ is space or value.__module__ == "__main__"):
            cells: list[tuple[Any, ...]] = []
            for cell in value.__closure__ or ():
                try:
                    cells.append((cell.cell_contents,))
                except ValueError:
                    cells.append(())
            names = ("__defaults__", "__kwdefaults__", "__dict__", "__qualname__", "__doc__", "__annotations__", "__module__")
            state = {"cells": cells, **{name: getattr(value, name) for name in names}}
            # A decorator's wrapper is at home in the decorator's module.
            home = "" if value.__globals__ is space else str(value.__globals__["__name__"])
            made = (marshal.dumps(value.__code__), value.__name__, len(cells), home)
            return make_function, made, state, None, None, fill_function
        if isinstance(value, type) and value.__module__ == "__main__":
            skipped = {"__dict__", "__weakref__", "__module__", "_abc_impl"}
            slots = {"__slots__": value.__dict__["__slots__"]} if "__slots__" in value.__dict__ else {}
            state = {
                name: item
                for name, item in value.__dict__.items()
                if name not in skipped | slots.keys() and not isinstance(item, types.MemberDescriptorType)
            }
            return make_class, (type(value), value.__name__, value.__bases__, slots), state, None, None, fill_class
        return NotImplemented


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    VariablePickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def can_pickle(value: object) -> bool:
    try:
        pickled(value)
    except Exception:  # noqa: BLE001 - a value's own methods decide; one that cannot be carried is named
        return False
    return True


def dump(file: BinaryIO) -> dict[str, Any]:
    """Write the variables as one pickle, so that what they share stays shared; names what had to be left out."""
    variables = {name: value for name, value in space.items() if not (name.startswith("__") or value is display)}
    left_out: list[str] = []
    try:
        data = pickled(variables)
    except Exception:  # noqa: BLE001 - as above
        left_out = [name for name, value in variables.items() if not can_pickle(value)]
        data = pickled({name: value for name, value in variables.items() if name not in left_out})
    file.write(data)
    return {"left_out": left_out}


def load(file: BinaryIO) -> dict[str, Any]:
    """Take over the variables of a pickle."""
    space.update(pickle.load(file))
    return {}


# --- forking -------------------------------------------------------------------------------------------------------------


def setns(fd: int, kind: int) -> None:
    if libc.syscall(SYS_SETNS[os.uname().machine], fd, kind):
        code = ctypes.get_errno()
        raise OSError(code, f"setns {kind:#x}: {os.strerror(code)}")


def scope_signals() -> None:
    """Signals reach only this process's own descendants from now on (Landlock; a kernel before 6.12 cannot)."""
    attributes = (ctypes.c_uint64 * 3)(0, 0, SCOPE_SIGNAL)
    ruleset = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, attributes, 24, 0)
    if ruleset >= 0:
        libc.syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def reseed(seed: int) -> None:
    """Make the copy draw other random numbers than the original."""
    os.environ["NINEFOLD_SEED"] = str(seed)
    random.seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def fork(sock: _socket.socket, request: dict[str, Any], fds: list[int]) -> _socket.socket:
    """Fork this interpreter into another branch; returns the control socket to go on with, in both.

    `fds`: the copy's control socket and output pipe, then its mount, network, ipc and pid namespaces.
    """
    global copying
    control, output, mnt, net, ipc, pids = fds
    gc.freeze()  # the collector of the copy must not touch, and so un-share, the original's pages
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    copying = True
    try:
        pid = os.fork()
    finally:
        copying = False
    if pid:
        copies.add(pid)
        close_all(fds)
        send_frame(sock, {"pid": pid})
        return sock
    copies.clear()
    try:
        os.setsid()
        for fd, kind in ((net, NEWNET), (ipc, NEWIPC), (mnt, NEWNS)):
            setns(fd, kind)
        scope_signals()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(control, 3, inheritable=False)
        os.dup2(pids, BRANCH, inheritable=False)
        close_all(fds)
        os.chdir(request["workspace"])
        reseed(request["seed"])
        send_frame(sock, {})
    except BaseException as error:  # noqa: BLE001 - it must not go on in the original's branch
        with contextlib.suppress(OSError):
            send_frame(sock, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(1)
    return sock


def enter_branch() -> None:
    """What this thread forks next lives in the branch's process ids. Only then: the kernel makes no thread across process ids."""
    if not copying:
        with contextlib.suppress(OSError):
            setns(BRANCH, NEWPID)


def leave_branch() -> None:
    if not copying:
        with contextlib.suppress(OSError):
            setns(TREE, NEWPID)


def in_branch(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which starts a program, with that in the branch's process ids."""

    def inside(*arguments: Any, **named: Any) -> Any:
        enter_branch()
        try:
            return function(*arguments, **named)
        finally:
            leave_branch()

    return inside


def live_in_branch() -> None:
    """Let whatever this interpreter starts live in its branch; what a C library forks by itself stays beside the interpreter."""
    os.environ.pop("GLIBC_TUNABLES", None)  # it was meant for this process
    for fd in (BRANCH, TREE):
        os.set_inheritable(fd, False)
    os.register_at_fork(before=enter_branch, after_in_parent=leave_branch)
    _posixsubprocess.fork_exec = in_branch(_posixsubprocess.fork_exec)
    os.posix_spawn, os.posix_spawnp, os.system = in_branch(os.posix_spawn), in_branch(os.posix_spawnp), in_branch(os.system)


def reap_copies() -> None:
    """Collect copies that have ended; only those, the cells may wait for children of their own."""
    for pid in list(copies):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        copies.discard(pid)


def with_file(function: Callable[[BinaryIO], dict[str, Any]], fd: int, mode: str) -> dict[str, Any]:
    """Run with the descriptor as a file; what goes wrong is the answer."""
    try:
        with os.fdopen(os.dup(fd), mode) as file:
            return function(file)  # type: ignore[arg-type]
    except BaseException as error:  # noqa: BLE001 - unpickling runs the variables' own code
        return {"failed": told(error).strip().rpartition("\n")[2]}


def main() -> None:
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    sys.modules["ninefold_interpreter"], sys.modules["__main__"] = sys.modules["__main__"], main_module
    for item in list(globals().values()):
        if getattr(item, "__module__", "") == "__main__":
            item.__module__ = "ninefold_interpreter"
    space.update(__builtins__=__builtins__, display=display)
    sys.path.insert(0, "")
    os.set_inheritable(3, False)
    if sys.argv[1:] == ["branch"]:
        live_in_branch()
    sys.argv[:] = [""]
    sock = _socket.socket(fileno=3)
    number = 0
    try:
        send_frame(sock, {})
        while True:
            request, _, fds = receive_frame(sock)
            reap_copies()
            operation = request["op"]
            if operation == "fork":
                sock = fork(sock, request, fds)
                continue
            if operation == "cell":
                number += 1
                answer = run_cell({**request, "number": number})
                answer["sizes"] = [len(image) for image in images]
            elif operation == "dump":
                answer = with_file(dump, fds[0], "wb")
            else:
                answer = with_file(load, fds[0], "rb")
            close_all(fds)
            body = b"".join(images)
            images.clear()
            send_frame(sock, answer, body)
    except (Closed, OSError):
        os._exit(0)
