"""The embedded reader: a brain without a model.

For a concept it plans a few searches, reads what they find, and proposes narrower concepts from four kinds of evidence:
what a package's structure groups under a module that the concept names, phrases that the summaries of the found API
documents share, definitions ("A sorting technique in which ...") and named examples ("such as ..."), and functions
whose summaries speak of the concept. Every proposal quotes the sentence it rests on. A concrete function is an atom.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from environments.protocols import Document, Evidence, Proposal, Reading, SearchSource
from environments.search.signature import integer_defaults, literal_defaults
from kg.apidocs import is_callable, is_module, module_label, module_of, summary
from kg.equivalence import is_qualified, name_key, split_abbreviation
from kg.phrases import akin, content, coverage, defined_as, named_examples, shared_phrases, words_of
from kg.words import DULL

_POOL = 60
"""Hits a query may bring; a concept is read from what several queries bring together."""
_MODULE_HITS, _MEMBERS = 150, 400
"""Hits among which modules, and a module's members, are looked for."""
_SEED_MODULES, _MODULES = 20, 8
"""Modules whose members are read for a seed, and for any other concept."""
_MAX_SEED_TOPICS, _MAX_TOPICS, _MAX_FUNCTIONS = 8, 5, 16
_SEED_TOPIC_WORTH = 3.0
"""What the documents of a seed's topic must be worth (see `_worth`) together."""
_SETTINGS = 3
"""Literal defaults from which on a document reads as a set of options (domain agent)."""


@dataclass(frozen=True)
class _Topic:
    name: str
    weight: float
    quotes: tuple[Evidence, ...]
    confidence: float
    relation: str = "narrower"


class EmbeddedReader:
    """Reads for a node by patterns and statistics. Stateless: the same question gives the same answer anywhere."""

    name = "embedded-reader-1"

    def read(self, concept: str, ancestors: Sequence[str], source: SearchSource) -> Reading:
        """See `environments.protocols.Brain`."""
        if is_qualified(concept) and (found := _titled(source, concept)) is not None and not is_module(found):
            return Reading((), (concept,), (found.document_id,), True, "a concrete object: its document has nothing narrower")
        queries = _plan(concept, ancestors)
        documents = _retrieve(queries, source)
        # A coarse seed is known by its telling words; further down every word counts: "random graph" is no "random variable".
        words = (words_of(concept) or content(concept)) if ancestors else content(concept)
        named = _modules(concept, words, _module_documents(content(concept), documents, source))
        modules = named[: _MODULES if ancestors else _SEED_MODULES]
        pool = _api_pool(words, modules, documents, source)
        topics = _topics(concept, ancestors, words, modules, pool, documents)
        functions = [] if not ancestors else _functions(words, ancestors, modules, pool)
        proposals = tuple(_interleave(topics, functions))
        found_ids = tuple(d.document_id for d in documents[:20])
        if not any(p.relation == "narrower" for p in proposals):
            return Reading(proposals, queries, found_ids, True, "no document names anything narrower")
        return Reading(
            proposals, queries, found_ids, False, f"{len(proposals)} proposals from {len(pool)} API documents and {len(documents)} hits"
        )


# --- searching -----------------------------------------------------------------------------------------------------


def _plan(concept: str, ancestors: Sequence[str]) -> tuple[str, ...]:
    queries = [concept]
    words = content(concept)
    if " ".join(words) != concept.lower():
        queries.append(" ".join(words))
    if ancestors:
        queries.append(f"{concept} {' '.join(content(ancestors[-1]))}")
    return tuple(dict.fromkeys(queries))


def _retrieve(queries: Sequence[str], source: SearchSource) -> list[Document]:
    """Documents of all queries by reciprocal rank, ties by id."""
    score: dict[str, float] = {}
    for query in queries:
        for rank, hit in enumerate(source.search(query, _POOL)):
            score[hit.document_id] = score.get(hit.document_id, 0.0) + 1.0 / (10 + rank)
    return [source.open(identifier) for identifier in sorted(score, key=lambda i: (-score[i], i))]


def _titled(source: SearchSource, title: str) -> Document | None:
    for hit in source.search(title, 5):
        if hit.title == title:
            return source.open(hit.document_id)
    return None


# --- modules -------------------------------------------------------------------------------------------------------


def _dull(title: str) -> bool:
    return any(part in DULL or part.startswith("_") for part in title.lower().split("."))


@functools.lru_cache(maxsize=50_000)
def _text_words(document: Document) -> tuple[str, ...]:
    return tuple(words_of(f"{document.title} {summary(document)}"))


