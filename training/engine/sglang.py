"""An engine over a running sglang server, by its native HTTP interface.

Tokens go in and come out as ids, so nothing is tokenised twice. Log-probabilities are those of the sampling
distribution: divided by the temperature, and at temperature 0 those of the plain softmax. Every token carries the version
of the weights that produced it, also when the weights changed within one answer.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from environments.errors import EngineError
from environments.protocols import GenerateRequest, Generation, Load

_RESTART = "look at the server's log and restart it"
_MASK_64 = (1 << 64) - 1


def sampling_seed(key: tuple[int, int], prefix_length: int) -> int:
    """The server's seed for a request, in [0, 2**62).

    The server draws from (seed, position in the sequence). Folding in how far that position lies from the position in the
    trajectory makes the draw depend on (trajectory, position in the trajectory) alone, so that an answer which was aborted
    and goes on from a longer prefix continues as it would have.
    """
    trajectory, position = key
    mixed = (trajectory * 0x9E3779B97F4A7C15 + (position - prefix_length) * 0xBF58476D1CE4E5B9) & _MASK_64
    mixed = ((mixed ^ (mixed >> 31)) * 0x94D049BB133111EB) & _MASK_64
    return (mixed ^ (mixed >> 29)) >> 2


class SglangEngine:
    """Implements `environments.protocols.Engine`. Safe to use from several threads (abort while another generates)."""

    def __init__(self, url: str, *, vocabulary: int | None = None, timeout_s: float = 600.0, weights_dir: Path | None = None) -> None:
        """Connect to a server.

        Args:
            url: ``http://host:port``.
            vocabulary: ids at or above it are refused here, because they would bring a CPU server down. When None it is
                read from the served model's config.json, if that is readable from here.
            timeout_s: longest wait for one answer, in seconds.
            weights_dir: where `update_weights` writes checkpoints; the server must see it too. A temporary one when None.

        Raises:
            EngineError: no sglang server answers there.
        """
        self._client = httpx.Client(base_url=url, timeout=httpx.Timeout(timeout_s, connect=10.0), trust_env=False)
        self._scratch = None if weights_dir else tempfile.TemporaryDirectory(prefix="ninefold-weights-")
        self._weights_dir = weights_dir or Path(self._scratch.name)  # type: ignore[union-attr]
        info = self._call("GET", "/model_info")
        self.version = _version(info.get("weight_version"))
        # After an update from disk the first of these is where the newest weights came from; the second never changes.
        self._model_dirs = [Path(str(info[name])) for name in ("model_path", "tokenizer_path") if info.get(name)]
        self.vocabulary = vocabulary or self._configured_vocabulary()
        self._written: Path | None = None

    def close(self) -> None:
        """Close the connections; the server runs on."""
        self._client.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def __enter__(self) -> SglangEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- the protocol ----------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        """Generate for all requests in one batch, in their order.

        Raises:
            ValueError: an empty prefix, a token outside the vocabulary, or a request id that occurs twice.
            EngineError: the server is dead, refuses the requests or answers garbage.
        """
        if not requests:
            return []
        ids = [request.request_id for request in requests]
        if len(set(ids)) != len(ids):
            raise ValueError(f"request ids must differ, got {ids}")
        done: dict[str, Generation] = {}
        pending = list(requests)
        while pending:
            unfinished = []
            for request, part in zip(pending, self._generate_once(pending), strict=True):
                so_far = _joined(done.get(request.request_id), part)
                done[request.request_id] = so_far
                left = request.max_new_tokens - len(part.tokens)
                if part.finish != "stop" or part.tokens[-1] in request.stop_tokens:
                    continue
                # The server also stops at the model's own end token; only the request says where to stop.
                if left == 0:
                    done[request.request_id] = replace(so_far, finish="length")
                    continue
                unfinished.append(
                    replace(
                        request,
                        prefix=[*request.prefix, *part.tokens],
                        max_new_tokens=left,
                        key=(request.key[0], request.key[1] + len(part.tokens)),
                    )
                )
            pending = unfinished
        return [done[request_id] for request_id in ids]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each token given those before it, at temperature 1; the first token scores 0.0.

        Raises:
            ValueError: an empty sequence or a token outside the vocabulary.
            EngineError: the server is dead or answers garbage.
        """
        if not sequences:
            return []
        body = {
            "input_ids": [self._checked(sequence) for sequence in sequences],
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        scores = []
        for sequence, answer in zip(sequences, self._answers(body, len(sequences)), strict=True):
            entries = answer["meta_info"].get("input_token_logprobs")
            if not isinstance(entries, list) or [entry[1] for entry in entries] != list(sequence):
                raise EngineError("the sglang server scored other tokens than it was sent", _RESTART)
            scores.append([0.0] + [float(entry[0]) for entry in entries[1:]])
        return scores

    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """Stop the given requests (all when None); the waiting `generate` returns what they have so far."""
        if request_ids is None:
            self._call("POST", "/abort_request", {"rid": "", "abort_all": True})
            return
        for request_id in request_ids:
            self._call("POST", "/abort_request", {"rid": request_id})

    def update_weights(self, state: Mapping[str, Any], version: int) -> None:
        """Write `state` (parameter name to tensor, Hugging Face names) beside the model's config and load it from there."""
        from safetensors.torch import save_file

        target = self._weights_dir / f"version-{version}"
        target.mkdir(parents=True, exist_ok=True)
        for config in self._configs():
            (target / "config.json").write_bytes(config.read_bytes())
            break
        # Tied parameters share storage, which the format refuses: each name gets its own copy.
        save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}, target / "model.safetensors")
        self.update_weights_from_disk(target, version)
        # The server names the newest directory as its model's; only the one before it is done with.
        if self._written not in (None, target):
            shutil.rmtree(self._written)
        self._written = target

    def update_weights_from_disk(self, path: Path, version: int) -> None:
        """Swap in the weights of a Hugging Face directory that the server can read.

        Running requests are not aborted: they wait, their cached keys and values are computed again with the new weights,
        and they go on; their later tokens carry the new version.

        Raises:
            EngineError: the server is dead or could not load the weights; it then keeps the old ones.
        """
        self._call("POST", "/pause_generation", {"mode": "retract"})
        try:
            answer = self._call(
                "POST",
                "/update_weights_from_disk",
                {"model_path": str(path), "weight_version": str(version), "abort_all_requests": False, "flush_cache": True},
            )
        finally:
            self._call("POST", "/continue_generation", {})
        if answer.get("success") is not True:
            raise EngineError(f"the sglang server did not load {path}: {answer.get('message')}", "check that the server can read it")
        self.version = version

    def load(self) -> Load:
        """Current load, summed over the server's data-parallel ranks (`kv_use`: their mean)."""
        ranks = self._call("GET", "/v1/loads", params={"include": "core"}).get("loads")
        if not isinstance(ranks, list) or not ranks:
            raise EngineError("the sglang server reports no load", _RESTART)
        try:
            return Load(
                running=sum(int(rank["num_running_reqs"]) for rank in ranks),
                queued=sum(int(rank["num_waiting_reqs"]) for rank in ranks),
                kv_use=sum(float(rank["token_usage"]) for rank in ranks) / len(ranks),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"the sglang server's load figures are unreadable: {error!r}", _RESTART) from error

    def _generate_once(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        body = {
            "rid": [request.request_id for request in requests],
            "input_ids": [self._checked(request.prefix) for request in requests],
            "sampling_params": [
                {
                    "max_new_tokens": request.max_new_tokens,
                    "temperature": request.temperature,
                    "stop_token_ids": sorted(request.stop_tokens),
                    "sampling_seed": sampling_seed(request.key, len(request.prefix)),
                    # For the server this means every stop token, not the model's end token alone.
                    "ignore_eos": not request.stop_tokens,
                    "skip_special_tokens": False,
                }
                for request in requests
            ],
            "return_logprob": True,
        }
        answers = self._answers(body, len(requests))
        return [_generation(request.request_id, answer) for request, answer in zip(requests, answers, strict=True)]

    # --- the wire --------------------------------------------------------------------------------------------------

    def _configs(self) -> list[Path]:
        return [directory / "config.json" for directory in self._model_dirs if (directory / "config.json").is_file()]

    def _configured_vocabulary(self) -> int | None:
        for config in self._configs():
            size = json.loads(config.read_text()).get("vocab_size")
            if isinstance(size, int):
                return size
        return None

    def _checked(self, tokens: Sequence[int]) -> list[int]:
        if not tokens:
            raise ValueError("a prefix must hold at least one token")
        highest, lowest = max(tokens), min(tokens)
        if lowest < 0 or (self.vocabulary is not None and highest >= self.vocabulary):
            raise ValueError(f"token ids must lie in [0, {self.vocabulary}), got {lowest if lowest < 0 else highest}")
        return [int(token) for token in tokens]

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, str] | None = None) -> Any:
        where = str(self._client.base_url.join(path))
        try:
            response = self._client.request(method, path, json=body, params=params)
        except httpx.HTTPError as error:
            raise EngineError(f"no answer from {where}: {error!r}", _RESTART) from error
        if response.status_code != httpx.codes.OK:
            raise EngineError(f"{where} answered {response.status_code}: {response.text[:500]}", _RESTART)
        if not response.headers.get("content-type", "").startswith("application/json"):
            return {}
        try:
            return response.json()
        except json.JSONDecodeError as error:
            raise EngineError(f"{where} answered broken JSON: {response.text[:200]!r}", _RESTART) from error

    def _answers(self, body: Mapping[str, Any], expected: int) -> list[dict[str, Any]]:
        answers = self._call("POST", "/generate", body)
        if isinstance(answers, dict):
            answers = [answers]
        if not isinstance(answers, list) or len(answers) != expected or not all(isinstance(a, dict) and "meta_info" in a for a in answers):
            raise EngineError(f"the sglang server did not answer {expected} requests: {str(answers)[:200]}", _RESTART)
        return answers


