"""What every online method has in common: sample groups of episodes with the newest weights, learn from them, repeat.

Iteration i plays ``tasks_per_iteration`` training tasks ``samples_per_task`` times each, in an order that a seed
decides; the episodes of a task are a group. Optimiser and schedule live through all iterations. Every iteration has a
folder, ``iteration-<i>``, with its episodes: a run killed at any moment goes on with them to the same numbers. Killed
while it samples, it samples that iteration anew: the last bits of log-probs depend on what is sampled side by side.

How episodes end decides how they count: a failure of the environment's machinery (``env_error``) or one that was broken
off (``aborted``) leaves the group and is counted; an episode that ran out of turns (``max_steps``) or of context
(``token_budget``) counts with the reward that it got; a response cut off at ``max_new_tokens`` is learnt from as it was
sampled, and is an invalid action if none could be read from it.
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from agentgym_tlm.batch import Example, TurnBatch, select_trainable
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.logprobs import TokenLogprobs
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.ranges import COUNT, check_ranges
from agentgym_tlm.trainers.args import TrainingArguments
from agentgym_tlm.trainers.base import Item, Metrics, Trainer
from agentgym_tlm.trainers.collect import draw_tasks, sampled_turns, score_together
from agentgym_tlm.trainers.groups import Array, Penalized, penalties
from agentgym_tlm.trainers.policy_gradient import Aggregation, clipped_loss, k3
from agentgym_tlm.trajectory import StopReason, Trajectory, read_trajectories, write_trajectories

ROLLOUT_KL_ALARM = 0.01
"""Per-token divergence of the trainer's policy from the one that sampled, before any update, that calls for a look."""


