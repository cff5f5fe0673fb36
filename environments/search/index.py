"""A corpus on disk: SQLite with an FTS5 index, float16 embeddings, and a manifest that was written last.

Layout of a corpus folder: `corpus.sqlite` (documents and index), `embeddings.npy` (rows in document order, optional),
`manifest.json`. It is never changed after it was built, so any number of threads and processes may read it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from environments.errors import CorruptArtifactError
from environments.protocols import Document, Hit
from environments.search.embedding import embed
from environments.search.markup import strip_links

FORMAT = 1
DATABASE, EMBEDDINGS, MANIFEST = "corpus.sqlite", "embeddings.npy", "manifest.json"

_REBUILD = "delete the folder and build the corpus again"
_TITLE_WEIGHT, _TEXT_WEIGHT = 8.0, 1.0
_EXACT_TITLE_SCORE = 1000.0
"""Above any bm25 score, so that a document asked for by its title comes first."""
_MAX_TERMS = 16
"""Terms of a query that count; the rest of a pasted paragraph adds time, not precision."""
_ENOUGH = 3
"""Documents with all terms that make those with only some of them unnecessary (and those are the slow part)."""
_SNIPPET_CHARS = 200
_SNIPPET_READS = 2000
_SNIPPET_PIECES = 12
"""Characters and sentences of a document's head among which a snippet is chosen: it is made for every hit, so it must be cheap."""
_PIECE = re.compile(r"\n\s*\n|(?<=[.!?])\s+(?=[A-Z])")
_STOPWORDS = """
a an and are as at be by can do does for from has have how if in into is it its of on or should that the their then there these this to
was what when where which who why will with you your
"""
STOPWORDS = frozenset(_STOPWORDS.split())
"""Words that say nothing about what a query is after."""


class Manifest(BaseModel):
    """What a corpus folder claims to be. Sizes in bytes, by file name."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int
    content_hash: str
    documents: int
    config: dict[str, Any]
    inputs: dict[str, str]
    files: dict[str, int]


def terms(text: str) -> list[str]:
    """Lower-case words and numbers of a text, split at punctuation and underscores (as the index's tokenizer does)."""
    return re.findall(r"[^\W_]+", text.lower())


def title_key(title: str) -> str:
    """A title's terms joined by spaces: `scipy.optimize.bisect` and `scipy optimize bisect` have the same key."""
    return " ".join(terms(title))


def documents_hash(documents: Iterable[Document]) -> str:
    """sha256 (hex) over the documents, whatever their order."""
    digests = []
    for d in documents:
        fields = json.dumps([d.document_id, d.title, d.text, d.source, d.licence, list(d.links)], ensure_ascii=True)
        digests.append(hashlib.sha256(fields.encode()).hexdigest())
    return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()


def write_database(path: Path, documents: Sequence[Document]) -> None:
    """Write documents (sorted by id) and their index. Cross-reference markup is kept in the text but not indexed."""
    connection = sqlite3.connect(path)
    try:
        connection.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA page_size=8192;"
            "CREATE TABLE documents (rowid INTEGER PRIMARY KEY, document_id TEXT UNIQUE NOT NULL, title TEXT NOT NULL, key TEXT NOT NULL,"
            " text TEXT NOT NULL, source TEXT NOT NULL, licence TEXT NOT NULL, links TEXT NOT NULL);"
            "CREATE INDEX by_key ON documents (key);"
            "CREATE VIRTUAL TABLE fts USING fts5(title, text, content='', tokenize='porter unicode61');"
        )
        with connection:
            for row, d in enumerate(documents, start=1):
                text = d.text.replace("\0", " ")
                connection.execute(
                    "INSERT INTO documents VALUES (?,?,?,?,?,?,?,?)",
                    (row, d.document_id, d.title, title_key(d.title), text, d.source, d.licence, json.dumps(list(d.links))),
                )
                connection.execute("INSERT INTO fts(rowid, title, text) VALUES (?,?,?)", (row, d.title, strip_links(text, d.source)))
            connection.execute("INSERT INTO fts(fts) VALUES ('optimize')")
    finally:
        connection.close()


