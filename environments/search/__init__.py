"""The local search corpus: real documents, full text (SQLite FTS5) and static embeddings, offline.

`build_corpus` makes one from what is installed; `Corpus` searches, opens and iterates it.
"""

from environments.search.build import CorpusConfig, build_corpus
from environments.search.index import Corpus
from environments.search.signature import integer_defaults, literal_defaults, signature_line

__all__ = ["Corpus", "CorpusConfig", "build_corpus", "integer_defaults", "literal_defaults", "signature_line"]
