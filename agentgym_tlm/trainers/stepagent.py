"""StepAgent, implicit variant: step-wise DPO on the expert's states (Deng et al., 2024, arXiv 2411.03817).

An expert trajectory is cut into its states h_t, all that came before turn t, and its actions a_t. *Inspection*: in
every state the policy proposes an action â_t ~ π_θ(. | h_t). *Reflection*, by implicit reward: the expert's action is
preferred to the policy's own,

    Δ(a) = log π_θ(a | h_t) - log π_ref(a | h_t)                summed over the tokens of thought and action
    L    = E_t[ -log σ(β (Δ(a_t) - Δ(â_t))) ]

over the states where the two differ. Deviations and choices:

1. No code was published, and hyper-parameters are not known: beta, schedule and batch are ETO's.
2. Two actions are the same if the actions that are parsed from the responses are, whatever the thoughts. An action that
   cannot be parsed differs from any.
3. Proposals are sampled at ``temperature``, ``samples_per_task`` in each state; 0 proposes greedily. Of the proposals
   in a state every action counts once.
4. A proposal is carried out, and the environment's failures are left out, but what it leads to has no influence. An
   action that would serve as well as the expert's is rejected like any other, as the method has it.
5. π_ref is the policy at the start of the iteration.
6. The inverse variant (a discriminator's reward and PPO) is another method.
7. ``max_repeats`` and ``max_extra_turns`` are about episodes: a proposal has no repetition of its own nor extra turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from agentgym_tlm.batch import TurnBatch
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.pairs import Pair, as_continuation, cut_turns, one_per_task, unusable_reason
from agentgym_tlm.prefix import Prefix
from agentgym_tlm.ranges import check_ranges
from agentgym_tlm.trainers.base import Metrics
from agentgym_tlm.trainers.preference import (
    PreferenceArguments,
    PreferenceTrainer,
    implicit_rewards,
    preference_metrics,
)
from agentgym_tlm.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class StepAgentArguments(PreferenceArguments):
    """Options of StepAgent. Policies without a recipe of their own get ETO's for 7B models."""

    learning_rate: float = 1e-6
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    num_train_epochs: float = 3.0
    """Passes over the pairs."""
    beta: float = 0.1
    """Temperature of DPO."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, beta="(0, inf)")
        for name in ("max_repeats", "max_extra_turns"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} is about whole episodes, and stepagent compares single actions: leave it out"
                )


def stepagent_loss(logprobs: Tensor, batch: TurnBatch, beta: float) -> tuple[Tensor, Metrics]:
    """Mean DPO loss over the P pairs of ``batch`` (expert actions first); ``logprobs`` is [N].

    Metrics are means over pairs: ``margin`` of the implicit rewards and ``accuracy``, the share with a positive one.
    """
    chosen, rejected = implicit_rewards(logprobs, batch, beta)
    return -logsigmoid(chosen - rejected).mean(), preference_metrics(chosen, rejected)


class StepAgentTrainer(PreferenceTrainer[StepAgentArguments]):
    """Corrects what an SFT policy would do in the states of expert trajectories. See :class:`Trainer`."""

    def build(self, tasks: Sequence[str], expert: Sequence[Trajectory]) -> tuple[list[Pair], Counter[str]]:
        """A pair of single actions for every state in which the policy proposes another one than the expert's."""
        args = self.args
        states = [
            Prefix(episode, i, max_turns=1)
            for episode in one_per_task(expert)
            for i, turn in enumerate(episode.turns)
            if turn.trainable
        ]
        proposals = self.sample(states, "proposed", temperature=args.temperature, samples=args.samples_per_task)
        pairs: list[Pair] = []
        dropped: Counter[str] = Counter()
        per_task: Counter[str] = Counter()
        for i, state in enumerate(states):
            taken = {state.trajectory.turns[state.turns].action}
            chosen = as_continuation(cut_turns(state.trajectory, state.turns + 1), state.turns)
            for proposal in proposals[i * args.samples_per_task : (i + 1) * args.samples_per_task]:
                reason = self._unusable(proposal, taken)
                if reason is None:
                    taken.add(proposal.turns[-1].action)
                    if per_task[state.task_id] == args.max_pairs_per_task:
                        reason = "over_task_limit"
                if reason is not None:
                    dropped[reason] += 1
                    continue
                per_task[state.task_id] += 1
                pairs.append(Pair(chosen, proposal))
        return pairs, dropped

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return stepagent_loss(logprobs, batch, self.args.beta)

    def _unusable(self, proposal: Trajectory, taken: set[str | None]) -> str | None:
        """Why a proposal makes no pair, ``taken`` being the actions of the expert and of earlier proposals."""
        if (reason := unusable_reason(proposal)) is not None:
            return reason
        if proposal.turns[-1].action in taken:
            return "same_action"
        limit = self.args.max_rejected_tokens
        return "overlong" if limit is not None and sum(map(len, proposal.sequences)) > limit else None
