"""Time the rollout of a tiny language model against what it replaces, on the same games and the same machine.

    python scripts/bench_rollout.py                     # SFTs a tiny model for a minute or two, then compares
    python scripts/bench_rollout.py --policy run/policy --split valid_unseen --max-turns 10 20 40

Compared at each step limit, with greedy decoding so that all of them have to write the same responses:

1. package: slot refill, a key/value cache that survives from turn to turn, drafted tokens (what the package does);
2. undrafted: the same with one token per pass of the model;
3. lock-step: every turn runs the whole histories, left-padded, through ``generate``; a batch of episodes starts
   together and plays until its last one ends, which is how verl-agent samples: it generates for finished ones, too;
4. lock-step, dropping: the same, but finished episodes leave the batch, as in TRL;
5. continuous batching: slot refill, every turn through transformers' ``generate_batch`` with its paged cache, whose
   blocks of a shared prefix survive from call to call (``--continuous-batching``: it is slow on a CPU).

Waste is the share of generated tokens that were generated for finished episodes. Last, it shows what happens to each
cache when the weights change.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import transformers
import tyro
from transformers import GenerationConfig

import agentgym_tlm
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.policies.base import Conversation, Generation
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import build_tiny, tokenizer_texts
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from agentgym_tlm.trajectory import Trajectory


@dataclass(frozen=True)
class Args:
    """What to play, and how often to time it."""

    env: str = "ALFWorld-v0"
    """Environment id."""
    split: str = "valid_unseen"
    """Split whose tasks are played."""
    num_tasks: int | None = None
    """Tasks to play, evenly spaced over the manifest; None: all."""
    policy: str | None = None
    """Folder of a saved policy; None: a tiny model after a short SFT."""
    sft_steps: int = 150
    """Updates of that SFT."""
    n_slots: int = 16
    """Episodes side by side."""
    max_turns: tuple[int, ...] = (10, 20, 40)
    """Step limits, each compared on its own."""
    max_new_tokens: int = 64
    """Token limit of a response."""
    rounds: int = 3
    """How often each variant is timed, in turn; the medians count."""
    threads: int = 1
    """Torch threads."""
    continuous_batching: bool = False
    """Compare with transformers' continuous batching, too."""


class UndraftedPolicy(LanguageModelPolicy):
    """The package's policy without drafts."""

    draft_tokens = 0


class RePrefillPolicy(LanguageModelPolicy):
    """The usual way: every turn is a padded batch of whole histories for ``generate``.

    With ``drop_finished`` False, episodes that have ended stay in the batch until :meth:`new_batch`.
    """

    drop_finished = True

    def new_batch(self) -> None:
        """Begin with episodes of which none has ended."""
        self._finished: list[list[int]] = []
        self.wasted = 0

    def end(self, conversation: Conversation) -> None:
        super().end(conversation)
        if not self.drop_finished:
            _, start, _ = conversation.spans[-1]
            self._finished.append(conversation.sequences[0][:start])

    @torch.inference_mode()
    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        rows = {i: row for i, c in enumerate(conversations) if (row := self._open_row(c)) is not None}
        generations = [Generation("", overflow=True) for _ in conversations]
        if rows:
            written = self._write([*(row.ids for row in rows.values()), *self._finished])
            for (i, row), response in zip(rows.items(), written, strict=False):
                generations[i] = self._close_row(row, response, [])
            self.wasted += sum(map(len, written[len(rows) :]))
        return generations

    def _write(self, prompts: list[list[int]]) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        generate: Any = self.model.generate
        written = generate(ids.to(self.device), attention_mask=mask.to(self.device), **self._greedy)[:, width:].tolist()
        return [response[: self._end(response)] for response in written]

    def _end(self, response: list[int]) -> int:
        return next((at + 1 for at, token in enumerate(response) if token in self.stop_ids), len(response))

    @property
    def _greedy(self) -> dict[str, Any]:
        return {
            "do_sample": False,
            "max_new_tokens": self.max_new_tokens,
            "eos_token_id": sorted(self.stop_ids),
            "pad_token_id": self.tokenizer.pad_token_id,
        }


class LockStepPolicy(RePrefillPolicy):
    """Generates for finished episodes, too."""

    drop_finished = False


class ContinuousBatchingPolicy(RePrefillPolicy):
    """Every turn through a manager that lives on, with its blocks of cached prefixes."""

    def _write(self, prompts: list[list[int]]) -> list[list[int]]:
        generate_batch: Any = self.model.generate_batch
        outputs = generate_batch(
            prompts, generation_config=GenerationConfig(**self._greedy), persistent_manager=True, progress_bar=False
        )
        return [list(output.generated_tokens) for output in outputs.values()]


