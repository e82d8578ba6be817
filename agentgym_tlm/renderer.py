"""Chat templates, append-only: the token ids of a conversation grow and never change.

A chat template renders a whole conversation; an agent's conversation grows turn by turn, and the ids that the model
produced must stay exactly as they were (token-in, token-out). The renderer therefore takes the template apart once, by
rendering example conversations and comparing the texts:

    [opening] first user message [boundary] response [closing][separator] user message [boundary] response ...

``closing`` ends with the end-of-turn token; it belongs to the response, and the model has to learn it. ``separator``,
whatever the template puts after the end of turn, belongs to the next user message. A template that does not come apart
this way, because it rewrites or drops parts of earlier turns, is refused.

With a windowed format every turn is a conversation of its own: an opening, one user message, the response. The template
may do with earlier turns what it likes then, for there are none.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from agentgym_tlm.errors import ConfigError, TemplateError, TrajectoryError
from agentgym_tlm.prompt import PromptFormat, Situation
from agentgym_tlm.trajectory import Trajectory

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""A prefix-preserving template for models with ChatML tokens (Qwen, SmolLM2, ...)."""

_USER, _LATER, _ANSWER = "First message", "Later message", "Thought: Some response"
_REMEDY = (
    "Give the tokenizer a template that keeps earlier turns as they were, e.g. tokenizer.chat_template = "
    "agentgym_tlm.renderer.CHATML for a model with ChatML tokens."
)

Message = dict[str, str]


