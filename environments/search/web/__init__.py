"""Material from outside: search services, pages and git repositories behind the one `SearchSource` interface.

`open_sources` makes the source of a `RetrievalConfig`. Whatever is retrieved is kept in a folder and can be read again
without the network; whatever goes wrong has a kind and stands in that folder's `outcomes.jsonl`.
"""

from environments.search.web.config import FetchConfig, GitConfig, RetrievalConfig, SearchApiConfig, SearxngConfig
from environments.search.web.library import RetrievedDocument
from environments.search.web.open import open_sources
from environments.search.web.outcome import NotRetrievedError, Outcome
from environments.search.web.source import MergedSource, WebSource

__all__ = [
    "FetchConfig",
    "GitConfig",
    "MergedSource",
    "NotRetrievedError",
    "Outcome",
    "RetrievalConfig",
    "RetrievedDocument",
    "SearchApiConfig",
    "SearxngConfig",
    "WebSource",
    "open_sources",
]
