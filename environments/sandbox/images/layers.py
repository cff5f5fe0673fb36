"""Layers: files under the sha256 of their canonical content, and how several are laid over each other.

A layer is a folder with `manifest.jsonl` and one blob per distinct file. Its id is the sha256 of the manifest, which holds
every path with its content's sha256, so the id follows from the content alone. Of a file's mode only "executable" counts:
an image is mounted read-only and must be readable for the sandbox's user, whoever owned the files before.
Whiteouts, opaque folders and their order follow the OCI image specification, "Representing changes".
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field

from environments.errors import CorruptArtifactError, DiskFullError, InputError

Kind = Literal["folder", "file", "link", "whiteout", "opaque"]
MANIFEST = "manifest.jsonl"
_CHUNK = 1 << 20
_EPOCH = 315_532_800
"""1980-01-01, the earliest date a zip archive can hold: every file's time, so that two builds are equal."""
_LINKS_FOLLOWED = 40
"""As Linux: more links on the way to a path count as a loop."""


class ImageError(InputError):
    """What an image should be made of is not usable: no OCI layout, a wrong digest, an archive too large, an unknown package."""


class ImageLimits(BaseModel):
    """What one layer may unpack to; more is taken for a tar bomb."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer_mb: int = Field(default=8192, ge=1, description="Sum of the files of a layer, MiB")
    layer_entries: int = Field(default=500_000, ge=1, description="Files, folders and links of a layer")


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a layer."""

    path: str
    kind: Kind
    sha256: str = ""
    size: int = 0
    """Bytes of a file."""
    executable: bool = False
    target: str = ""
    """Of a symbolic link; read inside the sandbox, never here."""

    @property
    def blob(self) -> str:
        """File name of the content; the executable bit belongs to the inode, so it is part of the name."""
        return f"{self.sha256}.x" if self.executable else self.sha256


def clean_path(name: str, origin: str) -> str:
    """`name` relative to the image's root without `.` parts; empty for the root itself.

    Raises:
        ImageError: the name is absolute, holds `..` or a NUL, or is longer than a file system takes.
    """
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise ImageError(f"{origin} holds the path {name!r}, which leaves the image", "do not use this archive")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    path = "/".join(parts)
    if any(len(os.fsencode(part)) > 255 for part in parts) or len(os.fsencode(path)) > 3072:
        raise ImageError(f"{origin} holds a path of {len(name)} characters: {name[:40]!r}...", "shorten it")
    return path


