"""What the main job can be told, and the defaults for a policy in an environment.

The defaults of every option are the tlm-DRE paper's for 7B models. ``tiny`` learns from scratch and has its own, found
by search on held-out training tasks of ALFWorld: a thousand times the learning rate, small batches, many fresh episodes
instead of epochs, and bfloat16 autocast. HotpotQA and ScienceWorld have fewer training tasks and need several epochs.
For them, depth (3 and 4 layers), learning rate (2e-3 to 8e-3) and batch (2, 4 and 8) were searched by the loss on
held-out training tasks within the first epoch: three layers at 4e-3 learn at least as much per update as four at 2e-3,
in three quarters of the time. Of ScienceWorld, 200 tasks of each split are evaluated: its simulator takes most of the
time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tyro

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.prompt import FormatName, TagsArguments, make_format
from agentgym_tlm.ranges import COUNT, SEED, check_ranges, check_splits
from agentgym_tlm.trainers.args import TrainingArguments
from agentgym_tlm.trainers.methods import METHODS, option_group
from agentgym_tlm.trainers.sft import SFTArguments

TrainerName = Literal[
    "sft",
    "rft",
    "dpo",
    "dmpo",
    "dil",
    "kto",
    "ipr",
    "stepagent",
    "nat",
    "coh",
    "tlm-dre",
    "ppo",
    "rloo",
    "grpo",
    "gigpo",
]
ConfigT = TypeVar("ConfigT", bound="ExperimentConfig")


@dataclass(frozen=True, kw_only=True)
class ExpertArguments:
    """What the policy imitates: the environment's expert, or the episodes of a file."""

    file: Path | None = None
    """Imitate these instead: a turn log, ETO, AgentTraj or messages file; num_tasks and noise have no meaning then."""
    num_tasks: int | None = None
    """Training tasks that the expert plays, evenly spaced over the manifest; None: all."""
    noise: float = 0.12
    """Share of turns that are a plausible mistake, from which the expert recovers; mistakes are never trained on."""

    def __post_init__(self) -> None:
        check_ranges(self, num_tasks=COUNT, noise="[0, 1)")


@dataclass(frozen=True, kw_only=True)
class TinyArguments:
    """Shape of the tiny policy."""

    hidden_size: int = 128
    """Width."""
    layers: int = 4
    """Transformer blocks."""
    heads: int = 2
    """Attention heads; on a CPU two of 64 dimensions train 1.5 times as fast as four of 32."""
    intermediate_size: int = 384
    """Width of the feed-forward part."""
    max_context: int = 4096
    """Longest episode, in tokens."""

    def __post_init__(self) -> None:
        check_ranges(
            self, hidden_size=COUNT, layers=COUNT, heads=COUNT, intermediate_size=COUNT, max_context="[65, inf)"
        )
        if self.hidden_size % (2 * self.heads):
            raise ConfigError(f"hidden_size={self.hidden_size} must be a multiple of twice heads={self.heads}")


