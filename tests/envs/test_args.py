"""An environment that cannot be made as it was asked for says which option is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError


def test_unknown_keyword_is_named_with_its_option() -> None:
    with pytest.raises(ConfigError, match=r"--env-kwargs num_gmes=3.*num_gmes") as error:
        EnvArgs(env_kwargs={"num_gmes": 3}).manifest("train")
    assert "environment creator" not in str(error.value)


def test_environment_of_another_kind_is_named() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1 is not a text environment"):
        EnvArgs(env="CartPole-v1").manifest("train")


def test_step_limit_is_at_least_one() -> None:
    with pytest.raises(ConfigError, match="max_episode_steps"):
        EnvArgs(max_episode_steps=0)


def test_policy_remembers_the_environment_it_was_trained_on(tmp_path: Path) -> None:
    """Suites are those of that one; options given now for the same environment win."""
    EnvArgs(env="ScienceWorld-v0", env_kwargs={"instructions": False}).remember(tmp_path)
    assert EnvArgs().trained_on(tmp_path) == EnvArgs(env="ScienceWorld-v0", env_kwargs={"instructions": False})
    given = EnvArgs(env="ScienceWorld-v0", max_episode_steps=3, env_kwargs={"protocol": "eto"})
    assert given.trained_on(tmp_path) == given
    assert given.trained_on(tmp_path / "nowhere") == given
