"""How a trainer or a command names the environments it runs on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import tyro
from gymnasium.envs.registration import load_env_creator

from agentgym_tlm.envs.base import TaskManifest, TextEnv
from agentgym_tlm.errors import AgentGymError, ConfigError
from agentgym_tlm.files import to_json, write_text
from agentgym_tlm.ranges import COUNT, check_ranges

_REMEMBERED = "trained_on.json"


@dataclass(frozen=True, kw_only=True)
class EnvArgs:
    """The environment id and what every split of it is made with."""

    env: str = "ALFWorld-v0"
    """Gymnasium id."""
    data_dir: str | None = None
    """Folder of the environment's data, or 'embedded'; None: its variable, imported data, else the embedded default."""
    max_episode_steps: int | None = None
    """Turns per episode; None: the environment's own limit."""
    env_kwargs: Annotated[dict[str, Any], tyro.conf.arg(help_behavior_hint="(default: none)")] = field(
        default_factory=dict
    )
    """Further keyword arguments of the environment's constructor."""

    def __post_init__(self) -> None:
        check_ranges(self, max_episode_steps=COUNT)

    def remember(self, folder: Path) -> None:
        """Write to the folder of a policy which environment, made with what, it was trained on."""
        write_text(folder / _REMEMBERED, to_json({"env": self.env, "env_kwargs": self.env_kwargs}))

    def as_remembered(self, folder: Path) -> EnvArgs:
        """With the keyword arguments that ``folder`` remembers for this environment, unless there are some here."""
        file = folder / _REMEMBERED
        if self.env_kwargs or not file.is_file():
            return self
        trained_on = json.loads(file.read_text(encoding="utf-8"))
        return replace(self, env_kwargs=trained_on["env_kwargs"]) if trained_on["env"] == self.env else self

    def trained_on(self, folder: Path) -> EnvArgs:
        """The environment that the policy in ``folder`` was trained on, if it remembers, with the options from here."""
        file = folder / _REMEMBERED
        if not file.is_file():
            return self
        trained_on = json.loads(file.read_text(encoding="utf-8"))
        return replace(self, env=trained_on["env"]).as_remembered(folder)

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``gym.make(self.env, ...)`` for any split; options that are None are left out.

        Raises ConfigError for a data folder of an environment that has none.
        """
        if self.data_dir is not None and "data_dir" not in signature(env_class(self.env)).parameters:
            raise ConfigError(f"{self.env} has no data folder: leave out --data-dir")
        options = {"data_dir": self.data_dir, "max_episode_steps": self.max_episode_steps}
        return {**{name: value for name, value in options.items() if value is not None}, **self.env_kwargs}

    def kwargs(self, split: str) -> dict[str, Any]:
        """Keyword arguments of ``gym.make(self.env, ...)`` for one split."""
        return {"split": split, **self.options}

    def manifest(self, split: str) -> TaskManifest:
        """Tasks of one split. Raises ConfigError when the id is not one of a text environment."""
        with self._made(split) as env:
            return env.manifest

    def version(self, split: str = "train") -> dict[str, str]:
        """What the environments run on: engine, data source, versions."""
        with self._made(split) as env:
            return env.version()

    def make(self, split: str, **more: Any) -> gym.Env[str, str]:
        """The environment on one split. Raises ConfigError for an id or arguments that it cannot be made with.

        ``more`` are keyword arguments that a caller adds to the options; no message blames them.
        """
        kwargs = {**self.kwargs(split), **more}
        try:
            return gym.make(self.env, disable_env_checker=True, **kwargs)
        except AgentGymError:
            raise
        except (TypeError, ValueError) as error:
            env_class(self.env)
            if not self.env_kwargs:
                raise
            reason = str(error).partition(" was raised from the environment creator")[0]
            given = " ".join(f"{name}={value}" for name, value in self.env_kwargs.items())
            raise ConfigError(f"{self.env} cannot be made with --env-kwargs {given}: {reason}") from error

    @contextmanager
    def _made(self, split: str) -> Iterator[TextEnv]:
        env = self.make(split)
        try:
            yield text_env(env)
        finally:
            env.close()


def text_env(env: gym.Env[str, str]) -> TextEnv:
    """The text environment inside the wrappers of ``gym.make``. Raises ConfigError when there is none."""
    inner = env.unwrapped
    if not isinstance(inner, TextEnv):
        raise ConfigError(f"{env} is not a text environment of this package: it has no tasks, expert or snapshots")
    return inner


def env_class(env_id: str) -> type[TextEnv]:
    """The class behind an environment id. Raises ConfigError when it is not a text environment's."""
    entry_point = gym.spec(env_id).entry_point
    creator: object = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if not (isinstance(creator, type) and issubclass(creator, TextEnv)):
        raise ConfigError(f"{env_id} is not a text environment of this package: it has no tasks, expert or snapshots")
    return creator
