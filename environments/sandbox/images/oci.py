"""OCI image layouts: `oci-layout`, `index.json` and `blobs/` (OCI image specification 1.1), read with every digest checked."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import platform
import tarfile
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Self, cast

import pyarrow as pa

from environments.sandbox.images.layers import ImageError, LayerWriter, clean_path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_REF_NAME = "org.opencontainers.image.ref.name"
_HEADER_BYTES = 1 << 20
"""Largest extended header (a long name, attributes) that is read into memory."""
_JSON_BYTES = 16 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True)
class OciLayer:
    """One layer's blob. `diff_id` is the digest of the archive inside."""

    path: Path
    media_type: str
    diff_id: str


@dataclass(frozen=True)
class OciImage:
    """What a layout holds for this machine: layers, lowest first, and the variables its configuration sets."""

    layers: tuple[OciLayer, ...]
    env: Mapping[str, str]


def read_layout(layout: Path, ref: str | None = None) -> OciImage:
    """The image named `ref` (or the only one for this architecture) of a layout; its blobs are checked against their digests.

    Raises:
        ImageError: not an OCI layout, no such image, or a blob that does not match its digest.
    """
    try:
        version = json.loads((layout / "oci-layout").read_bytes())["imageLayoutVersion"]
        index = json.loads((layout / "index.json").read_bytes())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImageError(f"{layout} is not an OCI layout ({error})", "make one with `skopeo copy ... oci:FOLDER`") from error
    if not str(version).startswith("1."):
        raise ImageError(f"{layout} has layout version {version!r}", "export the image again with version 1.0.0")
    try:
        manifest = _select(layout, index, ref)
        config = _json(layout, manifest["config"])
        descriptors, diff_ids = manifest["layers"], config["rootfs"]["diff_ids"]
        if len(descriptors) != len(diff_ids):
            raise ImageError(f"{layout} lists {len(descriptors)} layers but {len(diff_ids)} diff ids", "export the image again")
        layers = tuple(
            OciLayer(_blob(layout, descriptor), str(descriptor["mediaType"]), str(diff_id))
            for descriptor, diff_id in zip(descriptors, diff_ids, strict=True)
        )
        pairs = (str(line).partition("=") for line in (config.get("config") or {}).get("Env") or ())
        return OciImage(layers, {name: value for name, _, value in pairs})
    except (KeyError, TypeError, AttributeError) as error:
        raise ImageError(f"{layout} is not a complete OCI layout ({type(error).__name__}: {error})", "export the image again") from error


def _select(layout: Path, index: dict[str, Any], ref: str | None, depth: int = 0) -> dict[str, Any]:
    wanted = ("linux", _ARCHITECTURES.get(platform.machine(), platform.machine()))
    found = index["manifests"]
    if ref is not None and depth == 0:
        found = [d for d in found if (d.get("annotations") or {}).get(_REF_NAME) == ref]
    suited = [d for d in found if "platform" not in d or (d["platform"].get("os"), d["platform"].get("architecture")) == wanted]
    if len(suited) != 1:
        names = [(d.get("annotations") or {}).get(_REF_NAME, d.get("digest")) for d in index["manifests"]]
        which = f"named {ref!r} " if ref is not None else ""
        raise ImageError(f"{layout} holds {len(suited)} images {which}for {'/'.join(wanted)}; it has {names}", "name one with `ref`")
    document = _json(layout, suited[0])
    if suited[0].get("mediaType") in _INDEXES or "manifests" in document:
        if depth > 4:
            raise ImageError(f"{layout} nests its indexes too deeply", "export the image again")
        return _select(layout, document, ref, depth + 1)
    return document


def _json(layout: Path, descriptor: dict[str, Any]) -> dict[str, Any]:
    path = _blob(layout, descriptor)
    if path.stat().st_size > _JSON_BYTES:
        raise ImageError(f"{path} is no manifest: {path.stat().st_size} bytes", "export the image again")
    try:
        return cast("dict[str, Any]", json.loads(path.read_bytes()))
    except ValueError as error:
        raise ImageError(f"{path} is not JSON", "export the image again") from error


