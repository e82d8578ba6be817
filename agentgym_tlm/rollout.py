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

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from agentgym_tlm.envs.args import text_env
from agentgym_tlm.envs.base import TextEnv
from agentgym_tlm.errors import ConfigError, EnvironmentFailureError
from agentgym_tlm.policies.base import Conversation, Generation, Policy
from agentgym_tlm.prefix import Beginnings, Prefix
from agentgym_tlm.trajectory import StopReason, Trajectory, TrajectoryWriter, Turn, read_trajectories


@dataclass
class RolloutProgress:
    """Counts so far; ``tokens`` are those that the policy produced, ``wins`` the episodes won."""

    total: int
    episodes: int = 0
    turns: int = 0
    tokens: int = 0
    wins: int = 0


class EpisodeKey(NamedTuple):
    """What names an episode within a rollout; ``prefix`` is the name of the one that it begins with, or ""."""

    task_id: str
    sample: int
    prefix: str = ""

    @classmethod
    def to_play(cls, task: str | Prefix) -> EpisodeKey:
        """Of the first episode of ``task``."""
        return cls(task, 0) if isinstance(task, str) else cls(task.task_id, 0, task.name)

    @classmethod
    def of(cls, trajectory: Trajectory) -> EpisodeKey:
        """Of an episode that was played."""
        return cls(trajectory.task_id, trajectory.sample, trajectory.metadata.get("prefix", ""))


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


