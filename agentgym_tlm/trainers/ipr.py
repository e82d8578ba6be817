"""IPR: iterative step-level process refinement (Xiong et al., 2024, arXiv 2406.11176, and its code).

The policy explores along the expert's trajectory e = (a_1 .. a_n): given its first t - 1 turns, it plays on to the end,
ê_t = (â_t .. â_m). A step is worth what a fixed scorer makes of it: the SFT policy π_s plays on behind it N times.

    r(a_t) = (1 / N) Σ_i R(continuation i of a_1 .. a_t by π_s),   r(a_n) = R(e)              step reward
    D_s    : e_t ≻ ê_t given a_1 .. a_t-1, for t > 1, if r(â_t) < r(a_t) - τ and R(ê_t) < R(e)
    D_t    : e ≻ ê_1, if R(ê_1) < R(e)                                                        whole trajectories
    Δ(e)   = Σ_i log π_θ(a_i) - log π_ref(a_i)        over the tokens of the remaining turns: what is given is context
    L_DPO  = -log σ(β (Δ(e_w) - Δ(e_l))),   L_SFT = -Σ_i log π_θ(a_i) of e_w
    L      = E_D_t[L_DPO + L_SFT] + E_D_s[L_DPO]                                              ``loss_mix="paper"``
    L      = E_{D_t ∪ D_s}[L_DPO + L_SFT]                                                     ``loss_mix="code"``

R is the score of an episode, in [0, 1]. Deviations and choices:

1. ``loss_mix``. In the paper each set has a mean of its own and the expert is imitated on whole trajectories; the code
   takes one mean over all pairs and imitates the preferred side of every one. Both sum the log-likelihood over tokens.
2. τ (``step_margin``) is the paper's 0.5 for ALFWorld; it used 0.01 on WebShop, and the code's script 0.01.
3. Where the policy acts as the expert does (the same parsed action), the two lead to the same state and have the same
   reward: there is no pair, and nothing is played on.
4. Step rewards of the policy are sampled only for steps whose episode ended worse than the expert's, and those of the
   expert only for the steps that they are compared with; the rest could make no pair. Those of the expert are kept in
   ``step_rewards.json`` for later iterations.
5. The code also prefers the policy's continuation where it is better or, on ALFWorld, as good and shorter. The paper
   does not, and it is not done here: the expert's episodes are wins.
6. Continuations in which the environment's machinery failed are left out of the mean; if there is no other, there is no
   pair.
7. π_ref and the scorer are the SFT policy in all iterations, as in the code. The paper chose the number of iterations
   for each environment, up to 4.
8. Learning rate 3e-6 is the script's; the paper searched 1e-5 to 5e-5. Warm-up and schedule are ETO's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.nn.functional import logsigmoid

from agentgym_tlm.batch import Example, TurnBatch
from agentgym_tlm.files import to_json, write_text
from agentgym_tlm.pairs import Pair, as_continuation, build_pairs, one_per_task
from agentgym_tlm.prefix import Prefix
from agentgym_tlm.ranges import COUNT, check_ranges
from agentgym_tlm.trainers.base import Item, Metrics
from agentgym_tlm.trainers.preference import (
    PreferenceArguments,
    PreferenceTrainer,
    implicit_rewards,
    preference_metrics,
)
from agentgym_tlm.trajectory import StopReason, Trajectory


@dataclass(frozen=True, kw_only=True)
class IPRArguments(PreferenceArguments):
    """Options of IPR. Policies without a recipe of their own get the source's for 7B models."""

    learning_rate: float = 3e-6
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    num_train_epochs: float = 3.0
    """Passes over the pairs, per iteration."""
    gradient_accumulation_steps: int = 6
    """Forward passes per update and process."""
    num_iterations: int = 4
    """Rounds of exploring with the newest policy and learning from it; max_steps and epochs are per round."""
    temperature: float = 0.0
    """Temperature at which the policy explores; 0 is greedy."""
    beta: float = 0.1
    """Temperature of DPO."""
    step_margin: float = 0.5
    """How much lower the reward of the policy's step has to be than that of the expert's."""
    num_continuations: int = 5
    """Episodes that a step reward is the mean of."""
    continuation_temperature: float = 1.0
    """Sampling temperature of the scorer that plays them."""
    loss_mix: Literal["paper", "code"] = "paper"
    """How the losses of whole trajectories and of steps are put together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            beta="(0, inf)",
            step_margin="[0, 1]",
            num_continuations=COUNT,
            continuation_temperature="[0, inf)",
        )


def mean_outcome(episodes: Sequence[Trajectory]) -> float | None:
    """Mean score of the episodes that came to an end of their own; None when all were broken off."""
    scores = [e.score for e in episodes if not (e.stop_reason.is_breakdown or e.stop_reason is StopReason.ABORTED)]
    return sum(scores) / len(scores) if scores else None


def ipr_loss(logprobs: Tensor, batch: TurnBatch, args: IPRArguments) -> tuple[Tensor, Metrics]:
    """Mean loss over the P pairs of ``batch`` (chosen first), each weighted by its turn weights; ``logprobs`` is [N].

    A pair of whole trajectories is one whose first turn is no context. Metrics are means over pairs: ``dpo`` and
    ``nll`` (of the chosen side, summed over its tokens), unweighted, ``margin`` of implicit rewards, ``accuracy``.
    """
    chosen, rejected = implicit_rewards(logprobs, batch, args.beta)
    nll, _ = (-batch.turn_sums(logprobs).sum(-1)).chunk(2)
    _, whole = (batch.turn_counts()[:, 0] > 0).chunk(2)  # the expert's first turn may be an injected mistake
    weight, _ = batch.turn_weights.amax(-1).chunk(2)
    dpo = -logsigmoid(chosen - rejected)
    imitated = nll * whole if args.loss_mix == "paper" else nll
    metrics = {"dpo": dpo.mean().detach(), "nll": nll.mean().detach(), **preference_metrics(chosen, rejected)}
    return (weight * (dpo + imitated)).mean(), metrics


class _Step(NamedTuple):
    """A turn in which the policy left the expert's path, and the pair that it makes if it was worse there."""

    expert: Trajectory
    explored: Trajectory
    turn: int
    pair: Pair


