"""What sentences say about the order of concepts: definitions (genus), named kinds and examples, subject tags, abbreviations.

Patterns after Hearst, "Automatic acquisition of hyponyms from large text corpora" (1992), and the genus term of dictionary
definitions (Amsler, 1981). Phrases are chunked by word lists, without a tagger; everything here is a pure function of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kg.equivalence import abbreviates, singular
from kg.words import ADJECTIVES, EMPTY_GENERA, EMPTY_HEADS, HEADS_LIKE_VERBS, NOUNS_IN_AL_ING, STOP, VERBS, WEAK_MODIFIERS

_TOKEN = re.compile(r"[A-Za-z][A-Za-z0-9+#'’-]*")
_MAX_WORDS = 4
"""Words of a concept's name: longer runs are rarely one name."""
_THROUGH = re.compile(
    r"^(?:any |one |each |some )?(?:of (?:several |various |many |numerous |the |certain )*)?"
    r"(?:(?:very |small |large |common |particular |special |certain |specific |general |popular )*)"
    r"(?:kinds?|types?|forms?|sorts?|variet(?:y|ies)|class(?:es)?|species|genus|genera|one|example|variant|subset|breed|member|several|any|"
    r"number|family|brand|implementation|version|dialect|branch|range|various)"
    r"(?:\s+of)+\s+(?:the\s+|a\s+|an\s+|several\s+|various\s+|many\s+|certain\s+|different\s+|species of\s+|small\s+|large\s+)*",
    re.I,
)
_LEAD_IN = re.compile(
    r"^(?:\s|\d+\.|\([a-z]\)|<[^<>]{1,80}>|\([^()]{1,120}\)|\[[^\][]{1,120}\])*"
    r"(?:(?:originally|formerly|also|in general|generally|usually|loosely|specifically|hence),?\s+)?",
    re.I,
)
_DETERMINER = re.compile(r"^(?:an?|the|any|one of (?:the|a|several|many)|one|either|each|some|another)\s+", re.I)
_CUT = re.compile(
    r"[.;:,()\[\]\"“”—]|--|\s\w+ing (?:the|an?|its|their|one|any)\b|"
    r"\s(?:in|of|that|which|who|for|used|where|whose|with|by|from|on|to|having|based|consisting|designed|developed|"
    r"invented|"
    r"intended|using|at|such|is|are|was|were|and|or|when|made|found|formed|containing|between|as|within|under|into|through|"
    r"belonging|allied|resembling|called|given|written|released|produced|employed|done|built|like|without|about|over|so|than|its|"
    r"their|you|being|occurring|originally|usually|often|now|capable|performed|serving|growing|living|"
    r"native|included|including|composed|describing|provided|running)\b",
    re.I,
)
_PERSON = re.compile(r"^(?:one|someone|somebody|he|she|any one|anyone|a person|a man|a woman) (?:who|whose)\b", re.I)
_ABSTRACT = re.compile(r"^(?:the|an?) (act|state|quality|process|science|art|condition)(?:,? or \w+)?,? (?:of|which treats)\b", re.I)
_COORDINATED = re.compile(r"^,\s+(?:[\w-]+(?: [\w-]+){0,2},\s+){0,6}(?:or|and)\s", re.I)
_TAGS = re.compile(r"^\s*<([^<>/=]{2,60})>")
_SUCH_AS = re.compile(
    r"(?P<what>[A-Za-z][\w' -]{2,80}?)(?:,|\s\()?\s+(?:such as|including|especially|particularly|for example|e\.g\.|like)[,:]?\s+"
    r"(?P<items>[^.;:()]{3,160})"
)
_AND_OTHER = re.compile(r"(?P<items>[A-Za-z][^.;:()]{2,140}?),?\s+(?:and|or)\s+other\s+(?P<what>[A-Za-z][\w' -]{2,60})")
_IS_A = re.compile(
    r"^(?:(?:an?|the)\s+)?(?P<item>[A-Za-z][\w' -]{2,50}?)(?:\s+\([^)]{2,40}\))?\s+(?:is|are)\s+"
    r"(?P<what>(?:an?|one of the|(?:a |the )?(?:kind|type|form|variant)s? of)\s+[^.;:]{3,120})",
    re.I,
)
_LONG_SHORT = re.compile(r"((?:[A-Za-z][\w'-]*[ \n]+){1,6}[A-Za-z][\w'-]*)\s*\(([A-Z][A-Za-z0-9]{1,7})s?\)")


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence's word that one concept is narrower than another."""

    coarse: str
    fine: str
    pattern: str
    """`examples`, `other`, `is-a` or `genus`."""


def phrase(text: str, last: bool) -> str:
    """The noun phrase that ends (`last`) or begins a text, at most four words, its head singular; empty when there is none."""
    words = _TOKEN.findall(text)
    kept: list[str] = []
    for word in reversed(words) if last else words:
        lower = word.lower()
        if lower in STOP or lower in WEAK_MODIFIERS or len(kept) == _MAX_WORDS:
            if kept or last or lower not in {"a", "an", "the", "its", "their", "some", "any"}:
                break
            continue
        kept.append(word)
    if last:
        kept.reverse()
    return name_phrase(kept, verbs=not last)


