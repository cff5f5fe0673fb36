"""Files of the workspace, for the host. No link is followed."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

from environments.sandbox.firecracker.guest.link import NOBODY, Connection, Refused, here


def parts_of(path: str) -> list[str]:
    inside = path[len(here.workspace) :] if path == here.workspace or path.startswith(here.workspace + "/") else path
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if inside is path and path.startswith("/"):
        raise Refused(f"{path} is outside {here.workspace}")
    if ".." in parts or "\0" in path:
        raise Refused(f"{path} may not contain '..'")
    return parts


def open_beneath(path: str, flags: int, *, create_folders: bool = False) -> int:
    """Open without following a single link, so that nothing can be swapped underneath."""
    parts = parts_of(path)
    folder = os.open(here.workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            if create_folders and not last:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=folder)
            how = flags if last else os.O_RDONLY | os.O_DIRECTORY
            there = os.open(part, how | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=folder)
            os.close(folder)
            folder = there
    except OSError as error:
        os.close(folder)
        hint = " (links are not followed)" if error.errno in (errno.ENOTDIR, errno.ELOOP) else ""
        raise Refused(f"{path}: {error.strerror}{hint}") from error
    return folder


@contextlib.contextmanager
def file_rights() -> Iterator[None]:
    """Files are touched as the commands' user, for whom nothing outside is writable."""
    if here.is_guest:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if here.is_guest:
            os.seteuid(0)
            os.setegid(0)


def do_read(request: dict[str, Any], body: bytes, host: Connection) -> dict[str, Any]:
    with file_rights():
        fd = open_beneath(request["path"], os.O_RDONLY)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{request['path']} is not a regular file")
            if status.st_size > request["cap"]:
                raise Refused(f"{request['path']} has {status.st_size} bytes, more than {request['cap']}")
            data = b""
            while chunk := os.read(fd, request["cap"] + 1 - len(data)):
                data += chunk
        finally:
            os.close(fd)
    host.send({"stream": "stdout"}, data[: request["cap"]])
    return {}


def do_write(request: dict[str, Any], body: bytes, host: Connection) -> dict[str, Any]:
    if not parts_of(request["path"]):
        raise Refused("the workspace itself is a folder")
    with file_rights():
        fd = open_beneath(request["path"], os.O_WRONLY | os.O_CREAT, create_folders=True)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Refused(f"{request['path']} is not a regular file")
            os.ftruncate(fd, 0)
            view = memoryview(body)
            while view:
                view = view[os.write(fd, view) :]
        except OSError as error:
            raise Refused(f"{request['path']}: {error.strerror}") from error
        finally:
            os.close(fd)
    return {}


def do_list(request: dict[str, Any], body: bytes, host: Connection) -> dict[str, Any]:
    with file_rights():
        fd = open_beneath(request["path"], os.O_RDONLY | os.O_DIRECTORY)
        try:
            return {"names": sorted(os.listdir(fd))}
        finally:
            os.close(fd)
