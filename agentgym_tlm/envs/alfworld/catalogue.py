"""What rooms are made of: furniture, objects, and where objects are usually kept.

The class names, affordances and legal placements are ALFRED's. The weights of :data:`HOMES` are round numbers that
follow common sense and how often ALFWorld's training rooms agree with it. One table serves two users: the game
generator draws placements from it, and the explorer looks for an object in the order that it suggests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _read_homes(table: str) -> Mapping[str, Mapping[str, int]]:
    homes: dict[str, dict[str, int]] = {}
    words = iter(table.split())
    for word in words:
        if word.endswith(":"):
            row = homes[word[:-1]] = {}
        else:
            row[word] = int(next(words))
    return MappingProxyType(homes)


HOMES: Mapping[str, Mapping[str, int]] = _read_homes("""
    AlarmClock: Desk 55 DiningTable 50 CounterTop 50 Dresser 45 SideTable 35 Shelf 11
    Apple: Fridge 40 DiningTable 33 SideTable 30 Microwave 24 GarbageCan 23 CounterTop 20 SinkBasin 17
    BaseballBat: Bed 10 DiningTable 5 SideTable 3
    BasketBall: Desk 6 Bed 5 Dresser 4 DiningTable 3 SideTable 2
    Book: Bed 60 CoffeeTable 50 Desk 40 DiningTable 33 CounterTop 32 Sofa 24 Dresser 23 ArmChair 13 SideTable 8
        Ottoman 5 Cabinet 3 Drawer 3 Shelf 1
    Bowl: Desk 75 CoffeeTable 43 Fridge 33 DiningTable 33 Dresser 32 CounterTop 16 Shelf 9 SideTable 7 SinkBasin
        6 Microwave 5 Cabinet 5
    Box: DiningTable 45 CoffeeTable 27 Sofa 22 Desk 14 Ottoman 5 Cabinet 5 SideTable 5 Dresser 4 ArmChair 3
        Shelf 2
    Bread: DiningTable 50 CounterTop 33 Fridge 17 SideTable 9 GarbageCan 1 Microwave 1
    ButterKnife: DiningTable 50 CounterTop 38 SideTable 27 SinkBasin 10 Drawer 3
    CD: DiningTable 57 Dresser 39 Desk 36 SideTable 25 CounterTop 14 GarbageCan 14 ArmChair 9 Drawer 8 Cabinet 7
        Safe 6 Shelf 4
    Candle: SideTable 60 CounterTop 45 Toilet 44 CoffeeTable 39 Cart 35 DiningTable 30 Dresser 25 Shelf 22
        Cabinet 12 Drawer 9
    CellPhone: Bed 42 Desk 40 DiningTable 40 CoffeeTable 36 Ottoman 35 Dresser 35 CounterTop 27 Sofa 25 Safe 23
        SideTable 19 ArmChair 17 Drawer 5 Shelf 5
    Cloth: BathtubBasin 60 Cart 33 CounterTop 27 Cabinet 19 Dresser 14 SinkBasin 9 Drawer 7 Toilet 6 Shelf 5
        SideTable 1 Desk 1 LaundryHamper 1 GarbageCan 1
    CreditCard: Desk 39 Dresser 36 DiningTable 34 Sofa 31 CounterTop 28 CoffeeTable 27 SideTable 22 ArmChair 19
        Ottoman 19 Safe 10 Shelf 10 Drawer 9
    Cup: Fridge 35 DiningTable 33 SideTable 28 SinkBasin 17 CounterTop 17 Microwave 14 Shelf 6 Cabinet 3
    DeskLamp: SideTable 42 Desk 40 Dresser 36 CoffeeTable 16 Shelf 3
    DishSponge: BathtubBasin 39 Cart 30 DiningTable 29 CounterTop 21 Toilet 15 SinkBasin 14 SideTable 13
        GarbageCan 10 Shelf 10 Drawer 7 Cabinet 4
    Egg: Fridge 40 DiningTable 27 SideTable 26 GarbageCan 22 SinkBasin 22 Microwave 21 CounterTop 19
    Fork: DiningTable 46 CounterTop 31 SideTable 24 SinkBasin 15 Drawer 7
    Glassbottle: DiningTable 37 CounterTop 18 SinkBasin 17 Fridge 15 GarbageCan 14 Shelf 8 Cabinet 4
    HandTowel: HandTowelHolder 79 CounterTop 5 Cabinet 1 Drawer 1 Toilet 1 GarbageCan 1
    Kettle: DiningTable 23 StoveBurner 17 CounterTop 16 Cabinet 3 SinkBasin 3 Shelf 1
    KeyChain: Desk 39 Safe 37 Dresser 34 CoffeeTable 28 DiningTable 28 SideTable 23 Ottoman 19 Sofa 15 ArmChair
        11 Drawer 8 Shelf 7 CounterTop 5
    Knife: DiningTable 47 CounterTop 33 SideTable 13 SinkBasin 8 Drawer 6
    Ladle: DiningTable 50 CounterTop 30 SinkBasin 4 Drawer 4 Cabinet 4
    Laptop: Bed 70 CounterTop 48 DiningTable 40 Desk 36 CoffeeTable 32 Sofa 31 Dresser 17 Ottoman 14 ArmChair 5
        SideTable 4
    Lettuce: DiningTable 50 Fridge 34 CounterTop 27 SideTable 23 SinkBasin 9 GarbageCan 2
    Mug: Desk 60 CoffeeMachine 38 Dresser 37 DiningTable 29 Fridge 26 SideTable 25 CounterTop 25 Microwave 15
        SinkBasin 13 Shelf 7 Cabinet 3
    Newspaper: DiningTable 44 Dresser 40 CoffeeTable 28 Sofa 28 Ottoman 25 SideTable 14 ArmChair 12 Shelf 11
        Drawer 1 GarbageCan 1
    Pan: CounterTop 25 StoveBurner 22 DiningTable 10 Fridge 6 SinkBasin 2 Cabinet 1
    Pen: Desk 58 DiningTable 57 CoffeeTable 50 Dresser 47 CounterTop 29 SideTable 28 Shelf 10 Drawer 7
        GarbageCan 5
    Pencil: Desk 49 DiningTable 49 CoffeeTable 42 Dresser 37 SideTable 34 CounterTop 25 Shelf 11 GarbageCan 10
        Drawer 6
    PepperShaker: SideTable 36 DiningTable 36 CounterTop 24 Shelf 10 Drawer 5 Cabinet 5
    Pillow: Bed 90 Sofa 70 ArmChair 14 Ottoman 2
    Plate: DiningTable 35 CoffeeTable 27 CounterTop 20 Fridge 14 Dresser 10 SideTable 8 Shelf 6 Cabinet 5
        SinkBasin 4 Microwave 1
    Plunger: Cabinet 1 Cart 1
    Pot: StoveBurner 33 CounterTop 11 DiningTable 10 Fridge 7 Shelf 1 SinkBasin 1 Cabinet 1
    Potato: Fridge 41 DiningTable 35 CounterTop 22 SideTable 21 SinkBasin 20 Microwave 18 GarbageCan 12
    RemoteControl: CounterTop 52 Desk 50 CoffeeTable 38 Dresser 34 DiningTable 32 Sofa 26 Ottoman 19 SideTable
        15 ArmChair 10 Drawer 4 Shelf 3
    SaltShaker: DiningTable 38 SideTable 36 CounterTop 24 Shelf 9 Cabinet 5 Drawer 4
    SoapBar: SideTable 45 CounterTop 33 BathtubBasin 31 Toilet 27 Cart 26 SinkBasin 18 Shelf 15 GarbageCan 12
        Cabinet 12 Drawer 8
    SoapBottle: DiningTable 44 Dresser 40 Toilet 37 CounterTop 27 SideTable 25 Cart 22 GarbageCan 18 Shelf 15
        Cabinet 5 Drawer 1
    Spatula: DiningTable 48 CounterTop 32 SinkBasin 15 SideTable 10 Drawer 7
    Spoon: DiningTable 43 SideTable 29 CounterTop 28 SinkBasin 20 Drawer 9
    SprayBottle: SideTable 62 Cart 54 Toilet 43 CounterTop 40 Dresser 34 DiningTable 33 Shelf 20 GarbageCan 20
        Cabinet 8 Drawer 1
    Statue: CoffeeTable 45 Desk 44 DiningTable 44 Dresser 37 CounterTop 28 SideTable 23 Shelf 19 Safe 5
    TennisRacket: Bed 8 Desk 3 Dresser 3 DiningTable 2 SideTable 2
    TissueBox: CoffeeTable 57 Desk 54 CounterTop 54 DiningTable 39 Cart 37 TVStand 29 Shelf 22 SideTable 20
        Dresser 17 Cabinet 10 Drawer 6 Toilet 5 GarbageCan 1
    ToiletPaper: Toilet 42 SideTable 37 CounterTop 36 Dresser 36 Cart 33 ToiletPaperHanger 23 Shelf 19
        GarbageCan 18 Cabinet 11 Drawer 8
    Tomato: Fridge 51 DiningTable 40 SideTable 26 CounterTop 23 GarbageCan 18 SinkBasin 12 Microwave 5
    Towel: TowelHolder 90
    Vase: Dresser 50 CoffeeTable 42 Desk 40 DiningTable 38 CounterTop 27 Shelf 21 SideTable 19 Cabinet 6 Safe 3
    Watch: Desk 44 DiningTable 42 Dresser 38 CoffeeTable 37 SideTable 22 Drawer 9 Safe 5 Shelf 5
    WateringCan: Shelf 18 CoffeeTable 11 Desk 5 Dresser 5 DiningTable 4 SideTable 1
    WineBottle: DiningTable 48 CounterTop 32 GarbageCan 16 Shelf 6 Cabinet 4 Fridge 3 SideTable 2
