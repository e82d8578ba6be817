"""The slots of a rollout: an environment each, and the episode that runs in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from agentgym_tlm.envs.args import text_env
from agentgym_tlm.envs.base import TextEnv
from agentgym_tlm.errors import EnvironmentFailureError
from agentgym_tlm.policies.base import Conversation, Generation, Policy
from agentgym_tlm.prefix import Beginnings, Prefix
from agentgym_tlm.trajectory import StopReason, Trajectory, Turn


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


def episode_seed(seed: int, task_id: str, sample: int | None = None, prefix: str = "") -> np.random.SeedSequence:
    """Seed of an episode's random stream; without ``sample``, of the initial state that a task's samples share."""
    name = f"{task_id}\n{'' if sample is None else sample}" + (f"\n{prefix}" if prefix else "")
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.SeedSequence([seed, *np.frombuffer(digest, dtype="<u4").tolist()])


@dataclass
class Stage:
    """What the slots of a rollout share; ``prefixes`` by name, ``threads`` for environments that are slow."""

    policy: Policy
    env_id: str
    split: str
    seed: int
    env_kwargs: Mapping[str, Any]
    max_turns: int | None
    prefixes: Mapping[str, Prefix] = field(default_factory=dict)
    beginnings: Beginnings = field(default_factory=lambda: Beginnings(()))
    threads: Executor | None = None

    def make_env(self) -> gym.Env[str, str]:
        limit = {} if self.max_turns is None else {"max_episode_steps": self.max_turns}
        listed = {"admissible_commands": True} if self.policy.format.lists_commands else {}
        options = {**self.env_kwargs, **listed, "split": self.split, **limit}
        return gym.make(self.env_id, disable_env_checker=True, **options)


class Slot:
    """One environment, and the episode that runs in it if ``trajectory`` is not None."""

    conversation: Conversation
    trajectory: Trajectory | None = None
    _answer: Future[Any] | None = None

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._env = stage.make_env()
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
        stage = self._stage
        prefix = stage.prefixes.get(key.prefix)
        rng = np.random.default_rng(episode_seed(stage.seed, *key))
        self.conversation = Conversation(stage.env_id, key.task_id, "", rng)
        weights = stage.policy.fingerprint
        start = "/".join(filter(None, (key.task_id, key.prefix)))
        self.trajectory = Trajectory(
            env_id=stage.env_id,
            task_id=key.task_id,
            task_type="",
            split=stage.split,
            instruction="",
            seed=stage.seed,
            policy=stage.policy.name,
            prompt_format=stage.policy.format.name,
            group_id=f"{start}/seed{stage.seed}/{stage.policy.name}@{stage.policy.version}",
            sample=key.sample,
            env=self.world,
            metadata={**({"weights": weights} if weights else {}), **({} if prefix is None else prefix.record)},
        )
        state = int(episode_seed(stage.seed if prefix is None else prefix.state_seed, key.task_id).generate_state(1)[0])
        self._turns_left = None
        if prefix is not None:  # its snapshot may be another slot's, too
            self._answer = _answered(lambda: self._begin(prefix, state))
            return
        self._playing = self._env
        self.conversation.expert = self.text_env.expert
        self._ask(lambda: self._env.reset(seed=state, options={"task_id": key.task_id}))

    def _ask(self, call: Callable[[], Any]) -> None:
        threads = self._stage.threads
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
        return self._stage.beginnings.begin(prefix, self.text_env, state)

    def play(self, generation: Generation) -> None:
        """Carry out a response."""
        assert self.trajectory is not None
        if generation.aborted or generation.overflow or generation.error is not None:
            self.trajectory.error = generation.error
            reason = StopReason.ABORTED if generation.aborted else StopReason.TOKEN_BUDGET
            reason = reason if generation.error is None else StopReason.POLICY_ERROR
            self._answer = _answered(lambda: reason)
            return
        conversation, policy = self.conversation, self._stage.policy
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
        self._stage.policy.end(self.conversation)
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
            info["admissible_commands"] if self._stage.policy.format.lists_commands else None
        )
        self.trajectory.score, self.trajectory.won = float(info["score"]), bool(info["won"])

    def _fail(self, error: EnvironmentFailureError) -> Trajectory:
        """End the episode as the environment's failure, and replace the environment."""
        assert self.trajectory is not None
        self.trajectory.error = str(error)
        self._env.close()
        self._env = self._stage.make_env()
        return self.end(StopReason.ENV_ERROR)


def _answered(call: Callable[[], Any]) -> Future[Any]:
    """What ``call`` returns, or its EnvironmentFailureError, as an answer that has arrived."""
    answer: Future[Any] = Future()
    try:
        answer.set_result(call())
    except EnvironmentFailureError as error:
        answer.set_exception(error)
    return answer


def wait_for_half(slots: Sequence[Slot]) -> None:
    """Wait until at least half of the slots are ready or answered."""
    while pending := [slot.wait() for slot in slots if not (slot.ready or slot.answered)]:
        if 2 * len(pending) <= len(slots):
            return
        wait(pending, return_when=FIRST_COMPLETED)
