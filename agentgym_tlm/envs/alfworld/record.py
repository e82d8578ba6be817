"""A generated game written down in ALFWorld's format 2.1.2: ids, sentence, PDDL problem and a shortest plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from agentgym_tlm.envs.alfworld.catalogue import AFFORDANCES, HOMES, RECEPTACLE_CLASSES
from agentgym_tlm.envs.alfworld.scene import TREATMENTS, Receptacle, Scene

_SENTENCES = {
    "pick_and_place_simple": ("put a {o} in {r}.", "put some {o} on {r}."),
    "look_at_obj_in_light": ("look at {o} under the {r}.", "examine the {o} with the {r}."),
    "pick_clean_then_place_in_recep": ("put a clean {o} in {r}.", "clean some {o} and put it in {r}."),
    "pick_heat_then_place_in_recep": ("put a hot {o} in {r}.", "heat some {o} and put it in {r}."),
    "pick_cool_then_place_in_recep": ("put a cool {o} in {r}.", "cool some {o} and put it in {r}."),
    "pick_two_obj_and_place": ("put two {o} in {r}.", "find two {o} and put them in {r}."),
}
_INDENT = "\n        "
_TYPES = _INDENT.join(
    [f"{name}Type - otype" for name in HOMES] + [f"{name}Type - rtype" for name in RECEPTACLE_CLASSES]
)
_CAN_CONTAIN = {
    receptacle: _INDENT.join(
        f"(canContain {receptacle}Type {name}Type)"
        for name in HOMES
        if receptacle in HOMES[name] and name in AFFORDANCES["pickupable"]
    )
    for receptacle in RECEPTACLE_CLASSES
}
_AFFORDANCES_OF = {
    name: tuple(predicate for predicate, classes in AFFORDANCES.items() if name in classes) for name in HOMES
}


@dataclass(frozen=True)
class Task:
    """What a game asks for. ``target_class`` is the receptacle's class, or the lamp's in a look task."""

    split: str
    seed: int
    task_type: str
    scene: Scene
    object_class: str
    target_class: str
    wording: int

    @property
    def trial(self) -> str:
        return f"trial_G{self.seed:08d}"

    @property
    def id(self) -> str:
        name = f"{self.task_type}-{self.object_class}-None-{self.target_class}-{self.scene.number}"
        return f"{self.split}/{name}/{self.trial}"

    @property
    def sentence(self) -> str:
        return _SENTENCES[self.task_type][self.wording].format(o=self.object_class.lower(), r=self.target_class.lower())


@dataclass(frozen=True)
class PlacedGame:
    """A task and where its objects lie: object id -> object class and receptacle."""

    task: Task
    objects: dict[str, tuple[str, Receptacle]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The game as one line of ALFWorld's packed data."""
        task = self.task
        look = task.task_type == "look_at_obj_in_light"
        return {
            "id": task.id,
            "task": task.sentence,
            "pddl_problem": self._problem(),
            "solvable": True,
            "walkthrough": min(self._plans(), key=len),
            "traj": {
                "task_id": task.trial,
                "task_type": task.task_type,
                "pddl_params": {
                    "mrecep_target": "",
                    "object_sliced": False,
                    "object_target": task.object_class,
                    "parent_target": "" if look else task.target_class,
                    "toggle_target": task.target_class if look else "",
                },
                "scene": {
                    "floor_plan": f"FloorPlan{task.scene.number}",
                    "scene_num": task.scene.number,
                    "random_seed": task.seed,
                },
                "turk_annotations": {"anns": []},
            },
        }

    def _problem(self) -> str:
        scene = self.task.scene
        declared = [f"{name} - object" for name in sorted(self.objects)]
        declared += sorted(f"{receptacle.id} - receptacle" for receptacle in scene.receptacles)
        declared += [f"{receptacle.location} - location" for receptacle in scene.receptacles]
        declared.append(f"{scene.start} - location")
        facts = [f"(atLocation agent1 {scene.start})"]
        facts += [_CAN_CONTAIN[name] for name in sorted({receptacle.object_class for receptacle in scene.receptacles})]
        for receptacle in scene.receptacles:
            facts.append(f"(receptacleType {receptacle.id} {receptacle.object_class}Type)")
            facts.append(f"(receptacleAtLocation {receptacle.id} {receptacle.location})")
            if receptacle.openable:
                facts.append(f"(openable {receptacle.id})")
        for name, (object_class, receptacle) in sorted(self.objects.items()):
            facts.append(f"(objectType {name} {object_class}Type)")
            facts.append(f"(objectAtLocation {name} {receptacle.location})")
            facts.append(f"(inReceptacle {name} {receptacle.id})")
            facts += [f"({predicate} {name})" for predicate in _AFFORDANCES_OF[object_class]]
        return (
            f"\n(define (problem plan_{self.task.trial})\n(:domain alfred)\n"
            f"(:objects\nagent1 - agent{_INDENT}{_TYPES}{_INDENT}{_INDENT.join(declared)}{_INDENT})\n\n"
            f"(:init{_INDENT}{_INDENT.join(filter(None, facts))}{_INDENT})\n\n"
            f"(:goal{_INDENT}(and {_goal(self.task)})\n)\n)\n"
        )

    def _plans(self) -> Iterator[list[str]]:
        """Plans for every instance of the object, each with the handiest appliance and target."""
        task = self.task
        things = [(name, object_class) for name, (object_class, _) in self.objects.items()]
        names = _shown_names(things) | _shown_names((r.id, r.object_class) for r in task.scene.receptacles)
        instances = [(name, place) for name, (kind, place) in sorted(self.objects.items()) if kind == task.object_class]
        if task.task_type == "look_at_obj_in_light":
            lamp, host = next((name, place) for name, (kind, place) in self.objects.items() if kind == "DeskLamp")
            for item, source in instances:
                walk = _Walk(names)
                walk.take(item, source)
                walk.go(host)
                walk.do(f"use {names[lamp]}")
                yield walk.actions
        elif task.task_type == "pick_two_obj_and_place":
            for pair in permutations(instances, 2):
                walk = _Walk(names)
                for item, source in pair:
                    walk.take(item, source)
                    walk.put(item, _handiest(task.scene, task.target_class, source))
                yield walk.actions
        else:
            for item, source in instances:
                walk = _Walk(names)
                walk.take(item, source)
                if treatment := TREATMENTS.get(task.task_type):
                    appliance = _handiest(task.scene, treatment.appliance, source)
                    walk.go(appliance)
                    walk.do(f"{treatment.verb} {names[item]} with {names[appliance.id]}")
                walk.put(item, _handiest(task.scene, task.target_class, source))
                yield walk.actions