class LayerWriter:
    """Collects one layer in `folder`, which must not exist yet. Later entries of a path replace earlier ones."""

    def __init__(self, folder: Path, limits: ImageLimits, origin: str) -> None:
        self.folder_path = folder
        self.origin = origin
        self._limits = limits
        self._entries: dict[tuple[str, bool], Entry] = {}
        self._bytes = 0
        self._count = 0
        make_folder(folder)
        make_folder(folder / "blobs")

    def _add(self, entry: Entry) -> None:
        self._count += 1
        if self._count > self._limits.layer_entries:
            raise ImageError(
                f"{self.origin} has more than {self._limits.layer_entries} entries", "raise ImageLimits.layer_entries if it is meant"
            )
        self._entries[entry.path, entry.kind in ("whiteout", "opaque")] = entry

    def folder(self, path: str) -> None:
        """A folder of its own: it replaces a link of a lower layer and exists even when empty. Parents need not be added."""
        self._add(Entry(path, "folder"))

    def link(self, path: str, target: str) -> None:
        """A symbolic link; it may point anywhere, also outside: it is only read inside a sandbox."""
        self._add(Entry(path, "link", target=target))

    def whiteout(self, path: str) -> None:
        """What lower layers have at `path` is gone."""
        self._add(Entry(path, "whiteout"))

    def opaque(self, path: str) -> None:
        """What lower layers have *in* the folder `path` is gone."""
        self._add(Entry(path, "opaque"))

    def file(self, path: str, stream: BinaryIO, size: int, *, executable: bool) -> None:
        """A regular file of exactly `size` bytes from `stream`.

        Raises:
            ImageError: the layer grows beyond its limits, or the stream ends early.
        """
        self._bytes += size
        if self._bytes > self._limits.layer_mb << 20:
            raise ImageError(f"{self.origin} unpacks to more than {self._limits.layer_mb} MiB", "raise ImageLimits.layer_mb if it is meant")
        part = self.folder_path / "blobs" / "part"
        digest, left = hashlib.sha256(), size
        with part.open("wb") as file:
            while left:
                chunk = stream.read(min(left, _CHUNK))
                if not chunk:
                    raise ImageError(f"{self.origin} ends within {path!r}", "fetch or build it again")
                digest.update(chunk)
                file.write(chunk)
                left -= len(chunk)
            os.fchmod(file.fileno(), 0o555 if executable else 0o444)
        os.utime(part, (_EPOCH, _EPOCH))
        entry = Entry(path, "file", digest.hexdigest(), size, executable)
        os.replace(part, part.with_name(entry.blob))
        self._add(entry)

    def hard_link(self, path: str, target: str) -> None:
        """The file `target` of this layer under a second name.

        Raises:
            ImageError: the layer has no such file (the specification keeps hard links within their layer).
        """
        found = self._entries.get((target, False))
        if found is None or found.kind not in ("file", "link"):
            raise ImageError(f"{self.origin} links {path!r} to {target!r}, which is no file of it", "do not use this archive")
        self._add(Entry(path, found.kind, found.sha256, found.size, found.executable, found.target))

    def finish(self) -> str:
        """Write the manifest; returns the layer's id."""
        used = {entry.blob for entry in self._entries.values() if entry.kind == "file"}
        for blob in (self.folder_path / "blobs").iterdir():
            if blob.name not in used:  # of a path that a later entry replaced
                blob.unlink()
        rows = (
            json.dumps([e.path, e.kind, e.sha256, e.size, e.executable, e.target], separators=(",", ":"))
            for e in sorted(self._entries.values(), key=lambda e: (e.path, e.kind))
        )
        data = "".join(f"{row}\n" for row in rows).encode()
        (self.folder_path / MANIFEST).write_bytes(data)
        return hashlib.sha256(data).hexdigest()


def read_layer(folder: Path) -> list[Entry]:
    """The entries of the stored layer `folder`, sorted by path.

    Raises:
        CorruptArtifactError: the manifest is missing or is not what the layer's id says.
    """
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise damaged(folder, f"its manifest cannot be read ({error.strerror})") from error
    if hashlib.sha256(data).hexdigest() != folder.name:
        raise damaged(folder, "its manifest does not match its id")
    return [Entry(*json.loads(line)) for line in data.splitlines()]


def verify_layer(folder: Path) -> list[Entry]:
    """Read every byte of a stored layer against its id; returns its entries.

    Raises:
        CorruptArtifactError: something is missing or differs; the message names the layer and the file.
    """
    entries = read_layer(folder)
    for entry in {e.blob: e for e in entries if e.kind == "file"}.values():
        try:
            with (folder / "blobs" / entry.blob).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise damaged(folder, f"{entry.path} cannot be read ({error.strerror})") from error
        if found != entry.sha256:
            raise damaged(folder, f"{entry.path} does not match its hash")
    return entries


def damaged(folder: Path, what: str) -> CorruptArtifactError:
    """The error for a stored layer that is not what its id says."""
    return CorruptArtifactError(f"image layer {folder.name} is damaged: {what}", "ImageStore.discard(layer), then build the image again")


# --- several layers over each other -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Node:
    """A path of a flattened image: a file or link with the layer it comes from, or a folder with children."""

    layer: str = ""
    entry: Entry | None = None
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return self.entry is None


