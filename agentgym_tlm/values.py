"""A critic beside a language model: the expected return before every token that the policy produced."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from agentgym_tlm.logprobs import TokenLogprobs


class Critic(nn.Module):
    """A value per hidden state: a linear head on the policy's own body, or on a copy of it that is trained apart.

    The head begins at 0, so that every value does. It computes in float32 whatever the model's precision.
    """

    def __init__(self, model: Any, kind: Literal["shared", "separate"]) -> None:
        super().__init__()
        causal_lm = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.body = copy.deepcopy(causal_lm.base_model) if kind == "separate" else None
        self.head = nn.Linear(causal_lm.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[n] values of hidden states [n, width]."""
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.head(hidden.float()).squeeze(-1)
        return values


class ActorCritic(nn.Module):
    """[2, N]: log-probs of the tokens of the loss (see :class:`TokenLogprobs`), and the values of the states before."""

    def __init__(self, model: nn.Module, critic: Critic, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.actor = TokenLogprobs(model, temperature=temperature)
        self.critic = critic

    def forward(
        self,
        input_ids: Tensor,
        loss_mask: Tensor,
        groups: tuple[tuple[int, int, int], ...],
        position_ids: Tensor | None = None,
    ) -> Tensor:
        states = list(self.actor.at_tokens(input_ids, loss_mask, groups, position_ids))
        logprobs = torch.cat([self.actor.of_tokens(hidden, targets) for hidden, targets in states])
        if self.critic.body is None:
            values = torch.cat([self.critic(hidden) for hidden, _ in states])
        else:
            values = self.values(input_ids, loss_mask, groups, position_ids)
        return torch.stack([logprobs, values])

    def values(
        self,
        input_ids: Tensor,
        loss_mask: Tensor,
        groups: tuple[tuple[int, int, int], ...],
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """[N] values alone: no logits are computed."""
        states = self.actor.at_tokens(input_ids, loss_mask, groups, position_ids, body=self.critic.body)
        return torch.cat([self.critic(hidden) for hidden, _ in states])
