"""CoH: chain of hindsight (Liu et al., arXiv 2302.02676) on trajectories.

From a pair of a better episode τ_w and a worse episode τ_l of the same task x, whose first message ends with a marker
m⁺ (a successful attempt) or m⁻ (an unsuccessful attempt), sequences of the kinds of ``mix`` are made:

    p   x m⁺ τ_w                    np   x m⁻ τ_l x m⁺ τ_w
    n   x m⁻ τ_l                    pn   x m⁺ τ_w x m⁻ τ_l

    L = - (1 / N) Σ_k Σ_j log π_θ(y_kj | everything before it in sequence k)

over the N tokens that the policy or the expert produced in all sequences of an update. At test time the policy is
given m⁺. Deviations:

1. The method was made for one response to one prompt. Here the second episode of a sequence begins with the task's text
   and first observation once more, for the environment starts anew.
2. One pair of markers, in words of our own; the paper's data holds many paraphrases of its markers (``aux``).
3. No language-modelling loss on pretraining text, which has the weight 0.01 in the paper's code, and no random masking
   of past tokens, which that has switched off.
4. An episode that occurs in several pairs gives one sequence of kind p or n, not one for each pair.
5. np and pn that do not fit into the policy's context are left out and counted.
6. Training goes on from the SFT policy, with the learning rate of SFT on 7B models; the paper trains pretrained models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from agentgym_tlm.batch import Example, TurnBatch
from agentgym_tlm.decorations import HINDSIGHT_MARKERS
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.pairs import Pair
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import add_words
from agentgym_tlm.renderer import Renderer
from agentgym_tlm.trainers.base import Item, Metrics
from agentgym_tlm.trainers.preference import PreferenceArguments, PreferenceTrainer
from agentgym_tlm.trainers.sft import sft_loss
from agentgym_tlm.trajectory import Trajectory

Kind = Literal["p", "n", "np", "pn"]


@dataclass(frozen=True, kw_only=True)
class CoHArguments(PreferenceArguments):
    """Options of CoH. The paper's batch is 256 sequences of single responses; the default counts tokens alike."""

    learning_rate: float = 1e-5
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    per_device_train_batch_size: int = 8
    """Sequences per forward pass and process."""
    mix: tuple[Kind, ...] = ("p", "n", "np", "pn")
    """Kinds of sequences that every pair gives."""
    positive_marker: str = HINDSIGHT_MARKERS[1]
    """Ends the first message of the better episode, and of every episode at test time."""
    negative_marker: str = HINDSIGHT_MARKERS[0]
    """Ends the first message of the worse episode."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mix or len(set(self.mix)) < len(self.mix):
            raise ConfigError(f"mix must name at least one kind, and each once, not {' '.join(self.mix) or 'nothing'}")
        if not self.positive_marker.strip() or self.positive_marker.strip() == self.negative_marker.strip():
            raise ConfigError("positive_marker must not be empty, nor the same as negative_marker")


def hindsight(
    pairs: Sequence[Pair], positive: Renderer, negative: Renderer, mix: Sequence[Kind], max_context: int
) -> tuple[list[Trajectory], Counter[str]]:
    """The sequences of ``pairs`` as trajectories, and how many there are of each kind.

    Those with more than ``max_context`` tokens are left out, and counted as ``dropped_<kind>``.
    """
    made: dict[tuple[int, ...], Trajectory] = {}
    counts: Counter[str] = Counter()
    for pair in pairs:
        sides = {"p": (positive, pair.chosen), "n": (negative, pair.rejected)}
        for kind in mix:
            sequence: Trajectory | None = None
            for side in kind:
                renderer, trajectory = sides[side]
                sequence = renderer.reprompt(trajectory, after=sequence)
            assert sequence is not None
            (ids,) = sequence.sequences
            if len(ids) > max_context:
                counts[f"dropped_{kind}"] += 1
            elif tuple(ids) not in made:
                made[tuple(ids)] = sequence
                counts[kind] += 1
    return list(made.values()), counts


class CoHTrainer(PreferenceTrainer[CoHArguments]):
    """Learns both sides of every pair, told apart by markers; leaves a policy whose prompt has the positive one.

    See :class:`Trainer`.
    """

    dropout = True
    reference = None

    def __init__(self, policy: LanguageModelPolicy, envs: EnvArgs, args: CoHArguments, **options: Any) -> None:
        add_words(policy, (args.positive_marker, args.negative_marker), seed=args.seed)
        super().__init__(policy, envs, args, **options)

    def collect(self) -> list[Pair]:
        self._markers()  # a tokenizer that does not know the words is found before anything is played
        return super().collect()

    def train_pairs(self, pairs: Sequence[Pair]) -> None:
        self.policy.use_renderer(self._markers()[0])
        super().train_pairs(pairs)

    def items(self, pairs: Sequence[Pair]) -> list[Item]:
        """One sequence each. Raises ConfigError when none fits into the policy's context."""
        made, counts = hindsight(pairs, *self._markers(), self.args.mix, self.policy.max_context)
        if not made:
            raise ConfigError(
                f"none of the sequences of {len(pairs)} pairs fits into the policy's max_context of "
                f"{self.policy.max_context} tokens: raise it, or leave np and pn out of mix"
            )
        if self._resume_from is None:
            self.log({"pairs": len(pairs), **{f"sequences_{kind}": n for kind, n in sorted(counts.items())}})
        return [(Example.from_trajectory(trajectory),) for trajectory in made]

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return sft_loss(logprobs, batch), {}

    def units(self, item: Item) -> int:
        """Tokens of the loss."""
        return sum(example.loss_tokens for example in item)

    def _markers(self) -> tuple[Renderer, Renderer]:
        """Renderers with the positive and with the negative marker."""
        renderer = self.policy.renderer
        return (
            renderer.decorated(suffix=self.args.positive_marker),
            renderer.decorated(suffix=self.args.negative_marker),
        )
