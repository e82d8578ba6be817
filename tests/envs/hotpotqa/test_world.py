"""The embedded world: pages that agree with each other, and questions that the pages answer in exactly one way.

The tests read the pages back into facts through the sentence templates alone, and answer the questions from what they
read: nothing here trusts the facts that the generator had in mind.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from agentgym_tlm.envs.hotpotqa.catalogue import COMPARISONS, HOPS, MIRRORS, OCCUPATIONS, RELATIONS, VALUES, Relation
from agentgym_tlm.envs.hotpotqa.names import NAMINGS
from agentgym_tlm.envs.hotpotqa.phrases import FILLERS, INTRODUCTIONS
from agentgym_tlm.envs.hotpotqa.question import Page, Question
from agentgym_tlm.envs.hotpotqa.rules import HEAD_SENTENCES
from agentgym_tlm.envs.hotpotqa.world import SPLITS, World, embedded_world
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.tiny import build_tokenizer

SEEDS = (0, 1)
YES_NO = {"yes", "no"}


FORMS = {"he": "he|she", "his": "his|her", "He": "He|She", "His": "His|Her"}


@cache
def pattern(template: str) -> re.Pattern[str]:
    """What the texts made from a template look like; every placeholder but pronouns is a named group."""
    parts = re.split(r"\{(\w+)\}", template)
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = re.escape(part)
        else:
            parts[i] = f"(?:{FORMS[part]})" if part in FORMS else f"(?P<{part}>.+)"
    return re.compile("".join(parts))


@dataclass(frozen=True)
class Reading:
    """What a page says: its kind, its facts, and the sentence that states each."""

    page: Page
    kind: str
    facts: dict[str, str]
    sentence: dict[str, int]


def read(page: Page) -> Reading:
    [(kind, introduction)] = [
        (kind, match)
        for kind, templates in INTRODUCTIONS.items()
        for template in templates
        if (match := pattern(template).fullmatch(page.sentences[0]))
    ]
    facts = introduction.groupdict()
    assert facts.pop("x") == page.title
    sentence = dict.fromkeys(facts, 0)
    relations = [relation for relation in RELATIONS.values() if relation.kind == kind]
    for i, text in enumerate(page.sentences[1:], start=1):
        assert text.startswith(" "), f"sentences of {page.title} would run together"
        stated = [
            (relation.name, match["o"])
            for relation in relations
            for template in relation.sentences
            if (match := pattern(template).fullmatch(text[1:]))
        ]
        padding = [template for template in FILLERS[kind] if pattern(template).fullmatch(text[1:])]
        assert len(stated) + len(padding) == 1, f"{text!r} can be read in {len(stated) + len(padding)} ways"
        for name, value in stated:
            assert name not in facts, f"{page.title} states its {name} twice"
            facts[name] = value
            sentence[name] = i
    return Reading(page, kind, facts, sentence)


@cache
def readings(seed: int) -> dict[str, Reading]:
    return {page.title: read(page) for page in embedded_world(seed).pages}


@cache
def hops() -> tuple[tuple[Relation, Relation, bool], ...]:
    found = []
    for line in HOPS.strip().splitlines():
        key, names = line.split(": ")
        for name in names.split():
            second = f"{RELATIONS[key].value_kind}.{name.lstrip('*')}"
            found.append((RELATIONS[key], RELATIONS[second], name.startswith("*")))
    return tuple(found)


def answers(question: str, seed: int) -> set[str]:
    """Every answer that the pages give to a question, whichever way its words can be read."""
    pages = readings(seed)
    found = set()
    for first, second, _ in hops():
        match = pattern(second.question.format(x=first.clause)).fullmatch(question)
        if match and match["x"] in pages and pages[match["x"]].kind == first.kind:
            found.add(pages[pages[match["x"]].facts[first.name]].facts[second.name])
    for comparison in COMPARISONS:
        match = pattern(comparison.question).fullmatch(question)
        if match and {match["a"], match["b"]} <= pages.keys():
            kind, name = comparison.relation.split(".")
            a, b = (pages[match[group]] for group in "ab")
            if a.kind == b.kind == kind:
                if comparison.pick is None:
                    found.add("yes" if a.facts[name] == b.facts[name] else "no")
                else:
                    best = comparison.pick(int(a.facts[name]), int(b.facts[name]))
                    found |= {thing.page.title for thing in (a, b) if int(thing.facts[name]) == best}
    return found


def all_questions(world: World) -> Iterator[Question]:
    for split in SPLITS:
        yield from world.questions(split)


def combination(question: Question) -> str:
    return question.id.split("/")[2]


def titles(question: Question) -> set[str]:
    return {title for title, _ in question.supporting_facts}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sentence_states_one_fact_and_every_page_those_of_its_kind(seed: int) -> None:
    optional = {"person.spouse", "town.seat", *(inverse for _, inverse in MIRRORS)}
    for reading in readings(seed).values():
        expected = {key for key, relation in RELATIONS.items() if relation.kind == reading.kind}
        stated = {f"{reading.kind}.{name}" for name in reading.facts} - {"person.died"}
        assert expected - optional <= stated <= expected, reading.page.title
        for name, value in reading.facts.items():
            key = f"{reading.kind}.{name}"
            if key in VALUES:
                assert value in VALUES[key]
            elif key in RELATIONS and RELATIONS[key].value_kind:
                assert readings(seed)[value].kind == RELATIONS[key].value_kind, (reading.page.title, name)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_pages_agree_where_they_state_the_same_fact(seed: int) -> None:
    pages = readings(seed)
    mirrors = dict(MIRRORS)
    mirrors |= {inverse: relation for relation, inverse in MIRRORS}
    counts: Counter[str] = Counter()
    for title, reading in pages.items():
        for name, value in reading.facts.items():
            if inverse := mirrors.get(f"{reading.kind}.{name}"):
                assert pages[value].facts[inverse.partition(".")[2]] == title
                counts[f"{reading.kind}.{name}"] += 1
    assert set(counts) == set(mirrors)
    for title, reading in pages.items():
        if capital := reading.facts.get("capital"):
            assert pages[capital].facts["region"] == title


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_works_as_a_child_or_after_death_and_nothing_is_older_than_what_it_comes_from(seed: int) -> None:
    pages = readings(seed)
    dated = {
        "book": "published", "film": "released", "song": "released", "building": "completed", "band": "formed",
        "company": "opened",
    }  # fmt: skip
    checked = 0
    for reading in pages.values():
        if (dated_by := dated.get(reading.kind)) is None:
            continue
        year = int(reading.facts[dated_by])
        for value in reading.facts.values():
            source = pages.get(value)
            if source is None:
                continue
            if source.kind == "person":
                assert int(source.facts["born"]) + 24 <= year <= int(source.facts["died"])
                checked += 1
            elif source.kind in dated:
                assert int(source.facts[dated[source.kind]]) < year
                checked += 1
    assert checked > 500
    for reading in pages.values():
        if reading.kind == "person":
            school = pages[reading.facts["university"]]
            assert int(school.facts["founded"]) < int(reading.facts["born"]) + 18


@pytest.mark.parametrize("seed", SEEDS)
def test_supporting_facts_are_the_sentences_that_lead_to_the_answer(seed: int) -> None:
    world = embedded_world(seed)
    pages = {page.title: page for page in world.pages}
    for question in all_questions(world):
        (one, i), (two, j) = question.supporting_facts
        first, second = pages[one].sentences[i], pages[two].sentences[j]
        assert one != two
        assert one in question.question
        if question.type == "bridge":
            assert two in first, f"{question.id}: nothing on the first page leads to the second one"
            assert two not in question.question
            assert question.answer in second
            assert question.answer not in question.question
        else:
            assert two in question.question
            assert question.answer in YES_NO | {one, two}
            key = combination(question)
            values = [readings(seed)[title].facts[key.partition(".")[2]] for title in (one, two)]
            assert values[0] in first
            assert values[1] in second


@pytest.mark.parametrize("seed", SEEDS)
def test_the_pages_answer_every_question_in_exactly_one_way(seed: int) -> None:
    for question in all_questions(embedded_world(seed)):
        assert answers(question.question, seed) == {question.answer}, question.id


@pytest.mark.parametrize("seed", SEEDS)
def test_level_is_the_number_of_facts_that_a_search_does_not_show(seed: int) -> None:
    for question in all_questions(embedded_world(seed)):
        hidden = sum(index >= HEAD_SENTENCES for _, index in question.supporting_facts)
        assert question.level == ("easy", "medium", "hard")[hidden]


@pytest.mark.parametrize("seed", SEEDS)
def test_looking_up_a_word_of_the_question_finds_each_fact_that_a_search_does_not_show(seed: int) -> None:
    world = embedded_world(seed)
    pages = {page.title: page for page in world.pages}
    for question in all_questions(world):
        words = question.question
        for title in titles(question):
            words = words.replace(title, "")
        for title, index in question.supporting_facts:
            if index >= HEAD_SENTENCES:
                texts = [sentence.lower() for sentence in pages[title].sentences]
                found = {
                    next((i for i, text in enumerate(texts) if word in text), None)
                    for word in re.findall(r"[a-z]{3,}", words.lower())
                }
                assert index in found, (question.id, texts[index])


@pytest.mark.parametrize("seed", SEEDS)
def test_splits_have_their_sizes_and_no_question_twice(seed: int) -> None:
    world = embedded_world(seed)
    assert {split: len(world.questions(split)) for split in SPLITS} == {
        "train": 6500,
        "valid_seen": 200,
        "valid_unseen": 200,
    }
    questions = list(all_questions(world))
    assert len({question.question for question in questions}) == len(questions)
    compared = [frozenset(titles(question)) for question in questions if question.type == "comparison"]
    relations = [combination(question) for question in questions if question.type == "comparison"]
    assert len(set(zip(relations, compared, strict=True))) == len(compared), "the same two things in the other order"
    for split in SPLITS:
        ids = [question.id for question in world.questions(split)]
        assert ids == sorted(set(ids))


@pytest.mark.parametrize("seed", SEEDS)
def test_seen_questions_use_what_training_uses_and_unseen_ones_nothing_of_it(seed: int) -> None:
    world = embedded_world(seed)
    train, seen, unseen = (world.questions(split) for split in SPLITS)
    assert {combination(question) for question in seen} == {combination(question) for question in train}
    assert not {combination(question) for question in unseen} & {combination(question) for question in train}
    trained_titles = {title for question in train for title in titles(question)}
    assert {title for question in seen for title in titles(question)} <= trained_titles

    def named(questions: tuple[Question, ...]) -> set[str]:
        """Every title on any page that the questions lead to."""
        pages = readings(seed)
        reached = {title for question in questions for title in titles(question)}
        return reached | {value for title in reached for value in pages[title].facts.values() if value in pages}

    assert not named(train + seen) & named(unseen)


def test_unseen_combinations_are_of_relations_that_are_trained_in_the_same_place_of_other_combinations() -> None:
    world = embedded_world()
    trained = [combination(question).split("-") for question in world.questions("train")]
    unseen = [combination(question).split("-") for question in world.questions("valid_unseen")]
    assert {relations[0] for relations in unseen if len(relations) == 2} <= {relations[0] for relations in trained}
    assert {relations[-1] for relations in unseen} <= {relations[-1] for relations in trained}
    assert len({tuple(relations) for relations in unseen}) > 30
    asked = {combination(question) for split in SPLITS for question in world.questions(split)}
    assert asked == {f"{first.key}-{second.key}" for first, second, _ in hops()} | {c.relation for c in COMPARISONS}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("split", SPLITS)
def test_shares_of_types_of_answers_and_of_lookups(split: str, seed: int) -> None:
    questions = embedded_world(seed).questions(split)
    types = Counter(question.type for question in questions)
    assert types == {"bridge": 0.8 * len(questions), "comparison": 0.2 * len(questions)}
    comparisons = [question for question in questions if question.type == "comparison"]
    yes_no = Counter(question.answer for question in comparisons if question.answer in YES_NO)
    assert 0.3 <= yes_no.total() / len(comparisons) <= 0.6
    assert 0.4 <= yes_no["yes"] / yes_no.total() <= 0.6
    picks = [question for question in comparisons if question.answer not in YES_NO]
    first = sum(question.answer == question.supporting_facts[0][0] for question in picks)
    assert 0.3 <= first / len(picks) <= 0.7
    levels = Counter(question.level for question in questions)
    assert 0.25 <= (levels["medium"] + levels["hard"]) / len(questions) <= 0.55
    assert levels["hard"] >= 0.01 * len(questions)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tokenizer_made_from_training_knows_every_word_of_the_other_splits(seed: int) -> None:
    world = embedded_world(seed)
    pages = {page.title: page for page in world.pages}

    def texts(split: str) -> Iterator[str]:
        for question in world.questions(split):
            yield question.question
            yield f"Finish[{question.answer}]"
            for title in sorted(titles(question)):
                yield f"Search[{title}]"
                yield "".join(pages[title].sentences)

    tokenizer = build_tokenizer(texts("train"))
    for split in ("valid_seen", "valid_unseen"):
        for text in texts(split):
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_vocabulary_is_small() -> None:
    world = embedded_world()
    texts = ["".join(page.sentences) for page in world.pages]
    texts += [question.question for question in all_questions(world)]
    assert len({word for text in texts for word in re.findall(r"[^\W\d]+|\d|[^\w\s]", text)}) < 1500


@pytest.mark.parametrize("seed", SEEDS)
def test_pages_are_short_and_can_be_found_under_one_title_only(seed: int) -> None:
    world = embedded_world(seed)
    names = Counter(name.casefold() for page in world.pages for name in (page.title, *page.aliases))
    assert set(names.values()) == {1}
    assert sum(bool(page.aliases) for page in world.pages) > 400
    for page in world.pages:
        assert 5 <= len(page.sentences) <= 9
        assert all(8 <= len(sentence.split()) <= 16 for sentence in page.sentences)


def test_ids_say_what_is_asked() -> None:
    for split in SPLITS:
        for question in embedded_world().questions(split):
            named, kind, relations, slugs = question.id.split("/")
            assert (named, kind) == (split, question.type)
            assert all(relation in RELATIONS for relation in relations.split("-"))
            assert all(slug.replace("_", " ") in question.question for slug in slugs.split("+"))


STOP_WORDS = frozenset(
    re.findall(r"\w+", "the was with who where which from its for and did does that has have what are")
)


def content_words(template: str) -> list[str]:
    words = re.findall(r"[a-z]{3,}", re.sub(r"\{\w+\}", "", template).lower())
    return [word for word in words if word not in STOP_WORDS]


def rest_of_the_page(relation: Relation) -> list[str]:
    """All that a page which states ``relation`` can say besides it."""
    excluded = OCCUPATIONS if relation.key in OCCUPATIONS else (relation.key,)
    others = [other for other in RELATIONS.values() if other.kind == relation.kind and other.key not in excluded]
    templates = [*FILLERS[relation.kind], *INTRODUCTIONS[relation.kind], OCCUPATIONS.get(relation.key, "")]
    return templates + [text for other in others for text in other.sentences]


def test_the_word_to_look_up_follows_from_the_question_and_finds_nothing_else_on_the_page() -> None:
    asked = [(second.question.format(x=first.clause), [first, second]) for first, second, _ in hops()]
    asked += [(comparison.question, [RELATIONS[comparison.relation]]) for comparison in COMPARISONS]
    for question, relations in asked:
        for relation in relations:
            if relation.sentences:
                stating = [" ".join(content_words(text)) for text in relation.sentences]
                word = next(word for word in content_words(question) if any(word in text for text in stating))
                assert all(word in text for text in stating), (question, word)
                assert not any(word in " ".join(content_words(text)) for text in rest_of_the_page(relation)), question


def test_there_are_more_names_than_the_world_needs() -> None:
    used = Counter(reading.kind for reading in readings(0).values())
    assert set(used) == set(NAMINGS)
    for kind, naming in NAMINGS.items():
        assert len(naming.first) >= len(naming.second)
        assert used[kind] <= len(set(naming.first)) * len(set(naming.second))


DIGEST = """
import hashlib
from agentgym_tlm.envs.hotpotqa.world import SPLITS, embedded_world
world = embedded_world(3)
print(hashlib.sha256(repr((world.pages, [world.questions(split) for split in SPLITS])).encode()).hexdigest())
"""


def test_another_process_with_another_hash_seed_makes_the_same_world() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    world = embedded_world(3)
    here = repr((world.pages, [world.questions(split) for split in SPLITS]))
    assert digests == {hashlib.sha256(here.encode()).hexdigest()}


def test_another_seed_makes_another_world_and_the_same_seed_the_same_object() -> None:
    assert embedded_world() is embedded_world()
    assert embedded_world(1).pages != embedded_world(2).pages
    assert embedded_world(1).questions("train") != embedded_world(2).questions("train")


def test_an_unknown_split_is_refused_with_the_names_of_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="valid_unseen"):
        embedded_world().questions("dev")
