"""``agentgym-tlm rollout``: let a policy play, and write every turn to a folder that can be gone on with."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from agentgym_tlm import config
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.evaluate import EvalResult, results_table
from agentgym_tlm.files import write_text
from agentgym_tlm.progress import plain_warnings, rollout_progress
from agentgym_tlm.ranges import COUNT, SEED, check_ranges
from agentgym_tlm.trajectory import Trajectory, TrajectoryWriter, read_trajectories

if TYPE_CHECKING:
    from agentgym_tlm.policies.base import Policy

_SCRIPTED = ("expert", "random")
_DECISIVE = ("policy", "few_shot", "policy_kwargs", "envs", "temperature", "seed")
"""Options on which what happens in an episode depends."""
_ON_THE_WAY = frozenset({"base_url", "concurrency", "timeout", "max_retries", "backoff", "max_failures"})
"""Options of a policy behind a server on which nothing depends but whether and when it answers."""


@dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """Who plays what, and where the turn logs go."""

    policy: str = tyro.MISSING
    """expert, random, smollm2, a folder that train wrote (such as RUN/sft/policy), or a hub id;
    openai:MODEL, behind a server of chat completions (OPENAI_BASE_URL, OPENAI_API_KEY), or
    vllm:MODEL, that vLLM serves. A folder plays with the env_kwargs that it was trained with,
    unless others are given."""
    few_shot: bool = False
    """Show a pretrained model a worked example of the environment before its own task."""
    policy_kwargs: Annotated[dict[str, Any], tyro.conf.arg(help_behavior_hint="(default: none)")] = field(
        default_factory=dict
    )
    """Further options of a model, such as max_new_tokens, or base_url and timeout of one behind a server."""
    envs: tyro.conf.OmitArgPrefixes[EnvArgs] = field(default_factory=EnvArgs)
    limit: int | None = None
    """Tasks of each split, evenly spaced over its manifest; None: all."""
    temperature: float = 0.0
    """Of a language model's sampling; 0 decodes greedily."""
    n_slots: int = 32
    """Episodes side by side."""
    num_threads: int = 1
    """Torch threads on a CPU. More than one helps only on cores that are otherwise idle."""
    seed: int = 0
    """Seed of sampling and of everything random in the environment."""
    output_dir: Path | None = None
    """Folder of the turn logs, a file per split; episodes in it are not played again. None: a new one in runs/."""

    def __post_init__(self) -> None:
        check_ranges(self, limit=COUNT, temperature="[0, inf)", n_slots=COUNT, num_threads=COUNT, seed=SEED)


