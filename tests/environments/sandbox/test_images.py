"""Images: layers by content, OCI layouts with whiteouts, requirements, hostile archives, damage, two builders, garbage."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.errors import CorruptArtifactError
from environments.sandbox.base import SandboxConfig
from environments.sandbox.images import DirectorySource, Image, ImageError, ImageLimits, ImageStore, OciSource, RequirementsSource
from environments.sandbox.images.layers import Entry, Node, flatten, walk
from environments.sandbox.images.sources import PACKAGES
from environments.sandbox.process import ProcessBackend

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


def tree_of(root: Path) -> dict[str, str]:
    """What a folder holds: text of files, `-> target` of links, `/` for folders."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            text = f"-> {os.readlink(path)}" if path.is_symlink() else "/" if path.is_dir() else path.read_text()
            found[str(path.relative_to(root))] = text
    return found


# --- folders ------------------------------------------------------------------------------------------------------------------


def sample(folder: Path, *, mode: int = 0o644) -> Path:
    (folder / "data/empty").mkdir(parents=True)
    for name, text in {"data/a.txt": "one", "data/b.txt": "one", "run.sh": "#!/bin/sh\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    (folder / "run.sh").chmod(0o700)
    (folder / "link").symlink_to("/etc/passwd")
    return folder


def test_a_layers_id_follows_from_its_content_alone(tmp_path: Path, store: ImageStore) -> None:
    image = store.build([DirectorySource(path=sample(tmp_path / "x"))])
    os.utime(sample(tmp_path / "y", mode=0o600) / "run.sh", (1, 1))
    assert store.build([DirectorySource(path=tmp_path / "y")]) == image
    assert tree_of(image.root) == {
        "data": "/",
        "data/empty": "/",
        "data/a.txt": "one",
        "data/b.txt": "one",
        "run.sh": "#!/bin/sh\n",
        "link": "-> /etc/passwd",
    }
    assert {name: (image.root / name).stat().st_mode & 0o777 for name in ("run.sh", "data/a.txt", "data")} == {
        "run.sh": 0o555,
        "data/a.txt": 0o444,
        "data": 0o755,
    }
    (tmp_path / "y/run.sh").chmod(0o600)
    assert store.build([DirectorySource(path=tmp_path / "y")]).layers != image.layers
    assert image.config(SandboxConfig(env={"A": "1"})).image == image.root


def test_layers_share_their_files(tmp_path: Path, store: ImageStore) -> None:
    below, above = sample(tmp_path / "below"), tmp_path / "above"
    (above / "data").mkdir(parents=True)
    (above / "data/b.txt").write_text("two")
    one = store.build([DirectorySource(path=below)])
    two = store.build([DirectorySource(path=below), DirectorySource(path=above), DirectorySource(path=above, at="opt/there")])
    assert two.layers[0] == one.layers[0]
    assert [(two.root / name).read_text() for name in ("data/a.txt", "data/b.txt", "opt/there/data/b.txt")] == ["one", "two", "two"]
    assert (one.root / "data/a.txt").samefile(two.root / "data/a.txt")
    assert (one.root / "data/b.txt").read_text() == "one"


def test_a_folder_that_cannot_be_an_image(tmp_path: Path, store: ImageStore) -> None:
    with pytest.raises(ImageError, match="nothing is not a folder"):
        store.build([DirectorySource(path=tmp_path / "nothing")])
    with pytest.raises(ImageError, match="leaves the image"):
        store.build([DirectorySource(path=sample(tmp_path / "x"), at="../y")])
    os.mkfifo(tmp_path / "x/pipe")
    with pytest.raises(ImageError, match="pipe is neither"):
        store.build([DirectorySource(path=tmp_path / "x")])
    with pytest.raises(ImageError, match="cannot name an image"):
        store.build([], name="../x")
    assert list((store.root / "tmp").iterdir()) == []


# --- OCI layouts --------------------------------------------------------------------------------------------------------------

Item = tuple[str, str]
"""(path, content): `-> x` a symbolic link, `=> x` a hard link, `/` a folder, `|` a pipe, anything else a file."""


def archive(items: Sequence[Item]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in items:
            info = tarfile.TarInfo(path)
            if content.startswith(("-> ", "=> ")):
                info.type = tarfile.SYMTYPE if content[0] == "-" else tarfile.LNKTYPE
                info.linkname = content[3:]
            elif content in ("/", "|"):
                info.type = tarfile.DIRTYPE if content == "/" else tarfile.FIFOTYPE
            else:
                info.size = len(content.encode())
            tar.addfile(info, io.BytesIO(content.encode()))
    return buffer.getvalue()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return bytes(sink.getvalue())


PACK: dict[str, Callable[[bytes], bytes]] = {"tar": bytes, "tar+gzip": gzip.compress, "tar+zstd": zstd}


def layout(folder: Path, layers: Sequence[tuple[str, bytes]], *, env: Sequence[str] = (), ref: str | None = None) -> Path:
    """An OCI layout of (compression, archive) layers; called again it adds an image."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    config = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {"Env": list(env)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for _, data in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "config": put(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [put(PACK[how](data), f"application/vnd.oci.image.layer.v1.{how}") for how, data in layers],
    }
    descriptor = put(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    if ref is not None:
        descriptor["annotations"] = {"org.opencontainers.image.ref.name": ref}
    index = folder / "index.json"
    manifests = json.loads(index.read_text())["manifests"] if index.exists() else []
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": [*manifests, descriptor]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


BASE: list[Item] = [
    ("./", "/"),
    ("./usr/", "/"),
    ("./usr/lib/", "/"),
    ("./usr/lib/a", "a"),
    ("./lib", "-> usr/lib"),
    ("./etc/hosts", "h"),
    ("./etc/drop/x", "x"),
    ("./var/old/1", "1"),
    ("./var/old/2", "2"),
    ("./dev/pipe", "|"),
    ("./first", "same"),
    ("./second", "=> ./first"),
]
CHANGE: list[Item] = [
    ("etc/.wh.drop", ""),
    ("etc/hosts", "new"),
    ("var/old/3", "3"),
    ("var/old/.wh..wh..opq", ""),
    ("lib/b", "b"),
    ("first", "/"),
    ("first/inside", "i"),
]


@pytest.mark.parametrize("how", list(PACK))
def test_an_oci_layout_with_whiteouts_and_links(how: str, tmp_path: Path, store: ImageStore) -> None:
    source = OciSource(path=layout(tmp_path / "oci", [(how, archive(BASE)), (how, archive(CHANGE))], env=["PATH=/usr/bin", "X=a=b"]))
    image = store.build([source])
    assert tree_of(image.root) == {
        "usr": "/",
        "usr/lib": "/",
        "usr/lib/a": "a",
        "usr/lib/b": "b",
        "lib": "-> usr/lib",
        "etc": "/",
        "etc/hosts": "new",
        "var": "/",
        "var/old": "/",
        "var/old/3": "3",
        "first": "/",
        "first/inside": "i",
        "second": "same",
    }
    assert image.env == {"PATH": "/usr/bin", "X": "a=b"}
    below = store.build([OciSource(path=layout(tmp_path / "base", [("tar", archive(BASE))]))])
    assert (below.root / "first").samefile(below.root / "second")
    assert below.layers == image.layers[:1]


def test_a_layout_with_several_images_wants_a_name(tmp_path: Path, store: ImageStore) -> None:
    for ref in ("one", "two"):
        layout(tmp_path / "oci", [("tar+gzip", archive([("name", ref)]))], ref=ref)
    assert (store.build([OciSource(path=tmp_path / "oci", ref="two")]).root / "name").read_text() == "two"
    with pytest.raises(ImageError, match="holds 2 images"):
        store.build([OciSource(path=tmp_path / "oci")])
    with pytest.raises(ImageError, match=r"holds 0 images named 'three'.*'one', 'two'"):
        store.build([OciSource(path=tmp_path / "oci", ref="three")])


def test_a_folder_laid_over_a_link_goes_where_the_link_leads(tmp_path: Path, store: ImageStore) -> None:
    (tmp_path / "more/lib").mkdir(parents=True)
    (tmp_path / "more/lib/c").write_text("c")
    image = store.build([OciSource(path=layout(tmp_path / "oci", [("tar", archive(BASE))])), DirectorySource(path=tmp_path / "more")])
    assert (os.readlink(image.root / "lib"), (image.root / "usr/lib/c").read_text()) == ("usr/lib", "c")


@pytest.mark.parametrize(
    "items",
    [
        [("../escaped", "x")],
        [("/escaped", "x")],
        [("a/../../escaped", "x")],
        [("../.wh.escaped", "")],
        [("a", "=> ../escaped")],
        [("a", "=> /etc/passwd")],
    ],
)
def test_a_path_that_leaves_the_image_is_refused(items: list[Item], tmp_path: Path, store: ImageStore) -> None:
    with pytest.raises(ImageError, match="leaves the image"):
        store.build([OciSource(path=layout(tmp_path / "oci", [("tar+gzip", archive(items))]))])


@pytest.mark.parametrize("target", ["/etc", "../../../../../../etc", "up/../../etc"])
def test_a_link_cannot_lead_a_file_out(target: str, tmp_path: Path, store: ImageStore) -> None:
    name = f"ninefold-{os.getpid()}"
    items = [("way", f"-> {target}"), (f"way/{name}", "x")]
    image = store.build([OciSource(path=layout(tmp_path / "oci", [("tar", archive(items))]))])
    assert not Path("/etc", name).exists()
    assert (image.root / "etc" / name).read_text() == "x"


def test_links_in_a_circle_are_refused(tmp_path: Path, store: ImageStore) -> None:
    items = [("a", "-> b"), ("b", "-> a"), ("a/x", "x")]
    with pytest.raises(ImageError, match="circle"):
        store.build([OciSource(path=layout(tmp_path / "oci", [("tar", archive(items))]))])


def test_a_hard_link_to_nothing_is_refused(tmp_path: Path, store: ImageStore) -> None:
    with pytest.raises(ImageError, match="'a' to 'b', which is no file"):
        store.build([OciSource(path=layout(tmp_path / "oci", [("tar", archive([("a", "=> b")]))]))])


def test_bombs_are_refused(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store", ImageLimits(layer_mb=1, layer_entries=50))
    large = archive([("zeros", "\0" * (2 << 20))])
    with pytest.raises(ImageError, match="more than 1 MiB"):
        store.build([OciSource(path=layout(tmp_path / "large", [("tar+gzip", large)]))])
    many = archive([(f"f{i}", "") for i in range(51)])
    with pytest.raises(ImageError, match="more than 50 entries"):
        store.build([OciSource(path=layout(tmp_path / "many", [("tar+zstd", many)]))])
    same = archive([("again", "x" * 1000)] * 51)
    with pytest.raises(ImageError, match="more than 50 entries"):
        store.build([OciSource(path=layout(tmp_path / "same", [("tar+gzip", same)]))])
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 64 << 20
    long = header.tobuf(tarfile.GNU_FORMAT) + b"a" * (64 << 20)
    with pytest.raises(ImageError, match="header of 67108864 bytes"):
        store.build([OciSource(path=layout(tmp_path / "header", [("tar+gzip", long)]))])
    assert [list((store.root / name).iterdir()) for name in ("tmp", "layers", "images")] == [[], [], []]


def test_what_is_no_oci_layout_or_was_changed_is_refused(tmp_path: Path, store: ImageStore) -> None:
    with pytest.raises(ImageError, match="is not an OCI layout"):
        store.build([OciSource(path=tmp_path)])
    data = archive([("a", "text")])
    good = layout(tmp_path / "oci", [("tar+gzip", data)])
    blob = good / "blobs/sha256" / hashlib.sha256(gzip.compress(data)).hexdigest()
    blobs = sorted((good / "blobs/sha256").iterdir(), key=lambda path: path.read_bytes()[:2] != b"\x1f\x8b")
    packed, blob = blobs[0].read_bytes(), blobs[0]
    blob.write_bytes(packed[:-1] + b"?")
    with pytest.raises(ImageError, match=f"the blob sha256:{blob.name}"):
        store.build([OciSource(path=good)])
    blob.unlink()
    with pytest.raises(ImageError, match=f"lacks the blob sha256:{blob.name}"):
        store.build([OciSource(path=good)])
    for name, broken, match in (
        ("cut", gzip.compress(data)[:-30], "is no readable archive"),
        ("noise", b"not gzip at all", "is no readable archive"),
        ("other", gzip.compress(archive([("a", "other")])), "unpacks to sha256:"),
        ("short", gzip.compress(archive([("a", "x" * 5000)])[:2000]), "is no readable archive|ends within"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(PACK, "tar+gzip", lambda _, broken=broken: broken)
            bad = layout(tmp_path / name, [("tar+gzip", data)])
        with pytest.raises(ImageError, match=match):
            store.build([OciSource(path=bad)])
    (good / "index.json").write_text("{}")
    with pytest.raises(ImageError, match="not a complete OCI layout"):
        store.build([OciSource(path=good)])


names = st.sampled_from(["a", "b", "c"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(paths, st.sampled_from(["file", "folder", "whiteout", "opaque"]), max_size=5), max_size=4))
def test_laying_over_agrees_with_a_plain_model(layers: list[dict[str, str]]) -> None:
    """The model is a dictionary of paths: a removal drops a prefix, a file or folder replaces what stood there and on its way."""
    expected: dict[str, str] = {}
    for number, layer in enumerate(layers):
        for path, kind in sorted(layer.items()):
            below = f"{path}/"
            if kind in ("whiteout", "opaque"):
                expected = {p: v for p, v in expected.items() if not p.startswith(below) and (kind == "opaque" or p != path)}
        for path, kind in sorted(layer.items()):
            if kind in ("whiteout", "opaque"):
                continue
            parts = path.split("/")
            for i in range(1, len(parts)):
                expected["/".join(parts[:i])] = "folder"
            if kind == "file" or expected.get(path) != "folder":
                expected = {p: v for p, v in expected.items() if not p.startswith(f"{path}/")}
                expected[path] = "folder" if kind == "folder" else str(number)
    given_layers = [(str(n), [Entry(p, k) for p, k in sorted(layer.items())]) for n, layer in enumerate(layers)]  # type: ignore[arg-type]
    found = {path: "folder" if node.is_folder else node.layer for path, node in walk(flatten(given_layers))}
    assert found == expected
    assert flatten([]) == Node()


# --- requirements -------------------------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, source: str, needs: Sequence[str] = ()) -> None:
    """A pure Python wheel, written by hand (binary distribution format)."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    needed = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-run = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            file.writestr(path, text)


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that user nobody can reach; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def fruit(open_folder: Path) -> tuple[ImageStore, RequirementsSource, Image, Image]:
    """A store that has resolved `apple`, which needs `pear`, and the same from a second store. The wheels are gone."""
    wheels = open_folder / "wheels"
    wheel(wheels, "apple", "from pear import main\n", ["pear>=1"])
    wheel(wheels, "pear", "def main():\n    print('pear', __file__)\n")
    source = RequirementsSource(requirements=("apple",), pip_options=("--no-index", "--find-links", str(wheels)))
    store = ImageStore(open_folder / "store")
    images = [store.build([source], name="fruit"), ImageStore(open_folder / "second").build([source])]
    for path in wheels.iterdir():
        path.unlink()
    return store, source, images[0], images[1]


def test_requirements_are_resolved_once_with_what_they_need(
    fruit: tuple[ImageStore, RequirementsSource, Image, Image], open_folder: Path, tmp_path: Path
) -> None:
    store, source, image, second = fruit
    packages = image.root / PACKAGES
    assert store.requirements(source) == ("apple==1.0", "pear==1.0")
    assert image.env == {"PYTHONPATH": f"/{PACKAGES}"}
    assert (packages / "bin/apple-run").read_text().startswith("#!/usr/bin/env python3\n")
    compiled = next((packages / "__pycache__").glob("pear.*.pyc")).read_bytes()
    assert compiled[4:8] == (1).to_bytes(4, "little"), "byte code that checks nothing: the flag of PEP 552"
    assert str(open_folder).encode() not in compiled
    assert second.layers == image.layers, "where and when it was built does not matter"
    later = ImageStore(store.root)
    assert later.build([source]) == image
    assert later.open("fruit") == image
    with pytest.raises(ImageError, match="No matching distribution found for apple"):
        ImageStore(tmp_path / "other").build([source])


def test_an_option_is_no_requirement() -> None:
    for line in ("-r other.txt", "--pre", "a\nb", ""):
        with pytest.raises(ValueError, match="is not a requirement"):
            RequirementsSource(requirements=(line,))


# --- two builders, damage, garbage --------------------------------------------------------------------------------------------


def test_two_processes_that_build_the_same_end_with_one_copy(tmp_path: Path, store: ImageStore) -> None:
    folder = tmp_path / "x"
    for i in range(150):
        (folder / str(i % 7)).mkdir(parents=True, exist_ok=True)
        (folder / str(i % 7) / str(i)).write_text(str(i))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending = [store.build_in(pool, [DirectorySource(path=folder)], name) for name in ("one", "two", "three", "four")]
        images = [future.result(60) for future in pending]
    assert len({image.image_id for image in images}) == 1
    assert [len(list((store.root / name).iterdir())) for name in ("layers", "images", "tmp", "names")] == [1, 1, 0, 4]
    assert store.open("four") == images[0]


def test_background_builds_in_threads_and_their_errors(tmp_path: Path, store: ImageStore) -> None:
    sample(tmp_path / "x")
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gate.wait)
        good = store.build_in(pool, [DirectorySource(path=tmp_path / "x")])
        bad = store.build_in(pool, [DirectorySource(path=tmp_path / "nothing")])
        assert not good.done()
        gate.set()
        assert isinstance(good.result(60), Image)
        with pytest.raises(ImageError, match="is not a folder"):
            bad.result(60)


def test_damage_names_the_layer_and_can_be_mended(tmp_path: Path, store: ImageStore) -> None:
    sources = [DirectorySource(path=sample(tmp_path / "x"))]
    image = store.build(sources, name="x")
    layer = image.layers[0]
    blob = store.root / "layers" / layer / "blobs" / hashlib.sha256(b"one").hexdigest()
    blob.chmod(0o644)
    blob.write_bytes(b"0ne")
    for use in (lambda s: s.open("x"), lambda s: s.build(sources)):
        with pytest.raises(CorruptArtifactError, match=f"image layer {layer} is damaged: data/[ab].txt does not match its hash"):
            use(ImageStore(store.root))
    store.discard(layer)
    assert store.build(sources) == image
    assert ImageStore(store.root).open("x") == image
    manifest = store.root / "layers" / layer / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes().replace(b"run.sh", b"rum.sh"))
    with pytest.raises(CorruptArtifactError, match=f"{layer} is damaged: its manifest"):
        ImageStore(store.root).open("x")
    store.discard(layer)
    store.build(sources)
    (image.root / "run.sh").unlink()
    with pytest.raises(CorruptArtifactError, match=r"run.sh is missing in image"):
        store.open("x")
    (image.root / "run.sh").write_text("#!/bin/no\n")
    os.link(image.root / "run.sh", image.root / "second")
    with pytest.raises(CorruptArtifactError, match=r"run.sh was changed"):
        store.open("x")
    with pytest.raises(ImageError, match="has no image 'y'"):
        store.open("y")


