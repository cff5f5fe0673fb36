"""Configuration: layers, and what a person reads when a key or value is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from environments.errors import ConfigError
from flows.config import RunConfig, config_from_toml, load_config, profiles, to_toml


@pytest.mark.parametrize("profile", ["laptop", "gpu", "cluster"])
def test_every_profile_loads_and_survives_toml(profile: str, tmp_path: Path) -> None:
    config = load_config(profile)
    assert config.profile == profile
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert config_from_toml(tmp_path / "config.toml") == config
    assert profile in profiles()


def test_the_users_file_overrides_single_keys_and_seed_comes_last(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 3\n[graph]\nmax_nodes = 17\n[training.sft]\ntokens = 1234\n")
    config = load_config("laptop", file, seed=9)
    assert (config.seed, config.graph.max_nodes, config.training.sft.tokens) == (9, 17, 1234)
    assert config.graph.max_level == load_config("laptop").graph.max_level
    assert config.orchestration == load_config("laptop").orchestration


def test_an_unknown_key_is_named_with_the_nearest_one_and_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[graph]\nmax_node = 17\n")
    with pytest.raises(ConfigError) as caught:
        load_config("laptop", file)
    assert "'graph.max_node'" in caught.value.message
    assert str(file) in caught.value.message
    assert "'max_nodes'" in caught.value.fix


def test_a_key_like_none_of_ours_lists_what_the_section_takes(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[dataset]\nzzzz = 1\n")
    with pytest.raises(ConfigError, match="heldout"):
        load_config("laptop", file)


def test_an_unknown_key_three_levels_deep_is_found(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[training.sft]\ntoken = 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config("laptop", file)
    assert "'training.sft.token'" in caught.value.message
    assert "'tokens'" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[orchestration]\nshards = 1000\n", "orchestration.shards"),
        ("[dataset]\ntrain = 0.9\n", "sum to 1"),
        ("seed = 'x'\n", "'seed'"),
        ("seed = \n", "not valid TOML"),
        ("[training.expert]\nsteps_max = { agent = 3 }\n", "says nothing of general, coding"),
        ("[training.effort.multipliers]\ngeneral = { low = 1.0 }\n", "multipliers"),
    ],
)
def test_a_bad_value_is_named_with_its_file(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config("laptop", file)
    assert said in caught.value.message
    assert str(file) in caught.value.message


def test_missing_file_and_profile_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load_config("laptop", tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="did you mean laptop"):
        load_config("labtop")


def test_toml_quotes_what_needs_quotes() -> None:
    config = RunConfig.model_validate(load_config("laptop").model_dump() | {"graph": {"seeds": ['a "b"', "naïve\tname"]}})
    assert tomllib.loads(to_toml(config))["graph"]["seeds"] == ['a "b"', "naïve\tname"]