def _begins_at_once(sampled: Trajectory) -> bool:
    """Whether an episode of the policy is all its own, not the continuation of a prefix."""
    return sampled.turns[0].trainable


class IPRTrainer(PreferenceTrainer[IPRArguments]):
    """Aligns an SFT policy on pairs of whole episodes and of their remainders after a step. See :class:`Trainer`.

    The reference π_ref and the scorer are the policy as it is given here: the SFT policy.
    """

    reference = "initial"

    def build(self, tasks: Sequence[str], expert: Sequence[Trajectory]) -> tuple[list[Pair], Counter[str]]:
        """D_t and D_s of the current iteration."""
        pairs, dropped = super().build(tasks, expert)
        per_task = Counter(pair.chosen.task_id for pair in pairs)
        steps = self._explore(one_per_task(expert), dropped)
        of_expert, of_policy = self._expert_rewards(steps), self._policy_rewards(steps)
        for step, theirs, own in zip(steps, of_expert, of_policy, strict=True):
            reason = None
            if theirs is None or own is None:
                reason = "env_error"
            elif own >= theirs - self.args.step_margin:
                reason = "not_worse"
            elif per_task[step.expert.task_id] == self.args.max_pairs_per_task:
                reason = "over_task_limit"
            if reason is not None:
                dropped[reason] += 1
                continue
            per_task[step.expert.task_id] += 1
            pairs.append(step.pair)
        return pairs, dropped

    def items(self, pairs: Sequence[Pair]) -> list[Item]:
        """Pairs as they are for the code's mix; for the paper's, each of the two sets weighs as much as the other."""
        whole = [_begins_at_once(pair.rejected) for pair in pairs]
        sizes = Counter(whole)
        if self._resume_from is None:
            self.log({"whole_pairs": sizes[True], "step_pairs": sizes[False]})
        items: list[Item] = []
        for pair, kind in zip(pairs, whole, strict=True):
            weight = len(pairs) / sizes[kind] if self.args.loss_mix == "paper" else 1.0
            sides = (pair.chosen, pair.rejected)
            items.append(tuple(Example.from_trajectory(side, [weight] * len(side.turns)) for side in sides))
        return items

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return ipr_loss(logprobs, batch, self.args)

    def _explore(self, expert: Sequence[Trajectory], dropped: Counter[str]) -> list[_Step]:
        """The steps on the expert's path where the policy acts otherwise and ends worse; others are counted."""
        args = self.args
        prefixes = [
            Prefix(episode, i) for episode in expert for i, turn in enumerate(episode.turns) if i and turn.trainable
        ]
        explored = self.sample(prefixes, "explored", temperature=args.temperature, samples=args.samples_per_task)
        steps = []
        for i, episode in enumerate(explored):
            prefix = prefixes[i // args.samples_per_task]
            turn, demonstration = prefix.turns, prefix.trajectory
            pairs, reasons = build_pairs([as_continuation(demonstration, turn)], [episode], **self.filters)
            if pairs and episode.turns[turn].action == demonstration.turns[turn].action:
                pairs, reasons = [], Counter({"same_action": 1})
            dropped.update(reasons)
            steps += [_Step(demonstration, episode, turn, pair) for pair in pairs]
        return steps

    def _expert_rewards(self, steps: Sequence[_Step]) -> list[float | None]:
        """Step rewards of the expert's actions, from ``step_rewards.json`` as far as they are there."""
        file = self.output_dir / "step_rewards.json"
        known: dict[str, float | None] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        names = [f"{step.expert.task_id}#{step.turn}" for step in steps]
        missing = {name: step for name, step in zip(names, steps, strict=True) if name not in known}
        rewards = self._rewards([(step.expert, step.turn) for step in missing.values()], "expert_continued")
        known.update(zip(missing, rewards, strict=True))
        if missing and self.accelerator.is_main_process:
            write_text(file, to_json(known, indent=1))
        self.accelerator.wait_for_everyone()
        return [known[name] for name in names]

    def _policy_rewards(self, steps: Sequence[_Step]) -> list[float | None]:
        """Step rewards of the policy's actions."""
        return self._rewards([(step.explored, step.turn) for step in steps], "explored_continued")

    def _rewards(self, actions: Sequence[tuple[Trajectory, int]], name: str) -> list[float | None]:
        """Rewards of (episode, turn): the mean outcome of playing on behind it, or how the episode ended with it."""
        begun = [Prefix(episode, turn + 1) if turn + 1 < len(episode.turns) else None for episode, turn in actions]
        prefixes = {prefix.name: prefix for prefix in begun if prefix is not None}  # a response may be sampled twice
        if not prefixes:
            return [episode.score for episode, _ in actions]
        count, temperature = self.args.num_continuations, self.args.continuation_temperature
        with self._scorer():
            played = self.sample(list(prefixes.values()), name, temperature=temperature, samples=count)
        means = {name: mean_outcome(played[i * count : (i + 1) * count]) for i, name in enumerate(prefixes)}
        return [
            episode.score if prefix is None else means[prefix.name]
            for prefix, (episode, _) in zip(begun, actions, strict=True)
        ]

    @contextmanager
    def _scorer(self) -> Iterator[None]:
        """Inside, the policy plays with the weights of π_ref."""
        if self.state.iteration == 0:
            yield
            return
        policy = self.policy
        trained, version = policy.model, policy.version
        model: Any = trained
        policy.model = trained if self._reference is None else self._reference
        with model.disable_adapter() if self._reference is None else nullcontext():
            policy.weights_changed(self._given_version)
            try:
                yield
            finally:
                policy.model = trained
        policy.weights_changed(version)
