"""RFT: rejection-sampling fine-tuning (Yuan et al., 2023, arXiv 2308.01825; for agents as in ETO, arXiv 2403.02502).

The SFT policy π_s samples K episodes on every training task; its wins join the expert's, and a policy is fine-tuned on
all of them with the loss of SFT:

    D = D_expert ∪ {e ~ π_s : e is won},   L = - (1 / N) Σ log π_θ(token)     over the N tokens of all responses in D

Deviations and choices:

1. Only episodes with new sequences of actions are added: Yuan et al. keep distinct equations. Thoughts do not count. An
   episode that acts as the expert did, or as an earlier sample of its task, is left out and counted.
2. ETO does not say how often or at which temperature it samples; ``samples_per_task`` and ``temperature`` are ours. All
   options of the training are those of SFT.
3. The policy is trained anew from the weights that SFT began with (``base_policy``), as in the source. Without them it
   goes on from the SFT policy. The main job knows them: the pretrained policy, or the initial weights of ``tiny``,
   which LoRA, however, has to go on from the SFT policy for: adapters of random weights learn next to nothing.
4. The expert's wins are those that the SFT policy was trained on (``expert_log``), with recoveries from injected
   mistakes where the main job injected them. Without such a log the expert plays the training tasks.
5. The token ids of a sampled episode are trained on as they were sampled.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from accelerate.utils import set_seed

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.pairs import unusable_reason
from agentgym_tlm.policies import load_language_model
from agentgym_tlm.policies.language_model import weights_fingerprint
from agentgym_tlm.ranges import COUNT, check_ranges
from agentgym_tlm.trainers.checkpoint import shapes_fingerprint
from agentgym_tlm.trainers.collect import expert_play
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from agentgym_tlm.trajectory import Trajectory, read_trajectories


@dataclass(frozen=True, kw_only=True)
class RFTArguments(SFTArguments):
    """Options of RFT: those of SFT, and how episodes are sampled."""

    num_tasks: int | None = None
    """Training tasks to sample on, evenly spaced over the manifest; None: all."""
    samples_per_task: int = 4
    """Episodes that the SFT policy samples on each task."""
    temperature: float = 1.0
    """Sampling temperature."""
    n_slots: int = 64
    """Episodes that are sampled side by side."""
    base_policy: str | None = None
    """Folder or hub id of the policy to fine-tune; None: what SFT began with, if known, else the SFT policy itself."""
    expert_log: Annotated[str | None, tyro.conf.Suppress] = None
    """JSONL file of expert episodes to learn from; None: the expert plays the training tasks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, samples_per_task=COUNT, temperature="[0, inf)", n_slots=COUNT)


def new_wins(sampled: Sequence[Trajectory], expert: Sequence[Trajectory]) -> tuple[list[Trajectory], Counter[str]]:
    """The sampled wins whose sequence of actions is new for their task, in order; and how many others, by reason.

    Reasons are ``lost`` (not won), ``duplicate``, and those of :func:`unusable_reason`.
    """
    seen = {_actions(trajectory) for trajectory in expert}
    kept: list[Trajectory] = []
    dropped: Counter[str] = Counter()
    for trajectory in sampled:
        reason = unusable_reason(trajectory)
        if reason is None and not trajectory.won:
            reason = "lost"
        if reason is None and _actions(trajectory) in seen:
            reason = "duplicate"
        if reason is not None:
            dropped[reason] += 1
            continue
        seen.add(_actions(trajectory))
        kept.append(trajectory)
    return kept, dropped


class RFTTrainer(SFTTrainer):
    """Imitates the expert's wins and those that the given SFT policy samples. See :class:`Trainer`."""

    args: RFTArguments

    def train(self) -> None:
        """Sample, add the new wins to the expert's, and fine-tune the base policy on them."""
        args = self.args
        self.begin()
        base = None if args.base_policy is None else self._load_base(args.base_policy)
        folder = self.claim_folder("sampled", "" if base is None else weights_fingerprint(base))
        tasks = self.envs.manifest("train").take(args.num_tasks)
        expert = self._expert(tasks)
        sampled = self.sample_to(
            folder / "sampled.jsonl",
            tasks,
            temperature=args.temperature,
            samples=args.samples_per_task,
            n_slots=args.n_slots,
        )
        wins, dropped = new_wins(sampled, expert)
        if self._resume_from is None:
            counts = {f"dropped_{reason}": n for reason, n in sorted(dropped.items())}
            self.log({"expert_episodes": len(expert), "added_episodes": len(wins), **counts})
        if not wins:
            reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items()))
            warnings.warn(
                f"none of {len(sampled)} sampled episodes is a new win ({reasons}): RFT is SFT on the expert's then; "
                "raise samples_per_task or num_tasks",
                stacklevel=2,
            )
        if base is not None:
            self.policy.model = base
        self.train_trajectories([*expert, *wins])

    def _expert(self, tasks: Sequence[str]) -> list[Trajectory]:
        """The expert's wins, encoded with the policy's renderer: those that are given, logged, or played now."""
        given = self.expert_episodes
        if given is None and self.args.expert_log is not None:
            given = list(read_trajectories(self.args.expert_log))
        if given is None:
            path = self.output_dir / "expert" / "expert.jsonl"
            return expert_play(self.accelerator, self.policy, self.envs, tasks, path, seed=self.args.seed)
        encode = self.policy.renderer.encode_trajectory
        return [encode(trajectory) for trajectory in given if trajectory.won]

    def _load_base(self, name: str) -> Any:
        """The model to fine-tune, made trainable as the arguments say. Raises ConfigError if it is of another kind."""
        base = load_language_model(name)
        set_seed(self.args.seed)  # of fresh adapters
        model = self.trainable(base.model)
        model.to(self.policy.device)
        same_shapes = shapes_fingerprint(model) == shapes_fingerprint(self.policy.model)
        if not same_shapes or base.tokenizer.get_vocab() != self.policy.tokenizer.get_vocab():
            raise ConfigError(
                f"base_policy {name} is not what the SFT policy was trained from: it has "
                f"{'another vocabulary' if same_shapes else 'weights of other shapes'}; name that one, or leave it out"
            )
        return model

    def _run(self) -> dict[str, Any]:
        """Without the paths: the base is known by its weights, and the expert by its episodes."""
        return {name: value for name, value in super()._run().items() if name not in ("base_policy", "expert_log")}


def _actions(trajectory: Trajectory) -> tuple[str | None, ...]:
    return (trajectory.task_id, *(turn.action for turn in trajectory.turns))
