"""One pass over a corpus: which concepts its texts name, how often and where, and which they say to be narrower than which.

What a single document says is often chance; a survey adds up what all of them say. The evidence on a pair, weakest first:
documents of the one are nearly all documents of the other (subsumption, Sanderson and Croft, 1999), the subject tag of a
dictionary entry, the head of a longer name ("search tree" in "binary search tree"), definitions and named examples.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from environments.protocols import Document
from environments.search.markup import strip_links
from kg.definitions import abbreviations, claims, genus, subject_tags
from kg.equivalence import is_qualified, name_key, split_abbreviation
from kg.words import GENERIC, STOP, VERBS, WEAK_MODIFIERS

_SENTENCE = re.compile(r"(?<=[.!?;])\s+(?=[A-Z(\"'])|\n\s*\n|\n(?=\s*(?:[-*•]|\d+\.)\s)")
_WORD = re.compile(r"[\w+#]+(?:['’]s\b)?")
_CODE = re.compile(r"^(?:>>>|\.\. |\s*[$#>|{}]|\s{8,})|[{};=<>\\|_]{2}|\w\(.*\)|::")
_MAX_WORDS = 5
_MINED = 4
"""Documents that must hold a repeated phrase before it counts as a name."""
_CHARS = 60_000
"""Characters of a document that are read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a document says of a pair of concepts, by name key."""

    kind: str
    document_id: str
    quote: str


@functools.lru_cache(maxsize=400_000)
def _token(word: str) -> str:
    try:
        return name_key(word)
    except ValueError:
        return ""


def tokens(text: str) -> list[str]:
    """The words of a text as name keys spell them."""
    return [t for w in _WORD.findall(text.lower()) if (t := _token(w))]


def sentences(text: str) -> Iterator[str]:
    """Sentences of a text's prose, on one line each; code and directives are left out."""
    for piece in _SENTENCE.split(text):
        if piece and len(piece) > 12 and not _CODE.search(piece[:200]):
            yield re.sub(r"\s+", " ", piece).strip()


def find_names(words: Sequence[str], vocabulary: Mapping[str, int]) -> Iterator[str]:
    """Names of a vocabulary (first word -> most words of a name, and every name) that occur in a run of words."""
    for place, word in enumerate(words):
        for size in range(1, min(vocabulary.get(f"{word} ", 0), len(words) - place) + 1):
            name = " ".join(words[place : place + size])
            if name in vocabulary:
                yield name


def trie_of(keys: Iterable[str]) -> dict[str, int]:
    """A vocabulary for `find_names`: every key, and under `first word + space` the words of the longest key it begins."""
    trie: dict[str, int] = {}
    for key in keys:
        size = key.count(" ") + 1
        trie[key] = size
        first = key.split(" ", 1)[0] + " "
        trie[first] = max(trie.get(first, 0), size)
    return trie


def occurrences(documents: Iterable[Document], keys: Iterable[str]) -> dict[str, set[int]]:
    """Documents (by their number in order) in which each name key occurs; keys that occur nowhere are left out."""
    trie = trie_of(keys)
    found: dict[str, set[int]] = defaultdict(set)
    for number, document in enumerate(documents):
        words = tokens(f"{document.title}\n{strip_links(document.text[:_CHARS], document.source)}")
        for name in set(find_names(words, trie)):
            found[name].add(number)
    return dict(found)


def subsumes(occurring: Mapping[str, set[int]], share: float = 0.8, minimum: int = 2) -> Iterator[tuple[str, str, float]]:
    """(broader, narrower, P(broader | narrower)) after Sanderson and Croft (1999): P(x|y) >= share and P(y|x) < 1, hence x the commoner.

    Names in fewer than `minimum` documents are left out as chance.
    """
    inside: dict[int, list[str]] = defaultdict(list)
    for name, numbers in occurring.items():
        for number in numbers:
            inside[number].append(name)
    for fine, numbers in occurring.items():
        if len(numbers) < minimum:
            continue
        together = Counter(name for number in numbers for name in inside[number])
        for coarse, count in together.items():
            if coarse != fine and count >= share * len(numbers) and len(occurring[coarse]) > len(numbers):
                yield coarse, fine, count / len(numbers)


