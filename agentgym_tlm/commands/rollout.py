"""``agentgym-tlm rollout``: let a policy play, and write every turn to a folder that can be gone on with."""

from __future__ import annotations

import os
import shlex
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
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
from agentgym_tlm.prompt import FormatName, PromptFormat, TagsArguments, make_format
from agentgym_tlm.protocols import Protocol
from agentgym_tlm.ranges import COUNT, SEED, check_ranges
from agentgym_tlm.trajectory import StopReason, Trajectory, TrajectoryWriter, read_trajectories

if TYPE_CHECKING:
    from agentgym_tlm.policies.base import Policy

_SCRIPTED = ("expert", "random")
_DECISIVE = ("policy", "few_shot", "policy_kwargs", "envs", "prompt_format", "tags", "temperature", "seed")
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
    prompt_format: FormatName | None = None
    """react: thought and action, full history; tags: the last turns and the admissible commands, as GiGPO has it.
    None: the one that the policy was trained with, which is react where there is none."""
    tags: TagsArguments = field(default_factory=TagsArguments)
    temperature: float | None = None
    """Of a language model's sampling; 0 decodes greedily. None: 0, or the protocol's."""
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
        make_format(self.prompt_format, self.tags)


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
    """A folder in ``runs/`` named after command, policy, time and process."""
    name = f"{command}-{Path(policy).name.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return Path("runs") / name


def play(
    options: PlayOptions,
    folder: Path,
    command: str,
    splits: Sequence[str],
    samples_per_task: int = 1,
    protocol: Protocol | None = None,
) -> Iterator[list[Trajectory]]:
    """The trajectories of each split, read from ``folder`` as far as it holds them.

    A ``protocol`` says which episodes to play, and how a policy without a prompt format of its own is prompted. Raises
    ConfigError when the folder holds play with other options, or the policy is prompted in another way.
    KeyboardInterrupt tells how to go on.
    """
    import torch

    from agentgym_tlm.policies import remote_model
    from agentgym_tlm.policies.loading import read_settings
    from agentgym_tlm.rollout import rollout

    if "split" in options.envs.env_kwargs:
        raise ConfigError("env_kwargs must not name the split: it is an option of its own (--split, --splits)")
    torch.set_num_threads(options.num_threads)
    served = Path(remote_model(options.policy)[1])
    own = read_settings(served).get("format")
    format = make_format(options.prompt_format, options.tags, own=own)
    if protocol is not None and format is None and own is None:
        format = protocol.format
    policy = load(options, format)
    if protocol is not None:
        protocol.check_format(policy.format)
    options = replace(options, envs=options.envs.as_remembered(served))
    _open(folder, replace(options, output_dir=folder))
    envs = with_admissible_commands(options.envs) if options.policy == "random" else options.envs
    try:
        for split in splits:
            tasks = options.envs.manifest(split).take(options.limit)
            groups = [(tasks, samples_per_task)] if protocol is None else protocol.draws(tasks)
            log = folder / f"{split}.jsonl"
            with plain_warnings():
                writer = TrajectoryWriter(log)
            with writer, rollout_progress(f"{policy.name} on {split}") as progress:
                earlier = list(read_trajectories(log))
                _check_weights(log, earlier, policy)
                trajectories = [
                    rollout(
                        policy,
                        envs.env,
                        group,
                        split=split,
                        n_slots=options.n_slots,
                        env_kwargs=envs.options,
                        samples_per_task=times,
                        seed=options.seed,
                        writer=writer,
                        resume=earlier,
                        progress=progress,
                    )
                    for group, times in groups
                ]
            played = list(chain.from_iterable(trajectories))
            with plain_warnings():
                _warn_of_breakdowns(split, played)
                _warn_of_no_room(split, played)
            yield played
    except KeyboardInterrupt:
        again = shlex.join(["agentgym-tlm", command, "--config", str(folder / "config.yaml")])
        raise KeyboardInterrupt(f"Go on with: {again}") from None


def with_admissible_commands(envs: EnvArgs) -> EnvArgs:
    """The same environment, listing the possible commands in ``info``."""
    return replace(envs, env_kwargs={**envs.env_kwargs, "admissible_commands": True})


def load(options: PlayOptions, format: PromptFormat | None = None) -> Policy:
    """The policy that is to play, with ``format`` instead of its own prompt format.

    Raises what :func:`load_policy` does, and ConfigError for options that contradict each other.
    """
    from agentgym_tlm.few_shot import few_shot_format
    from agentgym_tlm.policies import load_policy

    name, further = options.policy, dict(options.policy_kwargs)
    if name == "human":
        raise ConfigError("a person plays with `agentgym-tlm play`")
    if "api_key" in further:
        raise ConfigError("api_key would be written to config.yaml: set OPENAI_API_KEY instead")
    if options.few_shot and (name in _SCRIPTED or (format is not None and format.name != "react")):
        reader = f"policy {name!r} reads no prompt" if format is None else f"{format.name} has no place for an example"
        raise ConfigError(f"{reader}: leave out --few-shot")
    if "temperature" in further or "format" in further:
        raise ConfigError("temperature and format are no policy_kwargs: there are --temperature and --prompt-format")
    if options.few_shot:
        format = few_shot_format(options.envs)
    if format is not None:
        further["format"] = format
    if name not in _SCRIPTED:
        further["temperature"] = options.temperature or 0.0
    return load_policy(name, **further)


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


def _warn_of_breakdowns(split: str, played: Sequence[Trajectory]) -> None:
    """Say why episodes are in no rate."""
    broken = [trajectory for trajectory in played if trajectory.stop_reason.is_breakdown]
    if broken:
        warnings.warn(
            f"{len(broken)} of {len(played)} episodes of {split} broke down and are in no rate; in the first, "
            f"{broken[0].task_id}: {broken[0].error}. The same --output-dir plays them again",
            stacklevel=2,
        )


def _warn_of_no_room(split: str, played: Sequence[Trajectory]) -> None:
    """Say that a rate of 0 is none of the policy's play."""
    silent = [t for t in played if t.stop_reason is StopReason.TOKEN_BUDGET and not t.turns]
    if silent:
        warnings.warn(
            f"{len(silent)} of {len(played)} episodes of {split} ended, as lost, before the first response: with the "
            "prompt, it does not fit into the policy's context (max_context, max_new_tokens)",
            stacklevel=2,
        )


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
