"""Words and noun phrases: what a phrase's content is, which phrases a set of summaries shares, and definitional patterns."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from kg.equivalence import singular
from kg.words import ADJECTIVES, EMPTY_HEADS, GENERIC, HEADS_LIKE_VERBS, NOUNS_IN_AL_ING, STOP, VERBS

_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*[A-Za-z]|[A-Za-z]")


def words_of(text: str) -> list[str]:
    """Lower-case singular words of a text, small words left out; identifiers are taken apart."""
    words = [singular(w) for w in re.findall(r"[^\W\d_]+\d*", _split_camel(text).lower())]
    return [w for w in words if w not in STOP]


def content(name: str) -> list[str]:
    """The words of a name that carry its meaning; all of its words when none does."""
    words = words_of(name)
    return [w for w in words if w not in GENERIC] or words


def _split_camel(text: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)


def akin(a: str, b: str) -> bool:
    """True when two words share their stem: equal singulars, or a common beginning of most of the shorter one."""
    if a == b:
        return True
    shorter = min(len(a), len(b))
    if shorter < 6:
        return False
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), shorter)
    return common >= max(6, round(0.75 * shorter))


def coverage(wanted: Sequence[str], text_words: Iterable[str]) -> float:
    """Share of the wanted words that a text has, stems counted as equal."""
    have = set(text_words)
    if not wanted:
        return 0.0
    return sum(w in have or any(akin(w, h) for h in have) for w in wanted) / len(wanted)


def noun_phrases(sentence: str) -> list[str]:
    """Runs of two or three words of a sentence that look like noun phrases, in its own spelling, plural heads made singular."""
    phrases: list[str] = []
    for piece in re.split(r"[^A-Za-z'’\-\s]+", sentence):
        run: list[str] = []
        for word in [*_WORD.findall(piece), ""]:
            lower = word.lower()
            first = not run and not phrases and sentence.lstrip().startswith(word)
            if word and lower not in STOP and not (lower in VERBS and (first or lower.endswith(("ed", "s")) or not run)) and len(word) > 1:
                run.append(word)
                continue
            for size in (2, 3, 4):
                for start in range(len(run) - size + 1):
                    if phrase := _phrase(run[start : start + size]):
                        phrases.append(phrase)
            run = []
    return phrases


def _phrase(words: Sequence[str]) -> str:
    lower = [w.lower() for w in words]
    head = singular(lower[-1])
    if (
        lower[-1].endswith(("ly", "ed", "'s", "ous", "less", "able", "ible", "ary"))
        or head in VERBS - HEADS_LIKE_VERBS
        or head in ADJECTIVES | EMPTY_HEADS
    ):
        return ""
    if lower[-1].endswith(("al", "ing", "ic")) and head not in NOUNS_IN_AL_ING:
        return ""
    if singular(lower[0]) in GENERIC or lower[0] in VERBS or all(singular(w) in GENERIC for w in lower) or len(lower[0]) < 3:
        return ""
    if any(len(w) > 20 for w in lower) or len(set(lower)) < len(lower):
        return ""
    return " ".join([*words[:-1], head if words[-1] == lower[-1] else words[-1]])


def _spell(word: str, seen: Mapping[str, Counter[str]]) -> str:
    """A word as the texts mostly write it within sentences: a name or an abbreviation keeps its capitals, odd forms do not."""
    lower = word.lower()
    forms = seen.get(lower, Counter({word: 1}))
    best = max(sorted(forms), key=lambda form: (forms[form], form == lower))
    regular = best.isupper() or all(part[1:] == part[1:].lower() for part in best.split("-"))
    return best if regular else lower


def shared_phrases(sentences: Sequence[tuple[str, str]], minimum: int = 2) -> list[tuple[str, list[str]]]:
    """Phrases that at least `minimum` of the (id, sentence) pairs contain: (phrase, ids), most shared first, then by name.

    A phrase that mostly occurs within one longer shared phrase gives way to it (as in the C-value of Frantzi and
    Ananiadou, 2000).
    """
    holders: dict[str, dict[str, None]] = defaultdict(dict)
    spelling: dict[str, str] = {}
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for identifier, sentence in sentences:
        for word in _WORD.findall(sentence)[1:]:  # The first word is capital by its place.
            seen[word.lower()][word] += 1
        for phrase in noun_phrases(sentence):
            holders[phrase.lower()][identifier] = None
            spelling.setdefault(phrase.lower(), phrase)
    shared = {key: list(ids) for key, ids in holders.items() if len(ids) >= minimum}
    kept = []
    for key, ids in shared.items():
        longer: set[str] = set()
        for other in holders:
            if other != key and f" {key} " in f" {other} ":
                longer.update(holders[other])
        if len(longer) >= 0.7 * len(ids):
            continue
        kept.append((" ".join(_spell(word, seen) for word in spelling[key].split(" ")), ids))
    return sorted(kept, key=lambda item: (-len(item[1]) * (1 + 0.3 * item[0].count(" ")), item[0].lower()))


_DEFINITION = re.compile(
    r"^(?:<[^>]{2,60}>\s*)?(?:\([^)]{2,120}\)\s*)?(?:An?|The|Any|One of (?:a|the)|Either)\s+"
    r"(?:(?:kind|type|form|sort|class|example|variant) of\s+)?(?P<what>[^.;:,()]{3,90})"
)
_SUCH_AS = re.compile(r"(?P<what>[A-Za-z][\w -]{2,60}?),?\s+(?:such as|including|for example|e\.g\.,?)\s+(?P<items>[^.;:()]{3,120})")
_RELATIVE = re.compile(
    r"\s+(?:in which|that|which|for|used|where|whose|with|by|from|on|to|having|based|consisting|designed|developed|invented|intended|"
    r"of|in|using|at|such)\b.*",
    re.S,
)


def defined_as(sentence: str) -> str:
    """What a definition says its headword is: `A sorting technique in which ...` -> `sorting technique`; empty when it is no definition."""
    match = _DEFINITION.match(re.sub(r"\s+", " ", sentence.strip()))
    if match is None:
        return ""
    what = _RELATIVE.sub("", match.group("what")).strip(" '\"")
    return what if 1 <= len(what.split()) <= 5 else ""


def named_examples(sentence: str, concept_words: Sequence[str]) -> list[str]:
    """Names that a sentence lists as examples of a concept: `window functions such as Hann and Hamming` for "window function"."""
    found = []
    for match in _SUCH_AS.finditer(sentence):
        head = [singular(w) for w in re.findall(r"[^\W\d_]+", match.group("what").lower())][-3:]
        if not head or not all(any(akin(w, h) for h in head) for w in concept_words):
            continue
        for item in re.split(r",\s*(?:and|or)?\s*|\s+(?:and|or)\s+", match.group("items")):
            item = re.sub(r"^(?:the|a|an|its|their)\s+", "", item.strip(" '\"`"), flags=re.I)
            words = item.split()
            if (
                1 <= len(words) <= 3
                and all(w.lower() not in STOP and w.lower() not in VERBS for w in words)
                and re.fullmatch(r"[A-Za-z][\w' -]{2,40}", item)
            ):
                found.append(item)
    return found
