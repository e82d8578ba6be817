"""How a trainer or a command names the environments it runs on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class EnvArgs:
    """The environment id and what every split of it is made with."""

    env: str = "ALFWorld-v0"
    """Gymnasium id."""
    data_dir: str | None = None
    """Folder of the environment's data; None: its environment variable, else the embedded default."""
    max_episode_steps: int | None = None
    """Turns per episode; None: the environment's own limit."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the environment's constructor."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``gym.make(self.env, ...)`` for any split; options that are None are left out."""
        options = {"data_dir": self.data_dir, "max_episode_steps": self.max_episode_steps}
        return {**{name: value for name, value in options.items() if value is not None}, **self.env_kwargs}

    def kwargs(self, split: str) -> dict[str, Any]:
        """Keyword arguments of ``gym.make(self.env, ...)`` for one split."""
        return {"split": split, **self.options}
