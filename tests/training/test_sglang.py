"""The engine against a real sglang server on a tiny random Llama, and against servers that answer garbage.

One server serves the whole file; the last test kills it. Not covered: GPUs, several data-parallel ranks.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from environments.errors import EngineError, MissingDependencyError, NinefoldError, PortBusyError
from environments.protocols import GenerateRequest
from training.engine.sglang import SglangEngine, sampling_seed
from training.sglang_cpu import SglangServer, launch, server_python

VOCABULARY = 128
STOP = 2


def _write_model(directory: Path, seed: int) -> None:
    """A two-layer Llama with large random weights (so that its choices are clear) and a tokenizer of single characters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=STOP,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": STOP} | {chr(32 + i): 3 + i for i in range(95)}
    vocabulary |= {f"<{i}>": i for i in range(len(vocabulary), VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(directory)


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directories = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    for seed, directory in enumerate(directories):
        _write_model(directory, seed)
    return directories


@pytest.fixture(scope="module")
def server(model_dirs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    try:
        server_python()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    with launch(model_dirs[0], log_path=tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


@pytest.fixture
def engine(server: SglangServer) -> Iterator[SglangEngine]:
    with SglangEngine(server.url) as connected:
        yield connected


def _reference_logprobs(directory: Path, tokens: list[int]) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary after each token, from transformers' own forward in float32: [T, V]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


def _request(name: str, prefix: list[int], count: int, **more: Any) -> GenerateRequest:
    return GenerateRequest(name, prefix, count, more.pop("stop", frozenset()), **more)


@pytest.mark.sglang
@pytest.mark.slow
def test_greedy_tokens_and_logprobs_equal_transformers(engine: SglangEngine, model_dirs: tuple[Path, Path]) -> None:
    prefixes = [[5, 6, 7], list(range(20, 60)), [99]]
    answers = engine.generate([_request(f"greedy-{i}", prefix, 20, temperature=0.0) for i, prefix in enumerate(prefixes)])
    for prefix, answer in zip(prefixes, answers, strict=True):
        logprobs_TV = _reference_logprobs(model_dirs[0], prefix + answer.tokens)[len(prefix) - 1 : -1]
        assert answer.tokens == logprobs_TV.argmax(-1).tolist()
        expected = logprobs_TV.gather(-1, torch.tensor(answer.tokens)[:, None])[:, 0]
        assert torch.tensor(answer.logprobs) == pytest.approx(expected, abs=1e-4)
        assert (answer.finish, answer.versions) == ("length", [0] * 20)


@pytest.mark.sglang
@pytest.mark.slow
def test_sampled_logprobs_are_those_of_the_tempered_distribution(engine: SglangEngine, model_dirs: tuple[Path, Path]) -> None:
    from transformers import AutoModelForCausalLM

    (answer,) = engine.generate([_request("tempered", [5, 6, 7], 20, temperature=0.5, key=(4, 3))])
    model = AutoModelForCausalLM.from_pretrained(model_dirs[0], dtype=torch.float32)
    with torch.no_grad():
        logprobs_TV = (model(torch.tensor([[5, 6, 7, *answer.tokens]])).logits[0, 2:-1] / 0.5).log_softmax(-1)
    expected = logprobs_TV.gather(-1, torch.tensor(answer.tokens)[:, None])[:, 0]
    assert torch.tensor(answer.logprobs) == pytest.approx(expected, abs=1e-4)


@pytest.mark.sglang
@pytest.mark.slow
def test_score_equals_transformers(engine: SglangEngine, model_dirs: tuple[Path, Path]) -> None:
    sequences = [[5, 6, 7, 8], list(range(10, 90))]
    for sequence, scores in zip(sequences, engine.score(sequences), strict=True):
        logprobs_TV = _reference_logprobs(model_dirs[0], sequence)
        expected = [0.0] + [logprobs_TV[i, token].item() for i, token in enumerate(sequence[1:])]
        assert scores == pytest.approx(expected, abs=1e-4)


@pytest.mark.sglang
@pytest.mark.slow
def test_a_trajectory_draws_the_same_whatever_it_is_batched_with_and_after_an_interruption(engine: SglangEngine) -> None:
    requests = [_request(f"batched-{i}", [5, 6, 7 + i], 16, key=(100 + i, 3)) for i in range(6)]
    together = engine.generate(requests)
    assert len({tuple(answer.tokens) for answer in together}) == 6
    (alone,) = engine.generate([_request("alone", [5, 6, 11], 16, key=(104, 3))])
    assert alone.tokens == together[4].tokens
    assert alone.logprobs == pytest.approx(together[4].logprobs, abs=1e-5)
    # Interrupted after five tokens and taken up again from the longer prefix.
    (rest,) = engine.generate([_request("resumed", [5, 6, 11, *alone.tokens[:5]], 11, key=(104, 8))])
    assert rest.tokens == alone.tokens[5:]
    # A context that was cut at its start: other logits, but the position in the trajectory still names the draw.
    assert sampling_seed((104, 8), 8) != sampling_seed((104, 8), 6)


@pytest.mark.sglang
@pytest.mark.slow
def test_stop_tokens_end_an_answer_and_belong_to_it(engine: SglangEngine) -> None:
    (free,) = engine.generate([_request("free", [5, 6, 7], 30, temperature=0.0)])
    stop = free.tokens[6]
    (stopped,) = engine.generate([_request("stopped", [5, 6, 7], 30, temperature=0.0, stop=frozenset({stop}))])
    assert stopped.finish == "stop"
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]


@pytest.mark.sglang
@pytest.mark.slow
def test_the_models_own_end_token_does_not_end_an_answer(engine: SglangEngine) -> None:
    # The server knows token 2 as the end. At a high temperature it comes soon; with a stop token asked for, which one
    # the server obeys is a matter of its own, so the engine goes on behind it.
    requests = [_request(f"through-{i}", [5, 6, 7], 60, temperature=50.0, stop=frozenset({127}), key=(i, 3)) for i in range(12)]
    answers = engine.generate(requests)
    assert any(STOP in answer.tokens[:-1] for answer in answers)
    for answer in answers:
        assert len(answer.tokens) == len(answer.logprobs) == len(answer.versions)
        assert 127 not in answer.tokens[:-1]
        assert (answer.tokens[-1] == 127) == (answer.finish == "stop")
        assert len(answer.tokens) == 60 or answer.finish == "stop"


@pytest.mark.sglang
@pytest.mark.slow
def test_abort_returns_what_is_there(engine: SglangEngine) -> None:
    answers: list[Any] = []
    requests = [_request("endless", [5, 6, 7], 1000), _request("short", [5, 6, 8], 3)]
    thread = threading.Thread(target=lambda: answers.extend(engine.generate(requests)))
    thread.start()
    deadline = time.monotonic() + 20
    while engine.load().running == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    engine.abort(["endless"])
    thread.join(60)
    assert [answer.finish for answer in answers] == ["abort", "length"]
    assert len(answers[0].tokens) == len(answers[0].logprobs) == len(answers[0].versions) < 1000


@pytest.mark.sglang
@pytest.mark.slow
def test_new_weights_change_the_answers_and_each_token_says_which_made_it(
    server: SglangServer, engine: SglangEngine, model_dirs: tuple[Path, Path]
) -> None:
    from safetensors.torch import load_file

    greedy = _request("before", [5, 6, 7], 12, temperature=0.0)
    (before,) = engine.generate([greedy])
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.extend(engine.generate([_request("crossing", [5, 6, 7], 900, temperature=0.0)])))
    thread.start()
    deadline = time.monotonic() + 20
    while engine.load().running == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    engine.update_weights_from_disk(model_dirs[1], 7)
    thread.join(120)
    (crossing,) = answers
    # One answer, two policies: its tokens are split by version, and each half is its own policy's greedy choice.
    assert sorted(set(crossing.versions)) == [0, 7]
    assert crossing.versions == sorted(crossing.versions)
    switch = crossing.versions.index(7)
    for directory, part in ((model_dirs[0], slice(0, switch)), (model_dirs[1], slice(switch, None))):
        logprobs_TV = _reference_logprobs(directory, [5, 6, 7, *crossing.tokens])[2:-1]
        # Random weights give near-ties now and then; the log-prob of the choice must still match.
        chosen = logprobs_TV.gather(-1, torch.tensor(crossing.tokens)[:, None])[:, 0]
        assert torch.tensor(crossing.logprobs[part]) == pytest.approx(chosen[part], abs=1e-3)
    (after,) = engine.generate([greedy])
    assert after.tokens != before.tokens
    assert after.versions == [7] * 12
    assert engine.version == 7
    # And back, this time from tensors in memory.
    engine.update_weights(load_file(model_dirs[0] / "model.safetensors"), 8)
    (again,) = engine.generate([greedy])
    assert (again.tokens, again.versions) == (before.tokens, [8] * 12)
    with SglangEngine(server.url) as newcomer:
        assert (newcomer.version, newcomer.vocabulary) == (8, VOCABULARY)


@pytest.mark.sglang
@pytest.mark.slow
def test_refusals_name_the_value_and_leave_the_server_alive(engine: SglangEngine, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[0, 128\), got 700"):
        engine.generate([_request("outside", [5, 700], 4)])
    with pytest.raises(ValueError, match="must differ"):
        engine.generate([_request("twin", [5], 4), _request("twin", [6], 4)])
    with pytest.raises(EngineError, match="maximum context length"):
        engine.generate([_request("long", [5], 5000)])
    with pytest.raises(EngineError, match="weights"):
        engine.update_weights_from_disk(tmp_path / "nothing", 9)
    (answer,) = engine.generate([_request("alive", [5], 4)])
    assert len(answer.tokens) == 4
    deadline = time.monotonic() + 20  # the server publishes its figures after the answer
    while engine.load().running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert engine.load().running == 0


@pytest.mark.sglang
@pytest.mark.slow
def test_the_openai_endpoint_answers(server: SglangServer) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    reply = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5, logprobs=True, seed=3
    )
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (5, 5)
    assert reply.choices[0].logprobs is not None
    assert len(reply.choices[0].logprobs.content or []) == 5


@pytest.mark.sglang
@pytest.mark.slow
def test_a_killed_server_is_an_engine_error(server: SglangServer) -> None:
    engine = SglangEngine(server.url)
    failures: list[Exception] = []

    def generate() -> None:
        try:
            engine.generate([_request("doomed", [5, 6, 7], 1000)])
        except EngineError as error:
            failures.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    time.sleep(0.3)
    server.kill(grace_s=0.1)
    thread.join(60)
    assert server.process.poll() is not None
    assert len(failures) == 1
    with pytest.raises(EngineError, match="no answer from"):
        engine.generate([_request("dead", [5, 6, 7], 4)])
    with pytest.raises(EngineError, match="no answer from"):
        SglangEngine(server.url)


# --- without a server ----------------------------------------------------------------------------------------------


def _good(**changes: Any) -> dict[str, Any]:
    meta = {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-0.5, 8, None], [-0.25, 9, None]],
        "weight_versions": [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}],
    }
    return {"output_ids": [8, 9], "meta_info": meta | changes}


