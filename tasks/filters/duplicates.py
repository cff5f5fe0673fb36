"""Copies among tasks: exact ones, ones that share most of what distinguishes them, and prose that says the same.

Tasks of one type share a frame of instructions, which would make any two of them look alike; what is in more than a fifth of
a type's tasks therefore does not count. Candidate pairs come from MinHash with banding (Broder 1997; Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", chapter 3), and are decided by the exact Jaccard index. Of each group of copies the task
with the least id stays, so that neither order nor sharding matters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from datasketch import MinHash, MinHashLSH

from environments.errors import MissingDependencyError
from environments.search.embedding import embed
from environments.task import TaskSpec
from tasks.filters.text import prompt_words, shares, shingles, state_words

SHINGLE = 2
"""Words; synthetic tasks differ in single names and numbers, which a wide shingle would weigh several times."""
_FRAME = 0.2
"""Share of a type's tasks from which a shingle is its frame."""
_FRAME_LEAST = 3
"""Tasks that a shingle is in at least before it can be frame."""
_PERMUTATIONS = 128
_SLACK = 0.15
"""How far below the threshold pairs are looked at: the banding's chance of missing a pair at the threshold is then under .001."""
_PROSE_WORDS = 12
"""Distinguishing words of a prompt from which its embedding says more than its frame's."""
_PROSE_LETTERS = 0.8
"""Share of letters in them; below it, values decide, to which embeddings are blind."""


def duplicates(tasks: Sequence[TaskSpec], near: float, meaning: float) -> dict[str, str]:
    """Why each copy goes, by task id."""
    reasons: dict[str, str] = {}
    ordered = sorted(tasks, key=lambda t: t.task_id)
    first: dict[str, str] = {}
    for task in ordered:
        kept = first.setdefault(exact_key(task), task.task_id)
        if kept != task.task_id:
            reasons[task.task_id] = f"duplicate: exact copy of {kept}"
    for kind in sorted({t.kind for t in ordered}):
        rest = [t for t in ordered if t.kind == kind and t.task_id not in reasons]
        content = distinguishing(rest)
        if near < 1.0:
            reasons |= _near(rest, content, near)
        if meaning < 1.0:
            reasons |= _alike([t for t in rest if t.task_id not in reasons], content, meaning)
    return reasons


def exact_key(task: TaskSpec) -> str:
    """Equal for tasks whose type, tools, prompt and initial state have the same words."""
    parts = (task.kind, *sorted(task.tools), "|", *prompt_words(task), "|", *state_words(task))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def distinguishing(tasks: Sequence[TaskSpec]) -> dict[str, set[str]]:
    """Shingles of each task of one type, without the type's frame, by task id."""
    held = {t.task_id: shingles(prompt_words(t), SHINGLE) | shingles(state_words(t), SHINGLE) for t in tasks}
    limit = max(_FRAME_LEAST, _FRAME * len(tasks))
    frame = {shingle for shingle, count in shares(held.values()).items() if count > limit}
    return {task_id: found - frame for task_id, found in held.items()}


def jaccard(a: set[str], b: set[str]) -> float:
    """Shared of all elements; 0 for two empty sets."""
    return len(a & b) / len(a | b) if a or b else 0.0


def _near(tasks: Sequence[TaskSpec], content: dict[str, set[str]], threshold: float) -> dict[str, str]:
    index = MinHashLSH(threshold=max(0.1, threshold - _SLACK), num_perm=_PERMUTATIONS)
    reasons: dict[str, str] = {}
    for task in tasks:
        if not (mine := content[task.task_id]):
            continue
        sketch = MinHash(num_perm=_PERMUTATIONS)
        sketch.update_batch([s.encode() for s in sorted(mine)])
        close = [(jaccard(mine, content[other]), other) for other in index.query(sketch)]
        index_score, original = max(close, key=lambda c: (c[0], c[1]), default=(0.0, ""))
        if index_score >= threshold:
            reasons[task.task_id] = f"duplicate: shares {index_score:.2f} of what distinguishes it with {original}"
        else:
            index.insert(task.task_id, sketch)
    return reasons


def _alike(tasks: Sequence[TaskSpec], content: dict[str, set[str]], threshold: float) -> dict[str, str]:
    """Prose prompts that embed alike. Without the embedding model none is judged."""
    chosen: list[str] = []
    texts: list[str] = []
    for task in tasks:
        own = {word for shingle in content[task.task_id] for word in shingle.split()}
        kept = [word for word in prompt_words(task) if word in own]
        letters = sum(word.isalpha() for word in kept)
        if len(kept) >= _PROSE_WORDS and letters >= _PROSE_LETTERS * len(kept):
            chosen.append(task.task_id)
            texts.append(" ".join(kept))
    if len(chosen) < 2:
        return {}
    try:
        vectors = embed(texts)
    except MissingDependencyError:
        return {}
    reasons: dict[str, str] = {}
    kept_rows: list[int] = []
    for row, task_id in enumerate(chosen):
        if kept_rows:
            cosine = vectors[kept_rows] @ vectors[row]
            best = int(np.argmax(cosine))
            if cosine[best] >= threshold:
                reasons[task_id] = f"duplicate: reads like {chosen[kept_rows[best]]} (cosine {cosine[best]:.2f})"
                continue
        kept_rows.append(row)
    return reasons