class Renderer:
    """Turns an episode into token ids with ``tokenizer``'s chat template and a prompt format.

    Raises TemplateError when the tokenizer has no template, or one that cannot be used append-only.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, format: PromptFormat) -> None:
        if not tokenizer.chat_template:
            raise TemplateError(f"the tokenizer {tokenizer.name_or_path!r} has no chat template. {_REMEDY}")
        self.tokenizer = tokenizer
        self.format = format
        self._take_template_apart()

    def _take_template_apart(self) -> None:
        user, answer, later = _message("user", _USER), _message("assistant", _ANSWER), _message("user", _LATER)
        prompt = self._render([user], add_generation_prompt=True)
        answered = self._render([user, answer])
        self._opening, self._boundary = _split(prompt, _USER)
        if not answered.startswith(prompt + _ANSWER):
            raise TemplateError(
                "the chat template's generation prompt is not what it puts before an assistant message: it ends "
                f"{prompt[-60:]!r}, but the rendered message begins {answered[len(self._opening) :][:120]!r}. {_REMEDY}"
            )
        closing = answered[len(prompt) + len(_ANSWER) :]
        tail = self._encode(closing)
        special = set(self.tokenizer.all_special_ids)
        ends = [i for i, token in enumerate(tail) if token in special]
        if not ends:
            raise TemplateError(
                "the chat template puts no special token after an assistant message, so that a response has no end. "
                + _REMEDY
            )
        self.closing_ids = tail[: ends[0] + 1]
        self.end_of_turn_id = self.closing_ids[-1]
        self._separator_ids = tail[ends[0] + 1 :]
        self._closing = closing
        if self.format.windowed:
            return
        followed = self._render([user, answer, later], add_generation_prompt=True)
        if not followed.startswith(answered):
            raise TemplateError(f"the chat template rewrites an assistant message once another follows. {_REMEDY}")
        self._before_later, after_later = _split(followed[len(answered) :], _LATER)
        if after_later != self._boundary:
            raise TemplateError(
                f"the chat template opens the first response with {self._boundary!r} and a later one with "
                f"{after_later!r}. {_REMEDY}"
            )
        self._check_prefix_preserving()

    def _check_prefix_preserving(self) -> None:
        """Compare with the template on responses that templates are known to tamper with."""
        contents = ["first", "<think>\nweigh it\n</think>\n\nThought: a\nAction: b", "second", "Thought: c\nAction: d"]
        messages = [_message(role, text) for role, text in zip(("user", "assistant") * 2, contents, strict=True)]
        messages.append(_message("user", "third"))
        expected = self._render(messages, add_generation_prompt=True)
        text = self._opening + contents[0] + self._boundary
        for content, following in zip(contents[1::2], ("second", "third"), strict=True):
            text += content + self._closing + self._before_later + following + self._boundary
        if text != expected:
            same = next(i for i, (a, b) in enumerate(zip(text + "\0", expected + "\1", strict=False)) if a != b)
            raise TemplateError(
                "the chat template is not prefix-preserving: it drops or rewrites part of an earlier turn (often the "
                f"<think> block). Expected {text[same:][:60]!r}, the template gives {expected[same:][:60]!r}. {_REMEDY}"
            )

    def _render(self, messages: list[Message], *, add_generation_prompt: bool = False) -> str:
        try:
            rendered = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise TemplateError(
                f"the chat template of {self.tokenizer.name_or_path!r} fails on a plain conversation "
                f"({type(error).__name__}: {error}). {_REMEDY}"
            ) from error
        assert isinstance(rendered, str)
        return rendered

    def _encode(self, text: str, **options: Any) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, return_attention_mask=False, **options)[
            "input_ids"
        ]
        return ids

    def _encode_message(self, before: str, content: str, after: str) -> list[int]:
        """Ids of a user message; special tokens spelled out in its content stay ordinary text."""
        if any(token in content for token in self.tokenizer.all_special_tokens):
            return [
                *self._encode(before),
                *self._encode(content, split_special_tokens=True),
                *self._encode(after),
            ]
        return self._encode(before + content + after)

    def first_prompt(self, instruction: str, observation: str) -> list[int]:
        """Ids of an episode's first user message and the generation prompt."""
        return self.prompt(instruction, [observation], 0)

    def next_prompt(self, observation: str) -> list[int]:
        """Ids to append after an end-of-turn token: separator, user message, generation prompt."""
        return self.prompt("", ["", observation], 1)

    def response(self, text: str) -> list[int]:
        """Ids of a response that is given as text (an expert's), end-of-turn token included."""
        return [*self._encode(text), *self.closing_ids]

    def prompt(
        self,
        instruction: str,
        observations: Sequence[str],
        turn: int,
        responses: Sequence[str] = (),
        commands: Sequence[str] | None = None,
    ) -> list[int]:
        """Ids before response number ``turn``: to append, or, with a windowed format, to begin a sequence with.

        A windowed format shows earlier ``responses`` as it reads them, and ``commands``, the admissible ones, if it
        lists them. Raises TrajectoryError when it lists them and there are none.
        """
        actions = [self.format.parse(response).action for response in responses[:turn]] if self.format.windowed else []
        message = self.format.message(Situation(instruction, observations[: turn + 1], actions, commands))
        if turn == 0 or self.format.windowed:
            return self._encode_message(self._opening, message, self._boundary)
        return [*self._separator_ids, *self._encode_message(self._before_later, message, self._boundary)]

    def encode_trajectory(self, trajectory: Trajectory) -> Trajectory:
        """Copy of a text-only trajectory with ``sequences`` and spans, as if a model had produced its responses.

        Raises ValueError if any turn already has tokens: what a model saw and produced is never re-tokenised; and
        TrajectoryError for one whose responses are written in another format, or that lacks what this one shows.
        """
        if trajectory.sequences or any(turn.span is not None for turn in trajectory.turns):
            raise ValueError(f"the trajectory of {trajectory.task_id} already has tokens")
        if trajectory.prompt_format not in ("", self.format.name):
            raise TrajectoryError(
                f"the responses of {trajectory.task_id!r} are written in the prompt format {trajectory.prompt_format}, "
                f"not in {self.format.name}: let the episode be played anew"
            )
        encoded = copy.deepcopy(trajectory)
        observations = [turn.observation for turn in encoded.turns]
        responses = [turn.response for turn in encoded.turns]
        encoded.sequences = []
        for i, turn in enumerate(encoded.turns):
            if i == 0 or self.format.windowed:
                encoded.sequences.append([])
            ids = encoded.sequences[-1]
            ids += self.prompt(encoded.instruction, observations, i, responses, turn.admissible_commands)
            start = len(ids)
            ids += self.response(turn.response)
            turn.sequence, turn.span = len(encoded.sequences) - 1, (start, len(ids))
        encoded.prompt_format = self.format.name
        return encoded

    def decorated(self, *, prefix: str = "", suffix: str = "") -> Renderer:
        """The renderer of the same template and format with another prefix and suffix.

        Raises ConfigError when they have words that the tokenizer does not know: a model could not tell them apart; and
        for a windowed format, whose prompts have no place for them.
        """
        if self.format.windowed:
            raise ConfigError(
                f"the prompt format {self.format.name} has a prompt for every turn, and no first message to decorate: "
                "train this method on a policy with the prompt format react"
            )
        unknown = self.tokenizer.unk_token_id
        for text in (prefix, suffix):
            if unknown is not None and unknown in self._encode(text):
                raise ConfigError(
                    f"the policy's tokenizer does not know all words of {text!r}: a word-level one has to learn them "
                    "first (agentgym_tlm.policies.tiny.add_words), others know all words"
                )
        other = copy.copy(self)
        other.format = replace(self.format, prefix=prefix, suffix=suffix)
        return other

    def reprompt(self, trajectory: Trajectory, *, after: Trajectory | None = None) -> Trajectory:
        """Copy of a trajectory with tokens that begins with the first message of this renderer's format.

        Everything behind that message, the responses included, keeps its ids; log-probs and confidence, which were
        those given another prompt, are dropped. With ``after``, an episode that has tokens, the copy is one sequence of
        both: the other episode, then this one, whose first message leaves out the format's instructions.

        Raises TrajectoryError unless the tokens of each are one sequence that begins with a prompt.
        """
        ids, start = _single_sequence(trajectory)
        first = trajectory.turns[0].observation
        if after is None:
            before, turns = self.first_prompt(trajectory.instruction, first), []
        else:
            before, turns = list(_single_sequence(after)[0]), after.turns
            if before[-1] != self.end_of_turn_id:
                before.append(self.end_of_turn_id)
            message = replace(self.format, instructions="").message(Situation(trajectory.instruction, [first]))
            before += [*self._separator_ids, *self._encode_message(self._before_later, message, self._boundary)]
        shift = len(before) - start
        moved = [replace(turn, span=_shifted(turn.span, shift)) for turn in trajectory.turns]
        return replace(
            trajectory,
            turns=[replace(t, logprobs=None, ref_logprobs=None, confidence=None) for t in (*turns, *moved)],
            sequences=[[*before, *ids[start:]]],
            prompt_format=self.format.name,
        )


def _single_sequence(trajectory: Trajectory) -> tuple[list[int], int]:
    """The ids of an append-only trajectory, and where its first response begins."""
    spans = [turn.span for turn in trajectory.turns if turn.sequence == 0 and turn.span is not None]
    if len(trajectory.sequences) != 1 or not spans or len(spans) < len(trajectory.turns) or spans[0][0] == 0:
        raise TrajectoryError(
            f"the trajectory of {trajectory.task_id!r} cannot get another prompt: it has no tokens, more than one "
            "sequence, or no prompt; encode it with an append-only format first"
        )
    return trajectory.sequences[0], spans[0][0]


def _shifted(span: tuple[int, int] | None, by: int) -> tuple[int, int] | None:
    return None if span is None else (span[0] + by, span[1] + by)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _split(text: str, content: str) -> tuple[str, str]:
    """The template's text before and after ``content``."""
    if text.count(content) != 1:
        raise TemplateError(f"the chat template does not show a user message exactly once. {_REMEDY}")
    before, _, after = text.partition(content)
    return before, after
