"""What the embedded world knows and asks: relations, the sentences that state them, and how they are combined.

All sentences are the package's own. In a sentence or question ``{x}`` is the thing it is about and ``{o}`` the value of
the relation; ``{he}`` and ``{his}`` are a person's pronouns. A relation's questions share with each of its sentences a
word that comes in no earlier sentence of the page, so that looking that word up finds the sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Relation:
    """A function from the things of one kind to values.

    ``kind.name`` is its key. ``value_kind`` is the kind of the values when they are things with pages of their own,
    else "". ``clause`` stands for the value inside a question that goes on from it, ``question`` asks for the value;
    each is "" where that is never needed. A relation without ``sentences`` is told by the first sentence of the page.
    """

    key: str
    value_kind: str
    clause: str
    question: str
    sentences: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]


def _table(*relations: Relation) -> dict[str, Relation]:
    return {relation.key: relation for relation in relations}


RELATIONS = _table(
    Relation(
        "region.capital", "town", "the capital of {x}", "What is the capital of {x}?",
        ("Its capital is {o}, where the council meets in spring and autumn.",
         "The capital of the whole region is the old town of {o}."),
    ),
    Relation(
        "region.crop", "", "", "What do the farmers of {x} mainly grow?",
        ("The farmers here mainly grow {o}, which needs a lot of rain.",
         "On the lower land the farmers grow {o} from spring to autumn."),
    ),
    Relation(
        "river.source", "region", "the region where {x} rises", "In which region does {x} rise?",
        ("The water rises in the region called {o} and flows to the sea.",
         "It rises from a small spring in the region called {o}."),
    ),
    Relation(
        "river.length", "", "", "How many kilometres long is {x}?",
        ("From the spring to the sea it is {o} kilometres long.",
         "It is {o} kilometres long and quite deep near the end."),
    ),
    Relation(
        "town.region", "region", "the region around {x}", "In which region is {x}?",
        ("The town belongs to the region called {o} and pays taxes there.",
         "It lies in the region called {o}, a day from the sea."),
    ),
    Relation(
        "town.river", "river", "the river that runs through {x}", "Which river runs through {x}?",
        ("The river {o} runs through the middle of the town.",
         "Children swim in the river {o}, which runs past the market."),
    ),
    Relation(
        "town.mayor", "person", "the first mayor of {x}", "Who was the first mayor of {x}?",
        ("Its first mayor was {o}, who paved most of the streets.",
         "Voters chose {o} as their first mayor after a long debate."),
    ),
    Relation(
        "town.product", "", "", "What is {x} famous for?",
        ("It is famous for its {o}, sold at the autumn fair.",
         "Visitors come for the famous {o} that every shop sells."),
    ),
    Relation(
        "town.population", "", "", "",
        ("About {o} people live in the town and the farms nearby.",
         "At the last count the town had {o} people and few empty houses."),
    ),
    Relation(
        "town.seat", "region", "", "",
        ("It has long been the capital of {o}, with a large court.",),
    ),
    Relation("person.occupation", "", "", "", ()),
    Relation("person.born", "", "", "In which year was {x} born?", ()),
    Relation(
        "person.birthplace", "town", "the town where {x} was born", "In which town was {x} born?",
        ("{He} was born in the town of {o} as the youngest child.",
         "{He} was born above a bakery in the town of {o}."),
    ),
    Relation(
        "person.university", "university", "the school from which {x} graduated", "From which school did {x} graduate?",
        ("{He} graduated from {o}, where {he} won a prize for drawing.",
         "After a winter abroad {he} graduated with honours from {o}."),
    ),
    Relation(
        "person.spouse", "person", "the person who married {x}", "Who married {x}?",
        ("{He} married {o} in a small church on a rainy day.",
         "Friends were surprised when {he} married {o} after a short summer."),
    ),
    Relation(
        "person.book", "book", "the novel that {x} wrote", "",
        ("{He} wrote the novel {o}, mostly at night and by hand.",
         "In a rented room {he} wrote the novel {o} within months."),
    ),
    Relation(
        "person.film", "film", "the film that {x} directed", "",
        ("{He} directed the film {o} with a very small crew.",
         "With borrowed money {he} directed the film {o} in one summer."),
    ),
    Relation(
        "person.part", "film", "the film in which {x} starred", "",
        ("{He} starred in the film {o} and needed no second try.",
         "To wide surprise {he} starred in the film {o} without any training."),
    ),
    Relation(
        "person.song", "song", "the song that {x} wrote", "",
        ("{He} wrote the song {o} on the back of a ticket.",
         "During a long train ride {he} wrote the song {o}."),
    ),
    Relation(
        "person.building", "building", "the building that {x} designed", "",
        ("{He} designed {o} after many long walks through old cities.",
         "At the height of {his} powers {he} designed {o}."),
    ),
    Relation(
        "person.band", "band", "the band that {x} sang with", "",
        ("{He} sang with the band {o} on more than ninety evenings.",
         "Fresh from the choir {he} sang with the band {o}."),
    ),
    Relation(
        "person.club", "club", "the club that {x} trained", "",
        ("{He} trained the club {o} and slept little before a match.",
         "For nine seasons {he} trained the players of the club {o}."),
    ),
    Relation(
        "person.company", "company", "the company that {x} founded", "",
        ("{He} founded {o} with a little money from an uncle.",
         "Together with two cousins {he} founded {o} in a barn."),
    ),
    Relation(
        "person.chair", "university", "the school where {x} was rector", "",
        ("{He} was rector of {o} and raised the wages of the teachers.",
         "As rector of {o} {he} opened the doors to poor students."),
    ),
    Relation(
        "person.office", "town", "the town where {x} was mayor", "",
        ("{He} was elected mayor of {o} by only a few votes.",
         "As mayor of {o} {he} lowered the price of bread."),
    ),
    Relation(
        "university.town", "town", "the town where {x} has its campus", "In which town does {x} have its campus?",
        ("Its campus is in the town of {o}, next to the park.",
         "The green campus fills one corner of the town of {o}."),
    ),
    Relation(
        "university.founded", "", "", "In which year was {x} founded?",
        ("It was founded in {o} by a group of rich traders.",
         "Monks founded it in {o} with only twelve students."),
    ),
    Relation(
        "university.rector", "person", "the rector of {x}", "Who was the rector of {x}?",
        ("Its best rector was {o}, who knew each student by name.",
         "Under the rector {o} the number of students doubled."),
    ),
    Relation(
        "company.founder", "person", "the founder of {x}", "Who was the founder of {x}?",
        ("Its founder was {o}, who kept a desk there for life.",
         "The founder {o} hired only workers who could read and swim."),
    ),
    Relation(
        "company.town", "town", "the town where {x} has its office", "In which town does {x} have its office?",
        ("Its main office is in the town of {o}, near the station.",
         "Some hundred clerks work in its office in the town of {o}."),
    ),
    Relation(
        "company.product", "", "", "What does {x} produce?",
        ("The workers produce {o}, which ships carry to many countries.",
         "It began to produce {o} when an older rival closed."),
    ),
    Relation(
        "company.opened", "", "", "In which year did {x} open?",
        ("The doors first opened in {o} after a lot of delays.",
         "It opened for trade in {o} with a loan and four machines."),
    ),
    Relation(
        "band.singer", "person", "the singer of {x}", "Who was the singer of {x}?",
        ("The singer was {o}, whose deep voice filled large halls.",
         "Their only singer was {o}, who also played the drums."),
    ),
    Relation(
        "band.town", "town", "the town where {x} met", "In which town did {x} meet?",
        ("The members met in the town of {o}, in a noisy cellar.",
         "The four members met at a dance in the town of {o}."),
    ),
    Relation(
        "band.music", "", "", "Which kind of music did {x} play?",
        ("Their music was mostly {o}, with a lot of drums.",
         "Most of their music was {o}, slow at first and then loud."),
    ),
    Relation(
        "band.formed", "", "", "In which year was {x} formed?",
        ("They were formed in {o} and played without pay at weddings.",
         "They were formed in {o} out of two rival school groups."),
    ),
    Relation(
        "club.coach", "person", "the coach of {x}", "Who was the coach of {x}?",
        ("Its most loved coach was {o}, a strict but funny teacher.",
         "The coach {o} led the players to five cups in a row."),
    ),
    Relation(
        "club.town", "town", "the town where {x} has its home ground", "In which town does {x} have its home ground?",
        ("Its home ground is in the town of {o}, behind the brewery.",
         "Fans fill the home ground in the town of {o} each week."),
    ),
    Relation(
        "club.sport", "", "", "Which sport does {x} play?",
        ("The main sport of the members is {o}, played in all weather.",
         "Its sport has always been {o}, with teams for young and old."),
    ),
    Relation(
        "club.founded", "", "", "In which year was {x} founded?",
        ("It was founded in {o} by workers from a nearby mine.",
         "Two brothers founded it in {o} after a lost bet."),
    ),
    Relation(
        "book.author", "person", "the author of the novel {x}", "Who is the author of {x}?",
        ("Its author is {o}, who never wrote anything longer than this.",
         "The author {o} sent it to nine printers before one said yes."),
    ),
    Relation(
        "book.published", "", "", "In which year was {x} published?",
        ("It was published in {o} with a plain blue cover.",
         "A small press published it in {o} and soon needed more paper."),
    ),
    Relation(
        "book.setting", "town", "the town where the novel {x} takes place", "In which town does {x} take place?",
        ("The events take place in the town of {o} over one winter.",
         "Almost all scenes take place in the town of {o}."),
    ),
    Relation(
        "film.director", "person", "the director of the film {x}", "Who was the director of {x}?",
        ("Its director was {o}, who also paid for the costumes.",
         "The director {o} filmed each scene only once to save time."),
    ),
    Relation(
        "film.star", "person", "the star of the film {x}", "Who was the star of {x}?",
        ("Its star was {o}, who learned to ride for the part.",
         "The star was {o}, then still unknown and badly paid."),
    ),
    Relation(
        "film.basis", "book", "the novel on which the film {x} is based", "On which novel is {x} based?",
        ("The script is based on the novel {o}, with a happier end.",
         "It is loosely based on the novel {o} and changes only the end."),
    ),
    Relation(
        "film.released", "", "", "In which year was {x} released?",
        ("It was released in {o} and ran for many weeks.",
         "After a quarrel over the end it was released in {o}."),
    ),
    Relation(
        "song.writer", "person", "the writer of the song {x}", "Who was the writer of {x}?",
        ("Its writer was {o}, who sold the rights for very little.",
         "The writer {o} found the tune while fixing a broken clock."),
    ),
    Relation(
        "song.band", "band", "the band that recorded the song {x}", "Which band recorded {x}?",
        ("It was recorded by the band {o} in a single afternoon.",
         "The band {o} recorded it with rain falling on the roof."),
    ),
    Relation(
        "song.released", "", "", "In which year was {x} released?",
        ("It was released in {o} and played on every radio.",
         "Shops had it from the day it was released in {o}."),
    ),
    Relation(
        "building.architect", "person", "the architect of {x}", "Who was the architect of {x}?",
        ("Its architect was {o}, who drew the garden as well.",
         "The architect {o} fought with the builders about each window."),
    ),
    Relation(
        "building.town", "town", "the town where {x} stands", "In which town does {x} stand?",
        ("It stands in the town of {o}, across from the school.",
         "The building stands on a low hill in the town of {o}."),
    ),
    Relation(
        "building.completed", "", "", "In which year was {x} completed?",
        ("It was completed in {o} after the money ran out twice.",
         "Workers completed the roof and the last windows in {o}."),
    ),
)  # fmt: skip
"""Every relation by its key."""

MIRRORS = (
    ("book.author", "person.book"),
    ("film.director", "person.film"),
    ("film.star", "person.part"),
    ("song.writer", "person.song"),
    ("building.architect", "person.building"),
    ("band.singer", "person.band"),
    ("club.coach", "person.club"),
    ("company.founder", "person.company"),
    ("university.rector", "person.chair"),
    ("town.mayor", "person.office"),
    ("person.spouse", "person.spouse"),
    ("region.capital", "town.seat"),
)
"""Pairs of relations that state one fact from its two ends."""

OCCUPATIONS = {
    "person.book": "writer",
    "person.film": "stage director",
    "person.part": "stage actor",
    "person.song": "composer",
    "person.building": "house architect",
    "person.band": "folk singer",
    "person.club": "sports coach",
    "person.company": "merchant",
    "person.chair": "scholar",
    "person.office": "politician",
}
"""What a person is, by what the person did."""

VALUES = {
    "region.crop": ("barley", "beans", "cabbage", "cotton", "grapes", "hops", "maize", "oats", "rice", "wheat"),
    "town.product": (
        "apple wine", "black bread", "blue cheese", "brass bells", "carved pipes", "clay bowls", "goat cheese",
        "knitted gloves", "leather boots", "plum jam", "silk ribbons", "smoked fish", "straw hats", "wooden toys",
    ),
    "company.product": (
        "bicycles", "cameras", "carpets", "clocks", "engines", "furniture", "lamps", "matches", "paint", "pianos",
        "soap", "stoves", "tyres", "umbrellas",
    ),
    "band.music": ("blues", "disco", "jazz", "reggae", "soul", "swing"),
    "club.sport": (
        "archery", "badminton", "chess", "cricket", "fencing", "football", "handball", "hockey", "rowing", "rugby",
        "tennis", "wrestling",
    ),
}  # fmt: skip
"""Values of the relations whose values are neither things nor numbers."""

HOPS = """
book.author: birthplace university *born spouse
film.director: birthplace *university born spouse
film.star: *birthplace university born spouse
song.writer: birthplace university born *spouse
building.architect: birthplace *university born spouse
band.singer: *birthplace university born spouse
club.coach: birthplace university *born spouse
company.founder: birthplace university born *spouse
university.rector: *birthplace university born spouse
town.mayor: birthplace *university born spouse
person.spouse: birthplace university *born
person.birthplace: region river *mayor product
book.setting: *region river mayor product
building.town: region *river mayor product
band.town: region river mayor *product
club.town: region river *mayor product
company.town: *region river mayor product
university.town: region *river mayor product
region.capital: river *mayor product
town.region: *capital crop
town.river: source length
river.source: capital *crop
person.university: town *founded rector
person.book: *published setting
person.film: *released star basis
person.part: released director *basis
person.song: band released
person.building: town completed
person.band: *town music formed
person.club: town sport founded
person.company: town product opened
person.chair: founded *town
person.office: region river *product
film.basis: author published *setting
song.band: singer town *music formed
"""
"""Bridge questions: the relation that leads from the named thing to the second page, then the relations asked there.

