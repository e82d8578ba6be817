"""Registers a text environment so that both ``gymnasium.make`` and ``gymnasium.make_vec`` take it."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, WrapperSpec


class TextEnvSpec(EnvSpec):
    """A specification for ``make``, whose deep copy is the one for ``make_vec``.

    ``make`` needs :class:`~agentgym_tlm.envs.base.StepLimit` among the additional wrappers, but ``make_vec`` refuses a
    vector entry point beside any, and does not tell it the id. It works on a deep copy, so that is where they differ.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> EnvSpec:
        return EnvSpec(
            id=self.id,
            entry_point="agentgym_tlm.envs.vector:single_env",
            max_episode_steps=self.max_episode_steps,
            kwargs={**copy.deepcopy(self.kwargs, memo), "env_id": self.id},
            vector_entry_point=self.vector_entry_point,
        )


def register(env_id: str, entry_point: str, max_episode_steps: int | None) -> None:
    """Add a :class:`~agentgym_tlm.envs.base.TextEnv` to Gymnasium's registry, unless it is there already.

    ``entry_point`` is the class as ``module:name``, imported when the first environment is made. The environment itself
    says where an episode ends when ``max_episode_steps`` is None.
    """
    if env_id not in gymnasium.registry:
        gymnasium.registry[env_id] = TextEnvSpec(
            id=env_id,
            entry_point=entry_point,
            max_episode_steps=max_episode_steps,
            additional_wrappers=(WrapperSpec("StepLimit", "agentgym_tlm.envs.base:StepLimit", kwargs={}),),
            vector_entry_point="agentgym_tlm.envs.vector:TextVectorEnv",
        )
