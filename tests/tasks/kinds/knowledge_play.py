"""Runs drafts of knowledge, research and reasoning tasks for real."""

from __future__ import annotations

from environments.environment import Environment
from environments.families.reading import ReadingEnvironment
from environments.families.workspace import WorkspaceEnvironment
from environments.hardening import HardeningConfig, probe, validate
from environments.protocols import Document, Hit
from environments.resources import Resources
from environments.task import TaskSpec
from tasks.kinds.draft import Draft, Material
from tasks.synthesis import to_task


class Shelf:
    """A small corpus: documents with all words of a query in title or text, those titled like it first."""

    content_hash = "shelf"

    def __init__(self, documents: tuple[Document, ...]) -> None:
        self.documents = {d.document_id: d for d in documents}

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        wanted = set(query.lower().split())
        scored = [
            (query.lower() == d.title.lower(), len(wanted & set(f"{d.title} {d.text}".lower().replace(".", " ").split())), d)
            for d in self.documents.values()
        ]
        best = sorted(((t, n, d) for t, n, d in scored if n), key=lambda f: (-f[0], -f[1], f[2].document_id))
        return [Hit(d.document_id, d.title, d.text[:60], float(n)) for _, n, d in best[:limit]]

    def open(self, document_id: str) -> Document:
        return self.documents[document_id]


_MADE = (
    ("Alfa", 1961, "Ada Byrne"),
    ("Bravo", 1964, "Bo Chen"),
    ("Carol", 1967, "Cy Dane"),
    ("Delta", 1971, "Di Estrada"),
    ("Ember", 1975, "Ed Flores"),
    ("Fjord", 1978, "Fay Gomez"),
    ("Gamma", 1983, "Gil Hauser"),
    ("Helix", 1986, "Hal Ivers"),
    ("Indra", 1991, "Ida Jones"),
    ("Juno", 1995, "Jo Kerr"),
)
_NOTE = "A programming language developed by {who} in {year} for numerical work."
_HISTORY = "Users of numerical software met {name} early: {who} presented the first compiler at a meeting in {year}."
DOCUMENTS = (
    *(Document(f"d{i:02d}", name, _NOTE.format(who=who, year=year), "notes", "MIT") for i, (name, year, who) in enumerate(_MADE)),
    *(
        Document(f"e{i:02d}", f"History of {name}", _HISTORY.format(name=name, who=who, year=year), "history", "CC0-1.0")
        for i, (name, year, who) in enumerate(_MADE[:5])
    ),
    Document("x1", "Kilo", "A language developed by Kilo Works in 1990.", "notes", "MIT"),
    Document("x2", "Kilo Works", "A company founded in 1972 that sells compilers.", "notes", "MIT"),
)
SHELF = Shelf(DOCUMENTS)


def material(*ids: str) -> Material:
    return Material(("node",), ("programming language developed",), tuple(SHELF.documents[i] for i in ids or ("d00", "d01", "d02")), SHELF)


def make(task: TaskSpec, resources: Resources) -> Environment:
    """As `make_environment`, for these kinds."""
    return WorkspaceEnvironment(task) if task.family == "reasoning" else ReadingEnvironment(task, SHELF)


def assert_sound(draft: Draft, resources: Resources) -> None:
    """The gate's validation, and the exploits: the reference passes and nothing else does."""
    task = to_task(draft, "node", "branch", resources.vault)
    config = HardeningConfig(reference_runs=2)
    assert [(r.check_name, r.observed, r.detail) for r in validate(task, resources, config, make) if not r.ok] == []
    found = probe(task, resources, config, make)
    assert found
    assert [(p.exploit, p.transcript) for p in found if p.succeeded] == []
