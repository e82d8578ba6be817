"""A text world of three states that every trainer has to solve: a fork, a bridge, the far side.

The colour of a sign says which way to take at the fork, the material how to cross the bridge; a wrong choice ends the
episode. ``Crossing`` is registered as ``Crossing-v0`` when this module is imported. With ``confused=True`` its expert
is one that is wrong about one colour and one material: who imitates both experts wins some tasks and loses others.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.envs.base import Expert, Info, TaskManifest, TextEnv
from agentgym_tlm.envs.registration import register
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import TINY_FORMAT, build_tiny, tokenizer_texts
from agentgym_tlm.prompt import PromptFormat
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer

SIGNS = {"red": "go left", "green": "go left", "blue": "go right", "white": "go right"}
BRIDGES = {"stone": "walk", "iron": "walk", "rope": "crawl", "wood": "crawl"}
COMMANDS = {"fork": ("go left", "go right"), "bridge": ("crawl", "walk"), "end": ()}
INSTRUCTION = "get to the far side."


@dataclass(frozen=True)
class _State:
    task_id: str
    place: str = "fork"
    steps: int = 0
    won: bool = False
    valid: bool = True
    stop_reason: str | None = None
    text: str = ""


class Crossing(TextEnv):
    """Cross the river; see the module docstring."""

    splits = ("train",)

    def __init__(
        self,
        *,
        split: str = "train",
        confused: bool = False,
        admissible_commands: bool = False,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode, max_episode_steps=max_episode_steps)
        tasks = tuple(f"{sign}-{bridge}" for sign in SIGNS for bridge in BRIDGES)
        self.manifest = TaskManifest("Crossing-v0", split, "toy", tasks)
        self._confused = confused
        self._admissible = admissible_commands
        self._state: _State | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        task_id = self.choose_task(seed, options)
        sign, _ = task_id.split("-")
        self._state = _State(task_id, text=f"You stand at a fork. The sign is {sign}.")
        return self._state.text, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        state = self._play
        self.check_step(action, state.stop_reason)
        sign, bridge = state.task_id.split("-")
        valid = action in COMMANDS[state.place]
        right = action == (SIGNS[sign] if state.place == "fork" else BRIDGES[bridge])
        place, won, text = state.place, False, "Nothing happens."
        if valid and right and state.place == "fork":
            place, text = "bridge", f"You come to a bridge of {bridge}."
        elif valid:
            place, won = "end", right
            text = "You are on the far side." if right else "You fall into the river."
        steps = state.steps + 1
        terminated = place == "end"
        truncated = not terminated and self.max_episode_steps is not None and steps >= self.max_episode_steps
        reason = self.stop_reason(won=won, terminated=terminated, truncated=truncated)
        self._state = _State(state.task_id, place, steps, won, valid, reason, text)
        return text, float(won), terminated, truncated, self._info()

    def snapshot(self) -> _State:
        return self._play

    def restore(self, snapshot: _State) -> tuple[str, Info]:
        self._state = snapshot
        return snapshot.text, self._info()

    def render(self) -> str | None:
        return self.show(None, self._play.text)

    def version(self) -> dict[str, str]:
        return {"engine": "toy", "source": self.manifest.source}

    def expert(self) -> Expert:
        return _Expert(self._confused)

    @property
    def _play(self) -> _State:
        if self._state is None:
            raise gym.error.ResetNeeded("no episode has been started: call reset() first")
        return self._state

    def _info(self) -> Info:
        state = self._play
        info: Info = {
            "task_id": state.task_id,
            "task_type": state.task_id.split("-")[0],
            "split": self.manifest.split,
            "instruction": INSTRUCTION,
            "score": float(state.won),
            "won": state.won,
            "action_valid": state.valid,
            "stop_reason": state.stop_reason,
        }
        if self._admissible:
            info["admissible_commands"] = sorted(COMMANDS[state.place])
        return info


@dataclass(frozen=True)
class _Expert:
    """Reads the sign and the bridge."""

    confused: bool

    def act(self, observation: str) -> tuple[str, str]:
        what = observation.rstrip(".").rsplit(" ", 1)[1]
        action = SIGNS[what] if what in SIGNS else BRIDGES[what]
        if self.confused and what in ("blue", "rope"):
            action = next(
                other for options in COMMANDS.values() if action in options for other in options if other != action
            )
        return f"It is {what}.", action

    def mistake(self, observation: str, rng: np.random.Generator) -> tuple[str, str] | None:
        return "Let me wait.", "wait"


register("Crossing-v0", "tests.trainers.crossing:Crossing", max_episode_steps=4)

ENVS = EnvArgs(env="Crossing-v0")
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@cache
def sft_folder() -> Path:
    """Where :func:`sft_policy` is saved, trained once in a process."""
    folder = tempfile.TemporaryDirectory(prefix="crossing-")
    _FOLDERS.append(folder)  # gone with the process
    sft_policy(Path(folder.name)).save(Path(folder.name) / "policy")
    return Path(folder.name) / "policy"


def sft_policy(folder: Path, format: PromptFormat = TINY_FORMAT, epochs: int = 30) -> LanguageModelPolicy:
    """A tiny policy that imitates two confused experts and one who is not: greedily it fails 7 of the 16 tasks."""
    right, wrong = (
        rollout(ExpertPolicy(format=format), "Crossing-v0", env_kwargs={"confused": confused})
        for confused in (False, True)
    )
    texts = tokenizer_texts([*right, *wrong], format)
    policy = build_tiny(texts, hidden_size=32, layers=2, max_context=128, max_new_tokens=16, format=format)
    args = SFTArguments(
        output_dir=str(folder),
        learning_rate=1e-2,
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        weight_decay=0.01,
        save_steps=None,
    )
    trainer = SFTTrainer(policy, ENVS, args)
    trainer.train_trajectories([policy.renderer.encode_trajectory(each) for each in (*right, *wrong, *wrong)])
    return policy


def won(policy: LanguageModelPolicy) -> list[str]:
    """Tasks that the policy wins when it decodes greedily."""
    policy.temperature = 0.0
    return [trajectory.task_id for trajectory in rollout(policy, "Crossing-v0") if trajectory.won]