@dataclass
class Survey:
    """What a corpus says about its concepts. Keys are name keys."""

    names: dict[str, str] = field(default_factory=dict)
    """Preferred spelling of each concept."""
    documents: Counter[str] = field(default_factory=Counter)
    """In how many documents each concept occurs."""
    entries: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Dictionary entries: (document, first sentence)."""
    aliases: dict[str, dict[str, Finding]] = field(default_factory=dict)
    """Other names of a concept with the passage that gives both."""
    canonical: dict[str, str] = field(default_factory=dict)
    """Alias -> the key of the concept it names."""
    finer: dict[str, dict[str, list[Finding]]] = field(default_factory=dict)
    """coarse -> fine -> what was said."""

    first: dict[str, str] = field(default_factory=dict)
    """The first document found to name each concept."""

    def key(self, name: str) -> str:
        """The concept a name stands for."""
        key = _token_key(name)
        return self.canonical.get(key, key)

    def add(self, coarse: str, fine: str, finding: Finding) -> None:
        """Enter a finding; a concept is never narrower than itself."""
        coarse, fine = self.canonical.get(coarse, coarse), self.canonical.get(fine, fine)
        if coarse and fine and coarse != fine:
            self.finer.setdefault(coarse, {}).setdefault(fine, []).append(finding)


def sentence_with(document: Document, key: str) -> str:
    """The first sentence of a document's prose that holds a name, at most 300 characters; its title when none does."""
    for sentence in sentences(strip_links(document.text[:_CHARS], document.source)):
        if f" {key} " in f" {' '.join(tokens(sentence))} ":
            return sentence[:300]
    return document.title


def _token_key(name: str) -> str:
    try:
        return name_key(split_abbreviation(name)[0])
    except ValueError:
        return ""


def is_entry(document: Document) -> bool:
    """True for documents whose title is a concept's name: dictionary entries, not code objects or pages of a manual."""
    title = document.title
    first, _, rest = document.text.partition("\n")
    return (
        1 <= len(title.split()) <= _MAX_WORDS
        and not is_qualified(title)
        and title[:1].isalpha()
        and first.strip() == title
        and bool(rest.strip())
        and "_" not in title
        and "/" not in title
    )


def entry_body(document: Document) -> str:
    """An entry's text below its headwords."""
    lines = strip_links(document.text, document.source).split("\n")
    while lines and lines[0].strip():
        lines.pop(0)
    return "\n".join(lines).strip()


