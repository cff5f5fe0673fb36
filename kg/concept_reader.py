"""A brain for concepts in prose: it answers from a survey of the whole corpus and proposes no code objects.

`kg.reader.EmbeddedReader` reads API documentation for what can be computed; this one reads dictionaries, manuals and
reports for the order of their concepts. Every pair of concepts is judged by all evidence on it at once (a noisy-or over
kinds of evidence), with the meaning of the two names as a veto, and proposed when enough speaks for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from environments.protocols import Evidence, Proposal, Reading, SearchSource
from environments.search.embedding import embed
from kg.survey import Finding, Survey, sentence_with


@dataclass(frozen=True)
class Weights:
    """How far each kind of evidence is trusted (0 to 1), and what a proposal needs. First values, looked at on
    the tuning half of the references only (see docs/graph-quality.md)."""

    kinds: tuple[tuple[str, float], ...] = (
        ("genus", 0.6),
        ("later-genus", 0.35),
        ("is-a", 0.6),
        ("tag", 0.55),
        ("examples", 0.5),
        ("other", 0.4),
        ("head", 0.5),
        ("subsumption", 0.25),
    )
    repeated: float = 0.5
    """What a further document that says the same counts, against the first."""
    least: float = 0.45
    """Confidence from which a pair is proposed."""
    alien: float = 0.0
    """Cosine of two names below which only the text's plain word (genus, is-a, tag, head) counts."""
    most: int = 200
    """Proposals that one reading may make."""
    domain: float = 0.3
    """Cosine to the nearest seed from which a concept is put below it."""
    margin: float = 0.05
    """By how much the nearest seed must be nearer than the next."""


class ConceptReader:
    """Reads for a concept from a survey. Picklable; the same question gives the same answer anywhere.

    `topical`: what belongs to a field is narrower than the field, as in an ontology of topics; else only kinds are, as in a thesaurus.
    `seeds` are the names the growth starts from: a concept that no text orders is put below the seed that it means most like.
    """

    name = "concept-reader-1"

    def __init__(self, survey: Survey, seeds: Sequence[str] = (), weights: Weights | None = None, topical: bool = True) -> None:
        self.survey = survey
        self.weights = weights or Weights()
        self._trust = {kind: trust for kind, trust in self.weights.kinds if topical or kind != "tag"}
        self._seeds = [survey.key(seed) for seed in seeds]
        self._keys = sorted(survey.names)
        self._place = {key: i for i, key in enumerate(self._keys)}
        self._vectors = centred(embed([survey.names[key] for key in self._keys]))
        self._domains = self._by_domain() if topical else {}

    def read(self, concept: str, ancestors: Sequence[str], source: SearchSource) -> Reading:
        """See `environments.protocols.Brain`. The corpus is the one surveyed; nothing is searched again."""
        key = self.survey.key(concept)
        scored = [
            (confidence, fine, findings)
            for fine, findings in self.survey.finer.get(key, {}).items()
            if (confidence := self._confidence(key, fine, findings)) >= self.weights.least
        ]
        scored = [item for item in scored if self.survey.key(item[1]) == item[1]]
        known = {fine for _, fine, _ in scored}
        scored.extend((confidence, fine, []) for fine, confidence in self._domains.get(key, ()) if fine not in known)
        scored.sort(key=lambda item: (-item[0] * self._worth(item[1]), item[1]))
        proposals = [
            Proposal(self.survey.names.get(alias, alias), "equivalent", 0.9, (Evidence(f.document_id, f.quote),))
            for alias, f in self.survey.aliases.get(key, {}).items()
        ]
        for confidence, fine, findings in scored[: self.weights.most]:
            if evidence := self._evidence(fine, findings, source):
                proposals.append(Proposal(self.survey.names.get(fine, fine), "narrower", round(confidence, 2), evidence))
        documents = tuple(dict.fromkeys(e.document_id for p in proposals for e in p.evidence))[:20]
        narrower = any(p.relation == "narrower" for p in proposals)
        reason = f"{len(proposals)} proposals from the survey" if narrower else "no document names anything narrower"
        return Reading(tuple(proposals), (concept,), documents, not narrower, reason)

    def _confidence(self, coarse: str, fine: str, findings: Sequence[Finding]) -> float:
        """Noisy-or: the chance that not all of the evidence is wrong."""
        doubt = 1.0
        seen: set[tuple[str, str]] = set()
        kinds: set[str] = set()
        for finding in findings:
            if (finding.kind, finding.document_id) in seen:
                continue
            trust = self._trust.get(finding.kind, 0.0) * (self.weights.repeated if finding.kind in kinds else 1.0)
            doubt *= 1.0 - trust
            seen.add((finding.kind, finding.document_id))
            kinds.add(finding.kind)
        if kinds <= {"examples", "other", "subsumption"} and self._cosine(coarse, fine) < self.weights.alien:
            return 0.0
        return 1.0 - doubt

    def _worth(self, key: str) -> float:
        """What a concept is worth as a node: names that many documents use first, names of single products and people last."""
        name = self.survey.names.get(key, key)
        proper = any(w[:1].isupper() and w[1:].islower() for w in name.split()) and " " not in name
        used = min(1.0, math.log1p(self.survey.documents[key]) / math.log(20.0))
        return (0.3 + 0.7 * used) * (0.5 if proper else 1.0)

    def _cosine(self, one: str, other: str) -> float:
        a, b = self._place.get(one), self._place.get(other)
        return 0.0 if a is None or b is None else float(self._vectors[a] @ self._vectors[b])

    def _by_domain(self) -> Mapping[str, list[tuple[str, float]]]:
        """Concepts below the seed that their names mean most like."""
        places = [self._place[s] for s in self._seeds if s in self._place]
        found: dict[str, list[tuple[str, float]]] = {self._keys[p]: [] for p in places}
        if len(places) < 2:
            return found
        similar = self._vectors @ self._vectors[places].T
        best = np.sort(similar, axis=1)
        for i, key in enumerate(self._keys):
            if i in places or not (self.survey.documents[key] >= 3 or key in self.survey.entries) or self.survey.key(key) != key:
                continue
            if best[i, -1] >= self.weights.domain and best[i, -1] - best[i, -2] >= self.weights.margin:
                found[self._keys[places[int(similar[i].argmax())]]].append((key, 0.3 + 0.3 * float(best[i, -1])))
        return found

    def _evidence(self, fine: str, findings: Sequence[Finding], source: SearchSource) -> tuple[Evidence, ...]:
        """Up to three passages that say so; else one that names the concept."""
        quoted = {f.document_id: Evidence(f.document_id, f.quote) for f in findings if f.document_id and f.quote}
        if not quoted and (first := self.survey.first.get(fine)) is not None:
            quoted[first] = Evidence(first, sentence_with(source.open(first), fine))
        return tuple(quoted.values())[:3]


def centred(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Unit vectors with their common direction taken out, which all names share and which tells nothing."""
    if not len(vectors):
        return vectors
    moved = vectors - vectors.mean(axis=0, keepdims=True)
    return np.asarray(moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-9), np.float32)
