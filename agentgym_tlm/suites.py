"""Named test suites: what a trained policy can be asked to do beside the tasks that it was made for.

===================== ============================================================================================
``seen``              the environment's valid_seen: what training has, in other instances
``unseen``            its valid_unseen: rooms, variations or questions that training does not have
``type-<type>``       ALFWorld: the valid_unseen tasks of one of the six types (pick, look, clean, heat, cool, two);
                      out of domain for a policy that was trained on the others (``compare --hold-out type-heat``,
                      ``train --env-kwargs task_types=[...]``), else a part of ``unseen``
``topic-<topic>``     ScienceWorld: the valid_unseen tasks of one of its ten topics; the same holds
``put``               ALFWorld, valid_unseen, where objects are *put in/on*, not *moved to* a receptacle
``paraphrased``       ALFWorld, valid_unseen, with other task sentences in plain words
``swapped``           ALFWorld, valid_unseen, where objects bear each other's names: an apple may be called a mug
``renamed``           ALFWorld, valid_unseen, where objects and receptacles have other names: a mug is a tankard
``alfworld``          valid_unseen of that environment, for policies that were trained in another
``scienceworld``
``hotpotqa``
===================== ============================================================================================

Names and sentences depend on the task only, so that every policy meets the same ones. A policy with a word-level
tokenizer (``tiny``) reads ``<unk>`` for every word that its training did not have: in ``renamed`` and in another
environment it is blind and mute, and how much it could not read is reported beside its success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agentgym_tlm.envs.alfworld.problem import TASK_TYPES
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.envs.scienceworld.protocols import find_protocol
from agentgym_tlm.envs.scienceworld.tasks import TASKS
from agentgym_tlm.errors import ConfigError

if TYPE_CHECKING:
    from agentgym_tlm.trajectory import Trajectory

_SHORT = dict(zip(("pick", "look", "clean", "heat", "cool", "two"), TASK_TYPES, strict=True))
_TOPICS = (
    ("matter", "1"),
    ("measurement", "2"),
    ("electricity", "3"),
    ("classification", "4"),
    ("growing", "5"),
    ("chemistry", "6"),
    ("lifespan", "7"),
    ("life-stages", "8"),
    ("forces", "9"),
    ("genetics", "10"),
)
UNKNOWN_SHARE = 0.005
"""Share of unknown words above which numbers come with a note."""
TASK_CHOICES = ("task_types", "tasks")
"""Environment options that choose the kinds of tasks."""


@dataclass(frozen=True)
class Suite:
    """See the module docstring. ``env`` None is the environment that the policy was trained in."""

    name: str
    split: str = "valid_unseen"
    env: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def envs(self, trained: EnvArgs) -> EnvArgs:
        """The environments, for a policy trained on ``trained``.

        Raises ConfigError when the suite is of another environment whose options it shares.
        """
        if self.env is None or (self.env == trained.env and not self.env_kwargs):
            return trained
        if self.env_kwargs and self.env != trained.env:
            raise ConfigError(f"the suite {self.name} is one of {self.env}, not of {trained.env}")
        if self.env != trained.env:
            return EnvArgs(env=self.env)
        return replace(trained, env_kwargs={**trained.env_kwargs, **self.env_kwargs})

    def out_of_domain(self, trained: EnvArgs) -> bool:
        """Whether a policy that was trained on ``trained`` has met nothing like it."""
        if self.env is None:
            return False
        if self.env != trained.env:
            return True
        for option, value in self.env_kwargs.items():
            if option in TASK_CHOICES and set(value) & set(_kinds(trained)):
                return False
            if option not in TASK_CHOICES and trained.env_kwargs.get(option) == value:
                return False
        return bool(self.env_kwargs)


def _suites() -> Mapping[str, Suite]:
    alfworld: list[tuple[str, dict[str, Any]]] = [
        *((f"type-{short}", {"task_types": [name]}) for short, name in _SHORT.items()),
        ("put", {"action_style": "put"}),
        *((name, {"surface": name}) for name in ("paraphrased", "swapped", "renamed")),
    ]
    topics: list[tuple[str, dict[str, Any]]] = [
        (f"topic-{topic}", {"tasks": [task.name for task in TASKS.values() if task.number.split("-")[0] == number]})
        for topic, number in _TOPICS
    ]
    suites = [
        Suite("seen", "valid_seen"),
        Suite("unseen"),
        *(Suite(name, env="ALFWorld-v0", env_kwargs=options) for name, options in alfworld),
        *(Suite(name, env="ScienceWorld-v0", env_kwargs=options) for name, options in topics),
        Suite("alfworld", env="ALFWorld-v0"),
        Suite("scienceworld", env="ScienceWorld-v0"),
        Suite("hotpotqa", env="HotpotQA-v0"),
    ]
    return MappingProxyType({suite.name: suite for suite in suites})


SUITES: Mapping[str, Suite] = _suites()


def find_suites(names: Sequence[str]) -> list[Suite]:
    """Suites by name. Raises ConfigError for one that there is not, or that is named twice."""
    for name in names:
        if name not in SUITES:
            raise ConfigError(f"there is no suite {name!r}; there are {', '.join(SUITES)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"suites: each once, not {' '.join(names)}")
    return [SUITES[name] for name in names]


def held_out(envs: EnvArgs, name: str) -> EnvArgs:
    """``envs`` without the tasks of the suite ``name``. Raises ConfigError for one that is no kind of tasks of it."""
    (suite,) = find_suites([name])
    option = next((option for option in TASK_CHOICES if option in suite.env_kwargs), None)
    if option is None or suite.env != envs.env:
        possible = [s.name for s in SUITES.values() if s.env == envs.env and s.env_kwargs.keys() & set(TASK_CHOICES)]
        raise ConfigError(f"{name} cannot be held out of {envs.env}: that has {', '.join(possible) or 'no such suite'}")
    if option in envs.env_kwargs:
        raise ConfigError(f"env_kwargs choose the {option} already: leave them or --hold-out out")
    kinds = _kinds(envs)
    rest = [kind for kind in kinds if kind not in suite.env_kwargs[option]]
    if not rest or len(rest) == len(kinds):
        raise ConfigError(
            f"{name} cannot be held out: "
            + (
                "training has no other tasks"
                if not rest
                else f"training has none of its tasks; test it with --suites {name}"
            )
        )
    return replace(envs, env_kwargs={**envs.env_kwargs, option: rest})


def _kinds(envs: EnvArgs) -> Sequence[str]:
    """Task types of ALFWorld, or tasks of ScienceWorld, that there are in training."""
    chosen = next((envs.env_kwargs[option] for option in TASK_CHOICES if envs.env_kwargs.get(option) is not None), None)
    if chosen is not None:
        return [kind.strip() for kind in chosen.split(",")] if isinstance(chosen, str) else list(chosen)
    return TASK_TYPES if envs.env == "ALFWorld-v0" else find_protocol(envs.env_kwargs.get("protocol") or "short").tasks


def unknown_share(unknown: int | None, trajectories: Sequence[Trajectory]) -> float:
    """Share of the tokens of first prompts that are ``unknown``, a tokenizer's word for what it does not know."""
    first = [(t.sequences[0], t.turns[0].span) for t in trajectories if t.turns and t.sequences]
    ids = [token for sequence, span in first if span is not None for token in sequence[: span[0]]]
    return ids.count(unknown) / len(ids) if ids and unknown is not None else 0.0
