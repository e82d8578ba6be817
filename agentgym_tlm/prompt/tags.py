"""The ``tags`` format: ``<think>`` and ``<action>``, a window of the last turns, the admissible commands.

It follows the protocol of GiGPO (Feng et al., 2025, arXiv 2505.10978) as its code, verl-agent, has it for ALFWorld;
the wording is our own. Every turn is one user message, which holds the task, the number of the step, the last
``history_length`` observations with the actions that answered them, the newest observation and the admissible commands
without ``help``. What is read from a response:

1. The action is the text of the first ``<action>...</action>`` block, in lower case, with runs of white space as one
   space. Whether it is among the commands is the environment's business.
2. A response is well-formed if it has such a block that is not empty and, unless ``thoughts`` is off, a
   ``<think>...</think>`` pair, wherever it stands. A turn whose response is not counts as an invalid action.

Deviations from verl-agent:

1. Without a block nothing is sent, and the environment answers an empty action; verl-agent sends the last 30 characters
   of the response, which nobody meant as an action. Both count as invalid.
2. ``Turn.action_valid`` is False, too, where the environment refused the action; verl-agent does not look at that.
   ``Turn.well_formed`` is its rule alone.
3. An action in a block is carried out even if the thought is missing, as in verl-agent, but Chinese characters do not
   make a response invalid: that is a rule for one family of models.
4. The task is named in every message that does not name it already in the newest observation.
5. Blocks longer than ``MAX_ACTION_CHARS`` count as none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from agentgym_tlm.errors import TrajectoryError
from agentgym_tlm.prompt.base import MAX_ACTION_CHARS, ParsedResponse, Situation
from agentgym_tlm.ranges import check_ranges

TAGS_INSTRUCTIONS = (
    "You act in a world that answers in text, one command at a time. Below are the task, what happened last, what you "
    "observe now, and the commands that are possible now. Choose the command that brings the task forward; when "
    "something did not work, try another."
)
"""How-to-play text for pretrained chat models; a request for the tags closes their messages."""

_REQUEST = {
    True: "Reason first, inside <think> </think>. Then give one of the commands inside <action> </action>.",
    False: "Give one of the commands inside <action> </action>, and nothing else.",
}
NO_ACTION = "none"
"""Stands in the history for the action of a response that had none."""

_TAG = re.compile(r"<(/?)(think|action)>", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TagsArguments:
    """What can be chosen in the tags format."""

    history_length: int = 2
    """Earlier observations, with the actions that answered them, that a prompt shows."""
    thoughts: bool = True
    """Ask for a thought before the action; without, a response is the action alone."""
    admissible_commands: bool = True
    """List the commands that are possible now."""

    def __post_init__(self) -> None:
        check_ranges(self, history_length="[0, inf)")


@dataclass(frozen=True)
class TagsFormat:
    """See the module docstring, and :class:`TagsArguments`.

    ``instructions`` opens every message, and a request for the tags closes it; "" leaves out both, for models trained
    on the environment's own texts.
    """

    instructions: str = TAGS_INSTRUCTIONS
    history_length: int = 2
    thoughts: bool = True
    admissible_commands: bool = True

    name: ClassVar[str] = "tags"
    windowed: ClassVar[bool] = True

    @property
    def lists_commands(self) -> bool:
        """Whether messages show the admissible commands."""
        return self.admissible_commands

    def message(self, situation: Situation) -> str:
        """The user message for the newest observation. Raises TrajectoryError if it needs commands and has none."""
        observations, actions = situation.observations, situation.actions
        step = len(observations)
        lines = []
        if situation.instruction not in observations[-1]:
            lines.append(f"Task: {situation.instruction.strip()}")
        lines.append(f"Step: {step}")
        for past in range(max(0, step - 1 - self.history_length), step - 1):
            lines.append(f"Observation {past + 1}: {observations[past].strip()}")
            lines.append(f"Action {past + 1}: {actions[past] or NO_ACTION}")
        lines.append(f"Observation {step}: {observations[-1].strip()}")
        if self.admissible_commands:
            if situation.commands is None:
                raise TrajectoryError(
                    "the tags format lists the admissible commands, which this episode was recorded without: let it be "
                    "played anew with this format, or use tags.admissible_commands=False"
                )
            lines += ["Commands:", *(command for command in situation.commands if command != "help")]
        body = "\n".join(lines)
        return f"{self.instructions}\n\n{body}\n\n{_REQUEST[self.thoughts]}" if self.instructions else body

    def compose(self, thought: str, action: str) -> str:
        """The response in which ``thought`` and ``action`` parse back, the action in lower case."""
        thinking = f"<think>{thought}</think>" if self.thoughts else ""
        return f"{thinking}<action>{action}</action>"

    def parse(self, response: str) -> ParsedResponse:
        """Thought and action of whatever a model wrote. Never raises."""
        thought, action = _block(response, "think"), _block(response, "action")
        command = " ".join((action or "").lower().split())
        if not command or len(command) > MAX_ACTION_CHARS:
            return ParsedResponse((thought or "").strip(), None, False)
        return ParsedResponse((thought or "").strip(), command, thought is not None or not self.thoughts)


def _block(text: str, name: str) -> str | None:
    """What stands between the first opening tag of a name and the first closing one after it; None without both."""
    start: int | None = None
    for tag in _TAG.finditer(text):
        if tag[2].lower() != name:
            continue
        if not tag[1] and start is None:
            start = tag.end()
        elif tag[1] and start is not None:
            return text[start : tag.start()]
    return None
