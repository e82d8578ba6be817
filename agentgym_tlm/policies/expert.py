"""The scripted expert of an environment as a policy: what supervised fine-tuning imitates."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_tlm.envs.base import Expert
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.base import Conversation, Generation
from agentgym_tlm.prompt import PromptFormat, ReactFormat


class ExpertPolicy:
    """Plays with the environment's own :meth:`TextEnv.expert`.

    With probability ``noise`` a turn is a plausible mistake, marked as not trainable, from which the expert then
    recovers: recovery is what plain expert play never shows.
    """

    version = "0"
    fingerprint = ""

    def __init__(self, *, noise: float = 0.0, format: PromptFormat | None = None) -> None:
        if not 0 <= noise < 1:
            raise ConfigError(f"noise={noise} is a probability below 1")
        self.noise = noise
        self.format: PromptFormat = format or ReactFormat(instructions="")
        self.name = f"expert-noise{noise:g}" if noise else "expert"

    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        """The expert's thought and action for each conversation."""
        return [self._act(conversation) for conversation in conversations]

    def end(self, conversation: Conversation) -> None:
        """Forget the episode's expert."""
        conversation.memory = None

    def _act(self, conversation: Conversation) -> Generation:
        if conversation.memory is None:
            if conversation.expert is None:
                raise ConfigError(f"{conversation.env_id} gave the conversation no expert to play with")
            conversation.memory = conversation.expert()
        expert: Expert = conversation.memory
        observation = conversation.observations[-1]
        if self.noise and conversation.rng.random() < self.noise:
            mistake = expert.mistake(observation, conversation.rng)
            if mistake is not None:
                return Generation(self.format.compose(*mistake), trainable=False)
        return Generation(self.format.compose(*expert.act(observation)))
