"""A small deterministic text world for tests that need an environment but not a big one.

Three rooms in a row (hall, study, cellar), a door between the last two, and a lamp that stands somewhere and has to be
carried somewhere else. ``ToyEnv`` is registered as ``Toy-v0`` when this module is imported.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from agentgym_tlm.decorations import FOUR_CLASSES, HINDSIGHT_MARKERS, TWO_CLASSES
from agentgym_tlm.envs.base import Expert, Info, TaskManifest, TextEnv
from agentgym_tlm.envs.registration import register
from agentgym_tlm.errors import EnvironmentFailureError
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trajectory import Trajectory

if TYPE_CHECKING:
    from agentgym_tlm.policies.language_model import LanguageModelPolicy

ROOMS = ("hall", "study", "cellar")
NOTHING = "Nothing happens."


@dataclass
class _State:
    task_id: str
    goal: str
    lamp: str | None  # a room, or None while it is carried
    room: str = "hall"
    door_open: bool = False
    steps: int = 0
    valid: bool = True
    stop_reason: str | None = None


class ToyEnv(TextEnv):
    """Carry the lamp to a room. ``fail_on`` names a task whose machinery breaks down on its second step."""

    def __init__(
        self,
        *,
        split: str = "train",
        admissible_commands: bool = False,
        fail_on: str | None = None,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode, max_episode_steps=max_episode_steps)
        tasks = tuple(sorted(f"lamp-{start}-{goal}" for start in ROOMS for goal in ROOMS if start != goal))
        self.manifest = TaskManifest("Toy-v0", split, "toy", tasks)
        self._admissible = admissible_commands
        self._fail_on = fail_on
        self._state: _State | None = None
        self._text = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        task_id = self.choose_task(seed, options)
        _, start, goal = task_id.split("-")
        self._state = _State(task_id, goal, start)
        self._say(f"You are in the {self._state.room}. {self._look()} Your task is to: {self._instruction}")
        return self._text, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        state = self._play
        self.check_step(action, state.stop_reason)
        if state.task_id == self._fail_on and state.steps == 1:
            raise EnvironmentFailureError(f"the toy broke down in {state.task_id}")
        state.steps += 1
        state.valid = action in self._commands()
        self._say(self._do(action) if state.valid else NOTHING)
        won = state.lamp == state.goal
        limit = self.max_episode_steps
        truncated = not won and limit is not None and state.steps >= limit
        state.stop_reason = self.stop_reason(won=won, terminated=won, truncated=truncated)
        return self._text, float(won), won, truncated, self._info()

    def snapshot(self) -> tuple[_State, str]:
        return copy.copy(self._play), self._text

    def restore(self, snapshot: tuple[_State, str]) -> tuple[str, Info]:
        state, self._text = snapshot
        self._state = copy.copy(state)
        return self._text, self._info()

    def render(self) -> str | None:
        assert self._play
        if self.render_mode == "ansi":
            return self._text
        print(self._text)
        return None

    def close(self) -> None:
        self._state = None

    def version(self) -> dict[str, str]:
        return {"engine": "toy", "source": self.manifest.source}

    def expert(self) -> Expert:
        return _ToyExpert()

    @property
    def _play(self) -> _State:
        if self._state is None:
            raise gym.error.ResetNeeded("no episode has been started: call reset() first")
        return self._state

    @property
    def _instruction(self) -> str:
        return f"bring the lamp to the {self._play.goal}."

    def _look(self) -> str:
        state = self._play
        here = "a lamp" if state.lamp == state.room else "nothing"
        door = f" The door is {'open' if state.door_open else 'closed'}." if state.room != "hall" else ""
        return f"You see {here}.{door}"

    def _commands(self) -> list[str]:
        state = self._play
        at = ROOMS.index(state.room)
        commands = ["look"]
        commands += [f"go to {ROOMS[i]}" for i in (at - 1, at + 1) if 0 <= i < 3 and (0 in (i, at) or state.door_open)]
        if state.room != "hall":
            commands.append("close door" if state.door_open else "open door")
        if state.lamp == state.room:
            commands.append("take lamp")
        elif state.lamp is None:
            commands.append("put lamp")
        return sorted(commands)

    def _do(self, action: str) -> str:
        state = self._play
        if action.startswith("go to "):
            state.room = action.removeprefix("go to ")
            return f"You arrive at the {state.room}. {self._look()}"
        if action.endswith("door"):
            state.door_open = action == "open door"
            return f"You {action.split()[0]} the door."
        if action == "look":
            return self._look()
        state.lamp = None if action == "take lamp" else state.room
        return f"You {action.split()[0]} the lamp."

    def _say(self, text: str) -> None:
        self._text = text
        if self.render_mode == "human":
            self.render()

    def _info(self) -> Info:
        state = self._play
        won = state.lamp == state.goal
        info: Info = {
            "task_id": state.task_id,
            "task_type": f"to-{state.goal}",
            "split": self.manifest.split,
            "instruction": self._instruction,
            "score": float(won),
            "won": won,
            "action_valid": state.valid,
            "stop_reason": state.stop_reason,
        }
        if self._admissible:
            info["admissible_commands"] = self._commands()
        return info


class _ToyExpert:
    """Looks for the lamp room by room, then carries it to the goal."""

    def __init__(self) -> None:
        self._room, self._goal = "hall", ""
        self._carried, self._door_open = False, False

    def act(self, observation: str) -> tuple[str, str]:
        self._take_in(observation)
        if not self._carried and "a lamp" in observation:
            self._carried = True
            return "The lamp is here.", "take lamp"
        if self._carried and self._room == self._goal:
            return "This is the place.", "put lamp"
        at = ROOMS.index(self._room)
        target = ROOMS.index(self._goal) if self._carried else 2
        towards = ROOMS[at + (1 if target > at else -1)]
        if "hall" not in (self._room, towards) and not self._door_open:
            self._door_open = True
            return "The door is closed.", "open door"
        self._room = towards
        return f"I go on to the {towards}.", f"go to {towards}"

    def mistake(self, observation: str, rng: np.random.Generator) -> tuple[str, str] | None:
        self._take_in(observation)
        if "a lamp" in observation:
            return None
        return "Let me wish for it.", ("rub lamp", "look for lamp")[int(rng.integers(2))]

    def _take_in(self, observation: str) -> None:
        if "bring the lamp to the " in observation:
            self._goal = observation.rpartition("bring the lamp to the ")[2].rstrip(".")


register("Toy-v0", "tests.toy_env:ToyEnv", max_episode_steps=15)


@lru_cache
def expert_trajectories() -> tuple[Trajectory, ...]:
    """What the expert does in every task of ``Toy-v0``, with mistakes, so that all of its words occur."""
    return tuple(rollout(ExpertPolicy(noise=0.3), "Toy-v0", samples_per_task=4))


def tiny_policy(*, max_new_tokens: int = 12, **options: Any) -> LanguageModelPolicy:
    """An untrained tiny model that knows the words of ``Toy-v0``; float32, so that it babbles the same everywhere."""
    from agentgym_tlm.policies.tiny import build_tiny, tokenizer_texts

    sizes = {"hidden_size": 32, "layers": 2, "heads": 2, **options}
    return build_tiny(
        (*tokenizer_texts(expert_trajectories()), *TWO_CLASSES, *FOUR_CLASSES, *HINDSIGHT_MARKERS),
        max_new_tokens=max_new_tokens,
        **sizes,
    )
