"""An environment that cannot be made as it was asked for says which option is wrong."""

from __future__ import annotations

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
