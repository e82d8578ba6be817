"""The environment contract: text in, text out, one vocabulary of ``info`` keys, named tasks, snapshots.

Every environment of the package subclasses :class:`TextEnv`. ``info`` has the same keys everywhere:

==================== ==================================================================================
``task_id``          name of the task that is being played, from the split's manifest
``task_type``        family of the task
``split``            train, valid_seen, valid_unseen, ...
``instruction``      the goal, as one sentence
``score``            progress in [0, 1]
``won``              the simulator's own word for success; never "done and score > 0"
``action_valid``     whether the last action counts as one (True after reset); see below
``admissible_commands`` sorted list, only when the environment was made with ``admissible_commands=True``
``stop_reason``      None while the episode runs, else a :class:`~agentgym_tlm.trajectory.StopReason` value
==================== ==================================================================================

What ``action_valid`` means is what the simulator can tell, so that its rate compares within an environment only: in
ALFWorld an action was understood and possible, in ScienceWorld it was understood, and in HotpotQA it is one of the
actions, with something to search for or a page to look it up on.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from agentgym_tlm.errors import ConfigError, TaskNotFoundError
from agentgym_tlm.ranges import check_count
from agentgym_tlm.trajectory import StopReason

Info = dict[str, Any]


class TextSpace(spaces.Text):
    """Space of all Unicode strings: ``contains`` any ``str``; ``sample`` draws a short printable one.

    ``gymnasium.spaces.Text`` accepts only listed characters, which no real observation keeps to.
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length=32, min_length=0, charset="abcdefghijklmnopqrstuvwxyz 0123456789", seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace)

    def __hash__(self) -> int:
        return hash(TextSpace)

    def __repr__(self) -> str:
        return "TextSpace()"