@dataclass(frozen=True, kw_only=True)
class EvaluationArguments:
    """How policies are evaluated, before and after."""

    splits: tuple[str, ...] = ("valid_seen", "valid_unseen")
    """Splits of the environment."""
    num_tasks: int | None = None
    """Tasks of each split, evenly spaced over its manifest; None: all."""
    temperature: float = 0.0
    """0 decodes greedily."""
    n_slots: int = 64
    """Episodes side by side."""

    def __post_init__(self) -> None:
        check_ranges(self, num_tasks=COUNT, temperature="[0, inf)", n_slots=COUNT)
        check_splits(self.splits)


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Train an agent: imitate the expert, align with a trainer, evaluate before and after.

    The options of the trainer are a group that is called as it is: :meth:`with_trainer` adds it.
    """

    trainer: TrainerName = "tlm-dre"
    """What goes on from the SFT policy; sft stops there."""
    envs: Annotated[EnvArgs, tyro.conf.OmitArgPrefixes] = field(default_factory=EnvArgs)
    policy: str = "tiny"
    """tiny (from scratch), smollm2, a folder, or a hub id; the defaults below depend on it."""
    seed: int = 0
    """Seed of weights, data order and sampling: same seed and machine, same numbers."""
    output_dir: Path | None = None
    """Run folder; None: runs/<environment>-<trainer>-<policy>-seed<seed>."""
    resume: bool = False
    """Go on with the run folder where it stopped."""
    sft_policy: Path | None = None
    """Folder of an SFT policy to start from, such as sft/policy of another run, instead of imitating the expert."""
    num_threads: int = 1
    """Torch threads on a CPU. More than one helps only on cores that are otherwise idle."""
    prompt_format: FormatName | None = None
    """react: thought and action, full history; tags: the last turns and the admissible commands, as GiGPO has it.
    None: the policy's own, which is react where it has none."""
    tags: TagsArguments = field(default_factory=TagsArguments)
    expert: ExpertArguments = field(default_factory=ExpertArguments)
    tiny: TinyArguments = field(default_factory=TinyArguments)
    sft: SFTArguments = field(default_factory=SFTArguments)
    evaluation: EvaluationArguments = field(default_factory=EvaluationArguments)

    def __post_init__(self) -> None:
        check_ranges(self, seed=SEED, num_threads=COUNT)
        if self.policy in ("expert", "random", "human") or self.policy.startswith(("openai:", "vllm:")):
            raise ConfigError(f"policy {self.policy!r} is not a language model: there is nothing to train")
        make_format(self.prompt_format, self.tags)

    @classmethod
    def with_trainer(cls: type[ConfigT], trainer: str) -> type[ConfigT]:
        """The class with the options of ``trainer``, which is its default. Raises ConfigError for an unknown one."""
        if trainer != "sft" and trainer not in METHODS:
            raise ConfigError(f"there is no trainer {trainer!r}; there are sft, {', '.join(METHODS)}")
        kind: Any = cls
        made: type[ConfigT] = _with_trainer(kind, trainer)
        return made

    @classmethod
    def defaults_for(cls: type[ConfigT], policy: str, env: str, trainer: str) -> ConfigT:
        """The defaults for a policy, an environment and a trainer; see the module docstring."""
        config = cls.with_trainer(trainer)(policy=policy, envs=EnvArgs(env=env))
        return config if policy != "tiny" else _tiny(config)

    @classmethod
    def foreign_groups(cls) -> set[str]:
        """Groups that a file may have because another trainer was used with it."""
        return {option_group(name) for name in METHODS} - {option.name for option in fields(cls)}

    @property
    def method(self) -> TrainingArguments:
        """The options of the trainer; those of the imitation for ``sft``."""
        arguments = getattr(self, option_group(self.trainer), None)
        if not isinstance(arguments, TrainingArguments):
            raise ConfigError(
                f"these options are not those of {self.trainer}: make them with ExperimentConfig.defaults_for"
            )
        return arguments

    def with_method(self: ConfigT, **changes: Any) -> ConfigT:
        """A copy with other options of the trainer."""
        group: dict[str, Any] = {option_group(self.trainer): replace(self.method, **changes)}
        return replace(self, **group)

    @property
    def run_dir(self) -> Path:
        """The run folder."""
        name = f"{self.envs.env}-{self.trainer}-{Path(self.policy).name}-seed{self.seed}"
        return self.output_dir or Path("runs") / name.lower()

    def loaded_from(self, file: Path) -> ExperimentConfig:
        """These options, read from ``file``: a run folder's own config.yaml means that folder, wherever it is now."""
        own = file.name == "config.yaml" and (file.parent / "versions.json").is_file()
        return replace(self, output_dir=file.parent) if own else self


