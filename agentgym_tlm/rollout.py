"""The one rollout interface: a policy plays tasks of an environment, and every episode becomes a trajectory.

``n_slots`` episodes run side by side, one environment each. All running episodes get their next response in one call of
the policy, and a slot whose episode has ended takes the next task at once: no slot waits for another's episode.
Environments whose steps take long (``TextEnv.slow``) take them in threads, while the policy writes for the others: a
call of the policy is then for those that have answered, as soon as these are half of the running ones.

What an episode does depends on the seed, its task, its sample number, the prefix that it begins with, if any, and the
policy, and on nothing else: not on the number of slots, nor on the other tasks or their order. (Up to floating point: a
language model's logits differ in their last bits with the size of the batch, which can tip a draw about once in a
million.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.base import Policy
from agentgym_tlm.prefix import Beginnings, Prefix
from agentgym_tlm.slots import EpisodeKey, Slot, Stage, wait_for_half
from agentgym_tlm.trajectory import StopReason, Trajectory, TrajectoryWriter, read_trajectories


@dataclass
class RolloutProgress:
    """Counts so far; ``tokens`` are those that the policy produced, ``wins`` the episodes won."""

    total: int
    episodes: int = 0
    turns: int = 0
    tokens: int = 0
    wins: int = 0


def rollout(
    policy: Policy,
    env_id: str,
    tasks: Sequence[str | Prefix] | None = None,
    *,
    split: str = "train",
    n_slots: int = 32,
    env_kwargs: Mapping[str, Any] | None = None,
    samples_per_task: int = 1,
    seed: int = 0,
    max_turns: int | None = None,
    writer: TrajectoryWriter | None = None,
    resume: Sequence[Trajectory] = (),
    progress: Callable[[RolloutProgress], None] | None = None,
) -> list[Trajectory]:
    """Play every task ``samples_per_task`` times; trajectories in the order of ``tasks``, samples of a task together.

    ``tasks`` are task ids, by default all of the split's manifest, in its order; an episode of a :class:`Prefix` begins
    behind its turns. A policy whose prompt format lists the admissible commands gets environments that name them, and
    every turn records those that it was shown. ``max_turns`` overrides the environment's step limit. ``writer`` gets
    each trajectory as its episode ends. ``progress`` is called with the counts so far after every round of turns.
    ``resume`` are trajectories of an earlier, interrupted call with the same arguments: they are returned in their
    places and not played again, except those that ended as ``env_error``, ``policy_error`` or ``aborted``.

    An EnvironmentFailureError ends its episode as ``env_error`` and replaces the environment; a generation with an
    error ends its episode as ``policy_error``, and a policy that is of no use any more raises. On KeyboardInterrupt the
    running episodes are written as ``aborted`` before it propagates. Raises ConfigError when ``resume`` does not belong
    to this call: another environment, step limit, split, seed or policy, or the same policy with other weights.
    Raises TaskNotFoundError for an unknown task.
    """
    kept = {
        EpisodeKey.of(trajectory): trajectory
        for trajectory in resume
        if not (trajectory.stop_reason.is_breakdown or trajectory.stop_reason is StopReason.ABORTED)
    }
    run = _Rollout(
        policy, env_id, tasks, split, n_slots, env_kwargs, samples_per_task, seed, max_turns, writer, kept, progress
    )
    run.check_resumable(resume)
    played = {EpisodeKey.of(trajectory): trajectory for trajectory in run.play()}
    return [played[key] if key in played else kept[key] for key in run.keys]


def logged_rollout(
    log: Path, policy: Policy, env_id: str, tasks: Sequence[str | Prefix] | None = None, **options: Any
) -> list[Trajectory]:
    """:func:`rollout` with its ``options``, logged to a JSONL file; episodes that it holds are not played again."""
    with TrajectoryWriter(log) as writer:
        earlier = list(read_trajectories(log))
        return rollout(policy, env_id, tasks, writer=writer, resume=earlier, **options)


def iter_rollout(
    policy: Policy,
    env_id: str,
    tasks: Sequence[str | Prefix] | None = None,
    *,
    split: str = "train",
    n_slots: int = 32,
    env_kwargs: Mapping[str, Any] | None = None,
    samples_per_task: int = 1,
    seed: int = 0,
    max_turns: int | None = None,
    writer: TrajectoryWriter | None = None,
    skip: Collection[tuple[str, int] | EpisodeKey] = (),
    progress: Callable[[RolloutProgress], None] | None = None,
) -> Iterator[Trajectory]:
    """:func:`rollout` as a generator: trajectories as their episodes end, in the order in which they end.

    ``skip`` names episodes, as (task id, sample) or as EpisodeKey, that are not played.
    """
    names = {EpisodeKey(*name) for name in skip}
    run = _Rollout(
        policy, env_id, tasks, split, n_slots, env_kwargs, samples_per_task, seed, max_turns, writer, names, progress
    )
    return run.play()


class _Rollout:
    """The state of one call: what is to be played, the slots, the counts."""

    def __init__(
        self,
        policy: Policy,
        env_id: str,
        tasks: Sequence[str | Prefix] | None,
        split: str,
        n_slots: int,
        env_kwargs: Mapping[str, Any] | None,
        samples_per_task: int,
        seed: int,
        max_turns: int | None,
        writer: TrajectoryWriter | None,
        skip: Collection[EpisodeKey],
        progress: Callable[[RolloutProgress], None] | None,
    ) -> None:
        if n_slots < 1 or samples_per_task < 1:
            raise ConfigError(f"n_slots={n_slots} and samples_per_task={samples_per_task} must be at least 1")
        if seed < 0:
            raise ConfigError(f"seed={seed} must not be negative")
        if "split" in (env_kwargs or {}):
            raise ConfigError("env_kwargs must not name the split: it is an argument of its own")
        self._stage = Stage(policy, env_id, split, seed, dict(env_kwargs or {}), max_turns)
        self._writer = writer
        self._progress = progress
        first = Slot(self._stage)
        manifest = first.text_env.manifest
        starts = {EpisodeKey.to_play(task): task for task in (manifest if tasks is None else tasks)}
        for task_id, *_ in starts:
            manifest.index(task_id)
        if tasks is not None and len(starts) < len(tasks):
            raise ConfigError("tasks names a task twice; samples_per_task plays tasks more than once")
        self._stage.prefixes = {key.prefix: task for key, task in starts.items() if isinstance(task, Prefix)}
        self.keys = [key._replace(sample=sample) for key in starts for sample in range(samples_per_task)]
        queue = [key for key in self.keys if key not in skip]
        self._stage.beginnings = Beginnings(key.prefix for key in queue if key.prefix)
        self._queue = deque(queue)
        self._counts = RolloutProgress(total=len(queue))
        self._slots = [first, *(Slot(self._stage) for _ in range(1, min(n_slots, len(queue))))]

    def check_resumable(self, earlier: Sequence[Trajectory]) -> None:
        """Raise ConfigError, and release the environments, unless ``earlier`` was recorded by a call like this one.

        What a log does not tell, as those of earlier releases do not tell the step limit, is not compared.
        """
        stage, policy = self._stage, self._stage.policy
        identity = {
            "environment": stage.env_id,
            "split": stage.split,
            "seed": stage.seed,
            "policy": policy.name,
            "prompt format": policy.format.name,
        }
        now = {**self._slots[0].world, **identity, "policy weights": policy.fingerprint}
        for trajectory in earlier:
            recorded = {
                **trajectory.env,
                "environment": trajectory.env_id,
                "split": trajectory.split,
                "seed": trajectory.seed,
                "policy": trajectory.policy,
                "prompt format": trajectory.prompt_format or policy.format.name,
                "policy weights": trajectory.metadata.get("weights", policy.fingerprint),
            }
            other = [name for name in now if recorded.get(name, now[name]) != now[name]]
            if other:
                self._close()
                differences = ", ".join(f"{name} {recorded[name]!r}, now {now[name]!r}" for name in other)
                raise ConfigError(f"cannot resume: the recorded episodes have {differences}. Write to another log.")

    def play(self) -> Iterator[Trajectory]:
        try:
            yield from self._play()
        except KeyboardInterrupt:
            for slot in self._slots:
                if slot.trajectory is not None:
                    self._record(slot.end(StopReason.ABORTED))
            raise
        finally:
            self._close()

    def _close(self) -> None:
        for slot in self._slots:
            slot.close()

    def _play(self) -> Iterator[Trajectory]:
        slow = self._slots[0].text_env.slow
        with ThreadPoolExecutor(len(self._slots)) if slow else nullcontext() as self._stage.threads:
            while True:
                for slot in self._slots:
                    if slot.trajectory is None and self._queue:
                        slot.start(self._queue.popleft())
                running = [slot for slot in self._slots if slot.trajectory is not None]
                if not running:
                    return
                wait_for_half(running)
                ended = [self._record(end) for slot in running if slot.answered and (end := slot.hear()) is not None]
                if self._progress is not None:
                    self._progress(self._counts)
                yield from ended
                ready = [slot for slot in running if slot.ready]
                if not ready or (ended and self._queue):
                    continue
                generations = self._stage.policy.act([slot.conversation for slot in ready])
                for slot, generation in zip(ready, generations, strict=True):
                    self._counts.turns += not (generation.overflow or generation.aborted or generation.error)
                    self._counts.tokens += len(generation.token_ids or ())
                    slot.play(generation)

    def _record(self, trajectory: Trajectory) -> Trajectory:
        self._counts.episodes += 1
        self._counts.wins += trajectory.won
        if self._writer is not None:
            self._writer.write(trajectory)
        return trajectory