def _blob(layout: Path, descriptor: dict[str, Any]) -> Path:
    algorithm, _, value = str(descriptor["digest"]).partition(":")
    if algorithm != "sha256" or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise ImageError(f"{layout} names a blob by {descriptor['digest']!r}", "export the image with sha256 digests")
    path = layout / "blobs" / "sha256" / value
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except OSError as error:
        raise ImageError(f"{layout} lacks the blob {descriptor['digest']} ({error.strerror})", "export or fetch the image again") from error
    if found != value or size != descriptor["size"]:
        raise ImageError(
            f"the blob {descriptor['digest']} of {layout} holds {size} bytes of sha256:{found}", "export or fetch the image again"
        )
    return path


class _Digesting:
    """Passes bytes on and hashes them."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = bytes(self._stream.read(size))
        self.digest.update(data)
        return data


class _BoundedHeader(tarfile.TarInfo):
    """tarfile reads extended headers into memory whole, whatever size they claim."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: Any, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type not in (*tarfile.REGULAR_TYPES, tarfile.GNUTYPE_SPARSE) and info.size > _HEADER_BYTES:
            raise ImageError(f"the archive has a header of {info.size} bytes", "do not use this archive")
        return info


def unpack(layer: OciLayer, writer: LayerWriter) -> None:
    """Read a layer's archive into `writer`. Devices, pipes and sockets are left out, as every rootless runtime does.

    Raises:
        ImageError: unknown compression, a broken archive, a path that leaves the image, or more than the writer's limits.
    """
    try:
        with layer.path.open("rb") as raw, closing(_decompressed(raw, layer)) as stream:
            digesting = _Digesting(stream)
            with tarfile.open(fileobj=cast("BinaryIO", digesting), mode="r|", tarinfo=_BoundedHeader, errorlevel=2) as archive:
                for item in archive:
                    vars(archive)["members"] = []  # it would keep every one
                    _add(item, archive, writer)
            while digesting.read(1 << 20):  # padding behind the end mark is part of the diff id
                pass
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's trouble, not the archive's
            raise
        raise ImageError(f"the layer {layer.path.name} is no readable archive ({error})", "export or fetch the image again") from error
    found = f"sha256:{digesting.digest.hexdigest()}"
    if found != layer.diff_id:
        raise ImageError(f"the layer {layer.path.name} unpacks to {found}, not {layer.diff_id}", "export or fetch the image again")


def _decompressed(raw: BinaryIO, layer: OciLayer) -> IO[bytes]:
    kind = layer.media_type
    if kind.endswith(("+gzip", ".gzip")):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if kind.endswith("+zstd"):
        return cast("IO[bytes]", pa.CompressedInputStream(raw, "zstd"))
    if kind.endswith(".tar"):
        return raw
    raise ImageError(f"the layer {layer.path.name} is a {kind}", "export the image with gzip or zstd layers")


def _add(item: tarfile.TarInfo, archive: tarfile.TarFile, writer: LayerWriter) -> None:
    path = clean_path(item.name, writer.origin)
    folder, _, name = path.rpartition("/")
    if not path:
        return
    if name == _OPAQUE:
        writer.opaque(folder)
    elif name.startswith(_WHITEOUT):
        hidden = clean_path(f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"), writer.origin)
        if hidden == folder:
            raise ImageError(f"{writer.origin} removes nothing with {path!r}", "do not use this archive")
        writer.whiteout(hidden)
    elif item.isdir():
        writer.folder(path)
    elif item.issym():
        writer.link(path, item.linkname)
    elif item.islnk():
        writer.hard_link(path, clean_path(item.linkname, writer.origin))
    elif item.isreg():
        content = archive.extractfile(item)
        assert content is not None
        writer.file(path, cast("BinaryIO", content), item.size, executable=bool(item.mode & 0o111))
