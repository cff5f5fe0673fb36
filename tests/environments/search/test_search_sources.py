from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from environments.errors import CorruptArtifactError
from environments.protocols import Document
from environments.search import integer_defaults, literal_defaults, signature_line
from environments.search.debian import foldoc_documents, rst_documents
from environments.search.markup import foldoc_links, rst_links, strip_links
from environments.search.sources import distribution_documents, document_id, package_documents, stdlib_documents, unique_documents


def by_title(documents: object) -> dict[str, Document]:
    return {d.title: d for d in documents}  # type: ignore[attr-defined]


def test_a_reexport_carries_the_public_name_and_its_constants(fake_package: Path) -> None:
    found = by_title(package_documents(fake_package, "demo", "demo", "MIT"))
    assert set(found) == {"demo", "demo.solve", "demo.Circle", "demo.Circle.scale", "demo.area"}
    assert found["demo.solve"].text.startswith("solve(f, a, b=2, *args, maxiter=100, rtol=4 * eps, **kw)\n\nFind a root of a function.")
    assert found["demo.Circle"].text.startswith("Circle(radius=1)\n")
    assert found["demo.Circle.scale"].text.startswith("scale(factor, times=3)\n")
    assert found["demo.area"].text.startswith("area(shape, /, digits=2)\n")
    assert {d.licence for d in found.values()} == {"MIT"}
    assert found["demo.area"].text.endswith("\n\nDefined in demo.shapes.")
    assert "Defined in" not in found["demo.solve"].text
    assert found["demo.Circle.scale"].text.endswith("\n\nMethod of demo.Circle.")


def test_links_are_recorded_and_can_be_stripped(fake_package: Path) -> None:
    solve = by_title(package_documents(fake_package, "demo", "demo", "MIT"))["demo.solve"]
    assert set(solve.links) == {"demo.shapes.area", "newton", "brent", "ridder"}
    plain = strip_links(solve.text, "demo")
    assert "newton" not in plain
    assert ":func:" not in plain
    assert "Uses demo.shapes.area inside." in plain
    assert rst_links(plain) == ()


def test_foldoc_braces() -> None:
    text = "A {data\n   structure} used in {Lisp} and at {home (http://example.org/)}."
    assert foldoc_links(text) == ("data structure", "Lisp")
    assert strip_links("A {list} of {atoms}.", "foldoc") == "A list of atoms."


def test_reading_a_package_does_not_import_it() -> None:
    before = set(sys.modules)
    found = by_title(distribution_documents("humanize"))
    assert "humanize.naturalsize" in found
    assert found["humanize.naturalsize"].licence == "MIT"
    assert "humanize" not in set(sys.modules) - before


def test_well_known_names_have_their_documented_titles() -> None:
    scipy = by_title(distribution_documents("scipy"))
    assert integer_defaults(scipy["scipy.optimize.bisect"]) == {"maxiter": 100}
    assert {"scipy.signal.butter", "scipy.optimize", "scipy.stats.pearsonr"} <= set(scipy)
    assert not any(".tests." in title or any(part.startswith("_") for part in title.split(".")) for title in scipy)
    networkx = by_title(distribution_documents("networkx"))
    assert networkx["networkx.dijkstra_path"].source == "networkx"


def test_standard_library_and_missing_packages() -> None:
    assert list(distribution_documents("no-such-distribution")) == []
    titles = {d.title for d in stdlib_documents()}
    assert {"textwrap.wrap", "bisect.bisect_left", "json", "collections.Counter"} <= titles
    assert not any(title.startswith(("test.", "idlelib")) for title in titles)


def test_duplicates_are_dropped() -> None:
    a = Document(document_id("s", "a"), "a", "same text", "s", "MIT")
    again = Document(document_id("s", "b"), "b", "same text", "s", "MIT")
    other = Document(document_id("s", "c"), "c", "other text", "s", "MIT")
    assert [d.title for d in unique_documents([a, again, other, other])] == ["a", "c"]


def test_signature_defaults() -> None:
    document = Document("x", "m.f", "f(a, b=2, c=True, *, d=-3, e='x', g=4 * eps)\n\nText.", "s", "MIT")
    assert signature_line(document).startswith("f(a")
    assert integer_defaults(document) == {"b": 2, "d": -3}
    assert literal_defaults(document) == {"b": 2, "c": True, "d": -3, "e": "x"}
    assert integer_defaults(Document("y", "t", "Some prose (with brackets).\n", "s", "MIT")) == {}


def _write_foldoc(folder: Path) -> None:
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

    def number(value: int) -> str:
        text = digits[value % 64]
        while value := value // 64:
            text = digits[value % 64] + text
        return text

    entries = [
        "bubble sort\nsinking sort\n\n   <algorithm> A {sorting} technique in which pairs of adjacent\n   values are compared.\n",
        "x\n\n   short\n",
    ]
    data, lines = "", ["00-database-short\tA\tB"]
    for entry in entries:
        for name in entry.split("\n\n")[0].split("\n"):
            lines.append(f"{name}\t{number(len(data))}\t{number(len(entry))}")
        data += entry
    (folder / "foldoc.dict.dz").write_bytes(gzip.compress(data.encode()))
    (folder / "foldoc.index").write_text("\n".join(lines) + "\n")


def test_foldoc_entries(tmp_path: Path) -> None:
    assert list(foldoc_documents(tmp_path)) == []
    _write_foldoc(tmp_path)
    (entry,) = foldoc_documents(tmp_path)
    assert entry.title == "bubble sort"
    assert entry.licence == "GFDL-1.1-or-later"
    assert entry.links == ("sorting",)
    assert entry.text == "bubble sort\nsinking sort\n\n<algorithm> A {sorting} technique in which pairs of adjacent\nvalues are compared."


def test_damaged_foldoc_is_named(tmp_path: Path) -> None:
    _write_foldoc(tmp_path)
    (tmp_path / "foldoc.dict.dz").write_bytes(b"\x1f\x8bnot gzip at all")
    with pytest.raises(CorruptArtifactError, match=r"foldoc.dict.dz.*reinstall"):
        list(foldoc_documents(tmp_path))


def test_rst_pages(tmp_path: Path) -> None:
    page = (
        ":mod:`bisect` --- Array bisection\n=================================\n\n.. comment here\n\nText about :func:`bisect_left`. "
        + "More text. " * 30
    )
    (tmp_path / "bisect.rst.txt").write_text(page)
    (tmp_path / "other.rst.txt.gz").write_bytes(gzip.compress(("Bonding\n-------\n\n" + "The driver. " * 30).encode()))
    (tmp_path / "bad.rst.txt.gz").write_bytes(b"broken")
    found = by_title(rst_documents(tmp_path, "manual", "PSF-2.0"))
    assert set(found) == {"bisect --- Array bisection", "Bonding"}
    assert found["bisect --- Array bisection"].links == ("bisect", "bisect_left")
    assert ".. comment" not in found["bisect --- Array bisection"].text
