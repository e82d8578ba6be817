"""Several episodes of a text environment side by side: what ``gymnasium.make_vec`` returns.

Text does not fit into the arrays and shared memory of Gymnasium's own vector environments, whose asynchronous one
corrupts it; and agents need what those lack: a task for every slot, slots that wait, and slots whose machinery may fail
without ending the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from agentgym_tlm.envs.args import env_class
from agentgym_tlm.envs.base import Info, TextSpace
from agentgym_tlm.envs.group import EnvGroup, Failure
from agentgym_tlm.envs.worker import WorkerPool
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.ranges import check_count, check_range
from agentgym_tlm.trajectory import StopReason

Texts = tuple[str, ...]
Mask = npt.NDArray[np.bool_]
STEP_TIMEOUT = 300.0
"""Seconds that a worker has for a step or a reset, per slot that it holds, unless ``step_timeout`` says otherwise.

More than an environment takes to notice by itself that its machinery hangs, and to report and end that."""


class TextVectorEnv(VectorEnv[Texts, Sequence[str | None], npt.NDArray[Any]]):
    """``num_envs`` text environments, each of which is reset on its own.

    ## Spaces
    Observations are a tuple of strings, one per slot; actions a sequence of strings, in which None lets a slot wait.
    Rewards are float64, terminations and truncations bool, of shape ``(num_envs,)``. Infos are in Gymnasium's vector
    format: for every key of the single environment's ``info`` an array over the slots, and under ``_key`` a mask of the
    slots that have it.

    ## Resetting
    Nothing is reset by itself (``metadata["autoreset_mode"]`` is ``DISABLED``). ``reset`` starts an episode in every
    slot, or in those of ``options={"reset_mask": mask}``. ``seed`` is one number, from which slot i gets ``seed + i``,
    or a list with a number or None per slot. ``options={"task_id": ...}`` names one task for all slots, or is a list
    with a task id or None per slot. Without either, a slot's next task follows from the seed that it was last given.

    ## Stepping
    A slot that waits keeps its observation, with reward 0, not ended, and has no infos. An action for a slot that has
    ended, or was never reset, raises ``gymnasium.error.ResetNeeded`` before any slot is played.

    ## Failures
    When a slot's machinery fails (it raises EnvironmentFailureError; its worker dies or exceeds ``step_timeout``), that
    step returns ``truncated``, ``infos["stop_reason"][slot] == "env_error"`` and the reason in ``infos["error"]``. Its
    outcome is unknown: the reward 0 in its place must not be counted. A reset that fails leaves the slot ended, with
    the same two infos and an empty observation. The next reset of the slot works on new machinery. Any other exception
    is the caller's mistake or a defect; the slots of that call must be reset after it, as after Ctrl-C.

    ## Arguments
    - ``num_envs``, ``env_id``: how many slots, of which environment.
    - ``workers``: number of processes over which the slots are dealt out; 0 plays them in this process, one after the
      other. By default 0 for a fast environment (``TextEnv.in_process``), else one per slot. Slots that share a worker
      fail together.
    - ``step_timeout``: seconds that a worker has for a step or a reset, per slot that it holds; 300 by default.
      A worker that takes longer is killed, and on Linux every process that it has started, too.
    - ``recycle_after``: replace a worker by a fresh one after that many episodes; needs a worker per slot.
    - all others: those of the environment and of ``gymnasium.make``.
    """

    metadata: dict[str, Any]

    def __init__(
        self,
        num_envs: int,
        env_id: str,
        *,
        workers: int | None = None,
        step_timeout: float | None = None,
        recycle_after: int | None = None,
        **env_kwargs: Any,
    ) -> None:
        cls = env_class(env_id)
        check_count("num_envs", num_envs)
        check_count("workers", workers, "[0, inf)")
        check_count("recycle_after", recycle_after)
        check_range("step_timeout", step_timeout, "(0, inf)")
        if workers is None:
            workers = 0 if cls.in_process else num_envs
        if not 0 <= workers <= num_envs:
            raise ConfigError(f"workers={workers} must be between 0 (play in this process) and num_envs={num_envs}")
        if workers == 0 and (step_timeout is not None or recycle_after is not None):
            raise ConfigError("step_timeout and recycle_after are for worker processes: pass workers, too")
        if recycle_after is not None and workers < num_envs:
            raise ConfigError(
                f"recycle_after={recycle_after} needs one worker per slot (workers={num_envs}): other slots of a "
                "worker would lose their episodes"
            )
        self.num_envs = num_envs
        self.metadata = {**cls.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = env_kwargs.get("render_mode")
        self.single_observation_space = self.single_action_space = TextSpace()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        spec = gym.spec(env_id)
        self._group: EnvGroup | WorkerPool = (
            WorkerPool(spec, env_kwargs, num_envs, workers, step_timeout or STEP_TIMEOUT, recycle_after)
            if workers
            else EnvGroup(spec, env_kwargs, range(num_envs))
        )
        self._release = weakref.finalize(self, self._group.close)
        self._seeds: list[np.random.Generator | None] = [None] * num_envs
        self._observations = [""] * num_envs
        self._infos: list[Info] = [{} for _ in range(num_envs)]
        self._running = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Texts, dict[str, Any]]:
        """Start episodes; see the class. Raises ConfigError for options that do not fit, TaskNotFoundError."""
        self._check_open()
        if not isinstance(options, Mapping | None):
            raise ConfigError(f"options must be a dictionary such as {{'task_id': ...}}, not {options!r}")
        options = dict(options or {})
        mask = self._mask(options.pop("reset_mask", None))
        tasks = self._per_slot("options['task_id']", options.pop("task_id", None), str)
        if isinstance(seed, (int, np.integer)):
            seed = [int(seed) + slot for slot in range(self.num_envs)]
        elif isinstance(seed, (list, tuple)):
            seed = [int(each) if isinstance(each, np.integer) else each for each in seed]
        seeds = self._per_slot("seed", seed, int)
        calls = {}
        for slot in np.flatnonzero(mask).tolist():
            task = {} if tasks[slot] is None else {"task_id": tasks[slot]}
            calls[slot] = (self._seed(slot, seeds[slot]), {**options, **task})
        self._running[mask] = False
        infos: dict[str, Any] = {}
        for slot, result in self._group.reset(calls).items():
            if isinstance(result, Failure):
                self._observations[slot] = ""
                info = {"stop_reason": StopReason.ENV_ERROR.value, "error": result.message}
            else:
                self._observations[slot], info = result
                self._running[slot] = True
            self._infos[slot] = info
            infos = self._add_info(infos, info, slot)
        return tuple(self._observations), infos

    def step(self, actions: Sequence[str | None]) -> tuple[Texts, npt.NDArray[Any], Mask, Mask, dict[str, Any]]:
        """Play one action in every slot that does not wait; see the class."""
        self._check_open()
        played = self._actions(actions)
        if over := [slot for slot in played if not self._running[slot]]:
            raise gym.error.ResetNeeded(
                f"no episode is running in slots {over}: reset them with options={{'reset_mask': mask}}, or let them "
                "wait by passing None"
            )
        rewards = np.zeros(self.num_envs)
        terminations, truncations = np.zeros((2, self.num_envs), dtype=np.bool_)
        self._running[list(played)] = False
        infos: dict[str, Any] = {}
        for slot, result in self._group.step(played).items():
            if isinstance(result, Failure):
                truncations[slot] = True
                failed = {"action_valid": False, "stop_reason": StopReason.ENV_ERROR.value, "error": result.message}
                info = {**self._infos[slot], **failed}
            else:
                self._observations[slot], rewards[slot], terminations[slot], truncations[slot], info = result
            self._running[slot] = not (terminations[slot] or truncations[slot])
            self._infos[slot] = info
            infos = self._add_info(infos, info, slot)
        return tuple(self._observations), rewards, terminations, truncations, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The attribute ``name`` of every slot's environment; if it is a method, what it returns for these arguments.

        With workers it must be possible to pickle arguments and values. Raises EnvironmentFailureError.
        """
        self._check_open()
        values = self._group.call(name, args, kwargs)
        return tuple(values[slot] for slot in range(self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute ``name`` of every slot's environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every slot's environment: to its element of a list or tuple, else all to one value.

        An environment or a worker that is replaced has it again.
        """
        self._check_open()
        values = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ConfigError(f"{len(values)} values for {self.num_envs} slots")
        self._group.set_attr(name, dict(enumerate(values)))

    def render(self) -> tuple[Any, ...]:
        """What every slot's environment renders."""
        return self.call("render")

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments and end the workers. Happens by itself when the object is no longer used."""
        self._release()

    def _check_open(self) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError("these environments have been closed: make new ones")

    def _actions(self, actions: Sequence[str | None]) -> dict[int, str]:
        if isinstance(actions, str) or not isinstance(actions, (Sequence, np.ndarray)):
            raise gym.error.InvalidAction(f"actions are a sequence of {self.num_envs} strings, not {actions!r}")
        if len(actions) != self.num_envs:
            raise gym.error.InvalidAction(f"{len(actions)} actions for {self.num_envs} slots; None lets a slot wait")
        played = {slot: action for slot, action in enumerate(actions) if action is not None}
        for slot, action in played.items():
            if not isinstance(action, str):
                raise gym.error.InvalidAction(f"the action of slot {slot} is a {type(action).__name__}, not a string")
        return {slot: str(action) for slot, action in played.items()}

    def _mask(self, mask: Any) -> Mask:
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        given: npt.NDArray[Any] = np.asarray(mask)
        if given.dtype != np.bool_ or given.shape != (self.num_envs,) or not given.any():
            raise ConfigError(
                f"options['reset_mask'] must be {self.num_envs} booleans of which at least one is True, not {mask!r}"
            )
        return given

    def _per_slot(self, what: str, value: Any, kind: type) -> list[Any]:
        """A value for all slots, or a list with one or None for each, as a list."""
        if isinstance(value, np.ndarray):
            value = value.tolist()
        values = list(value) if isinstance(value, (list, tuple)) else [value] * self.num_envs
        if len(values) != self.num_envs:
            raise ConfigError(f"{what} has {len(values)} values for {self.num_envs} slots")
        if wrong := [value for value in values if value is not None and not isinstance(value, kind)]:
            raise ConfigError(f"{what} must be {kind.__name__}s or None, not {wrong[0]!r}")
        return values

    def _seed(self, slot: int, seed: int | None) -> int:
        """The seed of a slot's episode; one that is not given is drawn here, so that no worker holds a random state."""
        if seed is not None:
            self._seeds[slot] = np.random.default_rng(seed)
            return seed
        stream = self._seeds[slot]
        if stream is None:
            stream = self._seeds[slot] = np.random.default_rng()
        return int(stream.integers(2**31))


def single_env(**_: Any) -> NoReturn:
    """Entry point of the specification that ``make_vec`` keeps: Gymnasium's own vector environments would call it."""
    raise ConfigError(
        "text environments are vectorised by TextVectorEnv only: leave vectorization_mode out of make_vec, and pass "
        "workers=N for processes; gym.make takes the id, not the specification of a vector environment"
    )