def main(args: Args) -> None:
    """Print a table per step limit, then what a change of weights does."""
    torch.set_num_threads(args.threads)
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    envs = EnvArgs(env=args.env)
    policy = LanguageModelPolicy.load(args.policy) if args.policy else _short_sft(envs, args.sft_steps)
    print(
        f"{args.env} {args.split}: {args.n_slots} slots, {args.threads} thread(s), "
        f"agentgym_tlm {agentgym_tlm.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    )
    for max_turns in args.max_turns:
        _compare(args, policy, envs.manifest(args.split).take(args.num_tasks), max_turns)
    _change_weights(args, policy)


def _player(cls: type[LanguageModelPolicy], policy: LanguageModelPolicy, args: Args) -> LanguageModelPolicy:
    return cls(
        policy.model,
        policy.tokenizer,
        format=policy.format,
        temperature=0.0,
        max_new_tokens=args.max_new_tokens,
        name=policy.name,
    )


def _compare(args: Args, policy: LanguageModelPolicy, tasks: Sequence[str], max_turns: int) -> None:
    variants: dict[str, type[LanguageModelPolicy]] = {
        "package": LanguageModelPolicy,
        "undrafted": UndraftedPolicy,
        "lock-step": LockStepPolicy,
        "lock-step, dropping": RePrefillPolicy,
    }
    if args.continuous_batching:
        variants["continuous batching"] = ContinuousBatchingPolicy
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in variants}
    played: dict[str, list[Trajectory]] = {}
    wasted = dict.fromkeys(variants, 0)
    for _ in range(args.rounds):
        for name, cls in variants.items():
            player = _player(cls, policy, args)
            size = args.n_slots if name.startswith("lock-step") else len(tasks)
            start, cpu_start = time.perf_counter(), time.process_time()
            played[name], wasted[name] = [], 0
            for first in range(0, len(tasks), size):
                if isinstance(player, RePrefillPolicy):
                    player.new_batch()
                played[name] += rollout(
                    player,
                    args.env,
                    tasks[first : first + size],
                    split=args.split,
                    n_slots=args.n_slots,
                    max_turns=max_turns,
                )
                wasted[name] += player.wasted if isinstance(player, RePrefillPolicy) else 0
            seconds[name].append(time.perf_counter() - start)
            cpu_seconds[name].append(time.process_time() - cpu_start)
    tokens = {name: sum(_written(trajectory) for trajectory in played[name]) for name in variants}
    turns = sum(len(trajectory.turns) for trajectory in played["package"])
    won = sum(trajectory.won for trajectory in played["package"])
    print(f"\nUp to {max_turns} turns: {len(tasks)} episodes, {turns} turns, {tokens['package']} tokens, {won} won")
    print(f"{'':>20} {'wall s':>8} {'CPU s':>8} {'episodes/CPU s':>15} {'x lock-step':>12} {'waste':>7}  same texts")
    cpu = {name: statistics.median(times) for name, times in cpu_seconds.items()}
    for name in variants:
        same = sum(_texts(a) == _texts(b) for a, b in zip(played[name], played["package"], strict=True))
        print(
            f"{name:>20} {statistics.median(seconds[name]):8.1f} {cpu[name]:8.1f} {len(tasks) / cpu[name]:15.2f} "
            f"{cpu['lock-step'] / cpu[name]:12.2f} {wasted[name] / (wasted[name] + tokens[name]):7.1%}  "
            f"{same}/{len(tasks)}"
        )


def _written(trajectory: Trajectory) -> int:
    return sum(turn.span[1] - turn.span[0] for turn in trajectory.turns if turn.span is not None)


def _texts(trajectory: Trajectory) -> list[str]:
    return [turn.response for turn in trajectory.turns]


def _change_weights(args: Args, policy: LanguageModelPolicy) -> None:
    """Show how many responses to the same prompts are those of the new weights after an optimiser's step."""
    conversations = [
        Conversation(
            args.env, str(i), "find it", np.random.default_rng(i), observations=["You see a desk. " * (40 + i)]
        )
        for i in range(8)
    ]
    players: list[LanguageModelPolicy] = [_player(LanguageModelPolicy, policy, args)]
    if args.continuous_batching:
        players.append(_player(ContinuousBatchingPolicy, policy, args))

    def answers(player: LanguageModelPolicy, known: bool) -> list[list[int] | None]:
        if isinstance(player, RePrefillPolicy):
            player.new_batch()
        fresh = [replace(c, sequences=[], spans=[], memory=None) for c in conversations]
        if known:  # the cache has seen the prompts, with the weights of then
            for new, old in zip(fresh, conversations, strict=True):
                new.memory = old.memory
        written = [generation.token_ids for generation in player.act(fresh)]
        for new, old in zip(fresh, conversations, strict=True):
            old.memory = new.memory
        return written

    for player in players:
        answers(player, known=False)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    for player in players:
        right = answers(_player(UndraftedPolicy, policy, args), known=False)
        same = sum(a == b for a, b in zip(answers(player, known=True), right, strict=True))
        print(f"After a change of the weights, {type(player).__name__} writes {same}/8 responses as the new weights do")


def _short_sft(envs: EnvArgs, steps: int) -> LanguageModelPolicy:
    """A tiny policy that has learnt the format and a little of the game."""
    tasks = envs.manifest("train").take(400)
    expert = rollout(ExpertPolicy(noise=0.1), envs.env, tasks, env_kwargs=envs.options)
    policy = build_tiny(tokenizer_texts(expert))
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTArguments(
            output_dir=folder, learning_rate=1e-3, per_device_train_batch_size=8, max_steps=steps, save_steps=None
        )
        trainer = SFTTrainer(policy, envs, arguments, on_log=lambda record: print(f"SFT: {record}"))
        trainer.train_trajectories([policy.renderer.encode_trajectory(t) for t in expert if t.won])
    return policy


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