@pytest.fixture
def scripted() -> Iterator[tuple[str, dict[str, Any]]]:
    """An HTTP server on loopback that answers what the test puts into the dictionary, as JSON."""
    script: dict[str, Any] = {"/model_info": {"weight_version": "3", "model_path": "/nowhere"}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = script.get(self.path.partition("?")[0], {})
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(script.get("status", 200) if self.path == "/generate" else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", script
    http.shutdown()
    http.server_close()
    thread.join()


def test_the_wire_format_is_read_in_full(scripted: tuple[str, dict[str, Any]]) -> None:
    url, script = scripted
    script["/generate"] = [_good()]
    with SglangEngine(url) as engine:
        assert engine.version == 3
        (answer,) = engine.generate([_request("r", [5], 2)])
    assert (answer.tokens, answer.logprobs, answer.versions) == ([8, 9], [-0.5, -0.25], [3, 4])


@pytest.mark.parametrize(
    "garbage",
    [
        b"{not json",
        [],
        [{"output_ids": [1]}],
        [_good(finish_reason=None)],
        [_good(finish_reason={"type": "vanished"})],
        [_good(output_token_logprobs=[[-0.5, 8, None]])],
        [_good(output_token_logprobs=[[-0.5, 8, None], [-0.5, 10, None]])],
        [_good(output_token_logprobs=[[-0.5, 8, None], [float("nan"), 9, None]])],
        [_good(output_token_logprobs=[[-0.5, 8, None], [1.5, 9, None]])],
        [_good(weight_versions=[{"version": "3", "start": 0, "end": 1}])],
        [_good(weight_versions=[{"version": "3", "start": 1, "end": 2}])],
        [_good(weight_versions=[{"version": "new", "start": 0, "end": 2}])],
    ],
)
def test_garbage_is_an_engine_error(scripted: tuple[str, dict[str, Any]], garbage: Any) -> None:
    url, script = scripted
    script["/generate"] = garbage
    with SglangEngine(url) as engine, pytest.raises(EngineError) as caught:
        engine.generate([_request("r", [5], 2)])
    assert isinstance(caught.value, NinefoldError)
    assert caught.value.fix


def test_an_error_status_is_quoted(scripted: tuple[str, dict[str, Any]]) -> None:
    url, script = scripted
    script |= {"/generate": {"error": "out of slots"}, "status": 503}
    with SglangEngine(url) as engine, pytest.raises(EngineError, match=r"answered 503.*out of slots"):
        engine.generate([_request("r", [5], 2)])


def test_a_server_whose_version_is_no_number_is_refused(scripted: tuple[str, dict[str, Any]]) -> None:
    url, script = scripted
    script["/model_info"] = {"weight_version": "final-v2"}
    with pytest.raises(EngineError, match="'final-v2' is not a number"):
        SglangEngine(url)


def test_launch_names_a_busy_port_and_a_missing_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NINEFOLD_SGLANG_PYTHON", str(tmp_path / "python"))
    with pytest.raises(MissingDependencyError, match="make setup-sglang"), launch(tmp_path):
        pass
    (tmp_path / "python").write_text("#!/bin/sh\necho boom\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortBusyError, match=str(taken.getsockname()[1])), launch(tmp_path, taken.getsockname()[1]):
            pass
    with pytest.raises(EngineError, match=r"(?s)ended with code 3.*boom"), launch(tmp_path):
        pass


def test_seeds_are_keyed_by_trajectory_and_place() -> None:
    seeds = {sampling_seed((trajectory, 5), 5) for trajectory in range(2000)}
    assert len(seeds) == 2000
    assert all(0 <= seed < 2**62 for seed in seeds)
    assert sampling_seed((7, 5), 5) == sampling_seed((7, 9), 9)