_TINY_SFT: dict[str, Any] = {
    "learning_rate": 2e-3,
    "per_device_train_batch_size": 4,
    "warmup_ratio": 0.05,
    "weight_decay": 0.01,
    "adam_beta2": 0.98,
    "mixed_precision": "bf16",
}
_TINY_PAIRS: dict[str, Any] = {
    "learning_rate": 2e-5,
    "gradient_accumulation_steps": 1,
    "mixed_precision": "bf16",
    "num_tasks": 256,
    "n_slots": 128,
}
_TINY_ONLINE: dict[str, Any] = {
    "learning_rate": 1e-4,
    "per_device_train_batch_size": 8,  # on a CPU 1.6 times as fast as 32
    "gradient_accumulation_steps": 4,
    "mixed_precision": "bf16",
    "num_iterations": 50,
    "save_steps": 40,
    "temperature": 0.5,  # at 1 one episode in ten fails by the noise in its thoughts
    "beta": 0.0,
    "invalid_action_penalty": 0.0,  # in a group that fails as a whole it would be all there is to compare
    "drop_degenerate": True,
}
_TINY_METHODS: dict[str, dict[str, Any]] = {
    "dpo": {**_TINY_PAIRS, "temperature": 1.0, "num_train_epochs": 1.0},
    "dmpo": {**_TINY_PAIRS, "num_train_epochs": 1.0},
    "dil": _TINY_PAIRS,
    "kto": _TINY_PAIRS,
    "rft": {**_TINY_SFT, "num_tasks": 256, "n_slots": 128},
    "ipr": {**_TINY_PAIRS, "num_tasks": 64, "num_iterations": 1},
    "stepagent": _TINY_PAIRS,
    "tlm-dre": _TINY_PAIRS,
    "nat": {
        "learning_rate": 5e-4,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "mixed_precision": "bf16",
        "num_tasks": 256,
        "n_slots": 128,
    },
    "ppo": {
        **_TINY_ONLINE,
        "num_train_epochs": 1.0,
        "credit": "turn",
        "critic": "separate",  # with a head on the policy's own body it got worse
        "critic_learning_rate": 5e-4,
        "vf_coef": 0.5,
    },
    "rloo": _TINY_ONLINE,
    "grpo": _TINY_ONLINE,
    "gigpo": _TINY_ONLINE,
    "coh": {**_TINY_PAIRS, "learning_rate": 5e-4, "per_device_train_batch_size": 4},
}


class TinyRecipe(NamedTuple):
    """What differs among environments in how ``tiny`` learns."""

    max_episode_steps: int | None = None
    num_tasks: int | None = None
    noise: float = 0.12
    num_train_epochs: float = 1.0
    learning_rate: float = 2e-3
    layers: int = 4
    evaluated_tasks: int | None = None
    env_kwargs: Mapping[str, Any] = MappingProxyType({})


_TINY = {
    "ALFWorld-v0": TinyRecipe(max_episode_steps=25, num_tasks=5000),
    "ScienceWorld-v0": TinyRecipe(
        noise=0.0,
        num_train_epochs=10.0,
        learning_rate=4e-3,
        layers=3,
        evaluated_tasks=200,
        env_kwargs={"instructions": False},
    ),
    "HotpotQA-v0": TinyRecipe(num_train_epochs=3.0, learning_rate=4e-3, layers=3),
}


def _tiny(config: ConfigT) -> ConfigT:
    recipe = _TINY.get(config.envs.env, TinyRecipe())
    config = replace(
        config,
        envs=replace(config.envs, max_episode_steps=recipe.max_episode_steps, env_kwargs={**recipe.env_kwargs}),
        expert=ExpertArguments(num_tasks=recipe.num_tasks, noise=recipe.noise),
        tiny=TinyArguments(layers=recipe.layers),
        sft=SFTArguments(
            **{**_TINY_SFT, "learning_rate": recipe.learning_rate}, num_train_epochs=recipe.num_train_epochs
        ),
        evaluation=EvaluationArguments(num_tasks=recipe.evaluated_tasks, n_slots=128),
    )
    if config.trainer == "sft":
        return config
    epochs = {"num_train_epochs": recipe.num_train_epochs} if isinstance(config.method, SFTArguments) else {}
    return config.with_method(**_TINY_METHODS[config.trainer], **epochs)


@cache
def _with_trainer(kind: Hashable, trainer: str) -> Any:
    added: list[Any] = [("trainer", TrainerName, trainer)]
    if trainer != "sft":
        arguments = METHODS[trainer].arguments
        added.append((option_group(trainer), arguments, field(default_factory=arguments)))
    assert isinstance(kind, type)
    pickled = {
        "__reduce__": lambda self: (_restored, (kind, trainer, {f.name: getattr(self, f.name) for f in fields(self)}))
    }
    made = make_dataclass(kind.__name__, added, bases=(kind,), frozen=True, kw_only=True, namespace=pickled)
    made.__doc__ = kind.__doc__
    return made


def _restored(kind: Hashable, trainer: str, options: Mapping[str, Any]) -> Any:
    return _with_trainer(kind, trainer)(**options)
