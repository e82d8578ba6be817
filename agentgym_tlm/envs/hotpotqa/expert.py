"""The scripted expert: it knows the supporting facts, and plays so as to read each of them before it answers.

It searches the supporting pages one after another, a page that the question names first, and looks up the facts that
stand too far down to be shown by the search. Its thoughts restate what was found and say what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from agentgym_tlm.envs.hotpotqa.question import Page, Question
from agentgym_tlm.envs.hotpotqa.rules import HEAD_SENTENCES, Protocol, content_words, page_head, without_explanation
from agentgym_tlm.envs.hotpotqa.wiki import Encyclopedia, Suggestions, clean_title

_QUOTED_WORDS = 30
"""Of a fact, in a thought."""
_VAIN = "That does not help."


@dataclass
class _Stop:
    """A supporting page, and the facts on it that are still to be read."""

    title: str
    page: Page | None
    unread: list[int]
    visited: bool = False

    @property
    def name(self) -> str:
        return without_explanation(self.title)


@dataclass
class _Plan:
    """What to do next: thought, action, and the page that is open afterwards if all goes well."""

    thought: str
    kind: str
    argument: str
    stop: _Stop | None = None


class Oracle:
    """Plays one episode of ``question``; wins whenever ``max_steps`` allow an answer at all."""

    def __init__(
        self,
        question: Question,
        encyclopedia: Encyclopedia,
        protocol: Protocol = "react",
        max_steps: int | None = None,
    ) -> None:
        self.question = question
        self.encyclopedia = encyclopedia
        self.protocol = protocol
        self.max_steps = max_steps
        self._steps = 0
        self._open: _Stop | None = None
        self._searched: _Stop | None = None
        """The page that the last action searched for."""
        self._news: list[str] = []
        """What was found and has not been said yet."""

    def act(self, observation: str) -> tuple[str, str]:
        """Thought and action."""
        self._take_in(observation)
        plan = self._plan()
        thought = " ".join([*self._news, plan.thought])
        self._news = []
        return thought, self._do(plan.kind, plan.argument, plan.stop)

    def mistake(self, observation: str, rng: np.random.Generator) -> tuple[str, str] | None:
        """Half a title, a page that does not help, or a keyword that the page lacks; None if steps are short.

        All in words that episodes have anyway: misspelt ones would only make a vocabulary larger.
        """
        self._take_in(observation)
        if self.max_steps is not None and self.max_steps - self._steps < self._steps_needed() + 1:
            return None
        options = list(self._mistakes(observation, rng))
        if not options:
            return None
        plan = options[int(rng.integers(len(options)))]
        if _VAIN not in self._news:
            self._news.append(_VAIN)
        return plan.thought, self._do(plan.kind, plan.argument, None)

    def _do(self, kind: str, argument: str, stop: _Stop | None) -> str:
        self._steps += 1
        if kind == "search":
            self._open, self._searched = None, stop
        return f"{kind.capitalize() if self.protocol == 'react' else kind}[{argument}]"

    def _take_in(self, observation: str) -> None:
        """Mark what the newest observation shows. Seeing it twice changes nothing."""
        for stop in self._route:
            self._read(stop, observation)
        searched, self._searched = self._searched, None
        if searched is not None:
            searched.visited = True
            if self.protocol == "react" and searched.page is not None and observation == page_head(searched.page):
                self._open = searched
            else:
                searched.unread = []

    def _read(self, stop: _Stop, observation: str) -> None:
        for fact in list(stop.unread):
            sentence = _sentence(stop, fact)
            if sentence in observation:
                stop.unread.remove(fact)
                words = sentence.split()
                self._news.append(" ".join(words[:_QUOTED_WORDS]) + ("..." if len(words) > _QUOTED_WORDS else ""))

    def _plan(self) -> _Plan:
        stop = next((each for each in self._route if each.unread or not each.visited), None)
        if stop is None or (self.max_steps is not None and self.max_steps - self._steps <= 1):
            return _Plan(f"So the answer is {self.question.answer}.", "finish", self.question.answer)
        if stop is not self._open:
            return _Plan(f"I need to read about {stop.name}.", "search", stop.title, stop)
        keyword, _ = self._keyword(stop, stop.unread[0])
        return _Plan(f"I look up {keyword} on the page about {stop.name}.", "lookup", keyword, stop)

    def _steps_needed(self) -> int:
        """Steps that the plan takes from here if no page is open."""
        todo = [stop for stop in self._route if stop.unread or not stop.visited]
        return 1 + sum(1 + sum(self._keyword(stop, fact)[1] for fact in stop.unread) for stop in todo)

    def _keyword(self, stop: _Stop, fact: int) -> tuple[str, int]:
        """What to look up to see a fact, and how many times; 0 times if the search shows it.

        Of the question's words that the sentence contains, the one that comes to it first; if it contains none, a word
        of the sentence.
        """
        assert stop.page is not None
        if fact < HEAD_SENTENCES:
            return "", 0
        sentence = _sentence(stop, fact).casefold()
        words = [word for word in content_words(self.question.question) if word in sentence]
        ranks = {word: _result(stop.page, word, fact) for word in words or content_words(sentence)}
        best = min(ranks, key=ranks.__getitem__)
        return best, ranks[best]

    def _mistakes(self, observation: str, rng: np.random.Generator) -> Iterator[_Plan]:
        plan = self._plan()
        if plan.kind == "search":
            half = plan.argument.rpartition(" ")[0]
            if content_words(half) and isinstance(self.encyclopedia.search(half), Suggestions):
                yield _Plan(f"I need to read about {half}.", "search", half)
            named = self.encyclopedia.mentions(f"{self.question.question}\n{observation}")
            for titles in (named, self._similar(plan.argument, rng)):
                wrong = [title for title in titles if title not in {stop.title for stop in self._route}]
                if wrong:
                    title = wrong[int(rng.integers(len(wrong)))]
                    yield _Plan(f"Perhaps {without_explanation(title)} has to do with it.", "search", title)
        if self._open is not None and self._open.page is not None and self.protocol == "react":
            text = " ".join(self._open.page.sentences).casefold()
            words = content_words(self.question.question)
            missing = [word for word in words if word not in text and word in self.question.question]
            if missing:
                word = missing[int(rng.integers(len(missing)))]
                yield _Plan(f"Perhaps the page says more about {word}.", "lookup", word)

    def _similar(self, title: str, rng: np.random.Generator) -> tuple[str, ...]:
        """Titles that are spelt much like ``title``."""
        found = self.encyclopedia.search(_misspelt(title, rng))
        return found.titles if isinstance(found, Suggestions) else ()

    @cached_property
    def _route(self) -> list[_Stop]:
        """The supporting pages in the order in which they are read."""
        facts: dict[str, list[int]] = {}
        for title, number in self.question.supporting_facts:
            facts.setdefault(clean_title(title), []).append(number)
        return sorted((self._stop(title, numbers) for title, numbers in facts.items()), key=self._distance)

    def _stop(self, title: str, facts: list[int]) -> _Stop:
        found = self.encyclopedia.search(title)
        if not isinstance(found, Page):
            return _Stop(title, None, [])
        known = (fact for fact in sorted(set(facts)) if fact < len(found.sentences))
        return _Stop(title, found, [fact for fact in known if content_words(found.sentences[fact])])

    def _distance(self, stop: _Stop) -> tuple[int, bool]:
        """Where the question names the page, then those that it does not name; those that hold the answer last."""
        question, name = self.question.question.casefold(), stop.name.casefold()
        at = question.find(name)
        text = " ".join([stop.title, *(_sentence(stop, fact) for fact in stop.unread)]).casefold()
        return at if at >= 0 else len(question), self.question.answer.casefold() in text


def _sentence(stop: _Stop, fact: int) -> str:
    assert stop.page is not None
    return stop.page.sentences[fact].strip()


def _result(page: Page, keyword: str, sentence: int) -> int:
    """Which of the results for ``keyword`` a sentence is, counted from 1."""
    return sum(keyword in each.casefold() for each in page.sentences[: sentence + 1])


def _misspelt(title: str, rng: np.random.Generator) -> str:
    """``title`` without one of its letters."""
    letters = [match.start() for match in re.finditer(r"\w", title)]
    at = letters[int(rng.integers(len(letters)))] if letters else 0
    return title[:at] + title[at + 1 :]
