"""A small hand-made kitchen in which every quirk of ALFWorld can be met, for six goals.

Places, with the shown names (numbers run downwards over the sorted ids):

1. countertop 1 and countertop 2: mug 2, knife 1 and bowl 1 (an egg in it) on countertop 2, nothing on countertop 1
2. stoveburner 1 and stoveburner 2, both listing pan 1
3. fridge 1, closed: apple 1
4. microwave 1, closed
5. sinkbasin 1
6. drawer 2, closed: mug 1; drawer 1, which has no door
7. sidetable 1: desklamp 1
"""

from agentgym_tlm.envs.alfworld.problem import Game

RECEPTACLES = {  # id -> type, place, openable
    "CounterTop_bar_1": ("CounterTop", 1, False),
    "CounterTop_bar_2": ("CounterTop", 1, False),
    "StoveBurner_bar_1": ("StoveBurner", 2, False),
    "StoveBurner_bar_2": ("StoveBurner", 2, False),
    "Fridge_bar_1": ("Fridge", 3, True),
    "Microwave_bar_1": ("Microwave", 4, True),
    "Sink_bar_1_bar_SinkBasin": ("SinkBasin", 5, False),
    "Drawer_bar_1": ("Drawer", 6, True),
    "Drawer_bar_2": ("Drawer", 6, False),
    "SideTable_bar_1": ("SideTable", 7, False),
}
OBJECTS = {  # id -> receptacles that list it, place, affordances
    "Mug_bar_1": (["CounterTop_bar_1"], 1, "pickupable cleanable heatable coolable isReceptacleObject"),
    "Mug_bar_2": (["Drawer_bar_1"], 6, "pickupable cleanable heatable coolable isReceptacleObject"),
    "Knife_bar_1": (["CounterTop_bar_1"], 1, "pickupable cleanable"),
    "Bowl_bar_1": (["CounterTop_bar_1"], 1, "pickupable cleanable coolable isReceptacleObject"),
    "Egg_bar_1": ([], 1, "pickupable cleanable heatable coolable sliceable"),
    "Pan_bar_1": (["StoveBurner_bar_1", "StoveBurner_bar_2"], 2, "pickupable cleanable coolable isReceptacleObject"),
    "Apple_bar_1": (["Fridge_bar_1"], 3, "pickupable cleanable heatable coolable sliceable"),
    "DeskLamp_bar_1": (["SideTable_bar_1"], 7, "toggleable"),
    "Window_bar_1": ([], 0, ""),
}
_PLACED = "(exists (?r - receptacle) (exists (?o - object) (and {} (objectType ?o {}Type) (receptacleType ?r {}Type))))"
GOALS = {
    "pick_and_place_simple": _PLACED.format("(inReceptacle ?o ?r)", "Mug", "SideTable"),
    "look_at_obj_in_light": (
        "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot DeskLampType)"
        " (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))"
        " (exists (?o - object ?a - agent) (and (objectType ?o MugType) (holds ?a ?o)))"
    ),
    "pick_clean_then_place_in_recep": _PLACED.format(
        "(cleanable ?o) (isClean ?o) (inReceptacle ?o ?r)", "Mug", "SideTable"
    ),
    "pick_heat_then_place_in_recep": _PLACED.format("(heatable ?o) (isHot ?o) (inReceptacle ?o ?r)", "Apple", "Drawer"),
    "pick_cool_then_place_in_recep": _PLACED.format("(coolable ?o) (isCool ?o) (inReceptacle ?o ?r)", "Pan", "Drawer"),
    "pick_two_obj_and_place": (
        "(exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 MugType)"
        " (receptacleType ?r SideTableType) (inReceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2))"
        " (objectType ?o2 MugType) (receptacleType ?r SideTableType) (inReceptacle ?o2 ?r))))))"
    ),
}

ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a countertop 2, a countertop 1, a drawer 2, "
    "a drawer 1, a fridge 1, a microwave 1, a sidetable 1, a sinkbasin 1, a stoveburner 2, and a stoveburner 1."
)
REFUSED = "Nothing happens."
TRANSCRIPT = [  # command, answer: what TextWorld says, written down by hand
    ("look", "You are in the middle of a room. Looking quickly around you, you see nothing."),
    (
        "go to countertop 2",
        "You arrive at countertop 2. On the countertop 2, you see a bowl 1, a knife 1, and a mug 2.",
    ),
    ("go to countertop 1", REFUSED),  # stands at the same place
    ("examine countertop 1", "On the countertop 1, you see nothing."),
    ("examine bowl 1", REFUSED),  # not held
    ("look", "You are facing the countertop 2, and countertop 1. Next to it, you see nothing."),
    ("take bowl 1 from countertop 2", "You pick up the bowl 1 from the countertop 2."),
    ("take mug 2 from countertop 2", REFUSED),  # one thing in hand at a time
    ("examine bowl 1", "This is a normal bowl 1. In it, you see a egg 1."),
    ("move bowl 1 to countertop 1", "You move the bowl 1 to the countertop 1."),
    ("look", "You are facing the countertop 2, and countertop 1. Next to it, you see a bowl 1."),  # "on the floor"
    ("take knife 1 from countertop 2", "You pick up the knife 1 from the countertop 2."),
    ("slice egg 1 with knife 1", "You sliced the egg 1 with the knife 1."),
    ("inventory", "You are carrying: a knife 1."),
    ("examine knife 1", "There's nothing special about knife 1."),
    ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
    ("slice apple 1 with knife 1", "You sliced the apple 1 with the knife 1."),  # behind a closed door
    ("cool knife 1 with fridge 1", REFUSED),
    ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1."),
    ("move knife 1 to fridge 1", "You move the knife 1 to the fridge 1."),
    ("take apple 1 from fridge 1", "You pick up the apple 1 from the fridge 1."),
    ("examine apple 1", "This is a sliced apple 1."),
    ("cool apple 1 with fridge 1", "You cool the apple 1 using the fridge 1."),
    ("examine apple 1", "This is a cool sliced apple 1."),
    ("close fridge 1", "You close the fridge 1."),
    ("go to microwave 1", "You arrive at microwave 1. The microwave 1 is closed."),
    ("heat apple 1 with microwave 1", "You heat the apple 1 using the microwave 1."),  # closed, and not emptied
    ("examine apple 1", "This is a hot sliced apple 1."),  # no longer cool
    ("move apple 1 to microwave 1", REFUSED),
    ("go to sinkbasin 1", "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing."),
    ("clean apple 1 with sinkbasin 1", "You clean the apple 1 using the sinkbasin 1."),
    ("examine apple 1", "This is a hot and clean sliced apple 1."),
    ("move apple 1 to sinkbasin 1", REFUSED),
    ("go to drawer 1", "You arrive at drawer 1. On the drawer 1, you see nothing."),
    ("move apple 1 to drawer 1", "You move the apple 1 to the drawer 1."),
    ("go to stoveburner 1", "You arrive at stoveburner 1. On the stoveburner 1, you see a pan 1."),
    ("take pan 1 from stoveburner 1", "You pick up the pan 1 from the stoveburner 1."),
    ("examine stoveburner 1", "On the stoveburner 1, you see nothing."),
    ("examine stoveburner 2", "On the stoveburner 2, you see a pan 1."),  # listed there as well
    ("move pan 1 to stoveburner 1", "You move the pan 1 to the stoveburner 1."),
    ("look", "You are facing the stoveburner 2, and stoveburner 1. Next to it, you see nothing."),
    ("go to sidetable 1", "You arrive at sidetable 1. On the sidetable 1, you see a desklamp 1."),
    ("use desklamp 1", "You turn on the desklamp 1."),
    ("use desklamp 1", "You turn on the desklamp 1."),  # never off
    ("inventory", "You are not carrying anything."),
    ("Go to fridge 1", REFUSED),
    ("  look ", "You are facing the sidetable 1. Next to it, you see nothing."),
]


