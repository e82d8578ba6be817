"""What prompt formats have in common: all that rollouts, renderers and policies know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

MAX_ACTION_CHARS = 1000
"""An action longer than this is taken for a runaway response."""


class ParsedResponse(NamedTuple):
    """A response taken apart; ``action`` is None when none could be read.

    ``well_formed`` is False for a response that breaks the rules of the format, whether or not an action could be read:
    its turn counts as an invalid action.
    """

    thought: str
    action: str | None
    well_formed: bool = True


@dataclass(frozen=True)
class Situation:
    """An episode up to an observation that is still to be answered: all that a prompt is made from.

    ``actions`` are what the responses so far were read as, one fewer than the ``observations``. ``commands`` are the
    admissible ones now, None where the environment was not asked for them.
    """

    instruction: str
    observations: Sequence[str]
    actions: Sequence[str | None] = ()
    commands: Sequence[str] | None = None


class PromptFormat(Protocol):
    """How a policy is spoken to, and how it speaks. A frozen dataclass, whose fields are saved with the policy.

    With ``windowed`` every turn is a conversation of its own, one user message and the response, so that a trajectory
    has one token sequence per turn; without, messages are appended to one conversation. ``lists_commands`` says that
    messages show the admissible commands: rollouts ask the environment for them, and record them.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]
    windowed: ClassVar[bool]

    @property
    def lists_commands(self) -> bool: ...

    def message(self, situation: Situation) -> str:
        """The user message for the newest observation. Raises TrajectoryError if it needs commands and has none."""
        ...

    def compose(self, thought: str, action: str) -> str:
        """The response in which ``thought`` and ``action`` parse back; the thought may be empty."""
        ...

    def parse(self, response: str) -> ParsedResponse:
        """Thought and action of whatever a model wrote. Never raises."""
        ...
