"""What actions do and how it reads, ReAct's own transcripts included."""

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentgym_tlm.envs.hotpotqa.env import HotpotQAEnv
from agentgym_tlm.envs.hotpotqa.offline import OfflineWikipedia
from agentgym_tlm.envs.hotpotqa.question import Page
from agentgym_tlm.envs.hotpotqa.rules import Rules, Snapshot
from agentgym_tlm.envs.hotpotqa.sentences import split_sentences
from agentgym_tlm.envs.hotpotqa.wiki import Suggestions
from tests.envs.hotpotqa.library import write_lines

ABOUT_BRANDT = (
    "Orla Brandt is a painter and writer. She was born in Tarnwick in 1931. Her first novel is The Glass Orchard. "
    "It was printed by Heron House. She never learned to swim."
)


@pytest.fixture
def rules(wiki: OfflineWikipedia) -> Rules:
    """Of the protocol ``react``."""
    return Rules(wiki, "react", None)


def play(rules: Rules, *actions: str) -> list[str]:
    """Observations of one episode."""
    return [state.observation for state in states(rules, *actions)]


def states(rules: Rules, *actions: str) -> list[Snapshot]:
    state, reached = Snapshot("q", "Question: ?"), []
    for action in actions:
        state = rules.play(state, action)
        reached.append(state)
    return reached


def test_search_shows_five_sentences(rules: Rules) -> None:
    """And Lookup reads the whole page."""
    assert play(rules, "Search[Orla Brandt]") == [ABOUT_BRANDT]


def test_lookup_goes_through_the_sentences(rules: Rules) -> None:
    """Each sentence with the keyword once, in order, whatever the case; a new keyword starts anew."""
    assert play(
        rules,
        "Search[O. Brandt]",
        "Lookup[bees]",
        "lookup[BEES]",
        "Lookup[bees]",
        "Lookup[1970]",
        "Lookup[bees]",
        "Lookup[x y]",
    )[1:] == [
        "(Result 1 / 2) Brandt kept bees on her roof.",
        "(Result 2 / 2) Her bees won a prize in 1974.",
        "No more results.",
        "(Result 1 / 1) In 1970 Brandt moved to Vellmar.",
        "(Result 1 / 2) Brandt kept bees on her roof.",
        "No more results.",
    ]


def test_new_page_starts_the_lookup_anew(rules: Rules) -> None:
    """The same keyword on another page, and on the same page opened again."""
    seen = play(
        rules,
        "Search[Orla Brandt]",
        "Lookup[born]",
        "Search[Piet Brandt]",
        "Lookup[born]",
        "Search[Piet Brandt]",
        "Lookup[born]",
    )
    assert (
        seen[1::2]
        == ["(Result 1 / 1) She was born in Tarnwick in 1931."] + ["(Result 1 / 1) He was born in Vellmar in 1899."] * 2
    )


def test_failed_search_closes_the_page(rules: Rules) -> None:
    """In ReAct, Lookup then goes on in the page before, which the agent takes for the new one."""
    _, missing, lookup = states(rules, "Search[Orla Brandt]", "Search[Orla Brant]", "Lookup[bees]")
    assert missing.observation.startswith("Could not find Orla Brant. Similar: ['Orla Brandt', ")
    assert missing.action_valid
    assert (lookup.observation, lookup.action_valid) == ("No page is open. Search for one first.", False)


def test_several_meanings_are_listed(rules: Rules) -> None:
    """A name of two pages opens neither."""
    assert play(rules, "Search[Brandt]") == ["Could not find Brandt. Similar: ['Orla Brandt', 'Piet Brandt']."]


@pytest.mark.parametrize("action", ["", "fly", "Search[]", "Lookup[ ]", "Search[Vellmar"])
def test_invalid_actions_change_nothing(rules: Rules, action: str) -> None:
    """The page stays open, the lookup where it was, and the answer names the actions."""
    before, invalid, after = states(rules, "Search[Orla Brandt]", action, "Lookup[bees]")
    assert not invalid.action_valid
    assert invalid.observation == "Invalid action. The actions are Search[entity], Lookup[keyword] and Finish[answer]."
    assert invalid.page == before.page
    assert after.observation == "(Result 1 / 2) Brandt kept bees on her roof."


def test_backslashes_and_empty_pages_are_pages(rules: Rules) -> None:
    """ReAct crashes on the former and says nothing about the latter."""
    assert play(rules, "Search[AT&T & Sons]", "Lookup[code]", "Search[Empty Page]", "Lookup[x]") == [
        r"AT&T & Sons sold rope, tar and C++ manuals. Its code was IT\ICCU\UBO.",
        r"(Result 1 / 1) Its code was IT\ICCU\UBO.",
        "The page Empty Page has no text.",
        "No more results.",
    ]


def test_thoughts_are_welcome(rules: Rules) -> None:
    """As in ReAct, a thought is an action that changes nothing."""
    *_, thought, lookup = states(rules, "Search[Orla Brandt]", "Think[hm]", "Lookup[bees]")
    assert (thought.observation, thought.action_valid) == ("Nice thought.", True)
    assert lookup.observation.startswith("(Result 1 / 2)")


def test_finish_takes_the_argument_only(rules: Rules) -> None:
    """Neither what was read nor what follows can be scored."""
    [state] = states(rules, "Finish[Ouse] Search[Sund] Finish[x]")
    assert (state.answer, state.observation) == ("Ouse", "Episode finished.")


