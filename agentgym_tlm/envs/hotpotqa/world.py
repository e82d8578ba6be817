"""The embedded world: an invented encyclopedia and multi-hop questions about it, as a stand-in for HotpotQA's.

It is generated from a seed within a second, and has some 1,200 different words, few enough for a model of a million
weights. As in HotpotQA, a *bridge* question names one page and is answered on a second one, to which the first leads; a
*comparison* question is about two named pages, and its answer is one of them, or yes or no. What differs:

1. The language is plain: every fact has a sentence of its own, with the subject replaced by a pronoun or "the town".
2. Every question has exactly one answer, literally in the text unless it is yes or no.
3. ``level`` says how many of the two facts lie beyond the first five sentences of their page, which are all that a
   search shows: none (easy), one (medium) or both (hard).

The world has two parts that share words, but no thing, person or fact. ``train`` and ``valid_seen`` ask about the first
part, in the same combinations of relations; ``valid_unseen`` asks about the second part, and only in combinations of
relations that the other two never use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, islice, zip_longest
from random import Random
from typing import TypeVar

from agentgym_tlm.envs.hotpotqa.catalogue import COMPARISONS, HOPS, RELATIONS, Comparison, Relation
from agentgym_tlm.envs.hotpotqa.facts import Entity, Supply, draw_entities
from agentgym_tlm.envs.hotpotqa.names import WOMEN
from agentgym_tlm.envs.hotpotqa.phrases import FILLERS, INTRODUCTIONS
from agentgym_tlm.envs.hotpotqa.question import Page, Question
from agentgym_tlm.envs.hotpotqa.rules import HEAD_SENTENCES
from agentgym_tlm.errors import ConfigError

WORLD_VERSION = "1"
"""Changes whenever the same seed gives another world."""

SPLITS = ("train", "valid_seen", "valid_unseen")

_LEVELS = ("easy", "medium", "hard")
_BRIDGES = {"train": 5200, "valid_seen": 160, "valid_unseen": 160}
_COMPARISONS = {"train": 1300, "valid_seen": 40, "valid_unseen": 40}
_FIRST_PART = {
    "region": 12, "river": 16, "town": 64, "university": 24, "company": 50, "club": 40, "building": 50, "band": 40,
    "song": 50, "book": 70, "film": 50,
}  # fmt: skip
_SECOND_PART = {
    "region": 6, "river": 8, "town": 20, "university": 8, "company": 16, "club": 12, "building": 16, "band": 12,
    "song": 16, "book": 24, "film": 16,
}  # fmt: skip
_PAGE_LENGTHS = (5, 5, 6, 6, 7, 8, 9)
"""Sentences of a page, unless its facts need more."""
_MOST_COMPARED = 100
"""Things of one kind out of which pairs are made."""

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The pages, and the questions about them."""

    seed: int
    pages: tuple[Page, ...]
    _questions: Mapping[str, tuple[Question, ...]]

    def questions(self, split: str) -> tuple[Question, ...]:
        """The questions of ``split``, sorted by id. Raises ConfigError when there is no such split."""
        if split not in self._questions:
            raise ConfigError(f"the embedded world has the splits {', '.join(SPLITS)}, not {split!r}")
        return self._questions[split]


@cache
def embedded_world(seed: int = 0) -> World:
    """The world that belongs to ``seed``: the same one on every machine."""
    rng = Random(f"{WORLD_VERSION}/{seed}")
    supply = Supply.open(rng)
    first, second = (
        {title: _write(entity, rng) for title, entity in draw_entities(supply, counts, rng).items()}
        for counts in (_FIRST_PART, _SECOND_PART)
    )
    seen_bridges, seen_comparisons = _bridges(first, rng, unseen=False), _comparisons(first, rng, unseen=False)
    unseen_bridges, unseen_comparisons = _bridges(second, rng, unseen=True), _comparisons(second, rng, unseen=True)
    questions = {}
    # valid_seen comes first: train goes on where it stops, and has many more questions of each combination.
    for split, bridges, comparisons in (
        ("valid_seen", seen_bridges, seen_comparisons),
        ("train", seen_bridges, seen_comparisons),
        ("valid_unseen", unseen_bridges, unseen_comparisons),
    ):
        taken = chain(islice(bridges, _BRIDGES[split]), islice(comparisons, _COMPARISONS[split]))
        questions[split] = tuple(sorted((draft.question(split) for draft in taken), key=lambda question: question.id))
    pages = tuple(article.page for article in chain(first.values(), second.values()))
    return World(seed, pages, questions)


@dataclass(frozen=True)
class _Article:
    """The page of an entity, and the sentence of the page that states each relation."""

    entity: Entity
    page: Page
    sentence: Mapping[str, int]


@dataclass(frozen=True)
class _Draft:
    """A question that belongs to no split yet."""

    name: str
    type: str
    text: str
    answer: str
    facts: tuple[tuple[str, int], ...]

    def question(self, split: str) -> Question:
        level = _LEVELS[sum(sentence >= HEAD_SENTENCES for _, sentence in self.facts)]
        return Question(f"{split}/{self.type}/{self.name}", self.text, self.answer, self.type, level, self.facts)