def snippet(text: str, query_terms: Iterable[str], limit: int = _SNIPPET_CHARS) -> str:
    """The passage that holds most of the query's terms, at most `limit` characters, the earliest of equals.

    A document's first line (a signature or a headword) is left out where more follows: a hit says what a document is
    about, the document itself says the details.
    """
    body = text.split("\n", 1)[1] if "\n" in text.strip() else text
    pieces = [p for p in _PIECE.split(body[:_SNIPPET_READS].strip()) if len(p) > 2][:_SNIPPET_PIECES]
    if not pieces:
        return " ".join(text.split())[:limit].strip()
    wanted = list(dict.fromkeys(query_terms))
    lowered = [p.lower() for p in pieces]
    best = max(range(len(pieces)), key=lambda i: (sum(t in lowered[i] for t in wanted), -i))
    piece = " ".join(pieces[best].split())
    return piece if len(piece) <= limit else piece[: limit - 3].rstrip() + "..."


class Corpus:
    """A corpus opened for reading; a `SearchSource`. Picklable, safe to share between threads and across forks."""

    def __init__(self, directory: Path, manifest: Manifest, links: bool = True) -> None:
        self.directory = Path(directory)
        self.manifest = manifest
        self.links = links
        self.content_hash = (
            manifest.content_hash if links else hashlib.sha256(f"{manifest.content_hash}-without-links".encode()).hexdigest()
        )
        self._local = threading.local()
        self._lock = threading.Lock()
        self._matrix: npt.NDArray[np.float32] | None = None

    @classmethod
    def load(cls, directory: Path) -> Corpus:
        """Open a built corpus.

        Raises:
            CorruptArtifactError: the manifest is missing or damaged, or a file is not what the manifest says.
        """
        directory = Path(directory)
        path = directory / MANIFEST
        try:
            manifest = Manifest.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise CorruptArtifactError(
                f"{path} is missing or damaged ({type(error).__name__}), so {directory} is no whole corpus", _REBUILD
            ) from error
        if manifest.format != FORMAT:
            raise CorruptArtifactError(f"{path} has format {manifest.format}, this version reads {FORMAT}", _REBUILD)
        for name, size in manifest.files.items():
            file = directory / name
            if not file.is_file() or file.stat().st_size != size:
                raise CorruptArtifactError(f"{file} is missing or was changed: the manifest says {size} bytes", _REBUILD)
        corpus = cls(directory, manifest)
        count = corpus._query("SELECT count(*) FROM documents")[0][0]
        if count != manifest.documents:
            raise CorruptArtifactError(f"{directory / DATABASE} holds {count} documents, the manifest says {manifest.documents}", _REBUILD)
        return corpus

    def without_links(self) -> Corpus:
        """The same corpus with cross-reference markup taken out of texts and `links` empty. Search is the same: markup is not indexed."""
        return Corpus(self.directory, self.manifest, links=False)

    # --- SearchSource ---

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        """Full-text search; any string is a valid query. Best first, ties by document id.

        Documents whose title is the query come first, then those with all terms; those with some follow when there are few of either.
        """
        found = terms(query)
        if not found or limit <= 0:
            return []
        rows: dict[int, float] = {}
        for (row,) in self._query("SELECT rowid FROM documents WHERE key = ? ORDER BY rowid LIMIT ?", (" ".join(found), limit)):
            rows[row] = _EXACT_TITLE_SCORE
        exact = len(rows)
        content = [t for t in dict.fromkeys(found) if t not in STOPWORDS] or list(dict.fromkeys(found))
        quoted = [f'"{t}"' for t in content[:_MAX_TERMS]]
        for operator in (" AND ", " OR "):
            if operator == " OR " and (exact or len(rows) >= min(limit, _ENOUGH) or len(quoted) == 1):
                break
            score_sql = f"-bm25(fts, {_TITLE_WEIGHT}, {_TEXT_WEIGHT})"
            sql = f"SELECT rowid, {score_sql} AS score FROM fts WHERE fts MATCH ? ORDER BY score DESC, rowid LIMIT ?"
            ranked = self._query(sql, (operator.join(quoted), limit + len(rows)))
            for row, score in ranked:
                rows.setdefault(row, float(score))
        return self._hits(list(rows.items())[:limit], found)

    def open(self, document_id: str) -> Document:
        """The document of that id. Raises KeyError when there is none."""
        rows = self._query(
            "SELECT document_id, title, text, source, licence, links FROM documents WHERE document_id = ?", (str(document_id),)
        )
        if not rows:
            raise KeyError(document_id)
        return self._document(rows[0])

    def semantic(self, query: str, limit: int = 10) -> list[Hit]:
        """Nearest documents by embedding (cosine similarity), ties by document id; empty when built without embeddings."""
        matrix = self._vectors()
        if matrix is None or limit <= 0 or not query.strip():
            return []
        similarity = matrix @ embed([query])[0]
        limit = min(limit, len(similarity))
        threshold = np.partition(similarity, len(similarity) - limit)[len(similarity) - limit]
        rows = np.flatnonzero(similarity >= threshold)
        order = rows[np.lexsort((rows, -similarity[rows]))][:limit]
        return self._hits([(int(i) + 1, float(similarity[i])) for i in order], terms(query))

    # --- iteration ---

    def documents(self) -> Iterator[Document]:
        """All documents, by id."""
        columns = "document_id, title, text, source, licence, links"
        for start in range(1, len(self) + 1, 500):
            for row in self._query(f"SELECT {columns} FROM documents WHERE rowid >= ? AND rowid < ? ORDER BY rowid", (start, start + 500)):
                yield self._document(row)

    def sources(self) -> dict[str, int]:
        """Documents by source."""
        return dict(self._query("SELECT source, count(*) FROM documents GROUP BY source ORDER BY source"))

    def __len__(self) -> int:
        return self.manifest.documents

    def __reduce__(self) -> tuple[Any, ...]:
        return (Corpus, (self.directory, self.manifest, self.links))

    # --- reading ---

    def _connection(self) -> sqlite3.Connection:
        """This thread's connection in this process: SQLite connections must not cross a fork."""
        if getattr(self._local, "process", None) != os.getpid():
            uri = (self.directory / DATABASE).resolve().as_uri() + "?mode=ro&immutable=1"
            self._local.connection = sqlite3.connect(uri, uri=True)
            self._local.process = os.getpid()
        return self._local.connection  # type: ignore[no-any-return]

    def _query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection().execute(sql, parameters).fetchall()
        except sqlite3.DatabaseError as error:
            raise CorruptArtifactError(f"{self.directory / DATABASE} does not read as a corpus ({error})", _REBUILD) from error

    def _document(self, row: tuple[Any, ...]) -> Document:
        document = Document(row[0], row[1], row[2], row[3], row[4], tuple(json.loads(row[5])))
        return document if self.links else replace(document, text=strip_links(document.text, document.source), links=())

    def _hits(self, rows: Sequence[tuple[int, float]], query_terms: Sequence[str]) -> list[Hit]:
        hits = []
        for row, score in rows:
            document_id, title, text, source = self._query(
                "SELECT document_id, title, substr(text, 1, 2500), source FROM documents WHERE rowid = ?", (row,)
            )[0]
            hits.append(Hit(document_id, title, snippet(strip_links(text, source), query_terms), score))
        return hits

    def _vectors(self) -> npt.NDArray[np.float32] | None:
        if EMBEDDINGS not in self.manifest.files:
            return None
        with self._lock:
            if self._matrix is None:
                stored = np.load(self.directory / EMBEDDINGS, mmap_mode="r")
                self._matrix = np.asarray(stored, dtype=np.float32)  # float16 products have no fast path on a CPU.
            return self._matrix