def survey_corpus(documents: Sequence[Document]) -> Survey:
    """Survey documents."""
    survey = Survey()
    said: list[tuple[str, str, Finding]] = []
    shorts: dict[str, dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    spelling: dict[str, Counter[str]] = defaultdict(Counter)
    mined: Counter[str] = Counter()
    tagged: list[tuple[str, str, Finding]] = []
    genera: list[tuple[str, str, Finding]] = []
    for document in documents:
        text = strip_links(document.text[:_CHARS], document.source)
        if is_entry(document):
            body = entry_body(document)
            key = _token_key(document.title)
            if not key or not body:
                continue
            first = next(sentences(body), "")[:300]
            survey.entries.setdefault(key, (document.document_id, first or document.title))
            spelling[key][document.title] += 3
            for tag in subject_tags(body):
                tagged.append((_token_key(tag), key, Finding("tag", document.document_id, first)))
            for place, paragraph in enumerate(re.split(r"\n\s*\n", body)[:3]):
                sentence = next(sentences(paragraph), "")[:300]
                if what := genus(sentence):
                    kind = "genus" if place == 0 else "later-genus"
                    genera.append((_token_key(what), key, Finding(kind, document.document_id, sentence)))
                    spelling[_token_key(what)][what] += 1
        seen: set[str] = set()
        for sentence in sentences(text):
            for claim in claims(sentence):
                coarse, fine = _token_key(claim.coarse), _token_key(claim.fine)
                if coarse and fine and "_" not in claim.fine + claim.coarse:
                    said.append((coarse, fine, Finding(claim.pattern, document.document_id, sentence[:300])))
                    spelling[coarse][claim.coarse] += 1
                    spelling[fine][claim.fine] += 1
            for long, short in abbreviations(sentence):
                shorts[_token_key(short)][_token_key(long)].append(Finding("abbreviation", document.document_id, sentence[:300]))
                spelling[_token_key(long)][long] += 1
                spelling[_token_key(short)][short] += 5
            seen.update(_runs(sentence))
        mined.update(seen)
    _merge_abbreviations(survey, shorts)
    _merge_compounds(survey, spelling)
    survey.names = {k: _spelled(forms) for k, forms in spelling.items() if k}
    for phrase, count in mined.items():
        if count >= _MINED and phrase not in survey.names:
            survey.names[phrase] = phrase
    for coarse, fine, finding in [*said, *genera, *tagged]:
        survey.add(coarse, fine, finding)
    occurring = occurrences(documents, survey.names)
    survey.documents = Counter({k: len(v) for k, v in occurring.items()})
    survey.first = {k: documents[min(v)].document_id for k, v in occurring.items()}
    _heads(survey)
    return survey


def _runs(sentence: str) -> Iterator[str]:
    """Keys of two- and three-word phrases that could be names."""
    run: list[str] = []
    for word in [*re.findall(r"[A-Za-z][A-Za-z0-9-]*|[.,:;()]", sentence), ""]:
        lower = word.lower()
        if word and word[0].isalpha() and lower not in STOP and len(word) > 1:
            run.append(lower)
            continue
        for size in (2, 3):
            for start in range(len(run) - size + 1):
                piece = run[start : start + size]
                if (
                    piece[0] not in VERBS
                    and piece[0] not in WEAK_MODIFIERS
                    and piece[0] not in GENERIC
                    and piece[-1] not in VERBS
                    and not piece[-1].endswith(("ly", "ed", "ous", "ive", "able", "al", "ic"))
                    and not piece[0].endswith("ly")
                ):
                    yield " ".join(t for w in piece for t in [_token(w)] if t)
        run = []


def _spelled(forms: Counter[str]) -> str:
    return max(sorted(forms), key=lambda form: (forms[form], form.islower()))


def _merge_abbreviations(survey: Survey, shorts: Mapping[str, Mapping[str, list[Finding]]]) -> None:
    """An abbreviation with one long form is an alias of it; one with several stays a name of its own."""
    for short, longs in sorted(shorts.items()):
        best = sorted(longs, key=lambda long: (-len(longs[long]), long))
        if short and best and (len(best) == 1 or len(longs[best[0]]) >= 3 * len(longs[best[1]])) and short != best[0]:
            survey.canonical[short] = best[0]
            survey.aliases.setdefault(best[0], {})[short] = longs[best[0]][0]


def _merge_compounds(survey: Survey, spelling: Mapping[str, Counter[str]]) -> None:
    """`data base`, `data-base` and `database` are one: the commonest spelling is the concept, the others are aliases."""
    groups: dict[str, list[str]] = defaultdict(list)
    for key in spelling:
        groups[key.replace(" ", "")].append(key)
    for keys in groups.values():
        if len(keys) > 1 and len(keys[0]) > 5:
            best = max(sorted(keys), key=lambda k: sum(spelling[k].values()))
            for key in keys:
                if key != best:
                    survey.canonical.setdefault(key, best)


def _heads(survey: Survey) -> None:
    """Longer names under the longest shorter name that ends them."""
    for key in survey.names:
        words = key.split(" ")
        for start in range(1, len(words)):
            head = " ".join(words[start:])
            if head in survey.names and survey.documents[head] > survey.documents[key] > 0:
                document, quote = survey.entries.get(key, ("", ""))
                survey.add(head, key, Finding("head", document, quote))
                break
