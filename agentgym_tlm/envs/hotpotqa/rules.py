"""What actions do, and how their outcomes read: the protocols ``react`` and ``nat``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from agentgym_tlm.envs.hotpotqa.actions import MAX_ARGUMENT_CHARS, Action, Kind, encodable, parse_action
from agentgym_tlm.envs.hotpotqa.question import Page
from agentgym_tlm.envs.hotpotqa.wiki import STOP_WORDS, Encyclopedia

Protocol = Literal["react", "nat"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

HEAD_SENTENCES = 5
"""Sentences of a page that a search shows."""
PASSAGES = 3
"""Passages that a search shows in the protocol ``nat``."""

_INTRODUCTIONS = {
    "react": (
        "Answer the question with these actions: Search[entity] shows the beginning of the page about the entity, "
        "Lookup[keyword] shows the page's next sentence with the keyword, Finish[answer] gives the answer.\n"
    ),
    "nat": (
        "Answer the question with these actions: search[query] shows passages about the query, finish[answer] gives "
        "the answer.\n"
    ),
}
_ACTIONS = {
    "react": "Search[entity], Lookup[keyword] and Finish[answer]",
    "nat": "search[query] and finish[answer]",
}
_KINDS: dict[Protocol, tuple[Kind, ...]] = {
    "react": ("search", "lookup", "finish", "think"),
    "nat": ("search", "finish"),
}
_SNIPPET_SENTENCES = 2
_EXPLANATION = re.compile(r" \([^()]*\)$")
_NUMBER = re.compile(r"\b\d[\d,.]*\b")


@dataclass(frozen=True)
class Snapshot:
    """A point in an episode."""

    task_id: str
    observation: str
    steps: int = 0
    last_action: str | None = None
    action_valid: bool = True
    page: Page | None = None
    """The page that Lookup reads."""
    keyword: str = ""
    results_shown: int = 0
    """How many sentences with ``keyword`` Lookup has shown."""
    offered: tuple[str, ...] = ()
    """Titles that the last search offered instead of a page."""
    answer: str | None = None
    stop_reason: str | None = None


@dataclass(frozen=True)
class Rules:
    """State in, state out. ``compat="react"`` has the texts of ReAct's environment."""

    encyclopedia: Encyclopedia
    protocol: Protocol
    compat: Literal["react"] | None

    def first_observation(self, question: str) -> str:
        """How to act, and the question."""
        return f"{'' if self.compat else _INTRODUCTIONS[self.protocol]}Question: {question}"

    def last_observation(self, reward: float | None) -> str:
        """The end; with the reward unless that is None."""
        outcome = "." if reward is None else f", reward = {reward:g}"
        return f"Episode finished{outcome}" + ("\n" if self.compat else "")

    def commands(self, state: Snapshot, question: str) -> list[str]:
        """Actions that may be of use, sorted."""
        return sorted(set(self._commands(state, question)))

    def play(self, state: Snapshot, text: str) -> Snapshot:
        """The state after what ``text`` says; counting steps is left to the caller."""
        match parse_action(text, _KINDS[self.protocol]):
            case Action("search", entity) if entity:
                return self._search(state, entity) if self.protocol == "react" else self._retrieve(state, entity)
            case Action("lookup", keyword) if keyword or self.compat:
                return self._lookup(state, keyword)
            case Action("finish", answer):
                return replace(state, observation=self.last_observation(None), action_valid=True, answer=answer)
            case Action("think", _):
                return replace(state, observation="Nice thought.", action_valid=True)
            case _:
                return self._invalid(state, text)

    def _search(self, state: Snapshot, entity: str) -> Snapshot:
        found = self.encyclopedia.search(entity)
        closed = replace(state, action_valid=True, page=None, keyword="", results_shown=0, offered=())
        if isinstance(found, Page):
            head = page_head(found)
            if not head and not self.compat:
                head = f"The page {found.title} has no text."
            return replace(closed, observation=head, page=found)
        name = f"[{entity}]" if found.ambiguous and self.compat else entity
        return replace(
            closed, observation=f"Could not find {name}. Similar: {list(found.titles)}.", offered=found.titles
        )

    def _lookup(self, state: Snapshot, keyword: str) -> Snapshot:
        end = "\n" if self.compat else ""
        if state.page is None and not self.compat:
            return replace(state, observation="No page is open. Search for one first.", action_valid=False)
        if state.page is None or not keyword:
            return replace(state, observation=f"No more results.{end}", action_valid=False)
        key = keyword.casefold()
        shown = state.results_shown if key == state.keyword else 0
        results = [sentence.strip() for sentence in state.page.sentences if key in sentence.casefold()]
        if shown == len(results):
            observation = f"No more results.{end}"
        else:
            observation = f"(Result {shown + 1} / {len(results)}) {results[shown]}"
            shown += 1
        return replace(state, observation=observation, action_valid=True, keyword=key, results_shown=shown)

    def _retrieve(self, state: Snapshot, query: str) -> Snapshot:
        words = set(content_words(query))
        passages = [_snippet(page, words) for page in self.encyclopedia.retrieve(query, PASSAGES)]
        return replace(state, observation="\n".join(passages) or "No passage was found.", action_valid=True)

    def _invalid(self, state: Snapshot, text: str) -> Snapshot:
        if self.compat:
            observation = f"Invalid action: {encodable(text.strip()[:MAX_ARGUMENT_CHARS])}"
        else:
            observation = f"Invalid action. The actions are {_ACTIONS[self.protocol]}."
        return replace(state, observation=observation, action_valid=False)

    def _commands(self, state: Snapshot, question: str) -> Iterator[str]:
        text = question if state.last_action is None else f"{question}\n{state.observation}"
        names = self.encyclopedia.mentions(text)
        search, finish = ("Search", "Finish") if self.protocol == "react" else ("search", "finish")
        yield from (f"{search}[{title}]" for title in (*names, *state.offered))
        if state.page is not None:
            yield from (f"Lookup[{word}]" for word in content_words(question))
        answers = (without_explanation(name) for name in names)
        yield from (f"{finish}[{answer}]" for answer in ("yes", "no", *answers, *_NUMBER.findall(text)))


def page_head(page: Page) -> str:
    """What a search shows of a page."""
    return " ".join(sentence.strip() for sentence in page.sentences[:HEAD_SENTENCES]).strip()


def _snippet(page: Page, words: set[str]) -> str:
    """Title and the sentences that share most words with a query, in the page's order."""
    shared = [-len(words.intersection(content_words(sentence))) for sentence in page.sentences]
    best = sorted(range(len(shared)), key=shared.__getitem__)[:_SNIPPET_SENTENCES]
    return f"{page.title}: {' '.join(page.sentences[i].strip() for i in sorted(best))}"


def content_words(text: str) -> list[str]:
    """Different words of ``text`` in lower case, without the commonest."""
    words = dict.fromkeys(re.findall(r"\w+", text.casefold()))
    return [word for word in words if word not in STOP_WORDS]


def without_explanation(title: str) -> str:
    """A title without what tells it from others: ``Mercury`` of ``Mercury (planet)``."""
    return _EXPLANATION.sub("", title)