def test_nat_searches_passages(wiki: OfflineWikipedia) -> None:
    """Title and the sentences that fit, of three passages; Lookup is not part of it."""
    rules = Rules(wiki, "nat", None)
    found, lookup, nothing = states(rules, "search[When did Brandt move to Vellmar?]", "lookup[bees]", "search[?]")
    lines = found.observation.split("\n")
    assert len(lines) == 3
    assert "Orla Brandt: Orla Brandt is a painter and writer. In 1970 Brandt moved to Vellmar." in lines
    assert (lookup.observation, lookup.action_valid) == (
        "Invalid action. The actions are search[query] and finish[answer].",
        False,
    )
    assert nothing.observation == "No passage was found."


def test_commands_are_of_use(rules: Rules, wiki: OfflineWikipedia) -> None:
    """Titles that are named or offered, words of the question, and what might be an answer; each is understood."""
    question = "In which region lies the port that Orla Brandt moved to in 1970?"
    start = Snapshot("q", f"Question: {question}")
    assert rules.commands(start, question) == [
        "Finish[1970]",
        "Finish[Orla Brandt]",
        "Finish[no]",
        "Finish[yes]",
        "Search[Orla Brandt]",
    ]
    state = rules.play(start, "Search[Vellmar]")
    commands = rules.commands(Snapshot("q", state.observation, last_action="x", page=state.page), question)
    assert {"Lookup[region]", "Lookup[port]", "Search[Vellmar]"} <= set(commands)
    missing = rules.play(start, "Search[Heron]")
    commands = rules.commands(missing, question)
    assert {"Search[Heron (bird)]", "Search[Heron (river)]"} <= set(commands)
    assert not any(command.startswith("Lookup") for command in commands)


@dataclass(frozen=True)
class Table:
    """The pages of the transcripts: what the server said, by URL, read as ReAct reads it but for cut abbreviations."""

    pages: dict[str, str]
    default: str

    description = "table"

    def search(self, entity: str) -> Page | Suggestions:
        text = self.pages.get(entity.replace(" ", "+"), self.default)
        if "may refer to:" in text:
            again = self.search(f"[{entity}]")
            return Suggestions(again.titles if isinstance(again, Suggestions) else (again.title,), ambiguous=True)
        titles = re.findall(r'heading"><a>(.*?)</a>', text)
        if titles:
            return Suggestions(tuple(html.unescape(title) for title in titles[:5]))
        paragraphs = [html.unescape(paragraph) for paragraph in re.findall(r"<p>(.*?)</p>", text)]
        return Page(entity, tuple(sentence for p in paragraphs for sentence in split_sentences(p)))

    def retrieve(self, query: str, limit: int) -> tuple[Page, ...]:
        raise NotImplementedError

    def mentions(self, text: str) -> tuple[str, ...]:
        return ()


MENDED = {
    "exact finish, then more steps": [2, 3],  # pays again after the end: refused
    "invalid": [1, 3, 8],  # Search[...] and `finish[a].` are understood, the latter ends the episode
    "backslash crash": [1],
    "multi line": [1, 2],  # what follows the bracket is no part of the action
}
"""Steps of the transcripts in which ReAct's environment errs, and ours must not."""


def test_react_transcripts_are_reproduced(hotpotqa_data: Path, tmp_path: Path) -> None:
    """compat="react" answers letter for letter what ReAct's own code answered, but for its defects."""
    vectors = json.loads((hotpotqa_data / "wikienv_vectors.json").read_text())
    records = [
        {"_id": str(i), "level": "hard", "supporting_facts": [], **question}
        for i, question in enumerate(vectors["questions"])
    ]
    write_lines(tmp_path / "dev.jsonl", records)
    table = Table(vectors["pages"], vectors["default_page"])
    env = HotpotQAEnv("dev", data_dir=tmp_path, wikipedia=table, compat="react", max_episode_steps=None)
    compared = 0
    for scenario in vectors["scenarios"]:
        first, *steps = scenario["steps"]
        observation, _ = env.reset(options={"task_id": str(scenario["question_index"])})
        assert observation == first["observation"]
        for number, step in enumerate(steps, start=1):
            if number in MENDED.get(scenario["name"], []):
                continue
            observation, reward, terminated, _, info = env.step(step["action"])
            ours: dict[str, Any] = {"observation": observation, "reward": reward, "done": terminated}
            assert ours == {name: step[name] for name in ours}, (scenario["name"], step["action"])
            if terminated:
                assert (info["won"], info["score"]) == (step["info"]["em"], step["info"]["f1"])
                assert env.answer == step["info"]["answer"]
            compared += 1
    assert compared == 14


def test_reacts_defects_are_mended(hotpotqa_data: Path, tmp_path: Path) -> None:
    """What ReAct's environment answers in the steps left out above, and what ours answers instead."""
    vectors = json.loads((hotpotqa_data / "wikienv_vectors.json").read_text())
    rules = Rules(Table(vectors["pages"], vectors["default_page"]), "react", "react")
    milhouse, back, abbreviations = play(rules, "Search[Milhouse]", "search[Back]", "Search[Abbrev]")
    assert milhouse.count(". ") == 4
    assert "IT\\ICCU\\UBO\\2771748" in back
    assert abbreviations == "The U.S. Army was led by Gen. George S. Patton in 1944. He died in Dec. 1945."
    fake, finish = states(rules, "search[Milhouse]\nObservation: fake", "finish[Richard Nixon]\nQuestion: next [x]")
    assert fake.observation == milhouse
    assert finish.answer == "Richard Nixon"
    assert play(rules, "search[]", "search[Milhouse]", "lookup[]") == [
        "Invalid action: search[]",
        milhouse,
        "No more results.\n",
    ]
