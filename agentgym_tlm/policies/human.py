"""A person at the terminal as a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentgym_tlm.policies.base import Conversation, Generation
from agentgym_tlm.prompt import PromptFormat, ReactFormat

HELP = "Type a command; ? lists the commands that are possible now, quit (or end of input) ends the episode."


class HumanPolicy:
    """Shows each observation and asks for a command.

    ``read`` takes a prompt and returns a line (default: ``input``); ``show`` prints a text (default: ``print``).
    """

    name = "human"
    version = "0"
    fingerprint = ""

    def __init__(
        self,
        *,
        read: Callable[[str], str] = input,
        show: Callable[[str], None] = print,
        format: PromptFormat | None = None,
    ) -> None:
        self._read = read
        self._show = show
        self.format: PromptFormat = format or ReactFormat(instructions="")

    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        """Ask for a command for each conversation, one after the other."""
        return [self._act(conversation) for conversation in conversations]

    def end(self, conversation: Conversation) -> None:
        """Show how the episode ended."""
        self._show_news(conversation)

    def _show_news(self, conversation: Conversation) -> None:
        """Show the observations that have not been shown yet."""
        for observation in conversation.observations[conversation.memory or 0 :]:
            self._show(observation)
        conversation.memory = len(conversation.observations)

    def _act(self, conversation: Conversation) -> Generation:
        if len(conversation.observations) == 1:
            self._show(HELP)
        self._show_news(conversation)
        while True:
            try:
                line = self._read("> ").strip()
            except EOFError:
                return Generation("", aborted=True)
            if line == "quit":
                return Generation("", aborted=True)
            if line == "?":
                commands = conversation.info.get("admissible_commands")
                self._show("\n".join(commands) if commands else "This environment does not list its commands.")
            elif line:
                return Generation(self.format.compose("", line))