def _version(text: Any) -> int:
    """Servers that were started without a version call theirs ``default``: that is 0."""
    if text in (None, "default"):
        return 0
    try:
        return int(text)
    except ValueError as error:
        raise EngineError(f"the sglang server's weight version {text!r} is not a number", "start it with --weight-version 0") from error


def _generation(request_id: str, answer: Mapping[str, Any]) -> Generation:
    meta = answer["meta_info"]
    try:
        tokens = [int(token) for token in answer["output_ids"]]
        # An answer that was aborted in the queue has no tokens and none of the other fields.
        entries = (meta.get("output_token_logprobs") or []) if tokens else []
        logprobs = [float(entry[0]) for entry in entries]
        reason = meta["finish_reason"]["type"]
        versions = _versions(meta, len(tokens))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineError(f"the sglang server's answer to {request_id} is unreadable: {error!r}", _RESTART) from error
    if reason not in ("stop", "length", "abort"):
        raise EngineError(f"the sglang server ended {request_id} for the unknown reason {reason!r}", _RESTART)
    if [entry[1] for entry in entries] != tokens or any(not logprob <= 1e-6 for logprob in logprobs):
        raise EngineError(f"the sglang server's log-probabilities of {request_id} do not belong to its tokens", _RESTART)
    return Generation(request_id, tokens, logprobs, versions, reason)


def _joined(first: Generation | None, second: Generation) -> Generation:
    if first is None:
        return second
    return Generation(
        second.request_id,
        first.tokens + second.tokens,
        first.logprobs + second.logprobs,
        first.versions + second.versions,
        second.finish,
    )


def _versions(meta: Mapping[str, Any], count: int) -> list[int]:
    """Expand ``[{version, start, end}, ...]`` to one version per token."""
    if count == 0:
        return []
    spans = meta.get("weight_versions") or [{"version": meta.get("weight_version"), "start": 0, "end": count}]
    versions: list[int] = []
    for span in spans:
        if span["start"] != len(versions) or span["end"] < span["start"]:
            raise ValueError(f"weight versions have a gap or overlap: {spans}")
        versions += [_version(span["version"])] * (span["end"] - span["start"])
    if len(versions) != count:
        raise ValueError(f"weight versions cover {len(versions)} of {count} tokens")
    return versions
