"""The scripted expert."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym_tlm.envs.hotpotqa.env import HotpotQAEnv
from agentgym_tlm.envs.hotpotqa.expert import Oracle
from agentgym_tlm.envs.hotpotqa.offline import OfflineWikipedia
from agentgym_tlm.envs.hotpotqa.question import Question
from agentgym_tlm.envs.hotpotqa.world import embedded_world
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.rollout import rollout


def actions(env: HotpotQAEnv, task_id: str) -> list[str]:
    """What the expert does; the episode must be won."""
    observation, info = env.reset(options={"task_id": task_id})
    expert = env.expert()
    played = []
    while info["stop_reason"] is None:
        _, action = expert.act(observation)
        played.append(action)
        observation, *_, info = env.step(action)
    assert info["won"]
    return played


@pytest.mark.parametrize(
    ("split", "task_id", "played"),
    [
        ("train", "q1", ["Search[Orla Brandt]", "Search[Tarnwick]", "Finish[Ouse]"]),
        (
            "train",
            "q2",
            ["Search[The Glass Orchard]", "Search[Orla Brandt]", "Lookup[moved]", "Search[Vellmar]", "Finish[Sund]"],
        ),
        ("dev", "q3", ["Search[Piet Brandt]", "Search[Orla Brandt]", "Finish[yes]"]),
        ("dev", "q4", ["Search[Café Zoë]", "Search[Vellmar]", "Finish[Mina Okoro]"]),
        ("dev", "q5", ["Search[Heron (bird)]", "Search[Heron (river)]", "Finish[The The]"]),
    ],
)
def test_expert_reads_the_facts_before_it_answers(library: Path, split: str, task_id: str, played: list[str]) -> None:
    """The named page first, a lookup where a fact is further down, and titles as the encyclopedia writes them."""
    assert actions(HotpotQAEnv(split, data_dir=library), task_id) == played


def test_thoughts_restate_what_was_found(library: Path) -> None:
    """A model that imitates them learns to carry facts from turn to turn."""
    env = HotpotQAEnv("train", data_dir=library)
    observation, _ = env.reset(options={"task_id": "q2"})
    expert, thoughts = env.expert(), []
    for _ in range(5):
        thought, action = expert.act(observation)
        thoughts.append(thought)
        observation, *_ = env.step(action)
    assert thoughts == [
        "I need to read about The Glass Orchard.",
        "The Glass Orchard is a novel by Orla Brandt. I need to read about Orla Brandt.",
        "I look up moved on the page about Orla Brandt.",
        "In 1970 Brandt moved to Vellmar. I need to read about Vellmar.",
        "It lies in the region of Sund. So the answer is Sund.",
    ]


@pytest.mark.parametrize("seed", range(8))
def test_expert_recovers_from_mistakes(library: Path, seed: int) -> None:
    """After half a title, a wrong page or a vain lookup, the facts are still read and the game won."""
    env = HotpotQAEnv("train", data_dir=library, max_episode_steps=12)
    rng = np.random.default_rng(seed)
    observation, info = env.reset(options={"task_id": "q2"})
    expert, seen, mistakes = env.expert(), [observation], 0
    while info["stop_reason"] is None:
        mistake = expert.mistake(observation, rng) if rng.random() < 0.5 else None
        mistakes += mistake is not None
        _, action = mistake or expert.act(observation)
        observation, *_, info = env.step(action)
        seen.append(observation)
    assert mistakes
    assert info["won"]
    for fact in ("The Glass Orchard is a novel by Orla Brandt.", "In 1970 Brandt moved to Vellmar.", "region of Sund."):
        assert any(fact in observation for observation in seen)


def test_mistakes_are_plausible_and_misspell_nothing() -> None:
    """Junk words would enlarge the vocabulary of a model that is made from its texts, and teach it nothing."""
    pages = embedded_world().pages
    titles = {page.title for page in pages}
    env = HotpotQAEnv("train", max_episode_steps=None)
    rng = np.random.default_rng(0)
    kinds: Counter[str] = Counter()
    for task_id in env.manifest.take(200):
        observation, _ = env.reset(options={"task_id": task_id})
        expert = env.expert()
        for _ in range(3):
            mistake = expert.mistake(observation, rng)
            if mistake is not None:
                match = re.fullmatch(r"(\w+)\[(.+)\]", mistake[1])
                assert match is not None
                if match[1] == "Lookup":
                    assert match[2] in env.question.question
                    kinds["word of the question that the page lacks"] += 1
                elif match[2] in titles:
                    assert match[2] not in {title for title, _ in env.question.supporting_facts}
                    kinds["title of another page"] += 1
                else:
                    assert any(title.startswith(f"{match[2]} ") for title in titles)
                    kinds["half a title"] += 1
                observation, *_ = env.step(mistake[1])
                assert (observation == "No more results.") == (match[1] == "Lookup")
            observation, *_, info = env.step(expert.act(observation)[1])
            if info["stop_reason"] is not None:
                break
    assert len(kinds) == 3
    assert min(kinds.values()) > 50


def test_several_mistakes_in_a_row_are_regretted_once(library: Path) -> None:
    """Counting them would be the only thing to learn from saying it again."""
    env = HotpotQAEnv("train", data_dir=library, max_episode_steps=12)
    observation, _ = env.reset(options={"task_id": "q2"})
    expert = env.expert()
    for seed in range(3):
        mistake = expert.mistake(observation, np.random.default_rng(seed))
        assert mistake is not None
        observation, *_ = env.step(mistake[1])
    thought, _ = expert.act(observation)
    assert thought.count("That does not help.") == 1


def test_no_mistake_that_costs_the_answer(library: Path) -> None:
    """With the steps that the plan needs and no more, there is no room for one."""
    env = HotpotQAEnv("train", data_dir=library, max_episode_steps=5)
    rng = np.random.default_rng(0)
    observation, info = env.reset(options={"task_id": "q2"})
    expert = env.expert()
    while info["stop_reason"] is None:
        assert expert.mistake(observation, rng) is None
        _, action = expert.act(observation)
        observation, *_, info = env.step(action)
    assert info["won"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_short_episodes_are_answered_in_time(library: Path, limit: int) -> None:
    """An episode without an answer is worth nothing to imitate."""
    env = HotpotQAEnv("train", data_dir=library, max_episode_steps=limit)
    assert actions(env, "q2")[-1] == "Finish[Sund]"


def test_missing_pages_are_passed_over(wiki: OfflineWikipedia) -> None:
    """A corpus that lacks a page costs one search, and the expert goes on."""
    facts = (("Nowhere", 0), ("Vellmar", 9), ("Tarnwick", 0), ("Empty Page", 0))
    expert = Oracle(Question("x", "Where?", "there", "bridge", "hard", facts), wiki)
    played = [
        expert.act(observation)[1] for observation in ("Question: Where?", "Could not find", "Vellmar is", "", "")
    ]
    assert played == ["Search[Nowhere]", "Search[Vellmar]", "Search[Tarnwick]", "Search[Empty Page]", "Finish[there]"]


def test_expert_plays_the_nat_protocol(library: Path) -> None:
    """Searches by title, then the answer."""
    env = HotpotQAEnv("train", data_dir=library, protocol="nat")
    assert actions(env, "q1") == ["search[Orla Brandt]", "search[Tarnwick]", "finish[Ouse]"]


def test_live_pages_have_no_expert(library: Path) -> None:
    """The supporting facts are sentences of 2017."""
    pytest.importorskip("wikipediaapi")
    env = HotpotQAEnv("train", data_dir=library, wikipedia="live", contact="test@example.org")
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="expert"):
        env.expert()


def test_expert_wins_official_questions(hotpotqa_data: Path, official_wiki: Path) -> None:
    """Where the gold paragraphs are in the corpus, at least 99 of 100; with mistakes as well as without."""
    options: dict[str, Any] = {"data_dir": hotpotqa_data, "wiki_file": official_wiki}
    for policy, limit in [(ExpertPolicy(), None), (ExpertPolicy(noise=0.3), 100)]:
        for split in ("train", "dev"):
            tasks = HotpotQAEnv(split, **options).manifest.take(limit)
            trajectories = rollout(policy, "HotpotQA-v0", tasks, split=split, env_kwargs=options)
            assert sum(trajectory.won for trajectory in trajectories) >= 0.99 * len(tasks)
