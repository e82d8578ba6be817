"""ALFWorld as a Gymnasium environment."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

import gymnasium as gym

from agentgym_tlm import __version__
from agentgym_tlm.envs.alfworld.engine import PLACE_COMMAND, WELCOME, ActionStyle, Engine, NativeEngine
from agentgym_tlm.envs.alfworld.generator import DEFAULT, GeneratorConfig, task_type
from agentgym_tlm.envs.alfworld.problem import TASK_TYPES, Game, World
from agentgym_tlm.envs.alfworld.sources import SPLITS, open_source
from agentgym_tlm.envs.alfworld.surface import SURFACES, Interpreted, Surface, SurfaceName
from agentgym_tlm.envs.alfworld.textworld_engine import TextWorldEngine, require_textworld
from agentgym_tlm.envs.base import Expert, Info, TaskManifest, TextEnv
from agentgym_tlm.errors import ConfigError, DataError

_QUOTES = str.maketrans("", "", "\"'`\u201c\u201d\u2018\u2019")
_PLACING = re.compile(r"(?:put|move) (.+?) (?:in/on|into|onto|in|on|to) (.+)")


def normalize_action(action: str, action_style: ActionStyle = "move") -> str:
    """An action as the engine spells it.

    Lower case, single spaces, no quotes and no final period; ``put X in|on|into|onto|in/on Y`` and ``move X to Y`` are
    one command, in the wording of ``action_style``.
    """
    action = " ".join(action.lower().translate(_QUOTES).split()).rstrip(". ")
    if placing := _PLACING.fullmatch(action):
        return PLACE_COMMAND[action_style].format(*placing.groups())
    return action


@dataclass(frozen=True)
class Snapshot:
    """A point in an episode: the dynamics are deterministic, so the actions that led there say everything.

    ``world`` is what their effect depends on: the data and the options of the environment.
    """

    world: dict[str, str]
    task_id: str
    actions: tuple[str, ...]
    observation: str
    stop_reason: str | None


class ALFWorldEnv(TextEnv):
    """Household tasks in text: find things, clean, heat, cool or light them, and put them where they belong.

    ## Description
    ALFWorld (Shridhar et al., 2021, arXiv:2010.03768) turns ALFRED's household tasks into text games. A room has
    receptacles (``drawer 2``, ``fridge 1``) and objects (``mug 1``); the agent is given one task of six types and sees
    what is at the place where it stands, if that is not closed. Games come from ``data_dir``, else from
    ``$ALFWORLD_DATA``, else from what was imported with ``agentgym-tlm data import alfworld``, else from the embedded
    generator, and are read or made when they are played; ``env.unwrapped.manifest`` lists them in a fixed order, with a
    hash, and says which source it is.

    ## Action Space
    Text. Any string is accepted; one that is not an admissible command is answered "Nothing happens." and
    ``info["action_valid"]`` is False. The commands are ``go to R``, ``open R``, ``close R``, ``take O from R``,
    ``move O to R``, ``clean|heat|cool O with R``, ``use LAMP``, ``slice O with KNIFE``, ``examine R|O``, ``look``,
    ``inventory`` and ``help``. Case, quotes, doubled spaces and a final period do not matter, and ``put O in/on R`` is
    ``move O to R``. ``info["admissible_commands"]`` lists the commands that do something, when asked for.

    ## Observation Space
    Text: the first observation describes the room and ends with the task; later ones are the game's answers, letter
    for letter those of TextWorld with ALFWorld 0.4 (data format 2.1.2).

    ## Starting State
    The middle of the room, with empty hands. ``reset(seed=...)`` chooses the game and with it the whole episode, as
    nothing else is random; ``reset(options={"task_id": ...})`` plays a given one. "Game i" is the same game on every
    machine.

    ## Rewards
    ``reward_scale`` on the step that reaches the goal, else 0. ``info["score"]`` is the share of ALFRED's goal
    conditions that hold, 1 exactly when the game is won.

    ## Episode End
    ``terminated`` when the goal is reached, and only then; ``truncated`` at ``max_episode_steps``. Running out of steps
    is thus never success. A step after the end raises ``gymnasium.error.ResetNeeded``.

    ## Arguments
    - ``split``: ``train``, ``valid_seen`` (rooms of train), ``valid_unseen`` (other rooms), or ``valid_train``
      (official data only: games held out of train).
    - ``data_dir``: folder with the official ``json_2.1.1`` tree or with packed ``<split>.jsonl.xz`` files, which is
      never written to; or ``"embedded"`` for the generator, whatever data there is.
    - ``task_types``: play only these of the six task types.
    - ``num_games``, ``generator``: size of the embedded split before ``task_types`` (10000, 140 and 134 by default),
      and its rooms: ``"small"``, ``"official"`` or a ``GeneratorConfig``.
    - ``engine``: ``"native"``, or ``"textworld"`` for the reference implementation: the same text, thousands of times
      slower, one thread at a time.
    - ``action_style``: wording of placing an object that is shown: ``"move"`` (ALFWorld 0.4: ``move X to Y``) or
      ``"put"`` (before: ``put X in/on Y``). Both are understood.
    - ``surface``: ``"original"``, or other words for the same game: ``"paraphrased"`` task sentences, ``"swapped"``
      names of objects, or ``"renamed"`` objects and receptacles.
    - ``admissible_commands``: put the sorted list into ``info`` at every step.
    - ``banner``: keep the line ``-= Welcome to TextWorld, ALFRED! =-`` in the first observation.
    - ``reward_scale``: reward for winning.
    - ``allow_revisit``: answer ``go to R`` where the agent already stands. ALFWorld says "Nothing happens.", also for
      other receptacles at the same place, which agents take for an obstacle; native engine only.
    - ``max_episode_steps``: step limit, 50 as in ALFWorld.

    ## Version History
    - v0: first version, ALFWorld data format 2.1.2.
    """

    splits = SPLITS

    def __init__(
        self,
        split: str = "train",
        *,
        data_dir: str | os.PathLike[str] | None = None,
        task_types: Collection[str] | None = None,
        num_games: int | None = None,
        generator: str | GeneratorConfig = DEFAULT,
        engine: Literal["native", "textworld"] = "native",
        action_style: ActionStyle = "move",
        surface: SurfaceName = "original",
        admissible_commands: bool = False,
        banner: bool = False,
        reward_scale: float = 1.0,
        allow_revisit: bool = False,
        max_episode_steps: int | None = 50,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode, max_episode_steps=max_episode_steps)
        if engine not in ("native", "textworld"):
            raise ConfigError(f"engine must be 'native' or 'textworld', not {engine!r}")
        if action_style not in PLACE_COMMAND:
            raise ConfigError(f"action_style must be 'move' or 'put', not {action_style!r}")
        if surface not in SURFACES:
            raise ConfigError(f"surface must be one of {', '.join(SURFACES)}, not {surface!r}")
        if not isinstance(reward_scale, (int, float)):
            raise ConfigError(f"reward_scale must be a number, not {reward_scale!r}")
        if engine == "textworld":
            require_textworld()
            if allow_revisit:
                raise ConfigError("allow_revisit=True needs engine='native': TextWorld refuses such commands")
        self.split = split
        self.engine_name = engine
        self.action_style: ActionStyle = action_style
        self.surface_name: SurfaceName = surface
        self.banner = banner
        self.reward_scale = reward_scale
        self.allow_revisit = allow_revisit
        self._lists_commands = admissible_commands
        self._source = open_source(split, data_dir, num_games, generator)
        task_ids = _of_types(self._source.task_ids, task_types)
        self.manifest = TaskManifest("ALFWorld-v0", split, self._source.description, task_ids)
        self._engine: Engine | None = None
        self._actions: list[str] = []
        self._stop_reason: str | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        self._start(self.choose_task(seed, options))
        self._render_human()
        return self._observation, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self.check_step(action, self._stop_reason)
        self._observation = self._play(action)
        self._actions.append(action)
        info = self._info()
        terminated: bool = info["won"]
        limit = self.max_episode_steps
        truncated = not terminated and limit is not None and len(self._actions) >= limit
        self._stop_reason = self.stop_reason(won=terminated, terminated=terminated, truncated=truncated)
        info["stop_reason"] = self._stop_reason
        self._render_human()
        return self._observation, self.reward_scale if terminated else 0.0, terminated, truncated, info

    def admissible_commands(self) -> list[str]:
        """All commands that do something now, sorted, in the wording of ``action_style``."""
        commands = self._playing().admissible_commands()
        return commands if self.surface_name == "original" else sorted(map(self._surface.tell, commands))

    @property
    def walkthrough(self) -> tuple[str, ...]:
        """A plan that wins the current game, made with full knowledge of it."""
        self._playing()
        return tuple(
            self._surface.tell(normalize_action(action, self.action_style)) for action in self._game.walkthrough
        )

    def snapshot(self) -> Snapshot:
        self._playing()
        return Snapshot(self._world, self._game.id, tuple(self._actions), self._observation, self._stop_reason)

    def restore(self, snapshot: Snapshot) -> tuple[str, Info]:
        if not isinstance(snapshot, Snapshot):
            raise ConfigError(f"restore takes what snapshot() returned, not a {type(snapshot).__name__}")
        if other := [name for name, value in self._world.items() if value != snapshot.world[name]]:
            taken = ", ".join(f"{name} {snapshot.world[name]!r}, here {self._world[name]!r}" for name in other)
            raise ConfigError(f"the snapshot is of another world: it has {taken}")
        self._start(snapshot.task_id)
        for action in snapshot.actions:
            self._play(action)
        self._actions = list(snapshot.actions)
        self._observation = snapshot.observation
        self._stop_reason = snapshot.stop_reason
        return self._observation, self._info()

    def version(self) -> dict[str, str]:
        packages = (
            {name: version(name) for name in ("alfworld", "textworld")} if self.engine_name == "textworld" else {}
        )
        return {
            "agentgym_tlm": __version__,
            "engine": self.engine_name,
            "data": self.manifest.source,
            "data_format": "2.1.2",
            "action_style": self.action_style,
            "surface": self.surface_name,
            "allow_revisit": str(self.allow_revisit),
            "banner": str(self.banner),
            "reward_scale": str(self.reward_scale),
            **packages,
        }

    @property
    def _world(self) -> dict[str, str]:
        version = self.version()
        return {name: version[name] for name in ("data", "action_style", "surface", "allow_revisit")}

    def expert(self) -> Expert:
        """A player that acts only on what it has observed."""
        from agentgym_tlm.envs.alfworld.explorer import Explorer

        return Explorer() if self.surface_name == "original" else Interpreted(Explorer(), self._surface)

    def render(self) -> str | None:
        """The last action and its observation: returned in mode ``ansi``, printed in mode ``human``."""
        self._playing()
        return self.show(self._actions[-1] if self._actions else None, self._observation)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _start(self, task_id: str) -> None:
        self.manifest.index(task_id)
        self.close()
        self._game: Game = self._source.load(task_id)
        try:
            world = World.parse(self._game)
        except DataError as error:
            raise DataError(f"{error} ({self.manifest.source}): download or import the data again") from error
        self._engine = (
            TextWorldEngine(world, self.action_style)
            if self.engine_name == "textworld"
            else NativeEngine(world, self.action_style, allow_revisit=self.allow_revisit)
        )
        self._observation = self._engine.reset()
        if not self.banner:
            self._observation = self._observation.removeprefix(WELCOME)
        self._surface = Surface(self.surface_name, self._game.id, self._game.task, world.goal)
        self._observation = self._surface.tell(self._observation)
        self._actions = []
        self._stop_reason = None

    def _play(self, action: str) -> str:
        engine, command = self._playing(), normalize_action(action, self.action_style)
        return self._surface.tell(engine.step(self._surface.command(command)))

    def _playing(self) -> Engine:
        if self._engine is None:
            raise gym.error.ResetNeeded("no game has been started: call reset() first")
        return self._engine

    def _info(self) -> Info:
        engine = self._playing()
        info: Info = {
            "task_id": self._game.id,
            "task_type": self._game.task_type,
            "split": self.split,
            "instruction": self._surface.tell(self._game.task),
            "score": engine.goal_fraction,
            "won": engine.won,
            "action_valid": engine.action_valid,
            "stop_reason": self._stop_reason,
        }
        if self._lists_commands:
            info["admissible_commands"] = self.admissible_commands()
        return info


def _of_types(task_ids: tuple[str, ...], task_types: Iterable[str] | None) -> tuple[str, ...]:
    if task_types is None:
        return task_ids
    wanted = {task_types} if isinstance(task_types, str) else set(task_types)
    if unknown := wanted.difference(TASK_TYPES):
        raise ConfigError(f"no such task types: {sorted(unknown)}; ALFWorld has {', '.join(TASK_TYPES)}")
    chosen = tuple(task_id for task_id in task_ids if task_type(task_id) in wanted)
    if not chosen:
        raise ConfigError(f"none of the {len(task_ids)} games is of the task types {sorted(wanted)}")
    return chosen
