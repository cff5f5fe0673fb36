"""When two names are one concept: spelling, plural, articles, and abbreviations given beside their long form."""

from __future__ import annotations

import re
import unicodedata

from kg.words import INVARIANT

_ARTICLES = ("the ", "a ", "an ")
_QUALIFIED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_LONG_SHORT = re.compile(r"^(.{4,80}?)\s*\(([A-Za-z][A-Za-z0-9-]{1,9})\)$")
_IRREGULAR = {
    "matrices": "matrix",
    "vertices": "vertex",
    "indices": "index",
    "axes": "axis",
    "bases": "basis",
    "analyses": "analysis",
    "data": "data",
}


def is_qualified(name: str) -> bool:
    """True for names of code objects such as `scipy.optimize.bisect`."""
    return _QUALIFIED.fullmatch(name) is not None


def singular(word: str) -> str:
    """The singular of a lower-case English noun, by rule; words it does not know to be plural are returned as they are."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word in INVARIANT or len(word) < 4 or word.endswith(("ss", "us", "is", "ics")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "zes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") else word


def name_key(name: str) -> str:
    """Equal for names of one concept. Qualified names keep their spelling (`m.Text` is not `m.text`).

    Raises:
        ValueError: nothing is left of the name.
    """
    name = unicodedata.normalize("NFKC", name).strip()
    if is_qualified(name):
        return name
    text = re.sub(r"[’'`\"]s?\b", "", name.casefold())
    text = re.sub(r"[^\w+#]+", " ", text.replace("_", " ")).strip()
    for article in _ARTICLES:
        text = text.removeprefix(article)
    words = [_spelling(singular(word)) for word in text.split()]
    if not words:
        raise ValueError(f"no name is left of {name!r}")
    return " ".join(words)


def _spelling(word: str) -> str:
    """American spelling of the common British endings, so that `optimisation` is `optimization`."""
    for british, american in (("isation", "ization"), ("ising", "izing"), ("yse", "yze"), ("colour", "color"), ("neighbour", "neighbor")):
        if word.endswith(british) and len(word) > len(british) + 2:
            return word[: -len(british)] + american
    return word


def split_abbreviation(name: str) -> tuple[str, str | None]:
    """`fast Fourier transform (FFT)` -> its long form and `FFT`; any other name -> itself and None."""
    match = _LONG_SHORT.match(name.strip())
    if match and abbreviates(match.group(2), match.group(1)):
        return match.group(1), match.group(2)
    return name.strip(), None


def abbreviates(short: str, long: str) -> bool:
    """True when the letters of `short` are the initials of `long`'s words, small words counted or not."""
    letters = re.sub(r"[^a-z0-9]", "", short.casefold())
    words = re.findall(r"[a-z0-9]+", long.casefold())
    major = [w for w in words if w not in {"of", "the", "and", "for", "in", "a", "an", "to"}]
    return len(letters) >= 2 and letters in ("".join(w[0] for w in words), "".join(w[0] for w in major))
