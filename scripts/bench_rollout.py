"""Time the rollout of a tiny language model against what it replaces, on the same games and the same machine.

    python scripts/bench_rollout.py                     # SFTs a tiny model for a minute or two, then compares
    python scripts/bench_rollout.py --policy run/policy --split valid_unseen

Compared, with greedy decoding so that all of them have to write the same responses:

1. cached: slot refill, and a key/value cache that survives from turn to turn (what the package does);
2. lock-step: the same cache, but a batch of episodes starts and ends together;
3. re-prefill: slot refill, but every turn runs the whole history through ``generate`` again, left-padded.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import tyro

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
    n_slots: int = 32
    """Episodes side by side."""
    max_turns: int = 40
    """Step limit."""
    max_new_tokens: int = 64
    """Token limit of a response."""
    rounds: int = 3
    """How often each variant is timed, in turn; the medians count."""
    threads: int = 1
    """Torch threads."""


class RePrefillPolicy(LanguageModelPolicy):
    """The usual way: every turn is a padded batch of whole histories for ``generate``."""

    @torch.inference_mode()
    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        rows = {i: row for i, c in enumerate(conversations) if (row := self._open_row(c)) is not None}
        generations = dict.fromkeys(range(len(conversations)), Generation("", overflow=True))
        if rows:
            width = max(len(row.ids) for row in rows.values())
            ids = torch.tensor([[0] * (width - len(row.ids)) + row.ids for row in rows.values()])
            mask = torch.tensor([[0] * (width - len(row.ids)) + [1] * len(row.ids) for row in rows.values()])
            generate: Any = self.model.generate
            written = generate(
                ids.to(self.device),
                attention_mask=mask.to(self.device),
                do_sample=False,
                max_new_tokens=self.max_new_tokens,
                eos_token_id=sorted(self.stop_ids),
                pad_token_id=self.tokenizer.pad_token_id,
            )[:, width:].tolist()
            for (i, row), response in zip(rows.items(), written, strict=True):
                end = next((at + 1 for at, token in enumerate(response) if token in self.stop_ids), len(response))
                generations[i] = self._close_row(row, response[:end], [])
        return list(generations.values())


def main(args: Args) -> None:
    """Print one line per variant: seconds, turns and tokens per second, and the ratio to the package's rollout."""
    torch.set_num_threads(args.threads)
    envs = EnvArgs(env=args.env)
    policy = LanguageModelPolicy.load(args.policy) if args.policy else _short_sft(envs, args.sft_steps)
    options: dict[str, Any] = {
        "format": policy.format,
        "temperature": 0.0,
        "max_new_tokens": args.max_new_tokens,
        "name": policy.name,
    }
    cached = LanguageModelPolicy(policy.model, policy.tokenizer, **options)
    re_prefill = RePrefillPolicy(policy.model, policy.tokenizer, kv_cache=False, **options)
    tasks = envs.manifest(args.split).take(args.num_tasks)

    def play(player: LanguageModelPolicy, chosen: Sequence[str]) -> list[Trajectory]:
        return rollout(player, args.env, chosen, split=args.split, n_slots=args.n_slots, max_turns=args.max_turns)

    def lock_step() -> list[Trajectory]:
        batches = [tasks[start : start + args.n_slots] for start in range(0, len(tasks), args.n_slots)]
        return [trajectory for batch in batches for trajectory in play(cached, batch)]

    variants: dict[str, Callable[[], list[Trajectory]]] = {
        "cached": lambda: play(cached, tasks),
        "lock-step": lock_step,
        "re-prefill": lambda: play(re_prefill, tasks),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in variants}
    responses: dict[str, list[list[str]]] = {}
    trajectories: list[Trajectory] = []
    for _ in range(args.rounds):
        for name, variant in variants.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            trajectories = variant()
            seconds[name].append(time.perf_counter() - start)
            cpu_seconds[name].append(time.process_time() - cpu_start)
            responses[name] = [[turn.response for turn in trajectory.turns] for trajectory in trajectories]

    turns = sum(len(t.turns) for t in trajectories)
    tokens = sum(turn.span[1] - turn.span[0] for t in trajectories for turn in t.turns if turn.span is not None)
    print(
        f"{args.env} {args.split}: {len(tasks)} episodes, {turns} turns, {tokens} tokens produced, "
        f"{sum(t.won for t in trajectories)} won; {args.n_slots} slots, {args.threads} thread(s), "
        f"agentgym_tlm {agentgym_tlm.__version__}, torch {torch.__version__}"
    )
    median = {name: statistics.median(times) for name, times in seconds.items()}
    cpu = {name: statistics.median(times) for name, times in cpu_seconds.items()}
    for name in variants:
        same = sum(a == b for a, b in zip(responses[name], responses["cached"], strict=True))
        print(
            f"{name:>10}: {median[name]:7.1f} s ({median[name] / median['cached']:.2f} x cached), "
            f"processor time {cpu[name]:7.1f} s ({cpu[name] / cpu['cached']:.2f} x), "
            f"{turns / median[name]:6.0f} turns/s, {tokens / median[name]:6.0f} tokens/s, "
            f"{same}/{len(tasks)} episodes identical to cached"
        )


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
