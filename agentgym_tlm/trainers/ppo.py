"""PPO: proximal policy optimization (Schulman et al., 2017, arXiv 1707.06347) of an actor and a critic, in many turns.

    δ_t = r_t + γ V(s_t+1) - V(s_t)
    A_t = δ_t + γ λ A_t+1                                    generalised advantage estimation        (Schulman et al.)
    L   = clipped policy gradient with A (``policy_gradient.py``)
          + c_V ½ max((V - G_t)², (clip(V, V_old - ε_V, V_old + ε_V) - G_t)²),   G_t = A_t + V_old(s_t)

s_t is everything before token t, and V_old the critic when the episodes had been sampled. Prompts and observations
are no steps: t runs over the tokens that the policy produced, so that a reward is not discounted over what it did not
do.
``credit`` says what a step is:

- ``token``: t runs through the tokens of all turns. A turn's reward comes with its last token.
- ``turn``: t runs through the turns, V being that before a turn's first token. All tokens of a turn get its A and G.
- ``single_turn``: each turn is an episode of its own, whose last token gets the return of the whole episode
  (verl-agent).

Defaults are those of ReFT (Trung et al., 2024, arXiv 2401.08967), which agent papers cite for PPO. Deviations:

1. ReFT is single-turn. With one turn, ``token`` and ``single_turn`` are its algorithm.
2. r is ``reward_scale`` times the environment's reward less ``invalid_action_penalty`` for an invalid action. The KL
   divergence from the policy as it was given is part of it, token by token, β (log π_old - log π_ref); ``kl_in="loss"``
   moves it to the loss, as the k3 estimate. β is fixed.
3. An episode that ran out of turns or of context has no value after its end: for the agent, the limits are the task's.
4. Advantages are whitened over all tokens of an iteration, on all processes, not within a batch.
5. The critic's head begins at 0. ``critic="separate"`` gives it a copy of the whole body (of its adapters with LoRA)
   and ``critic_learning_rate``, as in verl; ReFT's is a head on the policy's own body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from agentgym_tlm.batch import Example, TurnBatch, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.files import replaced_file
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.ranges import check_ranges
from agentgym_tlm.trainers.base import Metrics
from agentgym_tlm.trainers.collect import shared_out
from agentgym_tlm.trainers.groups import Array
from agentgym_tlm.trainers.online import OnlineArguments, OnlineTrainer
from agentgym_tlm.trainers.policy_gradient import Aggregation, aggregate
from agentgym_tlm.trajectory import Trajectory
from agentgym_tlm.values import ActorCritic, Critic

Credit = Literal["token", "turn", "single_turn"]


@dataclass(frozen=True, kw_only=True)
class PPOArguments(OnlineArguments):
    """Options of PPO."""

    num_train_epochs: float = 2.0
    """Passes over the episodes of an iteration."""
    learning_rate: float = 3e-7
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    reward_scale: float = 1.0
    """Reward of a success: the environment's rewards are multiplied by it."""
    invalid_action_penalty: float = 0.01
    """Taken off for every turn with an invalid action."""
    beta: float = 0.01
    """Weight of the KL divergence from the policy as it was given; 0: no reference."""
    kl_in: Literal["reward", "loss"] = "reward"
    """Where the KL divergence counts."""
    loss_aggregation: Aggregation = "sequence_mean"
    """What weighs the same: every token of an update, or every episode."""
    credit: Credit = "token"
    """What a step is: a token of the episode, a turn, or a token of a turn that is an episode of its own."""
    gamma: float = 1.0
    """Discount of later rewards, per step."""
    gae_lambda: float = 0.95
    """λ: 0 trusts the critic alone, 1 the returns alone."""
    whiten_advantages: bool = True
    """Give the advantages of an iteration mean 0 and deviation 1."""
    critic: Literal["shared", "separate"] = "shared"
    """A head on the policy's own body, or a model of its own."""
    critic_learning_rate: float | None = None
    """Peak learning rate of head and separate body; None: that of the policy."""
    vf_coef: float = 5.0
    """c_V, weight of the critic's loss."""
    value_clip: float | None = 0.2
    """ε_V: how far a value may move from the old one before its gradient stops; None: any way."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            gamma="[0, 1]",
            gae_lambda="[0, 1]",
            critic_learning_rate="(0, inf)",
            vf_coef="[0, inf)",
            value_clip="(0, inf)",
        )


def gae(rewards: Array, values: Array, gamma: float, lam: float) -> Array:
    """A [n] of steps with rewards and values [n], after which the episode is over."""
    advantages = np.zeros(len(rewards))
    following = value = 0.0
    for t in reversed(range(len(rewards))):
        following = advantages[t] = rewards[t] + gamma * value - values[t] + gamma * lam * following
        value = values[t]
    return advantages


def episode_advantages(
    rewards: Array, costs: Array, values: Array, turns: Array, args: PPOArguments
) -> tuple[Array, Array]:
    """A and G [N] of an episode's tokens.

    ``rewards`` [T] are those of its turns, ``costs`` [N] what each token pays (KL), ``values`` [N] the critic's, and
    ``turns`` [N] says which turn a token belongs to, in order.
    """
    starts = np.flatnonzero(np.diff(turns, prepend=-1))
    lengths = np.diff(np.append(starts, len(turns)))
    of_turns = rewards[turns[starts]]
    if args.credit == "turn":
        paid = of_turns - np.add.reduceat(costs, starts)
        advantages = gae(paid, values[starts], args.gamma, args.gae_lambda)
        return np.repeat(advantages, lengths), np.repeat(advantages + values[starts], lengths)
    ends = starts + lengths - 1
    token_rewards = -costs
    token_rewards[ends] += of_turns
    cuts = starts[1:] if args.credit == "single_turn" else starts[:0]
    parts = zip(np.split(token_rewards, cuts), np.split(values, cuts), strict=True)
    advantages = np.concatenate([gae(r, v, args.gamma, args.gae_lambda) for r, v in parts])
    return advantages, advantages + values


def turn_rewards(episode: Trajectory, paid: Array, args: PPOArguments) -> Array:
    """[T] rewards of an episode's turns, or for each the whole return (``single_turn``), less what was ``paid``."""
    rewards = np.array([turn.reward for turn in episode.turns])
    if args.credit == "single_turn":
        rewards = np.full(len(rewards), rewards.sum())
    return args.reward_scale * rewards - paid


