"""Steps, and stages cut into shards of steps: each writes its own Parquet parts, records them last, and is never done twice.

The disk is the truth. A shard is finished when its `done.json` carries the shard's key and its parts are intact; Prefect's
cached result is refreshed whenever that is not so. A killed worker loses the shard it had; that shard is submitted again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from distributed import wait
from prefect import task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect_dask.task_runners import DaskTaskRunner

from environments.errors import InfrastructureError, InputError
from flows.config import OrchestrationSection
from flows.steps.cluster import dask_cluster
from flows.workspace import RunDirectory, StepRecord

log = logging.getLogger(__name__)

T = TypeVar("T")
RESUBMISSIONS = 3
"""How often shards lost with their worker are submitted again before the stage gives up."""
RESTART_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class StepOutput:
    """What a step function returns: the parts it wrote and small JSON figures."""

    outputs: tuple[Path, ...]
    result: Mapping[str, Any]


def cut(items: Sequence[T], shards: int) -> list[list[T]]:
    """At most `shards` non-empty lists, the items dealt in turn so that hard ones spread."""
    return [list(items[i::shards]) for i in range(min(shards, len(items)))]


def worth_retrying(_task: object, _run: object, state: Any) -> bool:
    """Retry condition of our Prefect tasks: wrong input stays wrong."""
    error = state.result(raise_on_failure=False)
    return not isinstance(error, InputError)


def key_of(_context: object, parameters: dict[str, Any]) -> str:
    """Prefect's cache key of a step: the key that we computed from its inputs and code, within its run."""
    return f"ninefold-{Path(parameters['run_dir']).name}-{parameters['step'].replace('/', '-')}-{parameters['key']}"


BY_KEY = CacheKeyFnPolicy(cache_key_fn=key_of)


@task(
    task_run_name="{step}",
    cache_policy=BY_KEY,
    persist_result=True,
    result_serializer="json",
    retry_condition_fn=worth_retrying,
)
def run_step(run_dir: str, step: str, key: str, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Do one step unless it is done. `function` is `module:name`; it gets (run, step, **arguments) and returns StepOutput."""
    run = RunDirectory(Path(run_dir))
    if record := run.finished(step, key):
        return record.result
    started = time.monotonic()
    output = _resolve(function)(run, step, **arguments)
    return run.finish(step, key, output.outputs, output.result, time.monotonic() - started).result


def do_step(run: RunDirectory, step: str, key: str, function: str, arguments: dict[str, Any], config: OrchestrationSection) -> StepRecord:
    """Run one step here, as a Prefect task with the configured retries, and return its record.

    Raises:
        InfrastructureError: it claims to be finished but its record is not there.
    """
    here = run_step.with_options(
        retries=config.retries, retry_delay_seconds=config.retry_delay_s, timeout_seconds=config.step_timeout_s, refresh_cache=True
    )
    here(run_dir=str(run.root), step=step, key=key, function=function, arguments=arguments)
    record = run.finished(step, key)
    if record is None:
        raise InfrastructureError(f"the step {step} ended without its record in {run.step_file(step)}", "run again with --resume")
    return record


def run_shards(
    run: RunDirectory,
    stage: str,
    shards: Mapping[str, tuple[str, dict[str, Any]]],
    function: str,
    config: OrchestrationSection,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[StepRecord]:
    """Run the shards that are not finished over Dask, and return the records of all, in order.

    Args:
        shards: by step name (`<stage>/shard-0001`): the key and the arguments.
        on_progress: called with (finished, all) as shards finish.

    Raises:
        InputError: a shard's input is wrong.
        InfrastructureError: shards are still missing after `RESUBMISSIONS` rounds; finished ones are kept.
    """
    todo = [step for step, (key, _) in shards.items() if run.finished(step, key) is None]
    log.info("%s: %d of %d shards to do", stage, len(todo), len(shards))
    done = len(shards) - len(todo)
    if on_progress:
        on_progress(done, len(shards))
    failure: BaseException | None = None
    if todo:
        with dask_cluster(config, run.workspace.data / "dask") as address, DaskTaskRunner(address=address) as runner:
            worker = run_step.with_options(retries=config.retries, retry_delay_seconds=config.retry_delay_s, refresh_cache=True)
            for _ in range(1 + RESUBMISSIONS):
                futures = {}
                for step in todo:
                    key, arguments = shards[step]
                    parameters = {"run_dir": str(run.root), "step": step, "key": key, "function": function, "arguments": arguments}
                    futures[step] = runner.submit(worker, parameters)
                for step, error in _as_they_end(futures, runner, config.shard_timeout_s):
                    if isinstance(error, InputError):
                        raise error
                    if error is not None:
                        failure = error
                        log.warning("%s failed (%s: %.300s)", step, type(error).__name__, error)
                        continue
                    done += 1
                    if on_progress:
                        on_progress(done, len(shards))
                todo = [step for step in todo if run.finished(step, shards[step][0]) is None]
                if not todo:
                    break
    records = [run.finished(step, key) for step, (key, _) in shards.items()]
    if missing := [step for step, record in zip(shards, records, strict=True) if record is None]:
        raise InfrastructureError(
            f"{len(missing)} of {len(shards)} shards of {stage} did not finish, first {missing[0]}: {type(failure).__name__}: {failure}"[
                :1500
            ],
            "run again with --resume; finished shards are kept",
        ) from failure
    return [record for record in records if record is not None]


def _as_they_end(futures: Mapping[str, Any], runner: DaskTaskRunner, timeout_s: float) -> Iterator[tuple[str, BaseException | None]]:
    """(step, what it died of or None) as shards end.

    Python cannot interrupt a thread that hangs. When no shard ends for `timeout_s`, the workers that hold one are restarted, and
    all that had not ended count as failed.
    """
    pending = dict(futures)
    while pending:
        try:
            with runner.client.as_current():
                wait([future.wrapped_future for future in pending.values()], timeout=timeout_s, return_when="FIRST_COMPLETED")  # type: ignore[no-untyped-call]
        except TimeoutError:
            keys = {future.wrapped_future.key for future in pending.values()}
            stuck = [worker for worker, running in runner.client.processing().items() if keys & set(running)]  # type: ignore[no-untyped-call]
            runner.client.cancel([future.wrapped_future for future in pending.values()], force=True)  # type: ignore[no-untyped-call]
            runner.client.restart_workers(stuck, timeout=RESTART_TIMEOUT_S, raise_for_error=False)
            error = InfrastructureError(
                f"no shard ended for {timeout_s:.0f} s", "raise orchestration.shard_timeout_s, or use more and smaller shards"
            )
            yield from ((step, error) for step in pending)
            return
        for step in [step for step, future in pending.items() if future.wrapped_future.done()]:
            try:
                pending.pop(step).result()
            except Exception as error:  # noqa: BLE001 - the boundary: whatever a shard died of, the disk says whether it is done
                yield step, error
            else:
                yield step, None


def _resolve(function: str) -> Callable[..., StepOutput]:
    module, _, name = function.partition(":")
    resolved: Callable[..., StepOutput] = getattr(import_module(module), name)
    return resolved