class _Walk:
    """Actions in the making; remembers where it stands and what it has opened."""

    def __init__(self, names: dict[str, str]) -> None:
        self.actions: list[str] = []
        self._names = names
        self._here: Receptacle | None = None
        self._opened: set[str] = set()

    def do(self, action: str) -> None:
        self.actions.append(action)

    def go(self, receptacle: Receptacle) -> None:
        if receptacle is not self._here:
            self.do(f"go to {self._names[receptacle.id]}")
            self._here = receptacle

    def reach_into(self, receptacle: Receptacle) -> None:
        self.go(receptacle)
        if receptacle.openable and receptacle.id not in self._opened:
            self.do(f"open {self._names[receptacle.id]}")
            self._opened.add(receptacle.id)

    def take(self, item: str, source: Receptacle) -> None:
        self.reach_into(source)
        self.do(f"take {self._names[item]} from {self._names[source.id]}")

    def put(self, item: str, target: Receptacle) -> None:
        self.reach_into(target)
        self.do(f"move {self._names[item]} to {self._names[target.id]}")


def _handiest(scene: Scene, receptacle_class: str, source: Receptacle) -> Receptacle:
    """The receptacle of a class that costs the fewest actions: the source itself, else one that is not closed."""
    candidates = [receptacle for receptacle in scene.receptacles if receptacle.object_class == receptacle_class]
    return source if source in candidates else min(candidates, key=lambda receptacle: receptacle.openable)


def _shown_names(things: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names as the game shows them: within a class, the first id in sorted order has the highest number."""
    numbers: Counter[str] = Counter()
    names = {}
    for thing, kind in sorted(things, reverse=True):
        numbers[kind] += 1
        names[thing] = f"{kind.lower()} {numbers[kind]}"
    return names


def _goal(task: Task) -> str:
    kind, target = f"{task.object_class}Type", f"{task.target_class}Type"
    if task.task_type == "look_at_obj_in_light":
        return (
            "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and "
            f"(objectType ?ot {target}) (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) "
            "(atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {kind}) (holds ?a ?o)))"
        )
    if task.task_type == "pick_two_obj_and_place":
        first, second = (
            f"(objectType {item} {kind}) (receptacleType ?r {target}) (inReceptacle {item} ?r)"
            for item in ("?o1", "?o2")
        )
        return (
            f"(exists (?r - receptacle) (exists (?o1 - object) (and {first} "
            f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {second})))))"
        )
    of_class, in_place = f"(objectType ?o {kind}) (receptacleType ?r {target})", "(inReceptacle ?o ?r)"
    if treatment := TREATMENTS.get(task.task_type):
        conditions = f"({treatment.affordance} ?o) {of_class} ({treatment.predicate} ?o) {in_place}"
    else:
        conditions = f"{in_place} {of_class}"
    return f"(exists (?r - receptacle) (exists (?o - object) (and {conditions})))"