@functools.lru_cache(maxsize=10_000)
def _module_words(document: Document) -> list[str]:
    return words_of(f"{document.title.replace('.', ' ').replace('_', ' ')} {module_label(document)}")


def _module_documents(words: Sequence[str], documents: Sequence[Document], source: SearchSource) -> list[Document]:
    """Module documents among the hits and among those of a search for modules: a package's long pages rank low otherwise."""
    found = {d.document_id: d for d in documents if is_module(d)}
    for hit in source.search(f"module {' '.join(words)}", _MODULE_HITS):
        if hit.document_id not in found and is_module(document := source.open(hit.document_id)):
            found[hit.document_id] = document
    return list(found.values())


def _modules(concept: str, words: Sequence[str], documents: Iterable[Document]) -> list[tuple[Document, float]]:
    """Modules that the concept names, best first: all of its words are in the module's name and label, or in its summary."""
    found = []
    for document in documents:
        if not is_module(document) or _dull(document.title) or "deprecated" in summary(document).lower():
            continue
        if name_key(module_label(document) or "?x") == name_key(concept) or document.title == concept:
            weight = 3.0
        elif coverage(words, _module_words(document)) == 1.0:
            weight = 2.0
        elif coverage(words, words_of(summary(document))) == 1.0:
            weight = 1.0
        else:
            continue
        found.append((document, weight - 0.2 * document.title.count(".")))
    return sorted(found, key=lambda item: (-item[1], item[0].title))


def _members(module: Document, source: SearchSource) -> list[Document]:
    """API documents whose object the module or one of its submodules defines or exports."""
    members = []
    for hit in source.search(module.title, _MEMBERS):
        document = source.open(hit.document_id)
        if is_callable(document):
            homes = (module_of(document), document.title.rpartition(".")[0])
            if any(home == module.title or home.startswith(f"{module.title}.") for home in homes):
                members.append(document)
    return members


def _api_pool(
    words: Sequence[str], modules: Sequence[tuple[Document, float]], documents: Sequence[Document], source: SearchSource
) -> list[Document]:
    """API documents to read for the concept: members of its modules, and hits whose title or summary has all of its words."""
    pool: dict[str, Document] = {}
    for module, weight in modules:
        if weight > 1.0:
            for member in _members(module, source):
                pool.setdefault(member.document_id, member)
    for document in documents:
        if is_callable(document) and not _dull(document.title) and coverage(words, _text_words(document)) == 1.0:
            pool.setdefault(document.document_id, document)
    return [d for d in pool.values() if "deprecated" not in d.text[:400].lower()]


# --- proposals -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=50_000)
def _worth(document: Document) -> float:
    """How much there is to ask about a document: integer defaults first, any literal defaults next."""
    integers = integer_defaults(document)
    return 2.0 * any(v >= 2 for v in integers.values()) + 1.0 * bool(integers) + 0.3 * min(3, len(literal_defaults(document)))


def _evidence(document: Document) -> Evidence:
    return Evidence(document.document_id, summary(document) or document.title)


def _topics(
    concept: str,
    ancestors: Sequence[str],
    words: Sequence[str],
    modules: Sequence[tuple[Document, float]],
    pool: Sequence[Document],
    documents: Sequence[Document],
) -> list[_Topic]:
    known = {name_key(name) for name in (concept, *ancestors)}
    taken = [set(content(name)) for name in (concept, *ancestors)]
    topics: list[_Topic] = []
    by_id = {d.document_id: d for d in pool}

    for module, weight in modules:
        label = module_label(module)
        if not label:
            continue
        if name_key(label) in known:
            if name_key(label) == name_key(concept):
                topics.append(_Topic(module.title, 99.0, (_evidence(module),), 0.9, "equivalent"))
            continue
        members = [d for d in pool if module_of(d).startswith(module.title) or d.title.startswith(f"{module.title}.")]
        value = sum(_worth(d) for d in members if _worth(d) >= 1.0)
        if len(members) >= 3 and (value or ancestors):
            topics.append(_Topic(label, weight + math.log1p(value), (_evidence(module),), min(0.9, 0.6 + 0.1 * weight)))

    sentences = [(d.document_id, summary(d)) for d in pool]
    for phrase, ids in shared_phrases(sentences, minimum=3 if len(pool) >= 30 else 2):
        phrase_words = set(content(phrase))
        if len(ancestors) >= 2 and coverage(words, words_of(phrase)) < 1.0:
            continue  # This deep, a phrase that does not extend the concept is as likely beside it as below it.
        if name_key(phrase) in known or any(phrase_words <= names or phrase_words == names for names in taken):
            continue
        value = sum(_worth(by_id[i]) for i in ids if _worth(by_id[i]) >= 1.0)
        if not ancestors and value < _SEED_TOPIC_WORTH:
            continue  # A branch is where tasks come from: there must be something to ask.
        quotes = tuple(_evidence(by_id[i]) for i in sorted(ids, key=lambda i: (-_worth(by_id[i]), by_id[i].title))[:3])
        topics.append(_Topic(phrase, 0.8 * math.log1p(value) + 0.6 * math.log1p(len(ids)), quotes, min(0.9, 0.4 + 0.05 * len(ids))))

    topics.extend(_defined(words, known, documents)[: 2 if not ancestors else 4])
    best: dict[str, _Topic] = {}
    for topic in topics:
        key = name_key(topic.name)
        if key not in best or topic.weight > best[key].weight:
            best[key] = topic
    ordered = sorted(best.values(), key=lambda t: (-t.weight, t.name))
    return _spread(ordered, _MAX_SEED_TOPICS if not ancestors else _MAX_TOPICS)