A star keeps the combination for questions that are never trained on; both its relations are trained, in the same
places, in other combinations.
"""


@dataclass(frozen=True)
class Comparison:
    """A question about one relation of two things.

    ``pick`` chooses between two numbers, and the answer is the thing that it belongs to; without it the answer is
    whether the values are equal, "yes" or "no". ``unseen`` keeps it for questions that are never trained on.
    """

    relation: str
    question: str
    pick: Callable[..., Any] | None = None
    unseen: bool = False


COMPARISONS = (
    Comparison("person.born", "Who was born first, {a} or {b}?", min),
    Comparison("book.published", "Which novel was published first, {a} or {b}?", min),
    Comparison("film.released", "Which film was released first, {a} or {b}?", min, unseen=True),
    Comparison("song.released", "Which song was released first, {a} or {b}?", min),
    Comparison("building.completed", "Which building was completed first, {a} or {b}?", min),
    Comparison("club.founded", "Which club was founded first, {a} or {b}?", min),
    Comparison("university.founded", "Which school was founded first, {a} or {b}?", min, unseen=True),
    Comparison("band.formed", "Which band was formed first, {a} or {b}?", min),
    Comparison("town.population", "Where do more people live, in {a} or in {b}?", max),
    Comparison("river.length", "Which river is longer in kilometres, {a} or {b}?", max),
    Comparison("person.birthplace", "Were {a} and {b} born in the same town?"),
    Comparison("person.university", "Did {a} and {b} graduate from the same school?"),
    Comparison("person.occupation", "Did {a} and {b} have the same profession?"),
    Comparison("town.region", "Are {a} and {b} in the same region?"),
    Comparison("town.river", "Are {a} and {b} on the same river?", unseen=True),
    Comparison("club.sport", "Is the sport of {a} also the sport of {b}?"),
    Comparison("band.music", "Did {a} and {b} play the same kind of music?", unseen=True),
    Comparison("book.setting", "Do {a} and {b} take place in the same town?"),
    Comparison("company.town", "Do {a} and {b} have their office in the same town?"),
)
"""Every comparison."""
