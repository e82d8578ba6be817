"""How trainers collect data: expert play and samples of the policy, shared among processes and resumable."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from accelerate import Accelerator
from accelerate.utils import gather_object

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import CheckpointError, ConfigError
from agentgym_tlm.files import write_text
from agentgym_tlm.pairs import score_reference
from agentgym_tlm.policies.base import Policy
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.prefix import Prefix
from agentgym_tlm.ranges import check_range
from agentgym_tlm.rollout import RolloutProgress, logged_rollout
from agentgym_tlm.slots import EpisodeKey
from agentgym_tlm.trajectory import StopReason, Trajectory, read_trajectories

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def play(
    accelerator: Accelerator,
    policy: Policy,
    envs: EnvArgs,
    tasks: Sequence[str | Prefix],
    path: Path,
    *,
    split: str = "train",
    samples_per_task: int = 1,
    seed: int = 0,
    n_slots: int = 1,
    progress: Callable[[RolloutProgress], None] | None = None,
) -> list[Trajectory]:
    """Play ``tasks``, each process its share, logged to ``path``; every process gets all trajectories, in task order.

    Episodes that an interrupted call with the same arguments logged are not played again.
    """
    rank, world = accelerator.process_index, accelerator.num_processes
    log = path if world == 1 else path.with_name(f"{path.stem}.{rank}-of-{world}{path.suffix}")
    mine = logged_rollout(
        log,
        policy,
        envs.env,
        tasks[rank::world],
        split=split,
        n_slots=n_slots,
        env_kwargs=envs.options,
        samples_per_task=samples_per_task,
        seed=seed,
        progress=progress,
    )
    if world == 1:
        return mine
    position = {EpisodeKey.to_play(task): i for i, task in enumerate(tasks)}
    return sorted(gather_object(mine), key=lambda t: (position[EpisodeKey.of(t)._replace(sample=0)], t.sample))


_SAMPLES = ("sampled", "explored", "proposed", "expert_continued", "explored_continued")


def sampled_turns(folder: Path) -> int:
    """Environment steps of the episodes that a policy sampled into a trainer's folder or one inside it.

    The expert's play does not count, nor turns that an episode began behind, nor episodes that machinery broke off.
    """
    return sum(
        sum(turn.trainable for turn in trajectory.turns)
        for name in _SAMPLES
        for log in sorted({*folder.rglob(f"{name}.jsonl"), *folder.rglob(f"{name}.*-of-*.jsonl")})
        for trajectory in read_trajectories(log)
        if not (trajectory.stop_reason.is_breakdown or trajectory.stop_reason is StopReason.ABORTED)
    )


def expert_play(
    accelerator: Accelerator,
    policy: LanguageModelPolicy,
    envs: EnvArgs,
    tasks: Sequence[str],
    path: Path,
    *,
    seed: int,
    given: Sequence[Trajectory] | None = None,
) -> list[Trajectory]:
    """The expert's wins on ``tasks``, encoded with the policy's renderer; ``given`` episodes stand for its play."""
    if given is None:
        expert = ExpertPolicy(format=policy.format)
        played = play(accelerator, expert, envs, tasks, path, seed=seed)
    else:
        wanted = set(tasks)
        played = [trajectory for trajectory in given if trajectory.task_id in wanted]
    return [policy.renderer.encode_trajectory(trajectory) for trajectory in played if trajectory.won]


def training_tasks(envs: EnvArgs, limit: int | None, given: Sequence[Trajectory] | None = None) -> list[str]:
    """At most ``limit`` training tasks, evenly spaced over the manifest; only those of ``given`` expert episodes.

    Raises ConfigError when the given episodes name no training task.
    """
    manifest = envs.manifest("train")
    if given is None:
        return manifest.take(limit)
    named = {trajectory.task_id for trajectory in given if trajectory.won}
    tasks = tuple(task for task in manifest if task in named)
    if not tasks:
        example = next(iter(named - {""}), None)
        found = "give no task ids" if example is None else f"name tasks such as {example!r}"
        raise ConfigError(
            f"the {len(given)} given expert episodes {found}, and {envs.env}'s training tasks have ids such as "
            f"{manifest[0]!r}: without a common task there is nothing to compare the policy's episodes with. Imitate "
            "them with --trainer sft, or give each its task id"
        )
    return replace(manifest, task_ids=tasks).take(limit)


def draw_tasks(tasks: Sequence[str], size: int, iteration: int, seed: int) -> list[str]:
    """``size`` of the ``tasks`` (at most all) for an iteration, in an order that ``seed`` decides.

    Every task comes up once before one comes up again, save for a remainder.
    """
    size = min(size, len(tasks))
    epoch, place = divmod(iteration, len(tasks) // size)
    order = np.random.default_rng([seed, epoch]).permutation(len(tasks))
    return [tasks[i] for i in order[place * size : (place + 1) * size]]


def shared_out(
    accelerator: Accelerator, items: Sequence[ItemT], work: Callable[[Sequence[ItemT]], list[ResultT]]
) -> list[ResultT]:
    """``work`` done on ``items``, each process its share; every process gets the results of all, in order."""
    rank, world = accelerator.process_index, accelerator.num_processes
    mine = work(items[len(items) * rank // world : len(items) * (rank + 1) // world])
    return mine if world == 1 else list(gather_object(mine))


def score_together(
    accelerator: Accelerator, model: Any, trajectories: Sequence[Trajectory], **options: Any
) -> list[Trajectory]:
    """:func:`score_reference` with its ``options``, each process its share; every process gets all trajectories."""
    return shared_out(accelerator, trajectories, lambda share: score_reference(model, share, **options))


def within_context(trajectories: Sequence[Trajectory], max_context: int) -> list[Trajectory]:
    """The encoded ``trajectories`` that fit into ``max_context`` tokens; warns of others.

    Raises ConfigError when there are only others.
    """
    lengths = [max(map(len, trajectory.sequences), default=0) for trajectory in trajectories]
    fitting = [t for t, length in zip(trajectories, lengths, strict=True) if length <= max_context]
    if len(fitting) < len(trajectories):
        found = (
            f"{len(trajectories) - len(fitting)} of {len(trajectories)} expert episodes are longer than the policy's "
            f"max_context of {max_context} tokens (the longest has {max(lengths)})"
        )
        if not fitting:
            raise ConfigError(f"{found}: there is nothing to learn from; raise max_context")
        warnings.warn(f"{found}: they are left out", stacklevel=2)
    return fitting


@contextmanager
def sampling_at(policy: LanguageModelPolicy, temperature: float) -> Iterator[None]:
    """The policy samples at ``temperature`` inside, at its own afterwards. Raises ConfigError for a negative one."""
    check_range("temperature", temperature, "[0, inf)")
    before = policy.temperature
    policy.temperature = temperature
    try:
        yield
    finally:
        policy.temperature = before


def claim(folder: Path, origin: dict[str, Any]) -> None:
    """Mark ``folder`` as holding what comes of ``origin``. Raises CheckpointError when it holds another origin's."""
    file = folder / "origin.json"
    record = json.dumps(origin, indent=1)
    if file.exists():
        if json.loads(file.read_text(encoding="utf-8")) != json.loads(record):
            raise CheckpointError(
                f"{folder} holds what came of other options, another policy or other data: choose another output_dir"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, record)
