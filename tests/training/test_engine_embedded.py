"""The embedded engine: exact log-probs, results that no batching changes, and typed failures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from environments.errors import EngineError
from environments.protocols import Engine, GenerateRequest, Generation
from tests.training.small import CONFIG, model, prompts, request
from training.engine.embedded import EmbeddedEngine, uniforms
from training.model import Llama


def reference_logprobs(net: Llama, prefix: list[int], tokens: list[int], temperature: float = 1.0) -> list[float]:
    """A whole forward pass in float64."""
    double = Llama(net.config)
    double.load_state_dict(net.state_dict())
    double = double.double()
    double.cos, double.sin = double.cos.double(), double.sin.double()
    ids = torch.tensor([prefix + tokens])
    with torch.no_grad():
        logprobs = torch.log_softmax(double(ids)[0] / temperature, -1)
    at = range(len(prefix) - 1, len(prefix) + len(tokens) - 1)
    return [float(logprobs[i, t]) for i, t in zip(at, tokens, strict=True)]


def greedy(net: Llama, prefix: list[int], new: int) -> list[int]:
    """One token at a time by whole forward passes."""
    ids = list(prefix)
    with torch.no_grad():
        for _ in range(new):
            ids.append(int(net(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prefix) :]


def drain(engine: EmbeddedEngine, count: int) -> dict[str, Generation]:
    """Step until `count` requests finished, without releasing their rows."""
    done: dict[str, Generation] = {}
    while len(done) < count:
        done |= {g.request_id: g for g in engine.step()}
    return done


# --- exactness ---


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_equal_a_whole_forward_in_float64(temperature: float) -> None:
    net = model()
    asked = [request(f"r{i}", p, seed=i, temperature=temperature) for i, p in enumerate(prompts(9))]
    for r, g in zip(asked, EmbeddedEngine(net, rows=4).generate(asked), strict=True):
        expected = reference_logprobs(net, list(r.prefix), g.tokens, temperature)
        assert len(g.tokens) == len(g.logprobs) == len(g.versions) == 12
        assert np.abs(np.array(g.logprobs) - expected).max() <= 1e-4


def test_scores_equal_a_whole_forward_in_float64() -> None:
    net = model()
    sequences = [p for p in prompts(5) if len(p) > 1]
    for sequence, scores in zip(sequences, EmbeddedEngine(net, rows=2).score(sequences), strict=True):
        assert scores[0] == 0.0
        assert np.abs(np.array(scores[1:]) - reference_logprobs(net, sequence[:1], sequence[1:])).max() <= 1e-4
    assert EmbeddedEngine(net, rows=1).score([[3]]) == [[0.0]]


def test_greedy_is_the_same_alone_in_a_batch_and_by_hand() -> None:
    net = model()
    found = prompts(10)
    asked = [request(f"r{i}", p, temperature=0.0) for i, p in enumerate(found)]
    by_hand = [greedy(net, p, 12) for p in found]
    assert [g.tokens for g in EmbeddedEngine(net, rows=10).generate(asked)] == by_hand
    assert [g.tokens for g in EmbeddedEngine(net, rows=3).generate(asked)] == by_hand
    assert [EmbeddedEngine(net, rows=1).generate([r])[0].tokens for r in asked] == by_hand


def test_a_trajectory_that_goes_on_reuses_its_prefix_and_changes_nothing() -> None:
    net = model()
    first, observation = prompts(1, seed=3)[0], [5, 6, 7]
    engine = EmbeddedEngine(net, rows=2)
    engine.add(request("t", first, temperature=0.0))
    tokens = drain(engine, 1)["t"].tokens
    longer = [*first, *tokens, *observation]
    engine.add(request("t", longer, temperature=0.0))
    assert len(engine._rows[0].cached) == len(first) + len(tokens) - 1  # only the rest is computed
    assert drain(engine, 1)["t"].tokens == greedy(net, longer, 12)
    # A prefix that departs from what is cached is reused up to there only.
    other = [*longer[:4], (longer[4] + 1) % CONFIG.vocab_size, *longer[5:]]
    engine.add(request("t", other, temperature=0.0))
    assert len(engine._rows[0].cached) == 4
    assert drain(engine, 1)["t"].tokens == greedy(net, other, 12)


def test_equal_prompts_are_computed_once_and_differ_by_their_keys_only() -> None:
    net = model()
    prefix = prompts(1, seed=4)[0]
    alone = [EmbeddedEngine(net, rows=1).generate([request("x", prefix, seed=s)])[0].tokens for s in range(6)]
    together = EmbeddedEngine(net, rows=6).generate([request(f"r{s}", prefix, seed=s) for s in range(6)])
    assert [g.tokens for g in together] == alone
    assert len({tuple(t) for t in alone}) > 1


def test_releasing_a_row_in_the_middle_leaves_the_others_as_they_were() -> None:
    net = model()
    found = prompts(4, seed=5)
    engine = EmbeddedEngine(net, rows=4)
    for i, p in enumerate(found):
        engine.add(request(f"r{i}", p, new=3 if i == 1 else 12, temperature=0.0))
    done: dict[str, Generation] = {}
    while len(done) < 4:
        for g in engine.step():
            done[g.request_id] = g
            engine.release(g.request_id)
    assert [done[f"r{i}"].tokens for i in range(4)] == [greedy(net, p, 3 if i == 1 else 12) for i, p in enumerate(found)]
    assert engine.load().kv_use == 0.0


# --- weights ---


def test_after_a_refresh_cached_prefixes_are_computed_again() -> None:
    net, other = model(0), model(1)
    prefix = prompts(1, seed=6)[0]
    engine = EmbeddedEngine(net, rows=1)
    engine.add(request("t", prefix, temperature=0.0))
    tokens = drain(engine, 1)["t"].tokens
    engine.update_weights(other.state_dict(), version=7)
    longer = [*prefix, *tokens]
    engine.add(request("t", longer, temperature=0.0))
    again = drain(engine, 1)["t"]
    assert again.tokens == greedy(other, longer, 12)
    assert again.versions == [7] * 12
    assert engine.version == 7


def test_weights_that_change_in_the_middle_label_each_token_with_its_version() -> None:
    net, other = model(0), model(1)
    prefix = prompts(1, seed=7)[0]
    engine = EmbeddedEngine(model(0), rows=1, version=3)
    engine.add(request("t", prefix, temperature=0.0))
    for _ in range(5):
        assert engine.step() == []
    engine.update_weights(other.state_dict(), version=4)
    found = drain(engine, 1)["t"]
    assert found.versions == [3] * 5 + [4] * 7
    before = greedy(net, prefix, 5)
    assert found.tokens == before + greedy(other, prefix + before, 7)


# --- randomness ---


def test_sampling_is_keyed_by_trajectory_and_position_whatever_it_is_batched_with() -> None:
    net = model()
    found = prompts(8, seed=8)
    asked = [request(f"r{i}", p, seed=100 + i) for i, p in enumerate(found)]
    whole = [g.tokens for g in EmbeddedEngine(net, rows=8).generate(asked)]
    assert [g.tokens for g in EmbeddedEngine(net, rows=3).generate(asked)] == whole
    assert [g.tokens for g in reversed(EmbeddedEngine(net, rows=8).generate(asked[::-1]))] == whole
    # Cut in two, the second half started from a new engine: the same trajectory.
    for r, tokens in zip(asked, whole, strict=True):
        rest = GenerateRequest("z", [*r.prefix, *tokens[:5]], 7, frozenset(), (r.key[0], r.key[1] + 5))
        assert EmbeddedEngine(net, rows=1).generate([rest])[0].tokens == tokens[5:]
    other = [request(f"r{i}", p, seed=900 + i) for i, p in enumerate(found)]
    assert [g.tokens for g in EmbeddedEngine(net, rows=8).generate(other)] != whole


def test_sampled_tokens_follow_the_models_distribution() -> None:
    net = model(sharpen=2.0)
    prefix = prompts(1, seed=9)[0]
    count = 3000
    asked = [request(f"r{s}", prefix, new=1, seed=s) for s in range(count)]
    drawn = np.bincount([g.tokens[0] for g in EmbeddedEngine(net, rows=128).generate(asked)], minlength=CONFIG.vocab_size)
    with torch.no_grad():
        expected = count * net(torch.tensor([prefix]))[0, -1].softmax(-1).double().numpy()
    common = expected >= 5
    chi2 = float(((drawn - expected)[common] ** 2 / expected[common]).sum())
    from scipy.stats import chi2 as distribution

    assert distribution.sf(chi2, int(common.sum())) > 1e-4


def test_uniforms_are_uniform_and_neither_seed_nor_position_shows() -> None:
    from scipy.stats import kstest

    grid = uniforms(np.repeat(np.arange(300), 300), np.tile(np.arange(300), 300)).reshape(300, 300)
    assert grid.min() >= 0.0
    assert grid.max() < 1.0
    assert kstest(grid.ravel(), "uniform").pvalue > 1e-4
    for values in (grid, grid.T):
        neighbours = np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]
        assert abs(neighbours) < 0.02
        assert np.abs(values.mean(1) - 0.5).max() < 6 * (1 / 12 / 300) ** 0.5
    assert len(np.unique(grid)) == grid.size
    assert np.array_equal(uniforms(np.array([7]), np.array([3])), grid[7:8, 3])


# --- stopping ---


def test_a_stop_token_ends_a_generation_and_is_part_of_it() -> None:
    net = model()
    prefix = prompts(1, seed=10)[0]
    tokens = greedy(net, prefix, 12)
    stop = tokens[6]
    found = EmbeddedEngine(net, rows=1).generate([request("r", prefix, temperature=0.0, stop=frozenset({stop}))])[0]
    assert found.finish == "stop"
    assert found.tokens == tokens[: tokens.index(stop) + 1]


def test_the_window_ends_a_generation() -> None:
    prefix = [1] * (CONFIG.max_position_embeddings - 3)
    found = EmbeddedEngine(model(), rows=1).generate([request("r", prefix, new=50)])[0]
    assert (found.finish, len(found.tokens)) == ("length", 3)


def test_abort_returns_what_was_generated() -> None:
    engine = EmbeddedEngine(model(), rows=2)
    for i, p in enumerate(prompts(4, seed=11)):
        engine.add(request(f"r{i}", p))
    for _ in range(3):
        assert engine.step() == []
    assert (engine.load().running, engine.load().queued) == (2, 2)
    engine.abort(["r0"])
    engine.abort(["r3"])  # a second call forgets nothing of the first
    ended = {g.request_id: g for g in engine.step()}
    assert {k: g.finish for k, g in ended.items()} == {"r0": "abort", "r3": "abort"}
    assert len(ended["r0"].tokens) == len(ended["r0"].logprobs) >= 3
    assert ended["r3"].tokens == []
    engine.release("r0")
    engine.abort()
    assert {(g.request_id, g.finish) for g in engine.step()} == {("r1", "abort"), ("r2", "abort")}
    assert (engine.load().running, engine.load().queued) == (0, 0)


# --- failures ---


def test_a_prefix_that_does_not_fit_is_an_engine_error() -> None:
    engine = EmbeddedEngine(model(), rows=1)
    with pytest.raises(EngineError, match="prefix of 64 tokens does not fit the window of 64"):
        engine.generate([request("r", [1] * 64)])
    with pytest.raises(EngineError, match="without a prefix"):
        engine.generate([request("r", [])])
    with pytest.raises(EngineError, match="65 tokens"):
        engine.score([[1] * 65])
    assert len(engine.generate([request("r", [1])])[0].tokens) == 12  # it is still alive


def test_two_requests_of_one_name_are_refused_instead_of_waiting_for_ever() -> None:
    with pytest.raises(EngineError, match="share a request_id"):
        EmbeddedEngine(model(), rows=2).generate([request("r", [1]), request("r", [2])])


def test_a_closed_engine_refuses_everything() -> None:
    engine: Engine = EmbeddedEngine(model(), rows=1)
    engine.close()  # type: ignore[attr-defined]
    for work in (lambda: engine.generate([request("r", [1])]), lambda: engine.score([[1, 2]]), lambda: engine.step()):  # type: ignore[attr-defined]
        with pytest.raises(EngineError, match="closed"):
            work()
