"""The readers of a wave: in this process, on an executor's workers, or on threads that wait for an endpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from environments.errors import InfrastructureError, InputError
from environments.protocols import Brain, Document, Hit, Reading, SearchSource
from kg.brain import ConsultingBrain
from kg.concept import FAILED
from kg.journal import Journal
from kg.view import GraphView

log = logging.getLogger(__name__)

INFRASTRUCTURE = f"{FAILED}: infrastructure"
"""How the reason of a reading begins that a machine part failed, not the agent."""
_BATCH = 8
"""Nodes a worker reads per call: enough to pay for shipping the call."""


@dataclass(frozen=True)
class Question:
    """What a reader is asked: a concept, and its ancestors' names, nearest first."""

    name: str
    ancestors: tuple[str, ...]


class Readers:
    """Reads the nodes of a wave. What the journal holds is not read again, and what is read goes into it at once.

    A reader that fails costs its own node: its reading says why. Readings do not depend on where they are made.
    """

    def __init__(self, brain: Brain, source: SearchSource, executor: Executor | None = None, journal: Journal | None = None) -> None:
        self.brain = brain
        self.source = source
        self.executor = executor
        self.journal = journal

    def read(self, asked: Sequence[Question], view: GraphView, seconds: float | None = None) -> list[Reading | None]:
        """One reading a question, in order; None where `seconds` had passed before it was there.

        Raises:
            InputError: the corpus is damaged, or the endpoint refuses us.
        """
        readings: list[Reading | None] = [self.journal.get(q.name, q.ancestors) if self.journal is not None else None for q in asked]
        todo = [i for i, reading in enumerate(readings) if reading is None]
        for index, reading in self._fresh(asked, todo, view, seconds):
            if self.journal is not None:
                self.journal.add(asked[index].name, asked[index].ancestors, reading)
            readings[index] = reading
        return readings

    def _fresh(
        self, asked: Sequence[Question], todo: Sequence[int], view: GraphView, seconds: float | None
    ) -> Iterator[tuple[int, Reading]]:
        if not todo:
            return
        if isinstance(self.brain, ConsultingBrain):
            pool = ThreadPoolExecutor(self.brain.parallel, thread_name_prefix="reader")
            try:
                yield from self._as_they_end(pool, [[i] for i in todo], asked, view, seconds)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # One that hangs ends with its endpoint's time-out.
        elif self.executor is not None:
            size = _BATCH if seconds is None else 1
            batches = [list(todo[i : i + size]) for i in range(0, len(todo), size)]
            yield from self._as_they_end(self.executor, batches, asked, None, seconds)
        else:
            end = None if seconds is None else time.monotonic() + seconds
            for index in todo:
                if end is not None and time.monotonic() >= end:
                    return
                yield index, read_batch(self.brain, self.source, [asked[index]], None)[0]

    def _as_they_end(
        self, executor: Executor, batches: Sequence[list[int]], asked: Sequence[Question], view: GraphView | None, seconds: float | None
    ) -> Iterator[tuple[int, Reading]]:
        futures: dict[Future[list[Reading]], list[int]] = {
            executor.submit(read_batch, self.brain, self.source, [asked[i] for i in batch], view): batch for batch in batches
        }
        try:
            for future in as_completed(futures, timeout=seconds):
                yield from zip(futures[future], self._result(future, len(futures[future])), strict=True)
        except TimeoutError:
            log.info("the wall time is spent: %d nodes are left unread", sum(len(b) for f, b in futures.items() if not f.done()))
        finally:
            for future in futures:
                future.cancel()

    def _result(self, future: Future[list[Reading]], count: int) -> list[Reading]:
        try:
            return future.result()
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - the worker died, or what it was sent could not be shipped
            log.warning("a worker failed on %d nodes: %s: %s", count, type(error).__name__, error)
            return [failed(error, infrastructure=True)] * count


def read_batch(brain: Brain, source: SearchSource, batch: Sequence[Question], view: GraphView | None) -> list[Reading]:
    """Read for several nodes, one after another, wherever this runs."""
    return [_read(brain, source, question, view) for question in batch]


def failed(error: Exception, infrastructure: bool = False) -> Reading:
    """The reading of a reader that failed."""
    head = INFRASTRUCTURE if infrastructure else FAILED
    return Reading((), (), (), False, f"{head}: {type(error).__name__}: {error}"[:300])


def join(readings: Sequence[Reading]) -> Reading:
    """The readings of one concept's several names as one: atomic when all are, failed when one is."""
    first = readings[0]
    if len(readings) == 1:
        return first
    return Reading(
        tuple(p for r in readings for p in r.proposals),
        tuple(dict.fromkeys(q for r in readings for q in r.queries)),
        tuple(dict.fromkeys(d for r in readings for d in r.documents)),
        all(r.atomic for r in readings),
        next((r.reason for r in readings if r.reason.startswith(FAILED)), first.reason),
        tuple(f for r in readings for f in r.refused),
        sum(r.searches for r in readings),
        sum(r.tokens for r in readings),
    )


def _read(brain: Brain, source: SearchSource, question: Question, view: GraphView | None) -> Reading:
    """The boundary where a failing reader becomes an outcome: a bad reading is data, not a crash."""
    counted = _Counted(source)
    try:
        if isinstance(brain, ConsultingBrain):
            reading = brain.read(question.name, question.ancestors, counted, view)
        else:
            reading = brain.read(question.name, question.ancestors, counted)
    except InputError:  # The corpus is damaged or the endpoint refuses us: no other node would fare better.
        raise
    except Exception as error:  # noqa: BLE001
        log.warning("reading %r failed: %s", question.name, error)
        reading = failed(error, isinstance(error, InfrastructureError))
    return replace(reading, searches=counted.searches)


class _Counted:
    """A search source that counts its searches."""

    def __init__(self, source: SearchSource) -> None:
        self._source = source
        self.content_hash = source.content_hash
        self.searches = 0
        self.open: Callable[[str], Document] = source.open

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        self.searches += 1
        return self._source.search(query, limit)