def _spread(topics: Sequence[_Topic], limit: int) -> list[_Topic]:
    """The best topics, leaving out those that say nearly the same as a better one."""
    chosen: list[_Topic] = []
    for topic in topics:
        words = content(topic.name)
        if topic.relation != "equivalent" and any(
            coverage(words, content(c.name)) == 1.0 and coverage(content(c.name), words) == 1.0
            for c in chosen
            if c.relation == topic.relation
        ):
            continue
        chosen.append(topic)
        if len(chosen) >= limit:
            break
    return chosen


def _defined(words: Sequence[str], known: set[str], documents: Sequence[Document]) -> list[_Topic]:
    """Entries of dictionaries and manuals that are defined as kinds of the concept, and examples that documents name."""
    topics = []
    for document in documents:
        if is_callable(document) or document.text.startswith("module ") or is_qualified(document.title):
            continue
        title, _ = split_abbreviation(document.title)
        sentence = summary(document)
        what = defined_as(sentence)
        extends = len(words_of(title)) > len(words) and coverage(words, words_of(title)[-len(words) :]) == 1.0
        kind = bool(what) and coverage(words, words_of(what)[-max(2, len(words)) :]) == 1.0
        if (
            not what
            or not (extends or kind)
            or not (3 <= len(title) <= 45)
            or title[:1].isdigit()
            or name_key(title) in known
            or "--" in title
        ):
            continue
        if any(akin(w, c) for w in content(title)[:1] for c in words) and not extends and len(content(title)) == 1:
            continue
        topics.append(_Topic(title, 0.6 + 0.5 * extends + 0.5 * kind, (_evidence(document),), 0.5 + 0.15 * extends + 0.15 * kind))
    for document in documents[:30]:
        for item in named_examples(summary(document), words):
            if name_key(item) not in known:
                topics.append(_Topic(item, 0.9, (_evidence(document),), 0.5))
    return sorted(topics, key=lambda t: (-t.weight, t.name))


def _functions(
    words: Sequence[str], ancestors: Sequence[str], modules: Sequence[tuple[Document, float]], pool: Sequence[Document]
) -> list[Proposal]:
    homes = {module.title: weight for module, weight in modules}
    context = content(" ".join(ancestors))
    ranked = []
    for document in pool:
        text = _text_words(document)
        covered = coverage(words, text)
        home = max(
            (w for title, w in homes.items() if module_of(document).startswith(title) or document.title.startswith(f"{title}.")),
            default=0.0,
        )
        if covered < 1.0 and home < 1.5:
            continue
        score = 2.0 * covered + 0.5 * home + _worth(document) + 0.5 * coverage(context, text) - 0.1 * document.title.count(".")
        ranked.append((score, covered, document))
    ranked.sort(key=lambda item: (-item[0], item[2].title))
    return [
        Proposal(
            d.title,
            "narrower",
            round(0.6 + 0.3 * covered, 2),
            (_evidence(d),),
            "agent" if len(literal_defaults(d)) >= _SETTINGS else "coding",
        )
        for _, covered, d in ranked[:_MAX_FUNCTIONS]
    ]


def _interleave(topics: Sequence[_Topic], functions: Sequence[Proposal]) -> list[Proposal]:
    """Aliases first, then a topic after every two functions: whatever the budget cuts, both kinds are there."""
    proposals = [Proposal(t.name, t.relation, round(t.confidence, 2), t.quotes) for t in topics]
    mixed = [p for p in proposals if p.relation == "equivalent"]
    rest = [p for p in proposals if p.relation != "equivalent"]
    pending = list(functions)
    while rest or pending:
        mixed.extend(pending[:2])
        pending = pending[2:]
        mixed.extend(rest[:1])
        rest = rest[1:]
    return mixed