def episode_seed(seed: int, task_id: str, sample: int | None = None, prefix: str = "") -> np.random.SeedSequence:
    """Seed of an episode's random stream; without ``sample``, of the initial state that a task's samples share."""
    name = f"{task_id}\n{'' if sample is None else sample}" + (f"\n{prefix}" if prefix else "")
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.SeedSequence([seed, *np.frombuffer(digest, dtype="<u4").tolist()])


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
        self.policy = policy
        self.env_id = env_id
        self.split = split
        self.seed = seed
        self._env_kwargs = dict(env_kwargs or {})
        self._max_turns = max_turns
        self._writer = writer
        self._progress = progress
        first = _Slot(self)
        manifest = first.text_env.manifest
        starts = {EpisodeKey.to_play(task): task for task in (manifest if tasks is None else tasks)}
        for task_id, *_ in starts:
            manifest.index(task_id)
        if tasks is not None and len(starts) < len(tasks):
            raise ConfigError("tasks names a task twice; samples_per_task plays tasks more than once")
        self.prefixes = {key.prefix: task for key, task in starts.items() if isinstance(task, Prefix)}
        self.keys = [key._replace(sample=sample) for key in starts for sample in range(samples_per_task)]
        queue = [key for key in self.keys if key not in skip]
        self.beginnings = Beginnings(key.prefix for key in queue if key.prefix)
        self._queue = deque(queue)
        self.threads: Executor | None = None
        self._counts = RolloutProgress(total=len(queue))
        self._slots = [first, *(_Slot(self) for _ in range(1, min(n_slots, len(queue))))]

    def make_env(self) -> gym.Env[str, str]:
        limit = {} if self._max_turns is None else {"max_episode_steps": self._max_turns}
        listed = {"admissible_commands": True} if self.policy.format.lists_commands else {}
        options = {**self._env_kwargs, **listed, "split": self.split, **limit}
        return gym.make(self.env_id, disable_env_checker=True, **options)

    def check_resumable(self, earlier: Sequence[Trajectory]) -> None:
        """Raise ConfigError, and release the environments, unless ``earlier`` was recorded by a call like this one.

        What a log does not tell, as those of earlier releases do not tell the step limit, is not compared.
        """
        policy = self.policy
        identity = {
            "environment": self.env_id,
            "split": self.split,
            "seed": self.seed,
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
        with ThreadPoolExecutor(len(self._slots)) if slow else nullcontext() as self.threads:
            while True:
                for slot in self._slots:
                    if slot.trajectory is None and self._queue:
                        slot.start(self._queue.popleft())
                running = [slot for slot in self._slots if slot.trajectory is not None]
                if not running:
                    return
                _wait_for_half(running)
                ended = [self._record(end) for slot in running if slot.answered and (end := slot.hear()) is not None]
                if self._progress is not None:
                    self._progress(self._counts)
                yield from ended
                ready = [slot for slot in running if slot.ready]
                if not ready or (ended and self._queue):
                    continue
                generations = self.policy.act([slot.conversation for slot in ready])
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


class _Slot:
    """One environment, and the episode that runs in it if ``trajectory`` is not None."""

    conversation: Conversation
    trajectory: Trajectory | None = None
    _answer: Future[Any] | None = None

    def __init__(self, run: _Rollout) -> None:
        self._run = run
        self._env = run.make_env()
        self._playing: gym.Env[str, str] = self._env
        self._turns_left: int | None = None

    @property
    def text_env(self) -> TextEnv:
        """The environment without its wrappers."""
        return text_env(self._env)

    @property
    def world(self) -> dict[str, Any]:
        """What an episode's course depends on besides policy, task and seed."""
        return {**self.text_env.version(), "max_episode_steps": self.text_env.max_episode_steps}

    @property
    def answered(self) -> bool:
        """Whether there is something to :meth:`hear`."""
        return self._answer is not None and self._answer.done()

    @property
    def ready(self) -> bool:
        """Whether it is the policy's turn."""
        return self.trajectory is not None and self._answer is None

    def wait(self) -> Future[Any]:
        """What the environment is about to answer."""
        assert self._answer is not None
        return self._answer

    def start(self, key: EpisodeKey) -> None:
        """Begin an episode; the environment's answer is its first observation."""
        run = self._run
        prefix = run.prefixes.get(key.prefix)
        rng = np.random.default_rng(episode_seed(run.seed, *key))
        self.conversation = Conversation(run.env_id, key.task_id, "", rng)
        weights = run.policy.fingerprint
        start = "/".join(filter(None, (key.task_id, key.prefix)))
        self.trajectory = Trajectory(
            env_id=run.env_id,
            task_id=key.task_id,
            task_type="",
            split=run.split,
            instruction="",
            seed=run.seed,
            policy=run.policy.name,
            prompt_format=run.policy.format.name,
            group_id=f"{start}/seed{run.seed}/{run.policy.name}@{run.policy.version}",
            sample=key.sample,
            env=self.world,
            metadata={**({"weights": weights} if weights else {}), **({} if prefix is None else prefix.record)},
        )
        state = int(episode_seed(run.seed if prefix is None else prefix.state_seed, key.task_id).generate_state(1)[0])
        self._turns_left = None
        if prefix is not None:  # its snapshot may be another slot's, too
            self._answer = _answered(lambda: self._begin(prefix, state))
            return
        self._playing = self._env
        self.conversation.expert = self.text_env.expert
        self._ask(lambda: self._env.reset(seed=state, options={"task_id": key.task_id}))

    def _ask(self, call: Callable[[], Any]) -> None:
        threads = self._run.threads
        self._answer = _answered(call) if threads is None else threads.submit(call)

    def _begin(self, prefix: Prefix, state: int) -> tuple[str, dict[str, Any]]:
        """Bring environment and conversation to where the policy's first turn is due."""
        assert self.trajectory is not None
        self._turns_left = prefix.max_turns
        self.trajectory.turns = prefix.context()
        self.conversation.observations = [turn.observation for turn in self.trajectory.turns]
        self.conversation.responses = [turn.response for turn in self.trajectory.turns]
        self.conversation.commands = [turn.admissible_commands for turn in self.trajectory.turns]
        self.conversation.sequences, self.conversation.spans = prefix.tokens()
        self._playing = self.text_env  # the wrappers of gym.make would miss what restore does
        return self._run.beginnings.begin(prefix, self.text_env, state)

    def play(self, generation: Generation) -> None:
        """Carry out a response."""
        assert self.trajectory is not None
        if generation.aborted or generation.overflow or generation.error is not None:
            self.trajectory.error = generation.error
            reason = StopReason.ABORTED if generation.aborted else StopReason.TOKEN_BUDGET
            reason = reason if generation.error is None else StopReason.POLICY_ERROR
            self._answer = _answered(lambda: reason)
            return
        conversation, policy = self.conversation, self._run.policy
        conversation.responses.append(generation.text)
        parsed = policy.format.parse(generation.text)
        turn = Turn(
            observation=conversation.observations[-1],
            response=generation.text,
            action=parsed.action,
            action_valid=False,
            reward=0.0,
            finish_reason=generation.finish_reason,
            logprobs=generation.logprobs,
            policy_version=policy.version,
            trainable=generation.trainable,
            well_formed=parsed.well_formed,
            admissible_commands=conversation.commands[-1],
        )
        self.trajectory.turns.append(turn)
        if generation.token_ids is not None:  # a given turn may have been text until the policy encoded it
            for played, (sequence, start, end) in zip(self.trajectory.turns, conversation.spans, strict=True):
                played.sequence, played.span = sequence, (start, end)
        self._ask(lambda: self._playing.step(turn.action or ""))

    def hear(self) -> Trajectory | None:
        """Take in what the environment answered; returns the trajectory if that ends the episode."""
        assert self.trajectory is not None
        assert self._answer is not None
        answer, self._answer = self._answer, None
        try:
            result = answer.result()
        except EnvironmentFailureError as error:
            if self.trajectory.turns:
                self.trajectory.turns[-1].trainable = False  # nobody knows what it would have done
            return self._fail(error)
        if isinstance(result, StopReason):
            return self.end(result)
        if len(result) == 2:
            observation, info = result
            self.trajectory.instruction = self.conversation.instruction = info["instruction"]
            self.trajectory.task_type = info["task_type"]
            self._observe(observation, info)
            return None
        observation, reward, terminated, truncated, info = result
        turn = self.trajectory.turns[-1]
        turn.reward = float(reward)
        turn.action_valid = turn.well_formed and bool(info["action_valid"])
        self._observe(observation, info)
        if self._turns_left is not None:
            self._turns_left -= 1
            truncated = truncated or self._turns_left == 0
        reason = TextEnv.stop_reason(won=info["won"], terminated=terminated, truncated=truncated)
        return None if reason is None else self.end(StopReason(reason))

    def end(self, reason: StopReason) -> Trajectory:
        """Complete the trajectory and leave the slot free."""
        assert self.trajectory is not None
        trajectory, self.trajectory, self._answer = self.trajectory, None, None
        trajectory.stop_reason = reason
        trajectory.sequences = self.conversation.sequences
        trajectory.metadata.update(self.conversation.metadata)
        if len(self.conversation.observations) > len(trajectory.turns):
            trajectory.final_observation = self.conversation.observations[-1]
        self._run.policy.end(self.conversation)
        return trajectory

    def close(self) -> None:
        """Release the environment and, if an episode is running, what the policy holds for it."""
        if self.trajectory is not None:
            self.end(StopReason.ABORTED)
        self._env.close()

    def _observe(self, observation: str, info: dict[str, Any]) -> None:
        assert self.trajectory is not None
        self.conversation.observations.append(observation)
        self.conversation.info = info
        self.conversation.commands.append(
            info["admissible_commands"] if self._run.policy.format.lists_commands else None
        )
        self.trajectory.score, self.trajectory.won = float(info["score"]), bool(info["won"])

    def _fail(self, error: EnvironmentFailureError) -> Trajectory:
        """End the episode as the environment's failure, and replace the environment."""
        assert self.trajectory is not None
        self.trajectory.error = str(error)
        self._env.close()
        self._env = self._run.make_env()
        return self.end(StopReason.ENV_ERROR)


def _answered(call: Callable[[], Any]) -> Future[Any]:
    """What ``call`` returns, or its EnvironmentFailureError, as an answer that has arrived."""
    answer: Future[Any] = Future()
    try:
        answer.set_result(call())
    except EnvironmentFailureError as error:
        answer.set_exception(error)
    return answer


def _wait_for_half(slots: Sequence[_Slot]) -> None:
    """Wait until at least half of the slots are ready or answered."""
    while pending := [slot.wait() for slot in slots if not (slot.ready or slot.answered)]:
        if 2 * len(pending) <= len(slots):
            return
        wait(pending, return_when=FIRST_COMPLETED)
