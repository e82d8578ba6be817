"""KTO: Kahneman-Tversky optimization (Ethayarajh et al., ICML 2024, arXiv 2402.01306) of whole trajectories.

Needs no pairs: a trajectory y of a task with prompt x (instruction and first observation) is desirable, if it was won,
or undesirable. lp(y) is the sum of log-probs over all tokens that the policy produced in all turns of y.

    Δ(x, y) = lp_θ(y) - lp_ref(y)                                     log-ratio of a trajectory
    z_ref   = max(0, mean of Δ(x, y') over mismatched (x, y'))        without gradient
    L       = E[ λ_D (1 - σ(β (Δ - z_ref))) ]                         over desirable y
            + E[ λ_U (1 - σ(β (z_ref - Δ))) ]                         over undesirable y                     (Eq. 7-8)

both parts summed over one batch and divided by the size of all of it. Desirable are the expert's wins and those of the
policy; undesirable its failures, the ones that pair methods with the same filters would learn from. Deviations:

1. y' is drawn once for every x, from the trajectories of other tasks, so that the reference scores it once; the paper
   (and TRL) shuffle the outputs within a batch.
2. z_ref is a mean over the whole update, not over each forward pass, so that the gradient of an update does not depend
   on its split into micro-batches and processes. An update needs at least two trajectories, and the data two tasks.
3. (x, y') is the prompt of one trajectory followed by the responses *and observations* of another, cut at the policy's
   context. In a prompt format with one sequence per turn, the turn's prompt is that of x in the same place.
4. ``balance_weights`` raises one of λ_D and λ_U until λ_D n_D = λ_U n_U; the paper advises a ratio of 1 to 4/3.
5. A failure on a task that the expert did not win is left out, as it is for pair methods; :meth:`train_trajectories`
   takes any trajectories.
6. With ``num_iterations`` > 1 the policy's trajectories are sampled anew, while π_ref stays the SFT policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from agentgym_tlm.batch import Example, TurnBatch, collate, untrainable_reason
from agentgym_tlm.errors import CheckpointError, ConfigError
from agentgym_tlm.pairs import Pair
from agentgym_tlm.ranges import check_ranges
from agentgym_tlm.trainers.base import Item, Metrics
from agentgym_tlm.trainers.preference import PreferenceArguments, PreferenceTrainer
from agentgym_tlm.trajectory import Trajectory, read_trajectories, write_trajectories


@dataclass(frozen=True, kw_only=True)
class KTOArguments(PreferenceArguments):
    """Options of KTO; names of the weights follow TRL."""

    learning_rate: float = 1e-6
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    per_device_train_batch_size: int = 8
    """Trajectories per forward pass and process."""
    beta: float = 0.1
    """How much a log-ratio counts: the smaller, the further the policy may move from the reference."""
    desirable_weight: float = 1.0
    """λ_D, weight of wins."""
    undesirable_weight: float = 1.0
    """λ_U, weight of failures."""
    balance_weights: bool = False
    """Raise one of the weights until wins and failures weigh the same, however many there are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, beta="(0, inf)", desirable_weight="[0, inf)", undesirable_weight="[0, inf)")
        if self.per_device_train_batch_size * self.gradient_accumulation_steps < 2:
            raise ConfigError(
                "KTO compares with the mean over an update: per_device_train_batch_size x "
                "gradient_accumulation_steps must be at least 2"
            )


def kto_loss(
    logprobs: Tensor, batch: TurnBatch, z_ref: Tensor, beta: float, desirable_weight: float, undesirable_weight: float
) -> tuple[Tensor, Metrics]:
    """Mean loss over the M trajectories of ``batch``, and what to watch; ``logprobs`` is [N], ``z_ref`` a constant.

    Metrics are means over trajectories: ``margin`` = β(Δ - z_ref) of wins and β(z_ref - Δ) of failures, ``accuracy`` =
    share of those above 0, ``z_ref``.
    """
    delta = batch.turn_sums(logprobs - batch.flat(batch.ref_logprobs)).sum(-1)
    margin = beta * torch.where(batch.won, delta - z_ref, z_ref - delta)
    weights = torch.where(batch.won, desirable_weight, undesirable_weight)
    loss = (weights * (1 - margin.sigmoid())).mean()
    margin = margin.detach()
    return loss, {"margin": margin.mean(), "accuracy": (margin > 0).float().mean(), "z_ref": z_ref}


def mismatched(prompt: Trajectory, response: Trajectory, max_context: int) -> Trajectory:
    """What follows the prompt of ``response``, after another trajectory's prompt, cut at ``max_context`` tokens."""
    sequences, turns = [], []
    for number, ids in enumerate(response.sequences):
        members = [turn for turn in response.turns if turn.sequence == number and turn.span is not None]
        if not members:
            sequences.append(ids)
            continue
        source = min(number, len(prompt.sequences) - 1)
        begin, start = _first_response(prompt, source), _first_response(response, number)
        sequences.append((prompt.sequences[source][:begin] + ids[start:])[:max_context])
        for turn in members:
            assert turn.span is not None
            first, last = turn.span[0] - start + begin, min(turn.span[1] - start + begin, max_context)
            if first < last:
                turns.append(replace(turn, span=(first, last), logprobs=None, ref_logprobs=None, confidence=None))
    return replace(
        response, task_id=prompt.task_id, instruction=prompt.instruction, turns=turns, sequences=sequences, won=False
    )


