"""The facts of the embedded world: who made what, where and when.

Each person did one thing - wrote one novel, led one school, ... - so that both ends of a fact name each other. Dates
agree: nobody works before the age of 24 or after death, a film is younger than its novel and a song than its band.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from agentgym_tlm.envs.hotpotqa.catalogue import MIRRORS, OCCUPATIONS, VALUES
from agentgym_tlm.envs.hotpotqa.names import NAMINGS

_INVERSE = dict(MIRRORS)


@dataclass(frozen=True)
class Entity:
    """A thing or person and what is true of it: values by relation name, titles where they are things."""

    kind: str
    title: str
    alias: str | None
    facts: dict[str, str]


@dataclass(frozen=True)
class Supply:
    """What a world is made from: unused titles with their aliases by kind, and values by relation, without an end."""

    titles: Mapping[str, Iterator[tuple[str, str | None]]]
    values: Mapping[str, Iterator[str]]

    @staticmethod
    def open(rng: Random) -> Supply:
        titles = {kind: naming.combinations(rng) for kind, naming in NAMINGS.items()}
        return Supply(titles, {relation: _spread(values, rng) for relation, values in VALUES.items()})


def draw_entities(supply: Supply, counts: Mapping[str, int], rng: Random) -> dict[str, Entity]:
    """As many things of each kind as ``counts`` says, and the people behind them, by title; facts stay among them."""
    entities: dict[str, Entity] = {}

    def add(kind: str, **facts: str) -> Entity:
        title, alias = next(supply.titles[kind])
        entities[title] = entity = Entity(kind, title, alias, facts)
        return entity

    def add_all(kind: str) -> list[Entity]:
        return [add(kind) for _ in range(counts[kind])]

    def value(relation: str) -> str:
        return next(supply.values[relation])

    regions, rivers, towns, schools = (add_all(kind) for kind in ("region", "river", "town", "university"))

    def town() -> str:
        return rng.choice(towns).title

    def add_person(relation: str, work: Entity, year: int) -> None:
        """The person to whom ``relation`` leads from ``work``, and who was busy with it in ``year``."""
        inverse = _INVERSE[relation]
        born = year - rng.randint(24, 45)
        person = add(
            "person",
            occupation=OCCUPATIONS[inverse],
            born=str(born),
            died=str(born + rng.randint(50, 90)),
            birthplace=town(),
            university=rng.choice(schools).title,
        )
        person.facts[inverse.partition(".")[2]] = work.title
        work.facts[relation.partition(".")[2]] = person.title

    for region in regions:
        region.facts.update(crop=value("region.crop"))
    for river in rivers:
        river.facts.update(source=rng.choice(regions).title, length=str(rng.randint(40, 990)))
    for i, place in enumerate(towns):
        region = regions[i % len(regions)]
        place.facts.update(region=region.title, river=rng.choice(rivers).title, product=value("town.product"))
        place.facts["population"] = str(rng.randint(12, 990) * 100)
        if i < len(regions):
            region.facts["capital"] = place.title
            place.facts["seat"] = region.title
        add_person("town.mayor", place, rng.randint(1880, 1970))
    for school in schools:
        school.facts.update(town=town(), founded=str(rng.randint(1640, 1820)))
        add_person("university.rector", school, rng.randint(1880, 1970))
    for _ in range(counts["company"]):
        year = rng.randint(1880, 1970)
        company = add("company", town=town(), product=value("company.product"), opened=str(year))
        add_person("company.founder", company, year)
    for _ in range(counts["club"]):
        year = rng.randint(1880, 1950)
        club = add("club", town=town(), sport=value("club.sport"), founded=str(year))
        add_person("club.coach", club, year + rng.randint(2, 20))
    for _ in range(counts["building"]):
        year = rng.randint(1880, 1970)
        add_person("building.architect", add("building", town=town(), completed=str(year)), year)
    bands = []
    for _ in range(counts["band"]):
        year = rng.randint(1910, 1960)
        bands.append(band := add("band", town=town(), music=value("band.music"), formed=str(year)))
        add_person("band.singer", band, year)
    for _ in range(counts["song"]):
        band = rng.choice(bands)
        year = int(band.facts["formed"]) + rng.randint(1, 9)
        add_person("song.writer", add("song", band=band.title, released=str(year)), year)
    books = []
    for _ in range(counts["book"]):
        year = rng.randint(1880, 1960)
        books.append(book := add("book", setting=town(), published=str(year)))
        add_person("book.author", book, year)
    for book in books[: counts["film"]]:
        year = int(book.facts["published"]) + rng.randint(2, 15)
        film = add("film", basis=book.title, released=str(year))
        add_person("film.director", film, year)
        add_person("film.star", film, year)
    _marry([entity for entity in entities.values() if entity.kind == "person"], rng)
    return entities


def _marry(people: list[Entity], rng: Random) -> None:
    """Marry seven in ten of ``people`` to the nearest in age."""
    people = sorted(people, key=lambda person: (person.facts["born"], person.title))
    for one, other in zip(people[::2], people[1::2], strict=False):
        if rng.random() < 0.7:
            one.facts["spouse"] = other.title
            other.facts["spouse"] = one.title


def _spread(values: Sequence[str], rng: Random) -> Iterator[str]:
    """The values in any order, again and again, so that each is as frequent as the others."""
    while True:
        yield from rng.sample(values, len(values))