def name_phrase(words: list[str], verbs: bool = False) -> str:
    """Words as a concept's name, leading adverbs and (unless `verbs`) verbs dropped, its head singular; empty when they make none."""
    while words and (
        words[0].lower() in WEAK_MODIFIERS
        or words[0].lower().endswith("ly")
        or (not verbs and words[0].lower() in VERBS - HEADS_LIKE_VERBS)
    ):
        words = words[1:]
    while len(words) > 1 and words[-1].lower().endswith(("ing", "ed")) and words[-1].lower() not in NOUNS_IN_AL_ING and not verbs:
        words = words[:-1]
    if not words:
        return ""
    lower = words[-1].lower().strip("'’-")
    head = singular(lower)
    if (
        len(head) < 2
        or head in EMPTY_HEADS | WEAK_MODIFIERS | STOP
        or head in (VERBS | ADJECTIVES) - HEADS_LIKE_VERBS - NOUNS_IN_AL_ING
        or lower.endswith(("ly", "ous", "less", "able", "ible", "'s"))
    ):
        return ""
    return " ".join([*words[:-1], head if words[-1].islower() else words[-1]])


def genus(sentence: str) -> str:
    """What a definition says its headword is: `Any of several species of small monkeys` -> `monkey`; empty when it says no class.

    `One who hunts` is a person; `The act or process of hunting` an act. Of coordinated classes (`an animal, vegetable, or mineral
    substance`) none is taken: where the first ends and whether it is a class is not to be told without a parser.
    """
    text = _LEAD_IN.sub("", re.sub(r"\s+", " ", sentence.strip()))
    if _PERSON.match(text):
        return "person"
    if (abstract := _ABSTRACT.match(text)) is not None:
        return abstract.group(1).lower()
    if (match := _DETERMINER.match(text)) is None:
        return ""
    text = text[match.end() :]
    for _ in range(3):
        shorter = _THROUGH.sub("", text)
        if shorter == text:
            break
        text = _DETERMINER.sub("", shorter)
    cut = _CUT.search(text)
    if cut is not None and (cut.group().strip().lower() in {"and", "or"} or _COORDINATED.match(text[cut.start() :])):
        return ""
    words = _TOKEN.findall(text[: cut.start()] if cut else text)
    if not 1 <= len(words) <= 6:
        return ""
    found = name_phrase(words[-_MAX_WORDS:])
    return "" if found.split(" ")[-1].lower() in EMPTY_GENERA else found


def subject_tags(text: str) -> tuple[str, ...]:
    """Subjects in angle brackets at the head of a dictionary entry's body: `<networking, standard> A ...`."""
    match = _TAGS.match(text)
    return tuple(tag.strip() for tag in match.group(1).split(",") if tag.strip()) if match else ()


def claims(sentence: str) -> Iterator[Claim]:
    """Every order of two concepts that a sentence states."""
    if " such as " in sentence or "including" in sentence or "specially" in sentence or "articularly" in sentence or "e.g." in sentence:
        for match in _SUCH_AS.finditer(sentence):
            yield from _listed(match.group("what"), match.group("items"), "examples", last=True)
    if " other " in sentence:
        for match in _AND_OTHER.finditer(sentence):
            yield from _listed(match.group("what"), match.group("items"), "other", last=False)
    if (said := _IS_A.match(sentence)) is not None:
        item, what = phrase(said.group("item"), last=True), genus(said.group("what"))
        if item and what and item.lower() != what.lower() and len(said.group("item").split()) <= _MAX_WORDS:
            yield Claim(what, item, "is-a")


def _listed(what: str, items: str, pattern: str, last: bool) -> Iterator[Claim]:
    coarse = phrase(what, last=last)
    if not coarse:
        return
    parts = re.split(r",\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+", items)
    # Of "A, B and other X" only the nearest items are surely listed; of "X such as A, B" the first ones.
    for part in parts[:6] if last else parts[-3:]:
        words = part.split()
        if not 1 <= len(words) <= 6:
            if last:
                return
            continue
        fine = phrase(part, last=not last)
        if fine and fine.lower() != coarse.lower():
            yield Claim(coarse, fine, pattern)
        if len(_TOKEN.findall(fine)) < len(_TOKEN.findall(re.sub(r"^(?:an?|the)\s+", "", part.strip(), flags=re.I))) and last:
            return  # The list has run into the rest of the sentence.


def abbreviations(text: str) -> Iterator[tuple[str, str]]:
    """(long form, abbreviation) where a text gives one after the other: `support vector machines (SVM)`."""
    if "(" not in text:
        return
    for match in _LONG_SHORT.finditer(text):
        words, short = match.group(1).split(), match.group(2)
        for size in range(2, len(words) + 1):
            long = " ".join(words[-size:])
            if abbreviates(short, long):
                yield long, short
                break
