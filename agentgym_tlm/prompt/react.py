"""The ``react`` format, that of ReAct (Yao et al., 2023) as agent papers use it in chat form.

The full history, append-only: one user message per observation and one assistant message ``Thought: ...\\nAction: ...``
per turn. A format knows no environment: the texts of ``reset`` and ``step`` are its only input.

What :meth:`ReactFormat.parse` makes of what models really write:

1. A header that opens the response (``<|im_start|>assistant``, ``<s>``, ...) is ignored. So are everything from the
   first other marker written out as text (``</s>``, ``<|im_end|>``, ``[/INST]``, ...) on, and everything up to the last
   ``</think>``, unless that was never opened and nothing follows it.
2. The action follows the first ``Action:`` tag that starts a line, else the first one inside a line. Case, plural, a
   number before or in it (``1. Action:``, ``Action 1:``, ``Action#1:``), words around it (``My action is:``), a
   full-width colon and Markdown do not matter. A heading (``### Action``) and ``<action>...</action>`` are such tags,
   too. Of several actions the first one counts.
3. The action is the rest of the tag's line; if that is empty, the next line that is not (code fences are skipped, and
   so is the tag if it stands there once more).
4. Surrounding quotes, backticks, asterisks, square brackets and a trailing period are removed; control characters count
   as spaces.
5. Without a tag, a response of one short line that is no thought is taken as a bare action.
6. Anything else, an empty action, or one longer than ``MAX_ACTION_CHARS`` is unparsable: the action is None.

Every rule runs in time linear in the response.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from agentgym_tlm.prompt.base import MAX_ACTION_CHARS, ParsedResponse, Situation

DEFAULT_INSTRUCTIONS = (
    "You act in a world that answers in text. Each of my messages tells you what you observe. Reply with one short "
    "thought and exactly one action, in this form:\n"
    "Thought: what you have learnt and what to do next\n"
    "Action: the command to carry out\n"
    "Use plain commands, and call things by the names, numbers included, that the observations use. When a command "
    "changes nothing, try a different one."
)
"""How-to-play text for pretrained chat models; which actions there are is for an environment's first observation."""

