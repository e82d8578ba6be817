"""Other words for the same games: what is said and understood changes, and what happens does not.

``paraphrased``
    The task sentence is another one, of words that the games use anyway.
``swapped``
    Objects bear each other's names: in one task every apple is called a mug and every mug a candle, say. Desk lamps and
    receptacles keep theirs, so that the task can be told from its words.
``renamed``
    Objects and receptacles have names that no game uses otherwise.

Which sentence and which names depends on the task's id only. A name that was not shown is not understood, the original
one included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Literal

import numpy as np

from agentgym_tlm.envs.alfworld.catalogue import HOMES, RECEPTACLE_CLASSES
from agentgym_tlm.envs.alfworld.problem import Goal
from agentgym_tlm.envs.base import Expert

SurfaceName = Literal["original", "paraphrased", "swapped", "renamed"]
SURFACES: tuple[SurfaceName, ...] = ("original", "paraphrased", "swapped", "renamed")

_SENTENCES = {
    "pick_and_place_simple": ("take a {o} and move it to the {r}.", "go to the {r} and put a {o} in it."),
    "look_at_obj_in_light": ("take a {o} and turn on the {r}.", "with the {r} on, look at the {o}."),
    "pick_clean_then_place_in_recep": (
        "take a {o}, clean it, and move it to the {r}.",
        "go to the {r} and put a clean {o} in it.",
    ),
    "pick_heat_then_place_in_recep": (
        "take a {o}, heat it, and move it to the {r}.",
        "go to the {r} and put a hot {o} in it.",
    ),
    "pick_cool_then_place_in_recep": (
        "take a {o}, cool it, and move it to the {r}.",
        "go to the {r} and put a cool {o} in it.",
    ),
    "pick_two_obj_and_place": ("take two {o} and move them to the {r}.", "go to the {r} and put two {o} in it."),
}


def _read_names(table: str) -> Mapping[str, str]:
    return dict(pair.split(":") for pair in table.split())


_RENAMED = _read_names("""
    alarmclock:waker apple:pippin baseballbat:slugger basketball:hoopball book:paperback bowl:dish box:carton bread:loaf
    butterknife:spreader cd:disc candle:taper cellphone:mobile cloth:rag creditcard:bankcard cup:beaker
    desklamp:readinglight dishsponge:scrubber egg:henfruit fork:tines glassbottle:flask handtowel:facecloth
    kettle:boiler keychain:keyring knife:blade ladle:dipper laptop:notebook lettuce:romaine mug:tankard
    newspaper:gazette pan:skillet pen:ballpoint pencil:crayon peppershaker:peppermill pillow:cushion plate:platter
    plunger:unclogger pot:saucepan potato:spud remotecontrol:clicker saltshaker:saltcellar soapbar:soapcake
    soapbottle:soappump spatula:flipper spoon:scoop spraybottle:atomizer statue:figurine tennisracket:racquet
    tissuebox:hankybox toiletpaper:bathtissue tomato:loveapple towel:bathsheet vase:urn watch:timepiece
    wateringcan:sprinkler winebottle:carafe
    armchair:recliner bathtubbasin:tub bed:bunk cabinet:cupboard cart:trolley coffeemachine:espressomaker
    coffeetable:lowtable countertop:worktop desk:bureau diningtable:mealtable drawer:tray dresser:chest fridge:icebox
    garbagecan:wastebin handtowelholder:towelhook laundryhamper:washbasket microwave:oven ottoman:footstool
    safe:strongbox shelf:ledge sidetable:endtable sinkbasin:washbowl sofa:couch stoveburner:hotplate toaster:browner
    toilet:lavatory toiletpaperhanger:rollholder towelholder:towelrail tvstand:mediastand
""")
_OBJECTS = tuple(sorted(name.lower() for name in HOMES))
_RECEPTACLES = tuple(name.lower() for name in RECEPTACLE_CLASSES)
_SWAPPED = tuple(name for name in _OBJECTS if name != "desklamp" and name not in _RECEPTACLES)
_WORD = re.compile(r"[a-z]+")
_UNKNOWN = "-"


class Surface:
    """How the game ``task_id`` is told in the words of ``name``, and how what is told in them is read."""

    def __init__(self, name: SurfaceName, task_id: str, sentence: str, goal: Goal) -> None:
        rng = Random(f"{name}/{task_id}")
        self._names = _names(name, rng)
        self._originals = {told: original for original, told in self._names.items()}
        self._sentence = self._told = sentence
        if name == "paraphrased":
            o, r = (kind.removesuffix("type") for kind in (goal.object_type, goal.target_type))
            self._told = rng.choice(_SENTENCES[goal.task_type]).format(o=o, r=r)

    def tell(self, text: str) -> str:
        """A text of the game, or of its expert, in other words."""
        text = text.replace(self._sentence, self._told)
        return _WORD.sub(lambda match: self._names.get(match[0], match[0]), text) if self._names else text

    def read(self, text: str) -> str:
        """What :meth:`tell` made, in the game's words."""
        if self._names:
            text = _WORD.sub(lambda match: self._originals.get(match[0], match[0]), text)
        return text.replace(self._told, self._sentence)

    def command(self, action: str) -> str:
        """An action in the game's words; an object or receptacle by a name that was not told is nothing."""
        return _WORD.sub(self._understood, action) if self._names else action

    def _understood(self, match: re.Match[str]) -> str:
        word = match[0]
        return self._originals.get(word, _UNKNOWN if word in self._names else word)


class Interpreted:
    """An expert that knows the game in its own words only."""

    def __init__(self, expert: Expert, surface: Surface) -> None:
        self._expert = expert
        self._surface = surface

    def act(self, observation: str) -> tuple[str, str]:
        return self._told(self._expert.act(self._surface.read(observation)))

    def mistake(self, observation: str, rng: np.random.Generator) -> tuple[str, str] | None:
        made = self._expert.mistake(self._surface.read(observation), rng)
        return None if made is None else self._told(made)

    def _told(self, turn: tuple[str, str]) -> tuple[str, str]:
        thought, action = turn
        return self._surface.tell(thought), self._surface.tell(action)


def _names(name: SurfaceName, rng: Random) -> Mapping[str, str]:
    """Name in the game -> name that is told."""
    if name == "renamed":
        return _RENAMED
    if name == "swapped":
        return dict(zip(_SWAPPED, rng.sample(_SWAPPED, len(_SWAPPED)), strict=True))
    return {}
