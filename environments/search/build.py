"""Building a corpus: gather documents, index them in a temporary folder, write the manifest last, rename."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import logging
import os
import platform
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from environments.errors import CorruptArtifactError, DiskFullError, EmptyCorpusError, InputError
from environments.protocols import Document
from environments.search.debian import foldoc_documents, linux_manual_documents, python_manual_documents
from environments.search.embedding import embed
from environments.search.index import DATABASE, EMBEDDINGS, FORMAT, MANIFEST, Corpus, Manifest, documents_hash, write_database
from environments.search.markup import strip_links
from environments.search.sources import DEFAULT_PACKAGES, STDLIB, distribution_documents, unique_documents

log = logging.getLogger(__name__)


class CorpusConfig(BaseModel):
    """What a corpus is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    packages: tuple[str, ...] = DEFAULT_PACKAGES
    """Distributions whose docstrings are read; `python-stdlib` is the standard library. Missing ones are left out."""
    foldoc: bool = True
    """Add the Free On-line Dictionary of Computing when `dict-foldoc` is installed."""
    python_manual: bool = True
    """Add Python's manual when `python3.*-doc` is installed."""
    linux_manual: bool = True
    """Add the kernel's manual when `linux-doc-*` is installed."""
    embeddings: bool = True
    """Embed every document, for `Corpus.semantic`."""
    min_documents: int = 1
    """A smaller corpus is refused."""


def _inputs(config: CorpusConfig) -> dict[str, str]:
    """Name -> version of everything the corpus would be made from now; `reader` stands for this package's own code."""
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
    inputs: dict[str, str] = {"reader": code.hexdigest()[:16]}
    for name in config.packages:
        if name == STDLIB:
            inputs[name] = platform.python_version()
            continue
        try:
            inputs[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for name, wanted, path in (
        ("foldoc", config.foldoc, Path("/usr/share/dictd/foldoc.index")),
        ("python_manual", config.python_manual, next(iter(sorted(Path("/usr/share/doc").glob("python3.*/html/_sources"))), None)),
        ("linux_manual", config.linux_manual, next(iter(sorted(Path("/usr/share/doc").glob("linux-doc-*/html/_sources"))), None)),
    ):
        if wanted and path is not None and path.exists():
            inputs[name] = str(int(path.stat().st_mtime))
    return inputs


def _package(name: str) -> list[Document]:
    return list(distribution_documents(name))


def gather(config: CorpusConfig, executor: Executor | None = None) -> Iterator[Document]:
    """All documents of a configuration, without repeats, in a fixed order. An executor reads the packages in parallel."""

    def everything() -> Iterator[Document]:
        for documents in executor.map(_package, config.packages) if executor else map(_package, config.packages):
            yield from documents
        manuals: list[tuple[bool, Callable[[], Iterable[Document]]]] = [
            (config.foldoc, foldoc_documents),
            (config.python_manual, python_manual_documents),
            (config.linux_manual, linux_manual_documents),
        ]
        for wanted, read in manuals:
            if wanted:
                yield from read()

    return unique_documents(everything())


def embedding_text(document: Document) -> str:
    """What is embedded of a document: its title as words, then its text without markup and signature."""
    body = document.text.split("\n", 1)[1] if "\n" in document.text else document.text
    return f"{document.title.replace('.', ' ').replace('_', ' ')}. {strip_links(body[:3000], document.source).strip()}"


def write_corpus(
    directory: Path, documents: Iterable[Document], config: CorpusConfig | None = None, inputs: dict[str, str] | None = None
) -> Corpus:
    """Index documents into `directory` (replaced when it holds a corpus) and open the result.

    Raises:
        EmptyCorpusError: there are no documents, or fewer than `config.min_documents`.
        DiskFullError: no space left; an earlier corpus in `directory` is untouched.
        InputError: `directory` holds something that is not a corpus.
    """
    config = config or CorpusConfig(packages=())
    directory = Path(directory)
    ordered = sorted(documents, key=lambda d: d.document_id)
    if not ordered:
        raise EmptyCorpusError(
            f"no documents for a corpus in {directory}",
            "install the packages whose documentation is to be read, or name others in `packages`",
        )
    if len(ordered) < config.min_documents:
        raise EmptyCorpusError(
            f"{len(ordered)} documents found, at least {config.min_documents} are asked for", "name more packages or lower `min_documents`"
        )
    if directory.exists() and any(directory.iterdir()) and not ({MANIFEST, DATABASE} & set(os.listdir(directory))):
        raise InputError(f"{directory} exists and is not a corpus", "choose an empty or new folder")
    directory.parent.mkdir(parents=True, exist_ok=True)
    part = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.tmp")
    try:
        part.mkdir()
        write_database(part / DATABASE, ordered)
        names = [DATABASE]
        if config.embeddings:
            np.save(part / EMBEDDINGS, embed([embedding_text(d) for d in ordered]).astype(np.float16))
            names.append(EMBEDDINGS)
        manifest = Manifest(
            format=FORMAT,
            content_hash=documents_hash(ordered),
            documents=len(ordered),
            config=config.model_dump(mode="json"),
            inputs=inputs or {},
            files={name: (part / name).stat().st_size for name in names},
        )
        (part / MANIFEST).write_text(manifest.model_dump_json(indent=1))
        if directory.exists():
            old = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.old")
            os.rename(directory, old)
            os.rename(part, directory)
            shutil.rmtree(old)
        else:
            os.rename(part, directory)
    except (OSError, sqlite3.Error) as error:
        shutil.rmtree(part, ignore_errors=True)
        if getattr(error, "errno", None) == errno.ENOSPC or "disk is full" in str(error):
            raise DiskFullError(
                f"no space left while building the corpus {directory}", "free some space and run again; an earlier corpus is untouched"
            ) from error
        raise
    return Corpus.load(directory)


def build_corpus(directory: Path, config: CorpusConfig | None = None, executor: Executor | None = None) -> Corpus:
    """The corpus of a configuration in `directory`: reused when it is whole and its inputs are unchanged, else built.

    Raises:
        EmptyCorpusError: nothing to index, or fewer documents than `min_documents`.
        DiskFullError: no space left; an earlier corpus is untouched.
        InputError: `directory` holds something that is not a corpus.
    """
    config = config or CorpusConfig()
    inputs = _inputs(config)
    try:
        corpus = Corpus.load(directory)
    except CorruptArtifactError as error:
        if Path(directory).exists():
            log.warning("building the corpus anew: %s", error.message)
    else:
        if corpus.manifest.config == config.model_dump(mode="json") and corpus.manifest.inputs == inputs:
            return corpus
        log.info("the corpus in %s has other inputs; building it anew", directory)
    return write_corpus(directory, gather(config, executor), config, inputs)