def kitchen(task_type: str = "pick_and_place_simple", goal: str | None = None) -> Game:
    """The kitchen with the goal of a task type, or with any other goal expression."""
    object_types = sorted({name.split("_")[0] for name in OBJECTS} | {"ButterKnife"})
    receptacle_types = sorted({kind for kind, _, _ in RECEPTACLES.values()})
    facts = ["(atLocation agent1 loc_bar_0)"]
    for name, (kind, place, openable) in RECEPTACLES.items():
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} loc_bar_{place})"]
        facts += [f"(openable {name})"] if openable else []
    for name, (receptacles, place, affordances) in OBJECTS.items():
        facts += [f"(objectType {name} {name.split('_')[0]}Type)", f"(objectAtLocation {name} loc_bar_{place})"]
        facts += [f"(inReceptacle {name} {receptacle})" for receptacle in receptacles]
        facts += [f"({affordance} {name})" for affordance in affordances.split()]
    facts.append("(inReceptacleObject Egg_bar_1 Bowl_bar_1)")
    facts += [f"(canContain {r}Type {o}Type)" for r in receptacle_types for o in object_types if r != "SinkBasin"]
    declared = [
        "agent1 - agent",
        *(f"loc_bar_{place} - location" for place in range(8)),
        *(f"{name}Type - otype" for name in object_types),
        *(f"{name}Type - rtype" for name in receptacle_types),
        *(f"{name} - object" for name in OBJECTS),
        *(f"{name} - receptacle" for name in RECEPTACLES),
    ]
    newline = "\n    "
    return Game(
        id=f"train/{task_type}-kitchen/trial_1",
        task_type=task_type,
        task="do what has to be done.",
        pddl_problem=(
            f"(define (problem kitchen)\n(:domain alfred)\n(:objects{newline}{newline.join(declared)})\n"
            f"(:init{newline}{newline.join(facts)})\n(:goal (and {goal or GOALS[task_type]}))\n)\n"
        ),
        solvable=True,
    )
