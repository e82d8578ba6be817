"""Closed lists of words from which the embedded world names its things and people.

A title is a combination of two words. The number of combinations is much larger than the number of words, so that
things never seen in training still bear names whose every word was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Naming:
    """How things of one kind are named: ``pattern`` and ``alias`` are filled with a word of each list.

    ``first`` must not be shorter than ``second``.
    """

    pattern: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    alias: str | None = None

    def combinations(self, rng: Random) -> Iterator[tuple[str, str | None]]:
        """Every title with its alias, in an order in which each run of ``len(first)`` titles holds all the words."""
        first, second = list(self.first), list(self.second)
        rng.shuffle(first)
        rng.shuffle(second)
        for shift in range(len(second)):
            for i, word in enumerate(first):
                words = word, second[(i + shift) % len(second)]
                yield self.pattern.format(*words), self.alias and self.alias.format(*words)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WOMEN = _words(
    "Ada Agnes Bertha Cora Dora Edith Flora Greta Helga Ida Judith Klara Lydia Mabel Nora Olive Petra Rosa Sylvia "
    "Thea Vera Wilma"
)
MEN = _words(
    "Albert Bruno Conrad Dennis Emil Felix Gustav Hugo Ivan Jonas Karl Leo Martin Nils Oscar Paul Quentin Rupert "
    "Simon Tomas Victor Walter"
)

NAMINGS = {
    "region": Naming(
        "{} {}",
        _words("Amber Cedar Copper Eagle Eastern Falcon Granite Ivory Maple Northern Silver Southern"),
        _words("Coast Hills Marches Plain Uplands Vale"),
        "The {} {}",
    ),
    "river": Naming(
        "{1} {0}",
        _words("Arrel Brenn Corvel Dorrin Eddar Fenna Gavar Ivel Kellan Lorne Mirren Naddor Orwen Sarn Tamber Wharn"),
        _words("Black Little Upper White"),
        "River {1} {0}",
    ),
    "town": Naming(
        "{} {}",
        _words(
            "Abber Aldon Barrow Belmar Brack Carden Corby Dalby Danver Elder Farrow Garth Halden Harl Inver Kestrel "
            "Langer Marden Marrow Norby Oaken Orton Penrow Quarry Raven Selby Stanner Thornby Tolver Ulver Wexley "
            "Yarrow"
        ),
        _words("Bridge Cross Fields Gate Green Heath Mill Wells"),
        "Town of {} {}",
    ),
    "person": Naming(
        "{1} {0}",
        _words(
            "Abbott Ashdown Baines Bellow Birch Bramley Calloway Carver Chandler Crane Dacre Dexter Drummond Eckert "
            "Ellery Fairfax Finch Flint Gable Garland Goodwin Grove Hale Hatch Hobday Holm Ingle Jarvis Keller Kirby "
            "Lacey Lindqvist Locke Mallory Marsh Mercer Moss Nash Norwood Oakes Ogden Parrish Peel Penrose Pike "
            "Quill Rawson Redfern Rook Sandoval Sayer Shaw Sorrel Stroud Tanner Thorne Tilley Underwood Vance Vickery "
            "Ward Whitlock Wren Yates"
        ),
        WOMEN + MEN,
    ),
    "university": Naming(
        "{} {}",
        _words("Aldric Benet Cuthwin Dunmore Edmer Godwin Hilary Leofric Oswin Radley Selwyn Wystan"),
        _words("Academy College Institute University"),
        "The {} {}",
    ),
    "company": Naming(
        "{} {}",
        _words(
            "Apex Beacon Crown Delta Ember Forge Globe Harrow Ibex Jasper Keystone Lumen Meridian Nimbus Orbit Pioneer "
            "Quartz Regal Summit Titan Union Vector Willow Zenith"
        ),
        _words("Brothers Company Group Holdings Works"),
        "The {} {}",
    ),
    "band": Naming(
        "The {} {}",
        _words(
            "Broken Crimson Dancing Electric Frozen Gentle Hidden Hollow Humble Lonely Lucky Midnight Paper Restless "
            "Roaming Rusty Secret Sleepy Velvet Wandering"
        ),
        _words(
            "Anchors Bells Candles Comets Foxes Ghosts Herons Kites Lanterns Magpies Mirrors Pilots Sailors Shadows "
            "Sparrows Travellers"
        ),
        "{} {}",
    ),
    "club": Naming(
        "{} {}",
        _words(
            "Acorn Argus Bastion Boulder Cobalt Condor Cygnet Dynamo Griffin Hornet Kodiak Lion Lynx Mercury Otter "
            "Panther Phoenix Rampart Trident Viking"
        ),
        _words("Athletic Rangers Rovers United Wanderers"),
        "The {} {}",
    ),
    "book": Naming(
        "The {} {}",
        _words(
            "Ancient Bitter Bright Burning Clever Cold Crooked Dark Distant Empty Endless Faithful Final Forgotten "
            "Golden Grey Heavy Last Long Lost Narrow Patient Quiet Second Seventh Silent Stolen Sunken Unknown Wild"
        ),
        _words(
            "Bargain Captain Daughter Empire Farewell Garden Guest Harvest Island Journey Kingdom Ladder Letter Miller "
            "Neighbour Orchard Promise Riddle Shepherd Storm Stranger Voyage Widow Witness"
        ),
        "{} {}",
    ),
    "film": Naming(
        "{} of {}",
        _words(
            "Bridges Children City Colours Dance Echoes Edge Fires Gates Heart House Kings Language Night Road "
            "Shores Soldiers Songs Tower Wings"
        ),
        _words("Autumn Courage Dust Glass Honour Iron Memory Mercy Salt Smoke Thunder Winter"),
        "The {} of {}",
    ),
    "song": Naming(
        "{} for {}",
        _words("Anthem Ballad Carol Chorus Hymn Lament Lullaby March Rhapsody Serenade Toast Waltz"),
        _words("Dawn Dreamers Evening Friends Lovers Morning Mother Nobody Strangers Summer Sunday Tomorrow"),
        "A {} for {}",
    ),
    "building": Naming(
        "{} {}",
        _words(
            "Ambrose Bellamy Cavan Dorset Elgar Fenwick Garrick Hanover Ingram Jubilee Kingsway Lambert Monroe Neville "
            "Osborne Paragon Quayside Regent Sterling Tudor Verity Warwick Winslow York"
        ),
        _words("Chapel Hall Library Lighthouse Museum Palace Theatre Tower"),
        "The {} {}",
    ),
}
"""How each kind of thing is named."""