def _write(entity: Entity, rng: Random) -> _Article:
    """An introduction, then the facts and some padding in any order."""
    facts = entity.facts
    words = {"x": entity.title, "he": "he", "his": "his", **facts}
    if entity.title.partition(" ")[0] in WOMEN:
        words |= {"he": "she", "his": "her"}
    words |= {"He": words["he"].capitalize(), "His": words["his"].capitalize()}
    relations = [RELATIONS[key] for name in facts if (key := f"{entity.kind}.{name}") in RELATIONS]
    body: list[tuple[str | None, str]] = [
        (relation.name, rng.choice(relation.sentences)) for relation in relations if relation.sentences
    ]
    padding = max(0, rng.choice(_PAGE_LENGTHS) - 1 - len(body))
    body += [(None, sentence) for sentence in rng.sample(FILLERS[entity.kind], padding)]
    rng.shuffle(body)
    body.insert(0, (None, rng.choice(INTRODUCTIONS[entity.kind])))
    place = {relation.name: 0 for relation in relations}
    place |= {name: i for i, (name, _) in enumerate(body) if name is not None}
    texts = [text.format(**words, o=facts.get(name or "", "")) for name, text in body]
    sentences = (texts[0], *(f" {text}" for text in texts[1:]))
    return _Article(entity, Page(entity.title, sentences, (entity.alias,) if entity.alias else ()), place)


def _bridges(articles: Mapping[str, _Article], rng: Random, *, unseen: bool) -> Iterator[_Draft]:
    """Bridge questions, each combination of relations in turn for as long as it has any."""
    by_hops = []
    for first, second in _hops(unseen=unseen):
        found = [
            _bridge(first, second, article, articles[article.entity.facts[first.name]])
            for article in articles.values()
            if article.entity.kind == first.kind and first.name in article.entity.facts
        ]
        drafts = [draft for draft in found if draft is not None]
        rng.shuffle(drafts)
        by_hops.append(drafts)
    return _interleave(by_hops)


def _hops(*, unseen: bool) -> Iterator[tuple[Relation, Relation]]:
    for line in HOPS.strip().splitlines():
        key, _, names = line.partition(": ")
        first = RELATIONS[key]
        for name in names.split():
            if name.startswith("*") == unseen:
                yield first, RELATIONS[f"{first.value_kind}.{name.removeprefix('*')}"]


def _bridge(first: Relation, second: Relation, start: _Article, end: _Article) -> _Draft | None:
    """The question from ``start`` over ``end``; None if there is no answer, or if the question gives it away."""
    title = start.entity.title
    answer = end.entity.facts.get(second.name)
    if answer is None or answer == title:
        return None
    return _Draft(
        f"{first.key}-{second.key}/{_slug(title)}",
        "bridge",
        second.question.format(x=first.clause.format(x=title)),
        answer,
        ((title, start.sentence[first.name]), (end.entity.title, end.sentence[second.name])),
    )


def _comparisons(articles: Mapping[str, _Article], rng: Random, *, unseen: bool) -> Iterator[_Draft]:
    """Comparison questions, each relation in turn for as long as it has any."""
    return _interleave(
        [_comparison_drafts(comparison, articles, rng) for comparison in COMPARISONS if comparison.unseen == unseen]
    )


def _comparison_drafts(comparison: Comparison, articles: Mapping[str, _Article], rng: Random) -> list[_Draft]:
    """Questions on a sample of the things that can be compared: no and yes, or first and second thing, by turns."""
    relation = RELATIONS[comparison.relation]
    things = [article for article in articles.values() if article.entity.kind == relation.kind]
    things = rng.sample(things, min(len(things), _MOST_COMPARED))
    sides: tuple[list[_Draft], list[_Draft]] = [], []
    for pair in combinations(things, 2):
        titles = [article.entity.title for article in pair]
        values = [article.entity.facts[relation.name] for article in pair]
        if comparison.pick is None:
            side = int(values[0] == values[1])
            answer = ("no", "yes")[side]
        elif values[0] == values[1]:
            continue
        else:
            numbers = [int(value) for value in values]
            side = numbers.index(comparison.pick(numbers))
            answer = titles[side]
        draft = _Draft(
            f"{relation.key}/{'+'.join(map(_slug, titles))}",
            "comparison",
            comparison.question.format(a=titles[0], b=titles[1]),
            answer,
            tuple((article.entity.title, article.sentence[relation.name]) for article in pair),
        )
        sides[side].append(draft)
    for drafts in sides:
        rng.shuffle(drafts)
    return list(chain.from_iterable(zip(*sides, strict=False)))


def _interleave(lists: Iterable[Sequence[T]]) -> Iterator[T]:
    """The first items of all the lists, then the second ones, and so on."""
    return (item for items in zip_longest(*lists) for item in items if item is not None)


def _slug(title: str) -> str:
    return title.replace(" ", "_")
