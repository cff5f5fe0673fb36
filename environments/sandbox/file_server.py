"""The files of a sandbox, for its process 1: read, write, list, pack, unpack. Runs inside, with the standard library only.

No link is ever followed, so that nothing can be swapped underneath; what cannot be done is refused with a text.
"""
# ruff: noqa: SIM105 - contextlib is a millisecond of every start

from __future__ import annotations

import os
import stat
from typing import Any

WORKSPACE = "/workspace"
SCRATCH = (WORKSPACE, "/tmp", "/dev/shm")
Body = bytes | bytearray
Answer = tuple[dict[str, Any], bytes, list[int]]


class Refused(Exception):
    """A request that cannot be done; the text goes back to the caller."""


def write_all(fd: int, data: Body) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def parts_of(path: str) -> list[str]:
    parts = [part for part in path.removeprefix(WORKSPACE).split("/") if part not in ("", ".")]
    if path.startswith("/") and path != WORKSPACE and not path.startswith(WORKSPACE + "/"):
        raise Refused(f"{path} is outside {WORKSPACE}")
    if ".." in parts or "\0" in path:
        raise Refused(f"{path} may not contain '..'")
    return parts


def open_beneath(path: str, flags: int, *, create_folders: bool = False) -> int:
    """Open `path` in the workspace without following a single link, so that nothing can be swapped underneath."""
    parts = parts_of(path)
    here = os.open(WORKSPACE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            if create_folders and not last:
                try:
                    os.mkdir(part, 0o755, dir_fd=here)
                except FileExistsError:
                    pass
            how = flags if last else os.O_RDONLY | os.O_DIRECTORY
            there = os.open(part, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=here)
            os.close(here)
            here = there
    except OSError as error:
        os.close(here)
        raise Refused(f"{path}: {error.strerror}{' (links are not followed)' if error.errno in (20, 40) else ''}") from error
    return here


def regular(fd: int, path: str) -> os.stat_result:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise Refused(f"{path} is not a regular file")
    return status


def do_read(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    fd = open_beneath(request["path"], os.O_RDONLY)
    size = regular(fd, request["path"]).st_size
    with os.fdopen(fd, "rb") as file:
        if size > request["cap"]:
            raise Refused(f"{request['path']} has {size} bytes, more than {request['cap']}")
        return {}, file.read(request["cap"]), []


def do_write(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    if not parts_of(request["path"]):
        raise Refused("the workspace itself is a folder")
    fd = open_beneath(request["path"], os.O_WRONLY | os.O_CREAT, create_folders=True)
    regular(fd, request["path"])
    try:
        os.ftruncate(fd, 0)
        write_all(fd, body)
    except OSError as error:
        raise Refused(f"{request['path']}: {error.strerror}") from error
    finally:
        os.close(fd)
    return {}, b"", []


def do_list(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    fd = open_beneath(request["path"], os.O_RDONLY | os.O_DIRECTORY)
    try:
        return {}, b"\0".join(sorted(os.fsencode(name) for name in os.listdir(fd))), []
    finally:
        os.close(fd)


class Capped:
    """A file that refuses to grow beyond `cap` bytes: sparse files are small here and large in an archive."""

    def __init__(self, fd: int, cap: int) -> None:
        self.fd, self.left = fd, cap

    def write(self, data: bytes) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise OSError(27, "the workspace is larger than an archive may be")
        write_all(self.fd, data)
        return len(data)


def do_pack(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    """Write the workspace's files as a tar archive to the descriptor that came along; pipes, sockets and devices are left out."""
    import tarfile  # the slowest import here by far, and few sandboxes are ever packed

    def keep(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return item if item.isreg() or item.isdir() or item.issym() or item.islnk() else None

    with tarfile.open(fileobj=Capped(fds[0], request["cap"]), mode="w|", bufsize=1 << 18) as archive:  # type: ignore[call-overload]
        archive.add(WORKSPACE, arcname=".", filter=keep)
    return {}, b"", []


def do_unpack(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    """Fill the workspace from the archive in the descriptor. Whatever it holds stays in here: this process sees only the sandbox."""
    import tarfile

    with os.fdopen(os.dup(fds[0]), "rb") as file, tarfile.open(fileobj=file, mode="r|", bufsize=1 << 18) as archive:
        archive.extractall(WORKSPACE)
    return {}, b"", []


def do_clear(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    """End every other process and empty every writable folder."""
    import shutil

    try:
        os.kill(-1, 9)
    except ProcessLookupError:
        pass
    for folder in SCRATCH:
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
    return {}, b"", []


FILE_OPERATIONS = {
    "read": do_read,
    "write": do_write,
    "list": do_list,
    "pack": do_pack,
    "unpack": do_unpack,
    "clear": do_clear,
}