def flatten(layers: Sequence[tuple[str, Iterable[Entry]]]) -> Node:
    """Lay (id, entries sorted by path) over each other, lowest first. A link on the way to a path is followed within the image.

    Raises:
        ImageError: links that lead in a circle.
    """
    root = Node()
    for layer, unsorted in layers:
        entries = list(unsorted)
        for entry in entries:  # removals concern lower layers only, wherever they stand in this one
            if entry.kind == "opaque":
                if (hidden := _find(root, entry.path)) is not None:
                    hidden.children.clear()
            elif entry.kind == "whiteout":
                folder, _, name = entry.path.rpartition("/")
                if (parent := _find(root, folder)) is not None:
                    parent.children.pop(name, None)
        # Links first: what goes through one must not find its target missing because of the order of names.
        for entry in sorted(entries, key=lambda entry: entry.kind != "link"):
            if entry.kind in ("whiteout", "opaque"):
                continue
            folder, _, name = entry.path.rpartition("/")
            parent = _folder(root, folder)
            old = parent.children.get(name)
            if entry.kind != "folder":
                parent.children[name] = Node(layer, entry)
            elif old is None or not old.is_folder:
                parent.children[name] = Node()
    return root


def _find(root: Node, path: str) -> Node | None:
    """The folder at `path` as it is written, without following links; None when there is none."""
    node = root
    for part in filter(None, path.split("/")):
        child = node.children.get(part)
        if child is None or not child.is_folder:
            return None
        node = child
    return node


def _folder(root: Node, path: str) -> Node:
    """The folder at `path`, links followed as a process with this root would, made where it is missing."""
    stack, todo, followed = [root], [part for part in reversed(path.split("/")) if part], 0
    while todo:
        part = todo.pop()
        if part == "..":
            stack = stack[:-1] or [root]
            continue
        child = stack[-1].children.get(part)
        if child is not None and child.entry is not None and child.entry.kind == "link":
            followed += 1
            if followed > _LINKS_FOLLOWED:
                raise ImageError(f"the links on the way to {path!r} lead in a circle", "do not use this image")
            target = child.entry.target
            if target.startswith("/"):
                stack = [root]
            todo += [name for name in reversed(target.split("/")) if name not in ("", ".")]
            continue
        if child is None or not child.is_folder:
            child = stack[-1].children[part] = Node()
        stack.append(child)
    return stack[-1]


def walk(node: Node, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Every (path, node) below `node`, folders before what is in them."""
    todo = [(prefix, node)]
    while todo:
        here, folder = todo.pop()
        for name, child in folder.children.items():
            path = f"{here}/{name}" if here else name
            yield path, child
            if child.is_folder:
                todo.append((path, child))


def materialise(tree: Node, into: Path, layers: Mapping[str, Path]) -> None:
    """Make the flattened image as a folder whose files are hard links to the layers' blobs."""
    make_folder(into)
    for path, node in walk(tree):
        here = into / path
        if node.entry is None:
            make_folder(here)
        elif node.entry.kind == "link":
            os.symlink(node.entry.target, here)
        else:
            blob = layers[node.layer] / "blobs" / node.entry.blob
            try:
                os.link(blob, here)
            except FileNotFoundError as error:
                raise damaged(layers[node.layer], f"{node.entry.path} is missing") from error
            except OSError as error:
                if error.errno != errno.EMLINK:  # an inode takes 65,000 names on ext4: as many empty files
                    raise
                shutil.copy2(blob, here)


def make_folder(path: Path) -> None:
    """A folder that the sandbox's user can enter, whatever the umask."""
    path.mkdir()
    path.chmod(0o755)


@contextlib.contextmanager
def fresh_folder(parent: Path) -> Iterator[Path]:
    """A name below `parent` for a folder that is not yet there; whatever is left of it afterwards is removed.

    Raises:
        DiskFullError: no space was left in the body.
    """
    path = parent / uuid.uuid4().hex
    try:
        yield path
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFullError("no space left for an image", "free some space, or run ImageStore.collect_garbage()") from error
        raise
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish(part: Path, final: Path) -> None:
    """Give a finished folder its name. Whoever comes second finds an equal one there and leaves it."""
    try:
        os.rename(part, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
