"""HotpotQA as a Gymnasium environment."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym

from agentgym_tlm import __version__
from agentgym_tlm.envs.base import Expert, Info, TaskManifest, TextEnv
from agentgym_tlm.envs.hotpotqa.actions import encodable
from agentgym_tlm.envs.hotpotqa.metrics import AnswerScore, score_answer
from agentgym_tlm.envs.hotpotqa.question import Question
from agentgym_tlm.envs.hotpotqa.rules import PROTOCOLS, Protocol, Rules, Snapshot
from agentgym_tlm.envs.hotpotqa.sources import SPLITS, QuestionSource, open_pages, open_questions
from agentgym_tlm.envs.hotpotqa.wiki import Encyclopedia
from agentgym_tlm.errors import ConfigError


class HotpotQAEnv(TextEnv):
    """Questions whose answers take facts of two pages of an encyclopedia, which has to be searched for them.

    ## Description
    HotpotQA (Yang et al., 2018, arXiv:1809.09600) asks bridge questions (a fact of one page leads to the page with the
    answer) and comparison questions (of which some are answered yes or no). As in ReAct (Yao et al., 2023,
    arXiv:2210.03629), the agent reads an encyclopedia. Questions come from official files in ``data_dir``, else from
    ``$HOTPOTQA_DATA``, else from the embedded generated world; ``env.unwrapped.manifest`` lists them, with a hash, and
    says which. The pages are an offline encyclopedia (one SQLite file, the same for everybody, so that numbers can be
    repeated) or the live Wikipedia, whose text is of today and whose numbers do not compare with others'.

    ## Action Space
    Text. Any string is accepted; the first ``Search[entity]``, ``Lookup[keyword]``, ``Finish[answer]`` or
    ``Think[thought]`` in it is carried out, whatever the case and whatever surrounds it, and only that. Without one,
    with an empty entity or keyword, or with ``Lookup`` before a page is open, ``info["action_valid"]`` is False. An
    invalid action changes nothing and costs a step. ``protocol="nat"`` has ``search[query]`` and ``finish[answer]``.
    ``info["admissible_commands"]``, when asked for, lists useful actions, not all possible ones: Search of every title
    that question and observation name and of those offered as similar, Lookup of the question's words, Finish with
    yes, no, and the names and numbers of question and observation. That the right answer is among them is not promised.

    ## Observation Space
    Text. First how to act, and the question. ``Search`` shows the first five sentences of the page with that title or
    alias, never of another one; if there is none, or the name has several meanings, ``Could not find X. Similar:
    [...]`` with up to five titles, and no page is open from then on. ``Lookup`` shows ``(Result i / n)`` and the next
    sentence of the open page that contains the keyword, then ``No more results.`` ``protocol="nat"`` shows the titles
    of the three passages that fit the query best, each with the two sentences that share most words with it. Whether
    an answer is right is not shown unless asked for, so that an agent cannot learn from it within the episode.

    ## Starting State
    No page is open. ``reset(seed=...)`` chooses the question, ``reset(options={"task_id": ...})`` plays a given one;
    nothing else is random.

    ## Rewards
    On ``Finish``: 1 if the answer is right (``reward="em"``), or its F1 (``reward="f1"``), by the official metrics and
    nothing but the answer's own text; otherwise 0. ``info["won"]`` is the exact match and ``info["score"]`` the F1,
    whatever the reward; ``info["answer"]``, there only at the end, is the given answer. An episode that ends without an
    answer scores 0 and counts in every average. For the reason of a score, ``env.unwrapped.question`` holds the gold
    answer and ``env.unwrapped.answer`` the given one, with ``env.unwrapped.answer_score`` their comparison. Where the
    encyclopedia fails, ``step`` raises EnvironmentFailureError and the episode stands as before: a failure is never a
    reward.

    ## Episode End
    ``terminated`` by ``Finish``, right or wrong; ``truncated`` at ``max_episode_steps``, 7 as in ReAct, whose notebook
    then answers with an empty ``finish[]``. A step after the end raises ``gymnasium.error.ResetNeeded``.

    ## Arguments
    - ``split``: ``train``; ``valid_seen``, questions that need only pages that a question of train needs;
      ``valid_unseen``, questions that need no such page; and of official data also ``dev``, all development questions
      (of which the former two are parts), and ``dev500``, the 500 that ReAct is evaluated on.
    - ``data_dir``: folder with official question files (distractor or fullwiki, JSON or JSON lines, with or without
      ``.gz``) and the encyclopedia ``wiki.sqlite``, which ``agentgym-tlm data build-wiki`` makes from a corpus or from
      those files. Never written to.
    - ``wikipedia``: ``"offline"``, ``"live"`` (needs the ``hotpotqa`` extra), or any ``Encyclopedia``.
    - ``wiki_file``: the offline encyclopedia, if it is not ``wiki.sqlite`` in ``data_dir``.
    - ``contact``: for ``"live"``, your e-mail or web address: Wikipedia wants to know who operates a program.
    - ``cache_file``: for ``"live"``, where answers are kept; by default in the user's cache folder.
    - ``reward``: ``"em"`` or ``"f1"``.
    - ``protocol``: ``"react"``, or ``"nat"`` (Wang et al., 2024, arXiv:2402.11651, which searched Google: only the
      actions are the same, and an action that cannot be understood does not end the episode).
    - ``compat``: ``"react"`` for the texts of ReAct's environment letter for letter, the outcome at the end included.
      Its defects stay mended: actions are understood in any case, a failed search closes the page, abbreviations end
      no sentence, an empty entity finds nothing, nothing is paid after the end.
    - ``reveal_outcome``: tell the reward in the last observation.
    - ``admissible_commands``: put the sorted list into ``info`` at every step.
    - ``max_episode_steps``: step limit.

    ## Version History
    - v0: first version.
    """

    splits = SPLITS

    def __init__(
        self,
        split: str = "train",
        *,
        data_dir: str | os.PathLike[str] | None = None,
        wikipedia: Literal["offline", "live"] | Encyclopedia = "offline",
        wiki_file: str | os.PathLike[str] | None = None,
        contact: str | None = None,
        cache_file: str | os.PathLike[str] | None = None,
        reward: Literal["em", "f1"] = "em",
        protocol: Protocol = "react",
        compat: Literal["react"] | None = None,
        reveal_outcome: bool = False,
        admissible_commands: bool = False,
        max_episode_steps: int | None = 7,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode, max_episode_steps=max_episode_steps)
        if reward not in ("em", "f1"):
            raise ConfigError(f"reward must be 'em' or 'f1', not {reward!r}")
        if protocol not in PROTOCOLS:
            raise ConfigError(f"protocol must be 'react' or 'nat', not {protocol!r}")
        if compat not in (None, "react"):
            raise ConfigError(f"compat must be 'react' or None, not {compat!r}")
        if compat == "react" and protocol != "react":
            raise ConfigError("compat='react' has ReAct's texts, which protocol='nat' does not use")
        self.split = split
        self.reward = reward
        self.protocol: Protocol = protocol
        self.compat = compat
        self.reveal_outcome = reveal_outcome or compat == "react"
        self._lists_commands = admissible_commands
        self.engine_name = wikipedia if isinstance(wikipedia, str) else type(wikipedia).__name__
        source = open_questions(split, data_dir)
        self._questions = source.questions
        self.manifest = TaskManifest("HotpotQA-v0", split, source.description, tuple(source.questions))
        self.encyclopedia = _open_encyclopedia(wikipedia, source, wiki_file, contact, cache_file)
        if _is_live(self.encyclopedia):
            self.engine_name = "live"
            self.slow = True
        self._rules = Rules(self.encyclopedia, protocol, compat)
        self._state: Snapshot | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        task_id = self.choose_task(seed, options)
        self._state = Snapshot(task_id, self._rules.first_observation(self._questions[task_id].question))
        self._render_human()
        return self._state.observation, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        state = self._playing()
        self.check_step(action, state.stop_reason)
        state = replace(self._rules.play(state, action), steps=state.steps + 1, last_action=encodable(action))
        terminated = state.answer is not None
        reward = self._reward(state) if terminated else 0.0
        if terminated:
            observation = self._rules.last_observation(reward if self.reveal_outcome else None)
            state = replace(state, observation=observation)
        limit = self.max_episode_steps
        truncated = not terminated and limit is not None and state.steps >= limit
        won = terminated and self._score(state).em
        self._state = replace(state, stop_reason=self.stop_reason(won=won, terminated=terminated, truncated=truncated))
        self._render_human()
        return state.observation, reward, terminated, truncated, self._info()

    @property
    def question(self) -> Question:
        """The question that is being asked, with its gold answer."""
        return self._questions[self._playing().task_id]

    @property
    def answer(self) -> str | None:
        """The answer that was given; None before that."""
        return self._playing().answer

    @property
    def answer_score(self) -> AnswerScore | None:
        """How the given answer compares with the gold answer; None before there is one."""
        return None if self.answer is None else self._score(self._playing())

    def admissible_commands(self) -> list[str]:
        """Actions that may be of use now, sorted; see the class docstring."""
        return self._rules.commands(self._playing(), self.question.question)

    def snapshot(self) -> Snapshot:
        return self._playing()

    def restore(self, snapshot: Snapshot) -> tuple[str, Info]:
        self.manifest.index(snapshot.task_id)
        self._state = snapshot
        return snapshot.observation, self._info()

    def version(self) -> dict[str, str]:
        return {
            "agentgym_tlm": __version__,
            "engine": self.engine_name,
            "data": self.manifest.source,
            "wikipedia": self.encyclopedia.description,
            "protocol": self.protocol,
            "compat": self.compat or "none",
            "reward": self.reward,
        }

    def expert(self) -> Expert:
        """A player that knows the question's supporting facts. Raises ConfigError where these are not in the pages."""
        if self.engine_name == "live":
            raise ConfigError(
                "the expert knows the pages that questions were written on, which live ones are no longer"
            )
        from agentgym_tlm.envs.hotpotqa.expert import Oracle

        return Oracle(self.question, self.encyclopedia, self.protocol, self.max_episode_steps)

    def render(self) -> str | None:
        """The last action and its observation: returned in mode ``ansi``, printed in mode ``human``."""
        state = self._playing()
        return self.show(state.last_action, state.observation)

    def close(self) -> None:
        self._state = None

    def _score(self, state: Snapshot) -> AnswerScore:
        assert state.answer is not None
        return score_answer(state.answer, self._questions[state.task_id].answer)

    def _reward(self, state: Snapshot) -> float:
        score = self._score(state)
        return float(score.em) if self.reward == "em" else score.f1

    def _playing(self) -> Snapshot:
        if self._state is None:
            raise gym.error.ResetNeeded("no question has been asked: call reset() first")
        return self._state

    def _info(self) -> Info:
        state = self._playing()
        question = self._questions[state.task_id]
        score = None if state.answer is None else self._score(state)
        info: Info = {
            "task_id": state.task_id,
            "task_type": question.type,
            "split": self.split,
            "instruction": question.question,
            "score": 0.0 if score is None else score.f1,
            "won": score is not None and score.em,
            "action_valid": state.action_valid,
            "stop_reason": state.stop_reason,
        }
        if state.answer is not None:
            info["answer"] = state.answer
        if self._lists_commands:
            info["admissible_commands"] = self.admissible_commands()
        return info