def test_garbage_is_what_no_name_refers_to(tmp_path: Path, store: ImageStore) -> None:
    below, above = DirectorySource(path=sample(tmp_path / "below")), DirectorySource(path=sample(tmp_path / "x"), at="above")
    kept = store.build([below], name="kept")
    dropped = store.build([below, above], name="dropped")
    (store.root / "tmp/killed/blobs").mkdir(parents=True)
    assert store.collect_garbage().images == ()
    assert list((store.root / "tmp").iterdir()) == []
    store.remove("dropped")
    collected = store.collect_garbage()
    assert (collected.images, collected.layers) == ((dropped.image_id,), (dropped.layers[1],))
    assert store.open("kept") == kept
    store.remove("kept")
    assert store.collect_garbage().layers == kept.layers
    assert [list((store.root / name).iterdir()) for name in ("layers", "images", "tmp", "index")] == [[], [], [], []]
    assert store.build([below, above]) == dropped


# --- in a sandbox -------------------------------------------------------------------------------------------------------------

SYSTEM_PYTHON = Path("/usr/bin/python3")


def small_system(folder: Path) -> list[DirectorySource]:
    """The system's Python, a shell and `cat` with the libraries they load: the least that an image of its own needs."""
    programs = [Path("/bin/sh"), Path("/bin/cat"), SYSTEM_PYTHON]
    stdlib = subprocess.run([SYSTEM_PYTHON, "-c", "import os; print(os.__file__)"], capture_output=True, text=True, check=True)
    library = Path(stdlib.stdout.strip()).parent
    said = subprocess.run(["ldd", *programs, *library.glob("lib-dynload/*.so")], capture_output=True, text=True, check=True).stdout
    libraries = {Path(word) for word in said.split() if word.startswith("/") and Path(word).is_file()}
    for path in [*programs, *libraries]:
        at = folder / ("usr/bin" if path in programs else str(path.parent)[1:]) / path.name
        at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, at)
    (folder / "bin").symlink_to("usr/bin")
    return [DirectorySource(path=folder), DirectorySource(path=library, at=str(library)[1:])]


