"""Environments of one process, as the slots of a vector environment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from agentgym_tlm.errors import EnvironmentFailureError


@dataclass(frozen=True)
class Failure:
    """What a call returns for a slot whose machinery failed: the episode is lost, its outcome unknown."""

    message: str


class EnvGroup:
    """Environments of one process, by slot number; one that fails is made anew when it is next needed.

    ``attributes``, by slot, are what :meth:`set_attr` has set in an earlier group.
    """

    def __init__(
        self,
        spec: EnvSpec,
        kwargs: Mapping[str, Any],
        slots: Iterable[int],
        attributes: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        self._make: Callable[[], gym.Env[str, str]] = partial(gym.make, spec, disable_env_checker=True, **kwargs)
        self._envs: dict[int, gym.Env[str, str] | None] = dict.fromkeys(slots)
        self._attributes = {slot: dict((attributes or {}).get(slot, {})) for slot in self._envs}
        try:
            for slot in self._envs:
                self._env(slot)
        except BaseException:
            self.close()
            raise

    def reset(self, calls: Mapping[int, tuple[int, dict[str, Any]]]) -> dict[int, Any]:
        """Start an episode in each slot, given seed and options: what its ``reset`` returned, or a Failure."""
        return {
            slot: self._played(slot, "reset", seed=seed, options=options) for slot, (seed, options) in calls.items()
        }

    def step(self, actions: Mapping[int, str]) -> dict[int, Any]:
        """Play an action in each slot: what its ``step`` returned, or a Failure."""
        return {slot: self._played(slot, "step", action) for slot, action in actions.items()}

    def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, Any]:
        """The attribute of each slot's environment; if that is a method, what it returns."""
        values = {slot: self._env(slot).get_wrapper_attr(name) for slot in self._envs}
        return {slot: value(*args, **kwargs) if callable(value) else value for slot, value in values.items()}

    def set_attr(self, name: str, values: Mapping[int, Any]) -> None:
        """Set an attribute of each slot's environment to the slot's value."""
        for slot, value in values.items():
            self._env(slot).set_wrapper_attr(name, value)
            self._attributes[slot][name] = value

    def close(self) -> None:
        """Close every environment."""
        for slot in self._envs:
            self._discard(slot)

    def _env(self, slot: int) -> gym.Env[str, str]:
        env = self._envs[slot]
        if env is None:
            env = self._envs[slot] = self._make()
            for name, value in self._attributes[slot].items():
                env.set_wrapper_attr(name, value)
        return env

    def _played(self, slot: int, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self._env(slot), method)(*args, **kwargs)
        except EnvironmentFailureError as error:
            self._discard(slot)
            return Failure(str(error))

    def _discard(self, slot: int) -> None:
        env, self._envs[slot] = self._envs[slot], None
        if env is not None:
            with contextlib.suppress(EnvironmentFailureError):
                env.close()