def draw_mismatched(trajectories: Sequence[Trajectory], max_context: int, seed: int) -> list[Trajectory]:
    """For every trajectory, its prompt with what follows the prompt of one of another task, drawn evenly.

    Raises ConfigError when there is one task only.
    """

    def task(i: int) -> tuple[str, str]:
        return trajectories[i].env_id, trajectories[i].task_id

    order = sorted(range(len(trajectories)), key=task)
    rng = np.random.default_rng(seed)
    drawn: dict[int, Trajectory] = {}
    for _, group in groupby(order, key=task):
        members = list(group)
        start, others = len(drawn), len(order) - len(members)
        if others == 0:
            raise ConfigError("KTO needs trajectories of at least two tasks: raise num_tasks")
        for i, at in zip(members, rng.integers(others, size=len(members)).tolist(), strict=True):
            other = order[at if at < start else at + len(members)]
            drawn[i] = mismatched(trajectories[i], trajectories[other], max_context)
    return [drawn[i] for i in range(len(trajectories))]


class KTOTrainer(PreferenceTrainer[KTOArguments]):
    """Raises the probability of wins and lowers that of failures; see :class:`PreferenceTrainer`.

    The reference is the policy as it is given here: the SFT policy.
    """

    reference = "initial"

    def train_iteration(self) -> None:
        """Play, tell wins from failures, learn, once."""
        self.train_trajectories(self.collect_unpaired())

    def collect_unpaired(self) -> list[Trajectory]:
        """Wins of expert and policy, and failures, of the current iteration; from the run folder if they are there."""
        self.begin()
        path = self._folder / "unpaired.jsonl"
        if self._resume_from is None or not path.exists():  # fit compares with what the checkpoint was trained on
            self.claim_folder(self._folder.name)
        if path.exists():
            self.log_dropped(self._folder)
            return list(read_trajectories(path))
        args = self.args
        tasks, expert = self.demonstrations()
        sampled = self.sample(tasks, "sampled", temperature=args.temperature, samples=args.samples_per_task)
        pairs, dropped = self.pair(expert, sampled)
        wins = [trajectory for trajectory in sampled if trajectory.won and untrainable_reason(trajectory) is None]
        failures = [pair.rejected for pair in pairs]
        dropped["won"] -= len(wins)
        self.log_dropped(self._folder, dropped)
        return [*expert, *wins, *failures]

    def train_pairs(self, pairs: Sequence[Pair]) -> None:
        """Learn from both sides of the given pairs, from a trajectory of several pairs once."""
        both = [trajectory for pair in pairs for trajectory in (pair.chosen, pair.rejected)]
        self.train_trajectories(list({id(trajectory): trajectory for trajectory in both}.values()))

    def train_trajectories(self, trajectories: Sequence[Trajectory]) -> None:
        """Learn from the given wins and failures; their reference scores are kept in the run folder.

        Raises ConfigError when there are none, or of one task only.
        """
        if not trajectories:
            raise ConfigError("there is no trajectory to learn from")
        self.begin(trajectories)
        scored, others = self._scored_unpaired(trajectories)
        examples = [Example.from_trajectory(trajectory) for trajectory in scored]
        self._mismatched = dict(zip(examples, map(Example.from_trajectory, others), strict=True))
        self._weights = self.weights(sum(example.won for example in examples), len(examples))
        if self._resume_from is None:
            self.log({"desirable": sum(example.won for example in examples), "trajectories": len(examples)})
        self.fit([(example,) for example in examples])

    def weights(self, desirable: int, trajectories: int) -> tuple[float, float]:
        """λ_D and λ_U for data of which so many are desirable."""
        desirable_weight, undesirable_weight = self.args.desirable_weight, self.args.undesirable_weight
        wins, failures = desirable_weight * desirable, undesirable_weight * (trajectories - desirable)
        if not self.args.balance_weights or wins == 0 or failures == 0:
            return desirable_weight, undesirable_weight
        return desirable_weight * max(1.0, failures / wins), undesirable_weight * max(1.0, wins / failures)

    def before_update(self, parts: Sequence[Sequence[Item]], shares: Sequence[float]) -> None:
        """z_ref of the update: the mean over its mismatched trajectories."""
        z_ref = torch.zeros((), device=self.accelerator.device)
        for part, share in zip(parts, shares, strict=True):
            batch = collate([self._mismatched[item[0]] for item in part]).to(z_ref.device)
            with torch.no_grad():
                logprobs = self._module(batch.input_ids, batch.loss_mask, batch.groups, batch.position_ids)
            z_ref += share * batch.turn_sums(logprobs - batch.flat(batch.ref_logprobs)).sum(-1).mean()
        self._z_ref = self.accelerator.reduce(z_ref, "sum").clamp(min=0)

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return kto_loss(logprobs, batch, self._z_ref, self.args.beta, *self._weights)

    def _scored_unpaired(self, trajectories: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
        """The trajectories and mismatched ones, scored with the reference, from the run folder if they are there."""
        paths = [self._folder / "mismatched.jsonl", self._folder / "unpaired.jsonl"]
        if paths[1].exists():
            others, scored = (list(read_trajectories(path)) for path in paths)
            if [trajectory.sequences for trajectory in scored] != [each.sequences for each in trajectories]:
                raise CheckpointError(f"{paths[1]} holds the scores of other trajectories: choose a new output_dir")
            return scored, others
        drawn = draw_mismatched(trajectories, self.policy.max_context, self.iteration_seed)
        both = self.score([*trajectories, *drawn])
        scored, others = both[: len(drawn)], both[len(drawn) :]
        if self.accelerator.is_main_process:
            write_trajectories(paths[0], others)
            write_trajectories(paths[1], scored)
        self.accelerator.wait_for_everyone()
        return scored, others


def _first_response(trajectory: Trajectory, sequence: int) -> int:
    """Where the first response of a sequence begins."""
    return min(turn.span[0] for turn in trajectory.turns if turn.sequence == sequence and turn.span is not None)
