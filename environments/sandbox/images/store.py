"""`ImageStore`: layers and images of a machine in one folder, built once, shared read-only by all its sandboxes.

    store = ImageStore(folder)
    image = store.build([OciSource(path=layout), RequirementsSource(requirements=("numpy",))], name="science")
    backend.create(image.config())

Everything is written under a temporary name and renamed, so two processes that build the same image at once end with one copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

from environments.errors import CorruptArtifactError
from environments.files import replacing
from environments.sandbox.base import DEFAULT, SandboxConfig
from environments.sandbox.images.layers import (
    Entry,
    ImageError,
    ImageLimits,
    LayerWriter,
    damaged,
    flatten,
    fresh_folder,
    make_folder,
    materialise,
    publish,
    verify_layer,
    walk,
)
from environments.sandbox.images.oci import OciImage, read_layout, unpack
from environments.sandbox.images.sources import (
    PACKAGES,
    DirectorySource,
    OciSource,
    RequirementsSource,
    Source,
    add_directory,
    add_requirements,
    requirements_key,
)
from environments.task import canonical_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Image:
    """A built image. Picklable; valid until its name is removed and the garbage collected."""

    image_id: str
    layers: tuple[str, ...]
    """Ids, lowest first."""
    root: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """What its commands need, such as PYTHONPATH for requirements."""

    def config(self, base: SandboxConfig = DEFAULT) -> SandboxConfig:
        """`base` with this image; variables of `base` win."""
        return base.model_copy(update={"image": self.root, "env": {**self.env, **base.env}})


@dataclass(frozen=True)
class Collected:
    """What a garbage collection removed."""

    images: tuple[str, ...]
    layers: tuple[str, ...]


class ImageStore:
    """The images below `root`. Picklable; several processes may use one folder."""

    def __init__(self, root: Path, limits: ImageLimits | None = None, python: str = sys.executable) -> None:
        """`python` installs requirements with its own pip; it must be of the version that the sandboxes run."""
        self.root = Path(root)
        self.limits = limits or ImageLimits()
        self.python = python
        self._verified: dict[str, list[Entry]] = {}
        for name in ("", "layers", "images", "names", "index", "tmp"):
            folder = self.root / name
            folder.mkdir(parents=True, exist_ok=True)
            if folder.stat().st_uid == os.geteuid():
                folder.chmod(0o755)  # the sandbox's user must get through, whatever the umask

    # --- making ---------------------------------------------------------------------------------------------------------------

    def build(self, sources: Sequence[Source], name: str = "") -> Image:
        """The image of `sources`, lowest first; what the store already has is not made again.

        Args:
            name: keeps the image from being collected; it may be moved from another image.

        Raises:
            ImageError: a source that cannot be used.
            CorruptArtifactError: a layer of the store is damaged; the message names it.
            DiskFullError: no space left; nothing half-made stays.
        """
        if name and not _NAME.fullmatch(name):
            raise ImageError(f"{name!r} cannot name an image", "use letters, digits, '.', '_' and '-'")
        with self._lock(fcntl.LOCK_SH):
            layers: list[str] = []
            env: dict[str, str] = {}
            for source in sources:
                if isinstance(source, OciSource):
                    found = read_layout(source.path, source.ref)
                    layers += self._oci_layers(found, source)
                    env.update(found.env)
                elif isinstance(source, RequirementsSource):
                    layers.append(self._requirements_layer(source))
                    env["PYTHONPATH"] = f"/{PACKAGES}"
                else:
                    layers.append(self._directory_layer(source))
            image = self._image(tuple(layers), env)
            if name:
                with replacing(self.root / "names" / name) as part:
                    part.write_text(image.image_id)
            return image

    def build_in(self, executor: Executor, sources: Sequence[Source], name: str = "") -> Future[Image]:
        """Start to build in the background; `result()` waits and raises what `build` would. Threads or processes."""
        return executor.submit(self.build, tuple(sources), name)

    def requirements(self, source: RequirementsSource) -> tuple[str, ...]:
        """What the requirements were resolved to, as `name==version`; empty before they were built."""
        found = self._indexed(f"pip-{requirements_key(source, self.python)}").get("resolved")
        return tuple(found) if isinstance(found, list) else ()

    def _directory_layer(self, source: DirectorySource) -> str:
        return self._layer(str(source.path), lambda writer: add_directory(source, writer))

    def _oci_layers(self, image: OciImage, source: OciSource) -> list[str]:
        ids = []
        for layer in image.layers:
            key = f"oci-{layer.diff_id.replace(':', '-')}"
            found = self._indexed(key).get("layer")
            if found is None:
                found = self._layer(f"layer {layer.path.name} of {source.path}", lambda writer, layer=layer: unpack(layer, writer))  # type: ignore[misc]
                self._index(key, {"layer": found})
            ids.append(str(found))
        return ids

    def _requirements_layer(self, source: RequirementsSource) -> str:
        key = f"pip-{requirements_key(source, self.python)}"
        found = self._indexed(key).get("layer")
        if found is None:
            resolved: tuple[str, ...] = ()

            def fill(writer: LayerWriter) -> None:
                nonlocal resolved
                resolved = add_requirements(source, self.python, writer)

            found = self._layer("the requirements", fill)
            self._index(key, {"layer": found, "resolved": resolved})
        return str(found)

    def _layer(self, origin: str, fill: Callable[[LayerWriter], None]) -> str:
        with fresh_folder(self.root / "tmp") as part:
            writer = LayerWriter(part, self.limits, origin)
            fill(writer)
            layer = writer.finish()
            publish(part, self.root / "layers" / layer)
        return layer

    def _image(self, layers: tuple[str, ...], env: Mapping[str, str]) -> Image:
        description = {"layers": layers, "env": dict(env)}
        image_id = hashlib.sha256(canonical_json(description).encode()).hexdigest()
        if not (self.root / "images" / image_id).exists():
            folders = {layer: self.root / "layers" / layer for layer in layers}
            tree = flatten([(layer, self._verify(layer)) for layer in layers])
            with fresh_folder(self.root / "tmp") as part:
                make_folder(part)
                materialise(tree, part / "root", folders)
                (part / "image.json").write_text(canonical_json(description))
                publish(part, self.root / "images" / image_id)
        return self._open(image_id)

    # --- using ----------------------------------------------------------------------------------------------------------------

    def open(self, name: str) -> Image:
        """The image of that name or id. Every byte of a layer is read once a process, its links each time.

        Raises:
            ImageError: there is none.
            CorruptArtifactError: a layer is damaged; the message names it.
        """
        image_id = self.names().get(name, name)
        if not _NAME.fullmatch(image_id) or not (self.root / "images" / image_id).is_dir():
            raise ImageError(f"the store has no image {name!r}", f"build it; there are {sorted(self.names())}")
        return self._open(image_id)

    def names(self) -> dict[str, str]:
        """Image ids by name."""
        return {path.name: path.read_text() for path in (self.root / "names").iterdir() if not path.name.startswith(".")}

    def _open(self, image_id: str) -> Image:
        folder = self.root / "images" / image_id
        try:
            text = (folder / "image.json").read_text()
        except OSError as error:
            raise CorruptArtifactError(
                f"image {image_id} is incomplete ({error.strerror})", f"delete {folder} and build it again"
            ) from error
        if hashlib.sha256(text.encode()).hexdigest() != image_id:
            raise CorruptArtifactError(f"image {image_id} does not match its id", f"delete {folder} and build it again")
        description = json.loads(text)
        image = Image(image_id, tuple(description["layers"]), folder / "root", description["env"])
        self._check_links(image)
        return image

    def _check_links(self, image: Image) -> None:
        tree = flatten([(layer, self._verify(layer)) for layer in image.layers])
        for path, node in walk(tree):
            here = image.root / path
            if node.entry is None or node.entry.kind == "link":
                sound = here.is_dir() if node.entry is None else here.is_symlink() and os.readlink(here) == node.entry.target
            else:
                blob = self.root / "layers" / node.layer / "blobs" / node.entry.blob
                try:
                    ours, theirs = here.lstat(), blob.lstat()
                except OSError as error:
                    raise damaged(self.root / "layers" / node.layer, f"{path} is missing in image {image.image_id}") from error
                sound = (ours.st_ino == theirs.st_ino or ours.st_nlink == 1) and ours.st_size == node.entry.size
            if not sound:
                raise CorruptArtifactError(
                    f"image {image.image_id} is damaged: {path} was changed", f"delete {image.root.parent} and build the image again"
                )

    def _verify(self, layer: str) -> list[Entry]:
        if layer not in self._verified:
            self._verified[layer] = verify_layer(self.root / "layers" / layer)
        return self._verified[layer]

    # --- removing -------------------------------------------------------------------------------------------------------------

    def remove(self, name: str) -> None:
        """Forget a name; its image goes with the next garbage collection unless another name refers to it."""
        if not _NAME.fullmatch(name):
            raise ImageError(f"{name!r} cannot name an image", f"there are {sorted(self.names())}")
        (self.root / "names" / name).unlink(missing_ok=True)

    def discard(self, layer: str) -> None:
        """Remove a (damaged) layer and the images made of it; building them again makes it anew."""
        with self._lock(fcntl.LOCK_EX):
            for image_id, layers in self._images().items():
                if layer in layers:
                    self._delete(self.root / "images" / image_id)
            if _NAME.fullmatch(layer):
                self._delete(self.root / "layers" / layer)
            self._verified.pop(layer, None)

    def collect_garbage(self) -> Collected:
        """Remove images without a name, layers that no image is left to use, and what killed builds left. Waits for builds."""
        with self._lock(fcntl.LOCK_EX):
            for leftover in (self.root / "tmp").iterdir():
                shutil.rmtree(leftover, ignore_errors=True)
            named, images = set(self.names().values()), self._images()
            dropped = sorted(set(images) - named)
            for image_id in dropped:
                self._delete(self.root / "images" / image_id)
            used = {layer for image_id in named & set(images) for layer in images[image_id]}
            unused = sorted({path.name for path in (self.root / "layers").iterdir()} - used)
            for layer in unused:
                self._delete(self.root / "layers" / layer)
                self._verified.pop(layer, None)
            for path in (self.root / "index").iterdir():
                if not path.name.startswith(".") and self._indexed(path.stem).get("layer") is None:
                    path.unlink()
            return Collected(tuple(dropped), tuple(unused))

    def _images(self) -> dict[str, tuple[str, ...]]:
        """Layers by image; an image that cannot be read uses none."""
        found = {}
        for folder in (self.root / "images").iterdir():
            try:
                found[folder.name] = tuple(json.loads((folder / "image.json").read_text())["layers"])
            except (OSError, ValueError, KeyError):
                found[folder.name] = ()
        return found

    def _delete(self, folder: Path) -> None:
        """Out of its place in one step, so that a kill in between leaves nothing half there."""
        with fresh_folder(self.root / "tmp") as doomed, contextlib.suppress(FileNotFoundError):
            os.rename(folder, doomed)

    # --- inside ---------------------------------------------------------------------------------------------------------------

    def _indexed(self, key: str) -> dict[str, object]:
        """What was noted under `key`, while its layer is there."""
        try:
            found: dict[str, object] = json.loads((self.root / "index" / f"{key}.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if (self.root / "layers" / str(found.get("layer"))).is_dir() else {}

    def _index(self, key: str, value: Mapping[str, object]) -> None:
        with replacing(self.root / "index" / f"{key}.json") as part:
            part.write_text(canonical_json(value))

    @contextlib.contextmanager
    def _lock(self, how: int) -> Iterator[None]:
        """Builds share the lock, removal has it alone; the kernel frees it when a process is killed."""
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)