@dataclass(frozen=True, kw_only=True)
class OnlineArguments(TrainingArguments):
    """Options of sampling and of the clipped policy gradient. Numbers are verl-agent's for ALFWorld unless said."""

    learning_rate: float = 1e-6
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    per_device_train_batch_size: int = 8
    """Episodes per forward pass and process."""
    gradient_accumulation_steps: int = 2
    """Forward passes per update and process."""
    num_train_epochs: float = 1.0
    """Passes over the episodes of an iteration."""
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant"
    """Shape of the learning rate over all iterations, after the warm-up."""
    warmup_ratio: float = 0.0
    """Share of all updates over which the learning rate rises from 0."""
    weight_decay: float = 0.01
    """AdamW decay of matrices; biases and norms are never decayed."""
    num_iterations: int = 150
    """Rounds of sampling with the newest weights and learning from it; max_steps and epochs are per round."""
    tasks_per_iteration: int = 16
    """Groups: training tasks played in an iteration."""
    samples_per_task: int = 8
    """Episodes of a group."""
    max_env_steps: int | None = None
    """Environment steps after which no further iteration is begun; None: num_iterations alone decides."""
    num_tasks: int | None = None
    """Training tasks to draw from, evenly spaced over the manifest; None: all."""
    temperature: float = 1.0
    """Sampling temperature, also of the policy that is trained."""
    n_slots: int = 128
    """Episodes that are sampled side by side."""
    reward_scale: float = 10.0
    """Reward of a success: the environment's rewards are multiplied by it."""
    invalid_action_penalty: float = 0.1
    """Taken off for every turn with an invalid action."""
    penalized: Penalized = "malformed"
    """Which actions are invalid: those in a response that breaks the prompt format, or also those that are refused."""
    epsilon: float = 0.2
    """How far the ratio of new to old probability may fall before the gradient stops."""
    epsilon_high: float | None = None
    """How far it may rise; None: epsilon."""
    dual_clip: float | None = 3.0
    """Largest ratio that counts where the advantage is negative; None: no bound."""
    beta: float = 0.01
    """Weight of the KL divergence from the policy as it was given; 0: no reference."""
    loss_aggregation: Aggregation = "token_mean"
    """What weighs the same: every token of an update, or every episode."""
    drop_degenerate: bool = False
    """Leave episodes out of the updates that have no advantage, as DAPO does, instead of averaging over them, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            num_iterations=COUNT,
            tasks_per_iteration=COUNT,
            samples_per_task=COUNT,
            max_env_steps=COUNT,
            num_tasks=COUNT,
            temperature="(0, inf)",
            n_slots=COUNT,
            reward_scale="(0, inf)",
            invalid_action_penalty="[0, inf)",
            epsilon="(0, 1)",
            epsilon_high="(0, inf)",
            dual_clip="(1, inf)",
            beta="[0, inf)",
        )


OnlineArgsT = TypeVar("OnlineArgsT", bound=OnlineArguments)


class OnlineTrainer(Trainer[OnlineArgsT]):
    """Learns from its own episodes as it plays them; an algorithm says what each turn's advantage is.

    See :class:`Trainer`. Raises ConfigError for a policy that samples from a part of its distribution only (top_p).
    """

    dropout = False
    continuous = True

    def __init__(
        self,
        policy: LanguageModelPolicy,
        envs: EnvArgs,
        args: OnlineArgsT,
        *,
        evaluate: Callable[[LanguageModelPolicy], Mapping[str, float]] | None = None,
        on_log: Callable[[Mapping[str, float]], None] | None = None,
    ) -> None:
        if policy.top_p < 1:
            raise ConfigError(
                f"the policy samples with top_p={policy.top_p}: the log-probs that are learnt from are those of all "
                "tokens; set top_p to 1"
            )
        super().__init__(policy, envs, args, evaluate=evaluate, on_log=on_log)
        self._reference = copy.deepcopy(policy.model) if args.beta and args.lora is None else None
        self._env_steps: dict[int, int] = {}  # of each iteration
        self._mismatch = torch.zeros(2, device=self.accelerator.device)  # sum of k3 over the first update, its tokens

    def penalties(self, episode: Trajectory) -> Array:
        """[turns] what the turns of an episode pay for invalid actions."""
        return penalties(episode, self.args.invalid_action_penalty, self.args.penalized)

    @abstractmethod
    def examples(self, episodes: Sequence[Trajectory]) -> list[Example]:
        """What is learnt from an iteration's episodes: in their order, each token with its advantage."""

    @property
    def loss_beta(self) -> float:
        """Weight of the KL divergence in the loss."""
        return self.args.beta

    def module(self, model: torch.nn.Module) -> torch.nn.Module:
        return TokenLogprobs(model, temperature=self.args.temperature)

    @property
    def schedule_steps(self) -> int:
        """Updates of all iterations, if no episode is lost."""
        args = self.args
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * self.accelerator.num_processes
        updates = math.ceil(args.num_train_epochs * math.ceil(len(self._groups(0)) * args.samples_per_task / batch))
        return args.num_iterations * (args.max_steps if args.max_steps > 0 else updates)

    def units(self, item: Item) -> int:
        """Tokens of the loss, or the one episode."""
        return 1 if self.args.loss_aggregation == "sequence_mean" else sum(example.loss_tokens for example in item)

    def train(self) -> None:
        """Sample and learn, ``num_iterations`` times."""
        self.begin()
        while True:
            items = self.collect()
            if items:
                self.fit(items)
            if self.state.iteration + 1 == self.args.num_iterations or self._spent():
                break
            self.state.iteration += 1
            self.state.fit_step = 0
        if self.state.step == 0:
            warnings.warn(
                f"no update was made in {self.state.iteration + 1} iterations: in no group did one episode earn more "
                "than another. The policy is as it was given: let it sample more of each task (samples_per_task), at a "
                "higher temperature, or tasks that it wins now and then",
                stacklevel=2,
            )

    def _spent(self) -> bool:
        """Whether the iterations so far took ``max_env_steps``."""
        for i in range(self.state.iteration + 1) if self.args.max_env_steps else ():
            if i not in self._env_steps:
                self._env_steps[i] = sampled_turns(self.output_dir / f"iteration-{i}")
        return self.args.max_env_steps is not None and sum(self._env_steps.values()) >= self.args.max_env_steps

    def collect(self) -> list[Item]:
        """What to learn from in the current iteration, from the run folder if its episodes are there already."""
        episodes = self.sample()
        examples = self.examples(episodes)
        useful = [any(np.any(row.advantages) for row in example.rows) for example in examples]
        if self._resume_from is None:
            self.log(self._summary(episodes, useful))
        return [(e,) for e, matters in zip(examples, useful, strict=True) if matters or not self.args.drop_degenerate]

    def sample(self) -> list[Trajectory]:
        """Episodes of the current iteration that can be learnt from; with ``beta`` they carry the reference's scores.

        Raises ConfigError when there is none.
        """
        args, folder = self.args, self.output_dir / f"iteration-{self.state.iteration}"
        path = folder / "episodes.jsonl"
        if self._resume_from is None or not path.exists():
            self.claim_folder(folder.name)
        if path.exists():
            self.log_dropped(folder)
            return list(read_trajectories(path))
        if self.accelerator.is_main_process:
            for begun in folder.glob("sampled*.jsonl"):
                begun.unlink()
        self.accelerator.wait_for_everyone()
        sampled = self.sample_to(
            folder / "sampled.jsonl",
            self._groups(self.state.iteration),
            temperature=args.temperature,
            samples=args.samples_per_task,
            n_slots=args.n_slots,
        )
        finished = [trajectory for trajectory in sampled if trajectory.stop_reason is not StopReason.ABORTED]
        episodes, dropped = select_trainable(finished)
        dropped["aborted"] = len(sampled) - len(finished)
        self.log_dropped(folder, dropped)
        if not episodes:
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()) if count)
            first = next((f". The first error: {each.error}" for each in sampled if each.error), "")
            raise ConfigError(f"none of {len(sampled)} sampled episodes can be learnt from: {counts}{first}")
        episodes = self._scored(episodes) if args.beta else episodes
        if self.accelerator.is_main_process:
            write_trajectories(path, episodes)
        self.accelerator.wait_for_everyone()
        return episodes

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        args = self.args
        if self.state.fit_step == 0:
            divergence = k3(logprobs.detach() - batch.flat(batch.old_logprobs))
            self._mismatch += torch.stack([divergence.sum(), divergence.new_tensor(len(divergence))])
        return clipped_loss(
            logprobs,
            batch,
            epsilon=args.epsilon,
            epsilon_high=args.epsilon_high,
            dual_clip=args.dual_clip,
            beta=self.loss_beta,
            aggregation=args.loss_aggregation,
        )

    def _groups(self, iteration: int) -> list[str]:
        """The tasks of an iteration."""
        tasks = self.envs.manifest("train").take(self.args.num_tasks)
        return draw_tasks(tasks, self.args.tasks_per_iteration, iteration, self.args.seed)

    def _scored(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        model: Any = self.policy.model if self._reference is None else self._reference
        with self.sharding.autocast(), model.disable_adapter() if self._reference is None else nullcontext():
            return score_together(
                self.accelerator,
                model,
                episodes,
                batch_size=2 * self.args.per_device_train_batch_size,
                temperature=self.args.temperature,
            )

    def _summary(self, episodes: Sequence[Trajectory], useful: Sequence[bool]) -> dict[str, float]:
        """What the iteration's episodes were like, for ``metrics.jsonl``."""
        groups = {episode.group_id for episode in episodes}
        compared = {episode.group_id for episode, matters in zip(episodes, useful, strict=True) if matters}
        turns = sum(len(episode.turns) for episode in episodes)
        return {
            "success": fmean(episode.won for episode in episodes),
            "episode_return": fmean(episode.episode_return for episode in episodes),
            "mean_turns": turns / len(episodes),
            "invalid_action_rate": sum(episode.invalid_actions for episode in episodes) / turns,
            "episodes": len(episodes),
            "groups": len(groups),
            "groups_degenerate": len(groups - compared),
        }

    def after_update(self, window: defaultdict[str, Tensor | float], updates_per_epoch: int) -> None:
        if self.state.fit_step == 1:
            self._report_mismatch()
        super().after_update(window, updates_per_epoch)

    def _report_mismatch(self) -> None:
        """Log how far the trainer's policy was from the one that sampled, once, and warn if that cannot be rounding."""
        divergence, tokens = self.accelerator.reduce(self._mismatch, "sum").tolist()
        self._mismatch.zero_()
        if not tokens:
            return
        self.log({"rollout_kl": divergence / tokens})
        if divergence / tokens > ROLLOUT_KL_ALARM:
            warnings.warn(
                f"the trainer's log-probs differ from those of the policy that sampled by {divergence / tokens:.3g} "
                f"per token (KL; expected below {ROLLOUT_KL_ALARM}): the policy that plays is not the one that is "
                "trained. Train without mixed_precision, or look for weights that did not reach the rollout",
                stacklevel=2,
            )