@pytest.mark.sandbox
@pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason="no /usr/bin/python3 to make a small image of")
def test_an_image_is_a_sandboxs_read_only_system(fruit: tuple[ImageStore, RequirementsSource, Image, Image], tmp_path: Path) -> None:
    store, source, *_ = fruit
    sample(tmp_path / "x")
    sources = [*small_system(tmp_path / "system"), source, DirectorySource(path=tmp_path / "x", at="opt/there")]
    image = store.build(sources, name="small")
    backend = ProcessBackend()
    with backend.create(image.config(SandboxConfig(memory_mb=256))) as one, backend.create(image.config()) as two:
        assert one.exec(["python3", "-c", "import pear; pear.main()"]).stdout == f"pear /{PACKAGES}/pear.py\n"
        assert two.exec(["cat", "/opt/there/data/a.txt"]).stdout == "one"
        assert two.exec(["ls", "/"]).exit_code == 127, "only what the image holds"
        for command in ("echo x > /opt/there/data/a.txt", "echo x > /usr/bin/new"):
            assert "Read-only" in one.exec(["sh", "-c", command]).stderr
        assert one.python("import pear\npear.__name__").stdout == "'pear'\n"
    assert ImageStore(store.root).open("small") == image


@pytest.mark.sandbox
def test_requirements_alone_are_laid_over_the_systems_own_files(fruit: tuple[ImageStore, RequirementsSource, Image, Image]) -> None:
    """Without a /usr the image only adds: what the host's system has is there as well."""
    store, source, *_ = fruit
    image = store.build([source], name="only-fruit")
    with ProcessBackend().create(image.config(SandboxConfig(memory_mb=256))) as box:
        assert box.exec(["python3", "-c", "import pear; pear.main()"]).stdout == f"pear /{PACKAGES}/pear.py\n"
        assert box.exec(["ls", "/opt"]).stdout == "ninefold\n"
        assert box.python("import pear\npear.__name__").stdout == "'pear'\n"