_MAX_BARE_ACTION_CHARS = 200
_OPENING = re.compile(
    r"(?:<s>|<bos>|<\|(?:im_start|begin_of_text|startoftext|start_header_id|end_header_id|assistant)\|>|<start_of_turn>)"
    r"(?:assistant\b|model\b)?\s*"
)
_MARKER = re.compile(r"</?s>|<[be]os>|<\|[A-Za-z_]{1,30}\|>|<(?:start|end)_of_turn>|\[/?INST\]")
_XML_TAG = re.compile(r"<(/?)(thought|action)>", re.IGNORECASE)
# Tags are looked for in the head of a line only, so that whitespace runs cannot make the match quadratic. The head is
# longer than any tag, so that the end of a line is never mistaken for the end of the head.
_HEAD_CHARS = 70
_NUMBER = r"\s{0,4}#?\d{0,4}(?:\sis)?"
_LINE_TAG = re.compile(
    r"[\W\d_]{0,8}(?:(?:my|the|next|final|chosen)\s){0,3}"
    rf"(thought|action|observation)s?{_NUMBER}[\s*_`]{{0,4}}(?:[:\uff1a]|$)",
    re.IGNORECASE | re.MULTILINE,
)
_INLINE_TAG = re.compile(rf"\b(?:thought|action|observation)s?{_NUMBER}[*_`]{{0,4}}[:\uff1a]", re.IGNORECASE)
_INLINE_ACTION = re.compile(rf"\bactions?{_NUMBER}[*_`]{{0,4}}[:\uff1a]", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_WRAPPERS = (("**", "**"), ("`", "`"), ('"', '"'), ("'", "'"), ("“", "”"), ("*", "*"), ("_", "_"))


@dataclass(frozen=True)
class ReactFormat:
    """Thought and action, full history; see the module docstring for what it parses.

    ``instructions`` opens the first message; "" leaves it out, for models trained on the environment's own texts.
    ``prefix`` and ``suffix`` stand before and after the task, such as the quality that a policy was trained to aim at.
    """

    instructions: str = DEFAULT_INSTRUCTIONS
    prefix: str = ""
    suffix: str = ""

    name: ClassVar[str] = "react"
    windowed: ClassVar[bool] = False

    @property
    def lists_commands(self) -> bool:
        """Never: which actions there are is for an environment's first observation."""
        return False

    def message(self, situation: Situation) -> str:
        """The user message for the newest observation."""
        if len(situation.observations) == 1:
            return self.first_message(situation.instruction, situation.observations[0])
        return self.observation_message(situation.observations[-1])

    def first_message(self, instruction: str, observation: str) -> str:
        """User message that opens an episode; names the task unless the observation already does."""
        parts = [self.instructions, self.prefix, observation]
        if instruction not in observation:
            parts.append(f"Your task is to: {instruction}")
        parts.append(self.suffix)
        return "\n\n".join(part.strip() for part in parts if part.strip())

    def observation_message(self, observation: str) -> str:
        """User message for every later observation."""
        return observation.strip()

    def compose(self, thought: str, action: str) -> str:
        """The response in which ``thought`` and ``action`` parse back; the thought may be empty."""
        return f"Thought: {thought}\nAction: {action}" if thought else f"Action: {action}"

    def parse(self, response: str) -> ParsedResponse:
        """Thought and action of whatever a model wrote. Never raises."""
        text, start = response.lstrip(), 0
        while (opening := _OPENING.match(text, start)) is not None:
            start = opening.end()
        before, think, after = text[start:].rpartition("</think>")
        text = _until_marker(after)
        if think and not text.strip() and "<think>" not in before:
            text = _until_marker(before)
        text = _XML_TAG.sub(lambda tag: "\n" if tag[1] else f"\n{tag[2]}: ", text)
        lines = text.replace("\r", "\n").split("\n")
        found = _find_action(lines)
        if found is None:
            return _parse_untagged(lines)
        thought_lines, action = found
        cleaned = _clean_action(action)
        return _read(_clean_thought(thought_lines), cleaned)


def _until_marker(text: str) -> str:
    marker = _MARKER.search(text)
    return text if marker is None else text[: marker.start()]


def _line_tag(line: str) -> re.Match[str] | None:
    return _LINE_TAG.match(line[:_HEAD_CHARS])


def _find_action(lines: list[str]) -> tuple[list[str], str] | None:
    """Lines before the action's tag, and the raw action; None without a tag."""
    for i, line in enumerate(lines):
        tag = _line_tag(line)
        if tag is not None and tag[1].lower() == "action":
            return lines[:i], _action_text([line[tag.end() :], *lines[i + 1 :]])
    for i, line in enumerate(lines):
        inline = _INLINE_ACTION.search(line)
        if inline is not None:
            before = [*lines[:i], line[: inline.start()]]
            return before, _action_text([line[inline.end() :], *lines[i + 1 :]])
    return None


def _action_text(lines: Iterable[str]) -> str:
    """First line with content, up to where another tag begins; "" when a tag other than the action's comes first."""
    for line in lines:
        tag = _line_tag(line)
        if tag is not None and tag[1].lower() == "action":
            line = line[tag.end() :]
        elif tag is not None:
            return ""
        if not line.strip(" \t\x00*_") or (line.lstrip().startswith("```") and not line.rstrip().endswith("```", 4)):
            continue
        other = _INLINE_TAG.search(line)
        return line if other is None else line[: other.start()]
    return ""


def _clean_action(action: str) -> str:
    action = " ".join(_CONTROL.sub(" ", action).split())
    if len(action) > MAX_ACTION_CHARS:
        return ""
    while True:
        stripped = action.removesuffix(".").strip()
        for start, end in _WRAPPERS:
            if len(stripped) > len(start) + len(end) and stripped.startswith(start) and stripped.endswith(end):
                stripped = stripped[len(start) : -len(end)].strip()
        if _is_bracketed(stripped):
            stripped = stripped[1:-1].strip()
        stripped = stripped.strip("`").removeprefix("**").removesuffix("**").strip()
        if stripped == action:
            return action
        action = stripped


def _is_bracketed(text: str) -> bool:
    """Whether the first character is a square bracket that the last one closes, unlike in ``[a] [b]``."""
    if len(text) < 2 or text[0] != "[" or text[-1] != "]":
        return False
    depth = 0
    for character in text[:-1]:
        depth += (character == "[") - (character == "]")
        if depth == 0:
            return False
    return True


def _clean_thought(lines: list[str]) -> str:
    text = "\n".join(lines).strip()
    tag = _line_tag(text)
    return text[tag.end() :].strip() if tag is not None and tag[1].lower() == "thought" else text


def _parse_untagged(lines: list[str]) -> ParsedResponse:
    """A bare action if the response is one short line without a tag; otherwise a thought without an action."""
    content = [line for line in lines if line.strip()]
    if len(content) == 1 and len(content[0]) <= _MAX_BARE_ACTION_CHARS and _line_tag(content[0]) is None:
        return _read("", _clean_action(content[0]))
    return _read(_clean_thought(lines), "")


def _read(thought: str, action: str) -> ParsedResponse:
    return ParsedResponse(thought, action or None, bool(action))