@dataclass(frozen=True, kw_only=True)
class Rollout(PlayOptions):
    """Let a policy play and write every turn to JSONL. Give the same --output-dir again to go on after a stop."""

    split: str = "train"
    """Split of the environment."""
    samples_per_task: int = 1
    """Episodes of each task."""
    temperature: float = 1.0
    """Of a language model's sampling; 0 decodes greedily."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, samples_per_task=COUNT)

    def run(self) -> int:
        """Play, and print a summary."""
        folder = self.output_dir or new_folder("rollout", self.policy)
        played = play(self, folder, "rollout", [self.split], self.samples_per_task)
        Console(highlight=False).print(results_table([EvalResult.of(trajectories) for trajectories in played]))
        print(f"Turn logs: {folder}")
        return 0


def new_folder(command: str, policy: str) -> Path:
    """A folder in ``runs/`` named after command, policy and time."""
    return Path("runs") / f"{command}-{Path(policy).name.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"


def play(
    options: PlayOptions, folder: Path, command: str, splits: Sequence[str], samples_per_task: int = 1
) -> Iterator[list[Trajectory]]:
    """The trajectories of each split, read from ``folder`` as far as it holds them.

    Raises ConfigError when the folder holds play with other options. KeyboardInterrupt tells how to go on.
    """
    import torch

    from agentgym_tlm.policies import remote_model
    from agentgym_tlm.rollout import rollout

    if "split" in options.envs.env_kwargs:
        raise ConfigError("env_kwargs must not name the split: it is an option of its own (--split, --splits)")
    torch.set_num_threads(options.num_threads)
    policy = load(options)
    options = replace(options, envs=options.envs.as_remembered(Path(remote_model(options.policy)[1])))
    _open(folder, replace(options, output_dir=folder))
    envs = with_admissible_commands(options.envs) if options.policy == "random" else options.envs
    try:
        for split in splits:
            tasks = options.envs.manifest(split).take(options.limit)
            log = folder / f"{split}.jsonl"
            with plain_warnings():
                writer = TrajectoryWriter(log)
            with writer, rollout_progress(f"{policy.name} on {split}") as progress:
                earlier = list(read_trajectories(log))
                _check_weights(log, earlier, policy)
                trajectories = rollout(
                    policy,
                    envs.env,
                    tasks,
                    split=split,
                    n_slots=options.n_slots,
                    env_kwargs=envs.options,
                    samples_per_task=samples_per_task,
                    seed=options.seed,
                    writer=writer,
                    resume=earlier,
                    progress=progress,
                )
            yield trajectories
    except KeyboardInterrupt:
        again = shlex.join(["agentgym-tlm", command, "--config", str(folder / "config.yaml")])
        raise KeyboardInterrupt(f"Go on with: {again}") from None


def with_admissible_commands(envs: EnvArgs) -> EnvArgs:
    """The same environment, listing the possible commands in ``info``."""
    return replace(envs, env_kwargs={**envs.env_kwargs, "admissible_commands": True})


def load(options: PlayOptions) -> Policy:
    """The policy that is to play. Raises what :func:`load_policy` does."""
    from agentgym_tlm.few_shot import few_shot_format
    from agentgym_tlm.policies import load_policy

    name, further = options.policy, dict(options.policy_kwargs)
    if name == "human":
        raise ConfigError("a person plays with `agentgym-tlm play`")
    if "api_key" in further:
        raise ConfigError("api_key would be written to config.yaml: set OPENAI_API_KEY instead")
    if name in _SCRIPTED:
        if options.few_shot:
            raise ConfigError(f"policy {name!r} reads no prompt: leave out --few-shot")
        return load_policy(name, **further)
    if "temperature" in further or "format" in further:
        raise ConfigError("temperature and format are no policy_kwargs: there are --temperature and --few-shot")
    if options.few_shot:
        further["format"] = few_shot_format(options.envs)
    return load_policy(name, temperature=options.temperature, **further)


def _open(folder: Path, options: PlayOptions) -> None:
    """Write the folder's config.yaml; one that is there already must not differ in anything that matters."""
    file = folder / "config.yaml"
    if file.exists():
        earlier = config.load(options, file)
        different = [name for name in _DECISIVE if _decisive(earlier, name) != _decisive(options, name)]
        if different:
            raise ConfigError(
                f"{folder} holds episodes played with another {' and '.join(different)}: "
                f"give --config {file} to go on with them, or choose another --output-dir"
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, config.dump(options))


def _decisive(options: PlayOptions, name: str) -> Any:
    value = getattr(options, name)
    if name == "policy_kwargs":
        return {option: item for option, item in value.items() if option not in _ON_THE_WAY}
    return value


def _check_weights(log: Path, earlier: Sequence[Trajectory], policy: Policy) -> None:
    """Refuse to mix the episodes of two versions of a policy, or of two policies that have the same version."""
    versions = {turn.policy_version for trajectory in earlier for turn in trajectory.turns}
    if versions - {policy.version}:
        raise ConfigError(
            f"{log} holds episodes of {policy.name} version {', '.join(sorted(versions))}, which is now "
            f"{policy.version}: choose another --output-dir"
        )
    if any(trajectory.metadata.get("weights", policy.fingerprint) != policy.fingerprint for trajectory in earlier):
        raise ConfigError(
            f"{log} holds episodes of {policy.name} with other weights than it has now: choose another --output-dir"
        )
