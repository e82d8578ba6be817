"""Tiny models and hand-made trajectories for the tests of batches and trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import build_tiny
from agentgym_tlm.trajectory import StopReason, Trajectory, Turn

VOCAB = 37


def tiny_model(kind: str = "qwen2", *, seed: int = 0, tie: bool = True) -> PreTrainedModel:
    """A two-layer float32 model with random weights large enough that its predictions are far from uniform."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": tie,
        "initializer_range": 0.3,
    }
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape))
    return Qwen2ForCausalLM(Qwen2Config(**shape))


def tiny_policy(*, seed: int = 0) -> LanguageModelPolicy:
    """An untrained word-level policy of 16 dimensions and two layers with more than ``VOCAB`` words."""
    words = " ".join(f"word{chr(97 + i)}{chr(97 + j)}" for i in range(8) for j in range(8))
    return build_tiny([words], hidden_size=16, layers=2, heads=2, intermediate=32, max_context=128, seed=seed)


def episode(
    lengths: list[tuple[int, int]],
    *,
    seed: int = 0,
    task: str = "task",
    won: bool = False,
    untrainable: frozenset[int] | set[int] = frozenset(),
    windowed: bool = False,
    vocabulary: int = VOCAB,
) -> Trajectory:
    """Random ids: per turn (tokens of the prompt, tokens of the response); one sequence per turn if ``windowed``."""
    rng = np.random.default_rng(seed)
    sequences: list[list[int]] = []
    turns = []
    ids: list[int] = []
    for i, (prompt, response) in enumerate(lengths):
        if windowed or not sequences:
            ids = []
            sequences.append(ids)
        ids += rng.integers(4, vocabulary, prompt).tolist()
        span = (len(ids), len(ids) + response)
        ids += rng.integers(4, vocabulary, response).tolist()
        turns.append(
            Turn(
                observation="o",
                response="r",
                action="a",
                action_valid=True,
                reward=0.0,
                sequence=len(sequences) - 1,
                span=span,
                trainable=i not in untrainable,
            )
        )
    return Trajectory(
        env_id="Toy-v0",
        task_id=task,
        task_type="toy",
        split="train",
        instruction="i",
        seed=0,
        turns=turns,
        won=won,
        score=float(won),
        stop_reason=StopReason.WON if won else StopReason.MAX_STEPS,
        sequences=sequences,
    )


def played(
    rewards: Sequence[float],
    *,
    valid: Sequence[bool] | None = None,
    observations: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    task: str = "task",
    seed: int = 0,
    windowed: bool = False,
) -> Trajectory:
    """An episode of a group, as it was sampled: a turn per reward, of so many tokens (2), with made-up log-probs."""
    sizes = list(lengths or [2] * len(rewards))
    trajectory = episode([(3, size) for size in sizes], seed=seed, task=task, won=sum(rewards) > 0, windowed=windowed)
    trajectory.group_id = task
    rng = np.random.default_rng(100 + seed)
    for i, (turn, reward, size) in enumerate(zip(trajectory.turns, rewards, sizes, strict=True)):
        turn.reward = reward
        turn.action_valid = turn.well_formed = valid is None or valid[i]
        turn.observation = f"o{i}" if observations is None else observations[i]
        turn.logprobs, turn.ref_logprobs = (-rng.uniform(0.2, 3.0, size).round(3)).tolist(), None
    return trajectory