def _is_live(encyclopedia: Encyclopedia) -> bool:
    """Whether it is the live Wikipedia, whose module is there only if someone has imported it, with its package."""
    live = sys.modules.get("agentgym_tlm.envs.hotpotqa.live")
    return live is not None and isinstance(encyclopedia, live.LiveWikipedia)


def _open_encyclopedia(
    wikipedia: str | Encyclopedia,
    source: QuestionSource,
    wiki_file: str | os.PathLike[str] | None,
    contact: str | None,
    cache_file: str | os.PathLike[str] | None,
) -> Encyclopedia:
    for option, value in (("wiki_file", wiki_file), ("cache_file", cache_file)):
        if not isinstance(value, str | os.PathLike | None):
            raise ConfigError(f"{option}={value!r} must be a path")
    if wikipedia != "offline" and wiki_file is not None:
        raise ConfigError("wiki_file= is for wikipedia='offline'")
    if wikipedia != "live" and not (contact is None and cache_file is None):
        raise ConfigError("contact= and cache_file= are for wikipedia='live'")
    if wikipedia == "offline":
        return open_pages(source, wiki_file)
    if wikipedia == "live":
        from agentgym_tlm.assets import cache_folder
        from agentgym_tlm.envs.hotpotqa.live import LiveWikipedia

        return LiveWikipedia(contact, cache_folder() / "wikipedia.sqlite" if cache_file is None else Path(cache_file))
    if isinstance(wikipedia, str) or not all(
        callable(getattr(wikipedia, method, None)) for method in ("search", "retrieve", "mentions")
    ):
        raise ConfigError(f"wikipedia must be 'offline', 'live' or an encyclopedia, not {wikipedia!r}")
    return wikipedia
