"""The steps of ``gpu_check.py``, which starts this file in a process of its own and reads what it writes."""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import agentgym_tlm
from agentgym_tlm.batch import Example, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.logprobs import TokenLogprobs
from agentgym_tlm.pairs import cut_turns, score_reference
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import build_tokenizer, tokenizer_texts
from agentgym_tlm.prompt import ReactFormat
from agentgym_tlm.renderer import CHATML, Renderer
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.methods import METHODS, Method
from agentgym_tlm.trainers.policy_gradient import clipped_loss
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer, sft_loss
from agentgym_tlm.trainers.tlm_dre import TLMDREArguments, tlm_dre_loss

Result = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Model and workload; the defaults are those of the check, tiny ones those of a dry run."""

    hidden_size: int = 896
    intermediate_size: int = 4864
    layers: int = 24
    heads: int = 14
    key_value_heads: int = 2
    vocabulary: int = 151_936
    expert_tasks: int = 64
    batch: int = 16
    warm_up: int = 2
    updates: int = 8
    slots: int = 64
    episodes: int = 96
    turns: int = 8
    sampled_turns: int = 4  # of the episodes that tlm-DRE and GRPO learn from
    response_tokens: int = 32


DRY_RUN = Size(
    hidden_size=32,
    intermediate_size=64,
    layers=2,
    heads=2,
    key_value_heads=1,
    vocabulary=4096,
    expert_tasks=8,
    batch=4,
    warm_up=1,
    updates=2,
    slots=4,
    episodes=6,
    turns=2,
    sampled_turns=2,
    response_tokens=4,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="+")
    parser.add_argument("--events", type=Path, required=True, help="JSONL file to append beginnings and results to")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU, with tiny dimensions")
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        sys.exit("torch sees no GPU: run this on a machine with one, or give --dry-run")
    Worker(options.events, DRY_RUN if options.dry_run else Size(), cuda=not options.dry_run).run(options.steps)


class Worker:
    """Does the steps, each with a fresh copy of the same model."""

    def __init__(self, events: Path, size: Size, *, cuda: bool) -> None:
        warnings.filterwarnings("ignore", category=FutureWarning)
        self._events = events
        self._runs = tempfile.TemporaryDirectory(prefix="gpu_check-")
        self._size = size
        self._cuda = cuda
        self._device = torch.device("cuda" if self._cuda else "cpu")
        self._envs = EnvArgs(env="ALFWorld-v0", data_dir="embedded", max_episode_steps=40)
        self._tasks = self._envs.manifest("train").take(size.expert_tasks)

    def run(self, steps: list[str]) -> None:
        started = time.perf_counter()
        if not self._events.exists():
            self._write({"step": "machine", "result": self._machine()})
        self._expert = self._play_expert()
        self._tokenizer = self._make_tokenizer()
        self._model = self._make_model()
        print(f"set up in {time.perf_counter() - started:.1f} s", flush=True)
        for step in steps:
            self._write({"step": step})
            started = time.perf_counter()
            kind, _, variant = step.partition("-")
            if step == "loss":
                result = self._losses()
            elif kind == "rollout":
                result = self._rollout(variant)
            else:
                result = self._train(step.removesuffix("-lora"), lora=step.endswith("-lora"))
            self._write({"step": step, "result": {**result, "seconds": round(time.perf_counter() - started, 1)}})
            self._forget()

    def _write(self, event: dict[str, Any]) -> None:
        with self._events.open("a") as file:
            file.write(json.dumps(event) + "\n")

    def _machine(self) -> Result:
        found: Result = {"device": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        if self._cuda:
            properties = torch.cuda.get_device_properties(0)
            found |= {"device": properties.name, "memory_gib": round(properties.total_memory / 2**30, 1)}
            found["cuda"] = torch.version.cuda
        modules = (agentgym_tlm, torch, transformers, accelerate)
        return found | {"python": platform.python_version(), **{m.__name__: m.__version__ for m in modules}}

    def _play_expert(self) -> list[Any]:
        return rollout(ExpertPolicy(), self._envs.env, self._tasks, n_slots=8, env_kwargs=self._envs.options)

    def _make_tokenizer(self) -> Any:
        """Word-level, of the game's words and as many others as the vocabulary has room for."""
        texts = [*tokenizer_texts(self._expert, ReactFormat()), "user\nassistant\n"]
        state = json.loads(build_tokenizer(texts).backend_tokenizer.to_str())
        known = [*state["model"]["vocab"], "<|im_start|>", "<|im_end|>"]
        if len(known) > self._size.vocabulary:
            raise ValueError(f"{len(known)} words are more than a vocabulary of {self._size.vocabulary}")
        words = known + [f" word{i}" for i in range(self._size.vocabulary - len(known))]
        state["model"]["vocab"] = {word: i for i, word in enumerate(words)}
        return PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(json.dumps(state)),
            pad_token="<pad>",
            unk_token="<unk>",
            eos_token="<|im_end|>",
            extra_special_tokens=["<|im_start|>"],
            chat_template=CHATML,
            clean_up_tokenization_spaces=False,
        )

    def _make_model(self) -> Any:
        """On the CPU, so that every device starts from the same float32 weights."""
        size = self._size
        torch.manual_seed(0)
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=size.vocabulary,
                hidden_size=size.hidden_size,
                intermediate_size=size.intermediate_size,
                num_hidden_layers=size.layers,
                num_attention_heads=size.heads,
                num_key_value_heads=size.key_value_heads,
                max_position_embeddings=4096,
                tie_word_embeddings=True,
                initializer_range=0.05,  # predictions that are far from uniform
                pad_token_id=self._tokenizer.pad_token_id,
                bos_token_id=None,
                eos_token_id=self._tokenizer.eos_token_id,
            )
        )

    def _policy(self, dtype: str) -> Any:
        model = copy.deepcopy(self._model).to(self._device, getattr(torch, dtype))
        return LanguageModelPolicy(
            model, self._tokenizer, name="random", max_context=4096, max_new_tokens=self._size.response_tokens
        )

    def _losses(self) -> Result:
        """Of the same batch with the same reference, in three precisions."""
        batch = self._batch()
        reference: Any = None
        found: dict[str, dict[str, float]] = {}
        for name, device, bf16 in (
            ("cpu float32", torch.device("cpu"), False),
            ("float32", self._device, False),
            ("bf16 autocast", self._device, True),
        ):
            model = copy.deepcopy(self._model).to(device)
            logprobs = self._logprobs(model, batch.to(device), bf16)
            if reference is None:
                reference = logprobs.detach()
                batch = _with_reference(batch, reference)
            losses = _batch_losses(logprobs, batch.to(device))
            losses["sft"].backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            found[name] = {method: loss.item() for method, loss in losses.items()}
            found[name]["gradient norm"] = torch.nn.utils.get_total_norm(gradients).item()
            found[name]["log-prob error"] = (logprobs.detach().cpu() - reference).abs().mean().item()
        return {"losses": found, "tokens": int(batch.attention_mask.sum())}

    def _batch(self) -> Any:
        """Beginnings of the four shortest episodes, two of them as if they were rejected."""
        renderer = Renderer(self._tokenizer, ReactFormat())
        encoded = [cut_turns(renderer.encode_trajectory(episode), 4) for episode in self._expert]
        encoded.sort(key=lambda episode: len(episode.sequences[0]))
        weights = (1.0, 0.2, 1.0, 0.2)
        examples = [Example.from_trajectory(e, list(weights[: len(e.turns)])) for e in encoded[:4]]
        return collate(examples[:2], examples[2:])

    def _logprobs(self, model: Any, batch: Any, bf16: bool) -> Any:
        with torch.autocast(batch.input_ids.device.type, torch.bfloat16, enabled=bf16):
            return TokenLogprobs(model)(batch.input_ids, batch.loss_mask, batch.groups)

    def _rollout(self, dtype: str) -> Result:
        size = self._size
        policy = self._policy(dtype)
        tasks = self._envs.manifest("train").take(size.episodes)

        def play(tasks: Any, turns: int) -> list[Any]:
            kwargs = {"data_dir": "embedded"}
            played = rollout(policy, self._envs.env, tasks, n_slots=size.slots, env_kwargs=kwargs, max_turns=turns)
            self._wait()
            return played

        play(tasks[: size.slots], 1)  # loads kernels, and hashes the weights
        self._reset_peak()
        started = time.perf_counter()
        episodes = play(tasks, size.turns)
        seconds = time.perf_counter() - started
        tokens = sum(turn.span[1] - turn.span[0] for episode in episodes for turn in episode.turns)
        peak = self._peak()
        scored = score_reference(policy.model, episodes[:8], batch_size=4)
        errors = [
            abs(old - new)
            for episode in scored
            for turn in episode.turns
            for old, new in zip(turn.logprobs or (), turn.ref_logprobs or (), strict=True)
        ]
        return {
            "tokens_per_second": tokens / seconds,
            "peak_gib": peak,
            "tokens": tokens,
            "turns": sum(len(episode.turns) for episode in episodes),
            "episodes": len(episodes),
            "logprob_error": math.fsum(errors) / len(errors),
        }

    def _train(self, method: str, *, lora: bool) -> Result:
        size = self._size
        options: dict[str, Any] = {
            "output_dir": tempfile.mkdtemp(prefix=f"{method}-", dir=self._runs.name),
            "mixed_precision": "bf16",
            "learning_rate": 1e-6,
            "per_device_train_batch_size": size.batch,
            "gradient_accumulation_steps": 1,
            "max_steps": size.warm_up + size.updates,
            "num_tasks": size.expert_tasks,
            "logging_steps": 1,
            "save_steps": None,
            "lora": LoraArguments() if lora else None,
        }
        envs = self._envs
        if method != "sft":
            options["n_slots"] = size.slots
            envs = replace(envs, max_episode_steps=size.sampled_turns)
        if method == "grpo":
            options |= {"num_iterations": 1, "tasks_per_iteration": size.batch, "samples_per_task": size.batch // 2}
        marks: list[tuple[float, float]] = []
        said: dict[str, float] = {}

        def on_log(record: Mapping[str, float]) -> None:
            said.update(record)
            if "loss" in record:
                self._wait()
                marks.append((time.perf_counter(), record["tokens"]))

        self._reset_peak()
        kind = {"sft": Method(SFTArguments, SFTTrainer), **METHODS}[method]
        trainer = kind.trainer(self._policy("bfloat16"), envs, kind.arguments(**options), on_log=on_log)
        if method == "tlm-dre":  # its experts need more turns than its samples get
            trainer.expert_episodes = self._expert
        trainer.train()
        (began, tokens_before), (ended, tokens) = marks[size.warm_up - 1], marks[-1]
        return {
            "tokens_per_second": (tokens - tokens_before) / (ended - began),
            "peak_gib": self._peak(),
            "tokens_per_update": (tokens - tokens_before) / (len(marks) - size.warm_up),
            "loss": said["loss"],
            "rollout_kl": said.get("rollout_kl"),
        }

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def _reset_peak(self) -> None:
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()

    def _peak(self) -> float | None:
        return torch.cuda.max_memory_allocated() / 2**30 if self._cuda else None

    def _forget(self) -> None:
        """Free what the step had on the device."""
        gc.collect()
        if self._cuda:
            torch.cuda.empty_cache()


def _with_reference(batch: Any, logprobs: Any) -> Any:
    """The batch with reference, old log-probs and advantages near what a model of ``logprobs`` would have."""
    generator = torch.Generator().manual_seed(0)

    def at_tokens(values: Any) -> Any:
        placed = torch.zeros(batch.input_ids.shape)
        placed[batch.loss_mask] = values
        return placed

    noise = torch.randn(2, len(logprobs), generator=generator)
    signs = torch.where(batch.trajectory_index[batch.loss_mask] < batch.num_trajectories // 2, 1.0, -1.0)
    return replace(
        batch,
        ref_logprobs=at_tokens(logprobs + 0.1 * noise[0]),
        old_logprobs=at_tokens(logprobs + 0.1 * noise[1]),
        advantages=at_tokens(signs * (1 + noise[0].abs())),
    )


def _batch_losses(logprobs: Any, batch: Any) -> dict[str, Any]:
    return {
        "sft": sft_loss(logprobs, batch),
        "tlm-dre": tlm_dre_loss(logprobs, batch, TLMDREArguments())[0],
        "grpo": clipped_loss(logprobs, batch, epsilon=0.2, beta=0.04, aggregation="sequence_mean")[0],
    }


if __name__ == "__main__":
    main()