@dataclass(frozen=True)
class TaskManifest(Sequence[str]):
    """The tasks of one split, in a fixed order, with a hash: an evaluation can name exactly what it ran.

    ``source`` says where the tasks come from, e.g. ``official data in <folder>`` or ``embedded generator``.
    """

    env_id: str
    split: str
    source: str
    task_ids: tuple[str, ...]

    @cached_property
    def sha256(self) -> str:
        """Hash over the ids, in order."""
        return hashlib.sha256("\n".join(self.task_ids).encode()).hexdigest()

    @cached_property
    def _index(self) -> dict[str, int]:
        return {task_id: i for i, task_id in enumerate(self.task_ids)}

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """Position of a task id. Raises TaskNotFoundError (a KeyError), naming near misses, when it is not there."""
        if not isinstance(value, str):
            raise ConfigError(f"a task id is a string such as {self.task_ids[0]!r}, not {value!r}")
        try:
            return self._index[value]
        except KeyError:
            close = [task_id for task_id in self.task_ids if value and value in task_id][:3]
            hint = f"; did you mean {close}?" if close else f"; the first one is {self.task_ids[0]!r}"
            raise TaskNotFoundError(
                f"no task {value!r} among the {len(self)} tasks of {self.env_id} split {self.split!r} "
                f"({self.source}){hint}"
            ) from None

    def take(self, limit: int | None) -> list[str]:
        """At most ``limit`` tasks, evenly spaced over the sorted ids so that every family is in; None: all of them."""
        if limit is None or limit >= len(self):
            return list(self.task_ids)
        if limit < 1:
            raise ConfigError(f"cannot take {limit} tasks: the number must be at least 1")
        return [self.task_ids[i * len(self) // limit] for i in range(limit)]

    def __len__(self) -> int:
        return len(self.task_ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.task_ids)

    def __getitem__(self, index: Any) -> Any:
        return self.task_ids[index]

    def __contains__(self, value: object) -> bool:
        return value in self._index


class Expert(Protocol):
    """A scripted player of one episode."""

    def act(self, observation: str) -> tuple[str, str]:
        """Thought and action for the newest observation (the first one is what ``reset`` returned)."""
        ...

    def mistake(self, observation: str, rng: np.random.Generator) -> tuple[str, str] | None:
        """A plausible wrong thought and action from which :meth:`act` recovers; None if none fits now.

        Called instead of :meth:`act` for the newest observation, which the expert takes in either way; when None is
        returned, :meth:`act` is called with the same observation next and must not be misled by seeing it twice.
        """
        ...


class TextEnv(gym.Env[str, str]):
    """Base of the package's environments; see the module docstring for ``info``.

    ``terminated`` is the simulator's end (won, or lost where a task can be lost); ``truncated`` the step limit. The
    limit is counted here, from ``max_episode_steps`` (None: no limit), so that it survives snapshots;
    ``gym.make(..., max_episode_steps=N)`` sets it through :class:`StepLimit`.
    """

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 4}  # noqa: RUF012

    splits: ClassVar[tuple[str, ...]] = ()
    """Every split there can be; which of them exist depends on the data."""
    in_process: ClassVar[bool] = True
    """Whether a step is so fast that a vector environment gains nothing from worker processes."""
    slow: bool = False
    """Whether a step waits for another process or a server, so that a rollout has it wait in a thread."""
    manifest: TaskManifest

    def __init__(self, *, render_mode: str | None = None, max_episode_steps: int | None = None) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be one of {self.metadata['render_modes']}, not {render_mode!r}")
        self.render_mode = render_mode
        self.observation_space = TextSpace()
        self.action_space = TextSpace()
        check_count("max_episode_steps", max_episode_steps)
        self.max_episode_steps = max_episode_steps

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start an episode and return its first observation.

        ``options={"task_id": ...}`` plays that task; otherwise ``seed`` chooses one from the manifest, and without a
        seed the environment's own random stream does. Raises TaskNotFoundError for an unknown id.
        """

    @abstractmethod
    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, Info]:
        """Play one action. An action that cannot be understood is answered by the simulator, never by an exception."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Picklable copy of the episode's state, step count included."""

    @abstractmethod
    def restore(self, snapshot: Any) -> tuple[str, Info]:
        """Go back to ``snapshot``; returns the observation and info that were current when it was taken."""

    @abstractmethod
    def version(self) -> dict[str, str]:
        """What the episodes run on: engine, package versions, data source; recorded in every trajectory."""

    @abstractmethod
    def expert(self) -> Expert:
        """A scripted expert for the episode that was just reset."""

    def choose_task(self, seed: int | None, options: Mapping[str, Any] | None) -> str:
        """Begin a reset: seed the random stream, and return the task that ``options`` names, else one that is drawn.

        Raises TaskNotFoundError for an unknown task, ConfigError for another option.
        """
        gym.Env.reset(self, seed=seed)
        if not isinstance(options, Mapping | None):
            raise ConfigError(f"options must be a dictionary such as {{'task_id': ...}}, not {options!r}")
        options = dict(options or {})
        task_id = options.pop("task_id", None)
        if options:
            raise ConfigError(f"reset knows the option 'task_id' only, not {sorted(options)}")
        if task_id is None:
            task_id = self.manifest[int(self.np_random.integers(len(self.manifest)))]
        self.manifest.index(task_id)
        return str(task_id)

    @staticmethod
    def check_step(action: str, stop_reason: str | None) -> None:
        """Raise InvalidAction for an action that is no string, ResetNeeded after the end of the episode."""
        if not isinstance(action, str):
            raise gym.error.InvalidAction(f"an action is a string, not {type(action).__name__}")
        if stop_reason is not None:
            raise gym.error.ResetNeeded(f"the episode is over ({stop_reason}): call reset()")

    def show(self, action: str | None, observation: str) -> str | None:
        """Render the last action, if any, and its observation: returned in mode ``ansi``, printed in mode ``human``."""
        text = observation if action is None else f"> {action}\n{observation}"
        if self.render_mode == "ansi":
            return text
        if self.render_mode == "human":
            print(text, end="\n\n", flush=True)
        return None

    def _render_human(self) -> None:
        if self.render_mode == "human":
            self.render()

    @staticmethod
    def stop_reason(*, won: bool, terminated: bool, truncated: bool) -> str | None:
        """The ``info["stop_reason"]`` value that belongs to a step's outcome."""
        if won:
            return StopReason.WON.value
        if terminated:
            return StopReason.LOST.value
        return StopReason.MAX_STEPS.value if truncated else None


class StepLimit(gym.Wrapper[str, str, str, str], gym.utils.RecordConstructorArgs):
    """Hands the limit of ``gym.make(..., max_episode_steps=N)`` down to the :class:`TextEnv`.

    Gymnasium tells it to its own ``TimeLimit`` wrapper only, whose truncation would come without a ``stop_reason``.
    Every environment is registered with this wrapper as its outermost.
    """

    def __init__(self, env: gym.Env[str, str]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        if isinstance(env.unwrapped, TextEnv) and env.spec is not None:
            check_count("max_episode_steps", env.spec.max_episode_steps)
            env.unwrapped.max_episode_steps = env.spec.max_episode_steps
