"""NAT: negative-aware training (Wang et al., arXiv 2402.11651; NAACL 2025).

    L = - (1 / N) Σ_k Σ_j log π_θ(y_kj | d(q_k), h_k, y_k<j)

over the N tokens that the policy or the expert produced in all episodes k of an update, good and bad alike. The first
message is decorated by d with the quality q_k of the episode, so that the policy learns from failures without learning
to fail; at test time it is always told to do well. Decorations:

    two-class    [Correct] if the episode was won, [Incorrect] if not
    four-class   by the score s (F1 on HotpotQA): [Totally Incorrect] s = 0, [Mostly Incorrect] s < 0.4,
                 [Mostly Correct] s < 1, [Correct] s = 1
    undecorated  no decoration: the ablation NUT

Deviations:

1. Training goes on from the SFT policy; positives are the expert's wins and the policy's own, negatives its failures.
   The paper trains a pretrained model on episodes that another model sampled, one or two negatives for each positive.
2. Episodes that ran into the step limit are negatives, too (in ALFWorld there are no others); the paper's code keeps
   finished ones only. ``max_repeats`` leaves out those that only repeat themselves.
3. The two classes, in words of our own, stand before the task like the four; in the paper, which has them in
   mathematics, they end the question. There, they cost a small policy what it knew of reading the task.
4. N counts the tokens of the whole update, as in SFT. Learning rate, epochs, batch of 64 and schedule are the paper's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from agentgym_tlm.batch import Example, TurnBatch
from agentgym_tlm.decorations import FOUR_CLASSES, TWO_CLASSES
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.pairs import repeats, unusable_reason
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import add_words
from agentgym_tlm.ranges import COUNT, check_ranges
from agentgym_tlm.renderer import Renderer
from agentgym_tlm.trainers.args import TrainingArguments
from agentgym_tlm.trainers.base import Item, Metrics, Trainer
from agentgym_tlm.trainers.collect import expert_play
from agentgym_tlm.trainers.sft import sft_loss
from agentgym_tlm.trajectory import Trajectory

Decoration = Literal["two-class", "four-class", "undecorated"]
_PREFIXES: dict[Decoration, tuple[str, ...]] = {
    "two-class": TWO_CLASSES,
    "four-class": FOUR_CLASSES,
    "undecorated": ("",),
}


@dataclass(frozen=True, kw_only=True)
class NATArguments(TrainingArguments):
    """Options of NAT. Policies without a recipe of their own get the paper's for 7B models."""

    learning_rate: float = 5e-5
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    num_train_epochs: float = 2.0
    """Passes over the episodes."""
    gradient_accumulation_steps: int = 8
    """Forward passes per update and process."""
    decoration: Decoration | None = None
    """What the prompt says about an episode's quality; None: four-class on HotpotQA, two-class elsewhere."""
    num_tasks: int | None = None
    """Training tasks to play, evenly spaced over the manifest; None: all."""
    samples_per_task: int = 1
    """Episodes that the policy samples on each task."""
    temperature: float = 1.0
    """Sampling temperature."""
    n_slots: int = 64
    """Episodes that are sampled side by side."""
    max_repeats: int | None = None
    """Leave out failures that repeat an action more often than this in a row; None: keep them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            num_tasks=COUNT,
            samples_per_task=COUNT,
            temperature="[0, inf)",
            n_slots=COUNT,
            max_repeats=COUNT,
        )


def quality_class(score: float) -> int:
    """Index into ``FOUR_CLASSES`` of a score (F1) in [0, 1]."""
    return (score > 0) + (score >= 0.4) + (score >= 1)


class NATTrainer(Trainer[NATArguments]):
    """Learns from good and bad episodes, each told apart by its prompt; leaves a policy whose prompt asks for success.

    See :class:`Trainer`.
    """

    def __init__(self, policy: LanguageModelPolicy, envs: EnvArgs, args: NATArguments, **options: Any) -> None:
        add_words(policy, () if args.decoration == "undecorated" else (*TWO_CLASSES, *FOUR_CLASSES), seed=args.seed)
        super().__init__(policy, envs, args, **options)

    @property
    def decoration(self) -> Decoration:
        """The decoration, with the environment's default filled in."""
        by_env: Decoration = "four-class" if self.envs.env == "HotpotQA-v0" else "two-class"
        return self.args.decoration or by_env

    def renderers(self) -> list[Renderer]:
        """One per class of quality, the best one last. Raises ConfigError when the tokenizer cannot tell them apart."""
        return [self.policy.renderer.decorated(prefix=prefix) for prefix in _PREFIXES[self.decoration]]

    def quality(self, trajectory: Trajectory) -> int:
        """Class of an episode: which of :meth:`renderers` is its."""
        if self.decoration == "undecorated":
            return 0
        return int(trajectory.won) if self.decoration == "two-class" else quality_class(trajectory.score)

    def train(self) -> None:
        """Play with the expert and the policy, and learn from both."""
        self.begin()
        self.renderers()  # a tokenizer that does not know the words is found before anything is played
        args = self.args
        tasks = self.envs.manifest("train").take(args.num_tasks)
        path = self.output_dir / "expert.jsonl"
        if self.expert_episodes is None:
            expert = expert_play(self.accelerator, self.policy, self.envs, tasks, path, seed=args.seed)
        else:  # whatever their tasks: nothing is paired
            expert = [self.policy.renderer.encode_trajectory(t) for t in self.expert_episodes if t.won]
        sampled = self.sample_to(
            self.output_dir / "sampled.jsonl",
            tasks,
            temperature=args.temperature,
            samples=args.samples_per_task,
            n_slots=args.n_slots,
        )
        self.train_trajectories([*expert, *sampled])

    def train_trajectories(self, trajectories: Sequence[Trajectory]) -> None:
        """Learn from the given episodes, as far as they can be trained on and fit into the policy's context.

        Raises ConfigError when there is none.
        """
        self.begin(t for t in trajectories if unusable_reason(t) is None)
        renderers = self.renderers()
        decorated: list[Trajectory] = []
        dropped: Counter[str] = Counter()
        for trajectory in trajectories:
            reason = unusable_reason(trajectory)
            limit = self.args.max_repeats
            if reason is None and limit is not None and not trajectory.won and repeats(trajectory) > limit:
                reason = "repetitive"
            if reason is None:
                prompted = renderers[self.quality(trajectory)].reprompt(trajectory)
                if len(prompted.sequences[0]) <= self.policy.max_context:
                    decorated.append(prompted)
                    continue
                reason = "beyond_context"
            dropped[reason] += 1
        counts = {f"dropped_{reason}": n for reason, n in sorted(dropped.items())}
        if not decorated:
            raise ConfigError(f"there is no episode to learn from: {counts or 'none given'}")
        if self._resume_from is None:
            wins = sum(trajectory.won for trajectory in decorated)
            self.log({"positives": wins, "negatives": len(decorated) - wins, **counts})
        self.policy.use_renderer(renderers[-1])
        self.fit([(Example.from_trajectory(trajectory),) for trajectory in decorated])

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return sft_loss(logprobs, batch), {}

    def units(self, item: Item) -> int:
        """Tokens of the loss."""
        return sum(example.loss_tokens for example in item)
