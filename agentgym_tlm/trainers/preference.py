"""What every method that learns from pairs has in common: sample, pair with the expert, score the reference, learn.

Failures of the policy are paired with the expert's win on the same task (ETO, Song et al., 2024, arXiv:2403.02502),
both sides get the log-probs of a frozen reference once, and a loss over batches of pairs does the rest. Every iteration
has a folder, ``iteration-<i>``, with the sampled episodes and the scored pairs.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from torch import Tensor

from agentgym_tlm.batch import Example, TurnBatch
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import CheckpointError, ConfigError
from agentgym_tlm.pairs import Pair, build_pairs, is_scored, read_pairs, write_pairs
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.prefix import Prefix
from agentgym_tlm.ranges import COUNT, check_ranges
from agentgym_tlm.trainers.args import TrainingArguments
from agentgym_tlm.trainers.base import Item, Metrics, Trainer
from agentgym_tlm.trainers.collect import expert_play, score_together, training_tasks, within_context
from agentgym_tlm.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class PreferenceArguments(TrainingArguments):
    """Options of collecting pairs and learning from them; schedule and batch are ETO's."""

    per_device_train_batch_size: int = 8
    """Pairs per forward pass and process."""
    gradient_accumulation_steps: int = 4
    """Forward passes per update and process."""
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant_with_warmup"
    """Shape of the learning rate after the warm-up."""
    warmup_ratio: float = 0.1
    """Share of the updates over which the learning rate rises from 0."""
    num_iterations: int = 1
    """Rounds of sampling with the newest policy and learning from it; max_steps and epochs are per round."""
    num_tasks: int | None = None
    """Training tasks to play, evenly spaced over the manifest; None: all."""
    samples_per_task: int = 1
    """Episodes that the policy samples on each task."""
    temperature: float = 1.0
    """Sampling temperature."""
    n_slots: int = 64
    """Episodes that are sampled side by side."""
    max_pairs_per_task: int | None = None
    """Most pairs of one task; None: all failures."""
    max_repeats: int | None = None
    """Leave out failures that repeat an action more often than this in a row; None: keep them."""
    max_rejected_tokens: int | None = None
    """Leave out failures longer than this; None: keep them."""
    max_extra_turns: int | None = None
    """Cut failures off this many turns beyond the expert's length (ETO: 5 on ScienceWorld); None: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            num_iterations=COUNT,
            num_tasks=COUNT,
            samples_per_task=COUNT,
            temperature="[0, inf)",
            n_slots=COUNT,
            max_pairs_per_task=COUNT,
            max_repeats=COUNT,
            max_rejected_tokens=COUNT,
            max_extra_turns="[0, inf)",
        )


PreferenceArgsT = TypeVar("PreferenceArgsT", bound=PreferenceArguments)


def implicit_rewards(logprobs: Tensor, batch: TurnBatch, beta: float) -> tuple[Tensor, Tensor]:
    """βΔ [P] of the chosen and of the rejected side, Δ being summed over all tokens of the loss (DPO)."""
    delta = batch.turn_sums(logprobs - batch.flat(batch.ref_logprobs)).sum(-1)
    chosen, rejected = (beta * delta).chunk(2)
    return chosen, rejected


def preference_metrics(preferred: Tensor, dispreferred: Tensor) -> Metrics:
    """``margin`` and ``accuracy`` of implicit rewards [P] of the chosen and the rejected side."""
    margin = (preferred - dispreferred).detach()
    return {"margin": margin.mean(), "accuracy": (margin > 0).float().mean()}


class PreferenceTrainer(Trainer[PreferenceArgsT]):
    """Learns from pairs of expert trajectories and the policy's own failures; see :class:`Trainer`.

    An algorithm is a :meth:`loss` over batches of pairs, chosen trajectories first. ``reference`` says whose log-probs
    are π_ref: those of the policy as it was given, or as it was at the start of the current iteration; None: nobody's.
    """

    dropout = False
    reference: ClassVar[Literal["initial", "iteration"] | None] = "iteration"

    def __init__(
        self,
        policy: LanguageModelPolicy,
        envs: EnvArgs,
        args: PreferenceArgsT,
        *,
        evaluate: Callable[[LanguageModelPolicy], Mapping[str, float]] | None = None,
        on_log: Callable[[Mapping[str, float]], None] | None = None,
    ) -> None:
        super().__init__(policy, envs, args, evaluate=evaluate, on_log=on_log)
        copies = self.reference == "initial" and args.num_iterations > 1 and args.lora is None
        self._reference = copy.deepcopy(policy.model) if copies else None

    @property
    def include_end_of_turn(self) -> bool:
        """Whether the end-of-turn token counts in the confidence of a turn."""
        return True

    def items(self, pairs: Sequence[Pair]) -> list[Item]:
        """What the scored ``pairs`` are to the loop."""
        return [(Example.from_trajectory(pair.chosen), Example.from_trajectory(pair.rejected)) for pair in pairs]

    def units(self, item: Item) -> int:
        """Every pair weighs the same."""
        return 1

    def train(self) -> None:
        """Sample with the policy, pair its failures with the expert, learn; ``num_iterations`` times."""
        while True:
            self.train_iteration()
            if self.state.iteration + 1 == self.args.num_iterations:
                return
            self.state.iteration += 1

    def train_iteration(self) -> None:
        """Sample, pair, learn, once; nothing is learnt where a policy that has learnt before leaves no pair."""
        if pairs := self.collect():
            self.train_pairs(pairs)

    def collect(self) -> list[Pair]:
        """Scored pairs of the current iteration, from the run folder if they are there already."""
        self.begin()
        folder = self._folder / "pairs"
        if self._resume_from is not None and folder.exists():
            return read_pairs(folder)  # fit compares them with what the checkpoint was trained on
        self.claim_folder(self._folder.name)
        if folder.exists():
            self.log_dropped(self._folder)
            return read_pairs(folder)
        tasks, expert = self.demonstrations()
        pairs, dropped = self.build(tasks, expert)
        self.log_dropped(self._folder, dropped)
        if not pairs and self.state.step == 0:
            raise ConfigError(_no_pair(dropped))
        return pairs

    def tasks(self) -> list[str]:
        """The training tasks of the current iteration."""
        return training_tasks(self.envs, self.args.num_tasks, self.expert_episodes)

    def demonstrations(self) -> tuple[list[str], list[Trajectory]]:
        """The training tasks, and the expert's wins on them as far as they fit into the policy's context."""
        tasks, given = self.tasks(), self.expert_episodes
        path = self.output_dir / "expert.jsonl"
        played = expert_play(self.accelerator, self.policy, self.envs, tasks, path, seed=self.args.seed, given=given)
        return tasks, within_context(played, self.policy.max_context)

    def build(self, tasks: Sequence[str], expert: Sequence[Trajectory]) -> tuple[list[Pair], Counter[str]]:
        """Pairs of the expert's wins on ``tasks`` and what the policy samples, and how many made none, by reason."""
        args = self.args
        sampled = self.sample(tasks, "sampled", temperature=args.temperature, samples=args.samples_per_task)
        return self.pair(expert, sampled)

    def pair(self, expert: Sequence[Trajectory], sampled: Sequence[Trajectory]) -> tuple[list[Pair], Counter[str]]:
        """:func:`build_pairs` with the filters and the limit of the arguments."""
        return build_pairs(expert, sampled, max_pairs_per_task=self.args.max_pairs_per_task, **self.filters)

    @property
    def filters(self) -> dict[str, Any]:
        """Options of :func:`build_pairs` by which it leaves out or shortens failures."""
        names = ("max_repeats", "max_rejected_tokens", "max_extra_turns")
        return {name: getattr(self.args, name) for name in names}

    def sample(
        self, tasks: Sequence[str | Prefix], name: str, *, temperature: float, samples: int = 1
    ) -> list[Trajectory]:
        """What the policy plays on ``tasks``, logged to the iteration's ``<name>.jsonl`` and not played again."""
        path = self._folder / f"{name}.jsonl"
        return self.sample_to(path, tasks, temperature=temperature, samples=samples, n_slots=self.args.n_slots)

    def train_pairs(self, pairs: Sequence[Pair]) -> None:
        """Learn from the given pairs. Those without reference scores are scored once and kept in the run folder.

        Raises ConfigError when there is none.
        """
        if not pairs:
            raise ConfigError(_no_pair({}))
        self.begin(trajectory for pair in pairs for trajectory in (pair.chosen, pair.rejected))
        self.fit(self.items(self._scored(pairs)))

    def _scored(self, pairs: Sequence[Pair]) -> list[Pair]:
        if all(is_scored(pair.chosen) and is_scored(pair.rejected) for pair in pairs):
            return list(pairs)
        folder = self._folder / "pairs"
        if folder.exists():
            kept = read_pairs(folder)
            if [_ids(pair) for pair in kept] != [_ids(pair) for pair in pairs]:
                raise CheckpointError(f"{folder} holds the scores of other pairs: choose a new output_dir")
            return kept
        scored = self.score([trajectory for pair in pairs for trajectory in (pair.chosen, pair.rejected)])
        both = [Pair(chosen, rejected) for chosen, rejected in zip(scored[::2], scored[1::2], strict=True)]
        if self.accelerator.is_main_process:
            write_pairs(folder, both)
        self.accelerator.wait_for_everyone()
        return both

    def score(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Copies with the log-probs of the reference, if there is one; every process scores its share."""
        if self.reference is None:
            return list(trajectories)
        model: Any = self._reference or self.policy.model
        adapters_off = self.args.lora is not None and self.reference == "initial"
        with self.sharding.autocast(), model.disable_adapter() if adapters_off else nullcontext():
            return score_together(
                self.accelerator,
                model,
                trajectories,
                batch_size=2 * self.args.per_device_train_batch_size,
                include_end_of_turn=self.include_end_of_turn,
            )

    @property
    def _folder(self) -> Path:
        return self.output_dir / f"iteration-{self.state.iteration}"


_DROPPED = {
    "won": ("were won", "raise num_tasks or samples_per_task"),
    "no_tokens": ("left the policy no room for a response", "raise its max_context"),
    "nothing_trainable": ("have no response to learn from", "look at sampled.jsonl"),
    "empty_turn": ("have an empty response", "train the SFT policy longer"),
    "env_error": ("ended in a failure of the environment", "see their errors in sampled.jsonl"),
    "policy_error": ("ended in a failure of the policy's machinery", "see their errors in sampled.jsonl"),
    "aborted": ("were broken off", "sample them again"),
    "tie": ("scored as high as the expert", "raise num_tasks or samples_per_task"),
    "repetitive": ("repeat an action too often", "raise max_repeats"),
    "overlong": ("are too long", "raise max_rejected_tokens"),
    "over_task_limit": ("are beyond the limit of their task", "raise max_pairs_per_task"),
    "same_action": ("act as the expert does", "raise num_tasks or temperature"),
    "not_worse": ("act no worse than the expert by step reward", "lower step_margin or raise num_tasks"),
    "no_expert": ("are of tasks that the expert did not win", "raise num_tasks or the environment's max_episode_steps"),
}
"""What the counts of :func:`build_pairs` mean, and the remedy when nothing else is left."""


def _no_pair(dropped: Mapping[str, int]) -> str:
    """Why there is no pair: the counts, and what to do about the most frequent reason."""
    reasons = sorted(dropped, key=lambda reason: -dropped[reason])
    counts = ", ".join(f"{dropped[reason]} {_DROPPED[reason][0]}" for reason in reasons)
    found = (
        f"of {sum(dropped.values())} sampled episodes {counts}; {_DROPPED[reasons[0]][1]}" if reasons else "none given"
    )
    return f"there is no pair to learn from: {found}"


def _ids(pair: Pair) -> tuple[list[list[int]], list[list[int]]]:
    return pair.chosen.sequences, pair.rejected.sequences
