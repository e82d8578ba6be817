"""Trainers of a comparison by their specs: ``tlm-dre``, or ``tlm-dre:omega_lower=1,kernel=lsif`` with other options."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import yaml

from agentgym_tlm.config import override
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.recipes import ExperimentConfig
from agentgym_tlm.trainers.methods import METHODS, option_group
from agentgym_tlm.trainers.online import OnlineArguments

SAMPLES_MORE = ("ipr", "stepagent")
"""Trainers that sample from the middle of episodes, too, so that their tasks do not say how much they play."""


@dataclass(frozen=True)
class Variant:
    """A trainer with some options of its own. ``name`` is the spec, in one spelling."""

    trainer: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, spec: str) -> Variant:
        """Raises ConfigError for a spec that cannot be read, or a trainer that there is not."""
        trainer, colon, rest = spec.strip().partition(":")
        if trainer != "sft" and trainer not in METHODS:
            raise ConfigError(f"trainers: there is no trainer {trainer!r}; there are sft, {', '.join(METHODS)}")
        if trainer == "sft" and colon:
            raise ConfigError("trainers: all start from the same SFT policy, so that sft has no options here")
        options: dict[str, Any] = {}
        for word in rest.split(",") if colon else ():
            key, equals, value = word.partition("=")
            name = key.strip().replace("-", "_")
            if not (equals and name.isidentifier()) or name in options:
                raise ConfigError(f"trainers: {spec!r} is not of the form TRAINER:option=value,option=value")
            try:
                options[name] = _value(value)
            except yaml.YAMLError as error:
                raise ConfigError(f"trainers: {spec!r}: {value!r} is no value") from error
            if not isinstance(options[name], str | int | float | bool | None):
                raise ConfigError(f"trainers: {spec!r}: {value!r} is not a single value")
        return cls(trainer, dict(sorted(options.items())))

    @property
    def name(self) -> str:
        """The spec."""
        words = ",".join(f"{key}={_word(value)}" for key, value in self.options.items())
        return f"{self.trainer}:{words}" if words else self.trainer

    @property
    def folder(self) -> str:
        """The spec as the name of a folder; characters that file systems mind are quoted as in an address."""
        return quote(self.name.replace(":", ",", 1), safe=",=+")

    def configured(self, config: ExperimentConfig) -> ExperimentConfig:
        """``config``, which has the defaults of the trainer, with the options. Raises ConfigError for a wrong one."""
        if self.trainer == "sft":
            return config
        try:
            group: dict[str, Any] = {option_group(self.trainer): override(config.method, self.options)}
            return replace(config, **group)
        except ConfigError as error:
            raise ConfigError(f"trainers: {self.name}: {error}") from error

    def within_budget(
        self, config: ExperimentConfig, budget: int, turns_per_episode: float, num_tasks: int
    ) -> ExperimentConfig:
        """``config`` such that about ``budget`` environment steps are sampled from ``num_tasks`` training tasks.

        An online trainer counts them; of the others, episodes are planned that take ``turns_per_episode`` steps. What
        the spec says of num_tasks, max_env_steps or num_iterations stands. Raises ConfigError where it has to say it.
        """
        args: Any = config.method
        if self.trainer == "sft":
            return config
        if isinstance(args, OnlineArguments):
            if self.options.keys() & {"max_env_steps", "num_iterations"}:
                return config
            most = math.ceil(budget / (args.tasks_per_iteration * args.samples_per_task))
            return config.with_method(max_env_steps=budget, num_iterations=most)
        if "num_tasks" in self.options:
            return config
        if size := getattr(args, "tasks_per_iteration", None):
            rounds = max(1, round(budget / turns_per_episode / (size * args.samples_per_task)))
            return config if "num_iterations" in self.options else config.with_method(num_iterations=rounds)
        if self.trainer in SAMPLES_MORE:
            raise ConfigError(
                f"trainers: how much {self.trainer} plays does not follow from its tasks: leave --budget out, or say "
                f"how many it gets, as in {self.trainer}:num_tasks=64"
            )
        rounds = getattr(args, "num_iterations", 1)
        episodes = budget / turns_per_episode / rounds
        samples = max(args.samples_per_task, math.ceil(episodes / num_tasks))
        return config.with_method(num_tasks=max(1, round(episodes / samples)), samples_per_task=samples)


def parse_variants(specs: tuple[str, ...]) -> list[Variant]:
    """Raises ConfigError for none, for one that occurs twice, and as :meth:`Variant.parse` does."""
    variants = [Variant.parse(spec) for spec in specs]
    names = [variant.name for variant in variants]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"trainers: need one or more, each once, not {' '.join(specs) or 'none'}")
    return variants


def _value(text: str) -> Any:
    """As YAML, but that 1e-5 is a number and ``no`` and ``off`` are words, as they are in YAML 1.2."""
    value = yaml.safe_load(text)
    if isinstance(value, bool) and text.strip().lower() not in ("true", "false"):
        return text.strip()
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _word(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, float):
        return re.sub(r"e([+-])0+", r"e\1", str(value))  # 1e-05
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
