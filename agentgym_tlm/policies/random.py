"""Uniform play over the admissible commands: the floor that any agent has to beat."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.base import Conversation, Generation
from agentgym_tlm.prompt import PromptFormat, ReactFormat


class RandomPolicy:
    """Picks one of ``info["admissible_commands"]``. Raises ConfigError when the environment does not list them."""

    name = "random"
    version = "0"
    fingerprint = ""

    def __init__(self, *, format: PromptFormat | None = None) -> None:
        self.format: PromptFormat = format or ReactFormat(instructions="")

    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        """A command without a thought for each conversation, drawn from its own random stream."""
        return [self._act(conversation) for conversation in conversations]

    def end(self, conversation: Conversation) -> None:
        """Nothing is held for an episode."""

    def _act(self, conversation: Conversation) -> Generation:
        commands = conversation.info.get("admissible_commands")
        if not commands:
            raise ConfigError(
                f"the random policy needs the admissible commands, which {conversation.env_id} did not list: "
                "make the environment with admissible_commands=True"
            )
        return Generation(self.format.compose("", commands[int(conversation.rng.integers(len(commands)))]))
