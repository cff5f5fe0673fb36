"""Documents made of fetched pages, kept by id, so that whatever a search has named can be opened by any process later."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from pydantic import TypeAdapter, ValidationError

from environments.files import replacing
from environments.protocols import Document
from environments.search.web.cache import Record
from environments.search.web.extract import VERSION, Extracted, extract
from environments.search.web.fetch import Fetcher, Page
from environments.search.web.guard import canonical
from environments.search.web.outcome import RefusedError

log = logging.getLogger(__name__)

_ID = re.compile(r"web-[0-9a-f]{16}")


@dataclass(frozen=True)
class RetrievedDocument(Document):
    """A document from outside: where, when and how it was got. Its text is data, never instructions."""

    address: str = ""
    retrieved_at: str = ""
    """UTC, ISO 8601."""
    sha256: str = ""
    """Of the content that the text was taken from."""
    via: str = "http"
    """`http`, `browser` or `git`."""
    commit: str = ""
    """Of a git repository."""
    untrusted: bool = True
    extractor: int = VERSION


_STORED = TypeAdapter(RetrievedDocument)


def page_id(address: str) -> str:
    """Stable id of a page: `web-` and 16 hex characters of the sha256 of its address."""
    return f"web-{hashlib.sha256(address.encode()).hexdigest()[:16]}"


class Library:
    """Reads pages into documents."""

    def __init__(self, fetcher: Fetcher, folder: Path) -> None:
        self._fetcher = fetcher
        self._folder = folder

    def read(self, address: str) -> RetrievedDocument:
        """The document at an address, fetched or from the cache.

        Raises:
            NotRetrievedError: there is none to be had, or its content gives no text.
        """
        page = self._fetcher.fetch(address)
        final = page.record.final_address
        held = self._stored(page_id(final))
        if held is not None and held.extractor == VERSION and held.sha256 in (page.record.sha256, self._rendered_hash(page.record)):
            return held
        try:
            found = extract(page.body, page.record.media_type, final, page.record.link)
            if found.scripted and self._fetcher.config.browser:
                page, found = self._rendered(page.record, found, page)
            if not found.text.strip():
                raise RefusedError("no_text", "no main text without JavaScript" if found.scripted else "no main text")
        except RefusedError as error:
            raise self._fetcher.refuse(address, error) from error
        document = RetrievedDocument(
            document_id=page_id(final),
            title=found.title,
            text=found.text.replace("\0", " "),
            source=httpx.URL(final).host,
            licence=found.licence,
            address=final,
            retrieved_at=datetime.fromtimestamp(page.record.retrieved_at, UTC).isoformat(timespec="seconds"),
            sha256=page.record.sha256,
            via=page.record.via,
        )
        with replacing(self._path(document.document_id)) as part:
            part.write_bytes(_STORED.dump_json(document))
        return document

    def open(self, document_id: str) -> RetrievedDocument:
        """A document that was read before, by this process or another. Raises KeyError when there is none of that id."""
        document = self._stored(document_id)
        if document is None:
            raise KeyError(document_id)
        return document

    def _stored(self, document_id: str) -> RetrievedDocument | None:
        if not _ID.fullmatch(document_id):
            return None
        path = self._path(document_id)
        try:
            return _STORED.validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            log.warning("%s is damaged and counts as absent (%s)", path, type(error).__name__)
            return None

    def _path(self, document_id: str) -> Path:
        return self._folder / "documents" / document_id[4:6] / f"{document_id}.json"

    # --- pages that JavaScript makes ------------------------------------------------------------------------------------------

    def _rendered_hash(self, record: Record) -> str:
        rendered = self._fetcher.cache.get(_rendered_address(record))
        return rendered.sha256 if rendered is not None else record.sha256

    def _rendered(self, record: Record, plain: Extracted, page: Page) -> tuple[Page, Extracted]:
        """The page as Chromium makes it; as it came when Chromium fails and there is some text without it."""
        cache, journal = self._fetcher.cache, self._fetcher.journal
        address = _rendered_address(record)
        held = cache.get(address)
        body = cache.body(held) if held is not None else None
        if held is None or body is None:
            if self._fetcher.config.offline:
                raise RefusedError("offline", "the page is made by JavaScript, and that was not cached")
            from environments.search.web.render import render

            try:
                body = render(canonical(record.final_address), self._fetcher.guard)
            except RefusedError as error:
                if not plain.text.strip():
                    raise
                journal.add(record.final_address, error.kind, f"without JavaScript: {error.reason}")
                return page, plain
            now = time.time()
            made = {"address": address, "via": "browser", "retrieved_at": now, "checked_at": now, "media_type": "text/html; charset=utf-8"}
            held = cache.put(record.model_copy(update=made), body)
            journal.add(record.final_address, "retrieved", "by the browser", size_bytes=len(body), sha256=held.sha256)
        found = extract(body, held.media_type, record.final_address, record.link)
        return (Page(held, body), found) if len(found.text) >= len(plain.text) else (page, plain)


def _rendered_address(record: Record) -> str:
    """Key in the cache: of the page as it came, so that a changed one is made anew."""
    return f"browser:{record.sha256}:{record.final_address}"