""")
"""Object class -> receptacle class -> chance in percent that one such receptacle holds such an object.

The keys of an entry are also the receptacle classes in which the object may be put.
"""

AFFORDANCES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "cleanable": _names(
            "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan Plate Pot Potato "
            "SoapBar Spatula Spoon Tomato"
        ),
        "heatable": _names("Apple Bread Cup Egg Mug Plate Potato Tomato"),
        "coolable": _names("Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle"),
        "sliceable": _names("Apple Bread Egg Lettuce Potato Tomato"),
        "isReceptacleObject": _names("Bowl Box Cup Mug Pan Plate Pot"),
        "toggleable": frozenset({"DeskLamp"}),
        "pickupable": frozenset(HOMES) - {"DeskLamp"},
    }
)
"""PDDL predicate -> object classes that it holds for."""

ALWAYS_CLOSED = frozenset({"Fridge", "Microwave"})
SOMETIMES_CLOSED = frozenset({"Cabinet", "Drawer", "Safe"})

HOLDS_ONE = frozenset({"CoffeeMachine", "HandTowelHolder", "StoveBurner", "ToiletPaperHanger", "TowelHolder"})
"""Receptacle classes in which the generator places one object at most (the simulator has no such limit)."""


@dataclass(frozen=True)
class Room:
    """A kind of room: numbers of its 30 rooms, and per receptacle class the fewest and most that a full-size one has.

    Every room, however small, has one of each of ``essentials``.
    """

    first_number: int
    essentials: tuple[str, ...]
    receptacles: Mapping[str, tuple[int, int]]
    objects: frozenset[str]


def _read_counts(table: str) -> Mapping[str, tuple[int, int]]:
    words = table.split()
    spans = {name: span.split("-") for name, span in zip(words[::2], words[1::2], strict=True)}
    return MappingProxyType({name: (int(span[0]), int(span[-1])) for name, span in spans.items()})


ROOMS: Mapping[str, Room] = MappingProxyType(
    {
        "kitchen": Room(
            first_number=1,
            essentials=("CounterTop", "Fridge", "Microwave", "SinkBasin"),
            receptacles=_read_counts(
                "Cabinet 4-20 CoffeeMachine 1 CounterTop 1-3 DiningTable 0-2 Drawer 2-12 Fridge 1 GarbageCan 1 "
                "Microwave 1 Shelf 0-3 SideTable 0-1 SinkBasin 1 StoveBurner 4 Toaster 1"
            ),
            objects=_names(
                "Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Glassbottle Kettle Knife Ladle Lettuce Mug Pan "
                "PepperShaker Plate Pot Potato SaltShaker SoapBottle Spatula Spoon Tomato Vase WineBottle"
            ),
        ),
        "living room": Room(
            first_number=201,
            essentials=("SideTable", "Sofa"),
            receptacles=_read_counts(
                "ArmChair 1-3 Cabinet 0-6 CoffeeTable 1-2 Desk 0-1 DiningTable 0-1 Drawer 0-9 Dresser 0-1 "
                "GarbageCan 1 Ottoman 0-1 Safe 0-1 Shelf 0-9 SideTable 1-4 Sofa 1-2 TVStand 0-1"
            ),
            objects=_names(
                "Book Box Candle CellPhone CreditCard DeskLamp KeyChain Laptop Newspaper Pen Pencil Pillow Plate "
                "RemoteControl Statue TissueBox Vase Watch WateringCan"
            ),
        ),
        "bedroom": Room(
            first_number=301,
            essentials=("Bed", "Desk"),
            receptacles=_read_counts(
                "ArmChair 0-1 Bed 1-2 Cabinet 0-3 Desk 1-2 Drawer 2-10 Dresser 0-1 GarbageCan 1 LaundryHamper 0-1 "
                "Safe 0-1 Shelf 0-8 SideTable 0-2"
            ),
            objects=_names(
                "AlarmClock BaseballBat BasketBall Book Bowl Box CD CellPhone Cloth CreditCard DeskLamp KeyChain "
                "Laptop Mug Pen Pencil Pillow Statue TennisRacket TissueBox Vase Watch"
            ),
        ),
        "bathroom": Room(
            first_number=401,
            essentials=("CounterTop", "SinkBasin", "Toilet"),
            receptacles=_read_counts(
                "BathtubBasin 0-1 Cabinet 0-6 Cart 0-1 CounterTop 1-2 Drawer 0-6 Dresser 0-1 GarbageCan 1 "
                "HandTowelHolder 1-2 Shelf 0-3 SideTable 0-1 SinkBasin 1-2 Toilet 1 ToiletPaperHanger 1 TowelHolder 1-2"
            ),
            objects=_names(
                "Candle Cloth DishSponge HandTowel Plunger SoapBar SoapBottle SprayBottle TissueBox ToiletPaper Towel"
            ),
        ),
    }
)
ROOM_SIZE = 30
"""Rooms per kind, numbered as in ALFRED: 1-30 kitchens, 201-230 living rooms, 301-330 bedrooms, 401-430 bathrooms."""

RECEPTACLE_CLASSES: tuple[str, ...] = tuple(sorted({name for room in ROOMS.values() for name in room.receptacles}))