class PPOTrainer(OnlineTrainer[PPOArguments]):
    """Learns a critic with the policy; see :class:`OnlineTrainer`."""

    def __init__(
        self,
        policy: LanguageModelPolicy,
        envs: EnvArgs,
        args: PPOArguments,
        *,
        evaluate: Callable[[LanguageModelPolicy], Mapping[str, float]] | None = None,
        on_log: Callable[[Mapping[str, float]], None] | None = None,
    ) -> None:
        super().__init__(policy, envs, args, evaluate=evaluate, on_log=on_log)
        if self.sharding.on:
            raise ConfigError("the critic cannot be shared out: use rloo, grpo or gigpo, or leave FSDP and DeepSpeed")
        self.critic = Critic(policy.model, args.critic).to(policy.device)

    def module(self, model: torch.nn.Module) -> ActorCritic:
        return ActorCritic(model, self.critic, temperature=self.args.temperature)

    def parameter_groups(self, module: torch.nn.Module) -> list[dict[str, Any]]:
        """Those of the policy first; the critic's have their own learning rate."""
        groups = super().parameter_groups(self.policy.model)
        rate = self.args.critic_learning_rate or self.args.learning_rate
        return [*groups, *({**group, "lr": rate} for group in super().parameter_groups(self.critic))]

    @property
    def loss_beta(self) -> float:
        return self.args.beta if self.args.kl_in == "loss" else 0.0

    def examples(self, episodes: Sequence[Trajectory]) -> list[Example]:
        examples = [Example.from_trajectory(episode) for episode in episodes]
        learnt = [self._credited(*each) for each in zip(episodes, examples, self._values(examples), strict=True)]
        if self.args.whiten_advantages:
            flat = np.concatenate([advantages for advantages, _, _ in learnt])
            mean, std = flat.mean(), flat.std() + 1e-8
            learnt = [((advantages - mean) / std, returns, values) for advantages, returns, values in learnt]
        return [
            example.with_token_values(advantages=advantages, returns=returns, old_values=values)
            for example, (advantages, returns, values) in zip(examples, learnt, strict=True)
        ]

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        """``logprobs`` is [2, N]: log-probs and values."""
        args = self.args
        loss, metrics = super().loss(logprobs[0], batch)
        values, old, returns = logprobs[1], batch.flat(batch.old_values), batch.flat(batch.returns)
        errors = (values - returns).square()
        if args.value_clip is not None:
            clipped = old + (values - old).clamp(-args.value_clip, args.value_clip)
            errors = torch.maximum(errors, (clipped - returns).square())
        value_loss = aggregate(errors, batch, args.loss_aggregation) / 2
        metrics["value_loss"] = value_loss.detach()
        metrics["value"] = aggregate(values.detach(), batch, args.loss_aggregation)
        return loss + args.vf_coef * value_loss, metrics

    def _credited(self, episode: Trajectory, example: Example, values: Array) -> tuple[Array, Array, Array]:
        """Advantages, returns and values [N] of an episode's tokens."""
        args = self.args
        costs = np.zeros(len(values))
        if args.beta and args.kl_in == "reward":
            costs = args.beta * (example.flat("old_logprobs") - example.flat("ref_logprobs"))
        advantages, returns = episode_advantages(
            turn_rewards(episode, self.penalties(episode), args), costs, values, example.flat("turn_ids"), args
        )
        return advantages, returns, values

    def _values(self, examples: Sequence[Example]) -> list[Array]:
        """V_old [N] of every episode's tokens; kept in the run folder, as a resumed run's critic has learnt since."""
        path = self.output_dir / f"iteration-{self.state.iteration}" / "values.npy"
        sizes = [example.loss_tokens for example in examples]
        if path.exists():
            return np.split(np.load(path), np.cumsum(sizes)[:-1])
        values = shared_out(self.accelerator, examples, self._compute_values)
        if self.accelerator.is_main_process:
            with replaced_file(path) as partial, partial.open("wb") as file:
                np.save(file, np.concatenate(values))
        self.accelerator.wait_for_everyone()
        return values

    @torch.no_grad()
    def _compute_values(self, examples: Sequence[Example]) -> list[Array]:
        module, device = self.module(self.policy.model).eval(), self.accelerator.device
        size = 2 * self.args.per_device_train_batch_size
        order = sorted(range(len(examples)), key=lambda i: examples[i].length)
        values: dict[int, Array] = {}
        for start in range(0, len(order), size):
            members = order[start : start + size]
            batch = collate([examples[i] for i in members]).to(device)
            with self.accelerator.autocast():
                found = module.values(batch.input_ids, batch.loss_mask, batch.groups).double().cpu()
            sizes = [examples[i].loss_tokens for i in members]
            values |= {i: each.numpy() for i, each in zip(members, found.split(sizes), strict=True)}
        return [values[i] for i in range(len(examples))]
