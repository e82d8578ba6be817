"""What holds for every trainer: it solves a small world, and an update is what its loss says, however it is cut.

A new entry in ``METHODS`` is tested here without another word; ``LEARNING`` may say how it learns best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentgym_tlm.batch import Example, collate
from agentgym_tlm.cli import main
from agentgym_tlm.evaluate import read_results
from agentgym_tlm.logprobs import token_logprobs
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.trainers.args import LoraArguments, TrainingArguments
from agentgym_tlm.trainers.base import Item, Trainer
from agentgym_tlm.trainers.methods import METHODS, Method
from agentgym_tlm.trainers.online import OnlineTrainer
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from tests.trainers.crossing import ENVS, sft_policy, won

ALL = {"sft": Method(SFTArguments, SFTTrainer), **METHODS}
NAMES = list(ALL)
IMITATING = {"learning_rate": 3e-3, "max_steps": 60}
ONLINE = {"learning_rate": 1e-3, "max_steps": 2, "num_iterations": 12, "drop_degenerate": True}
LEARNING: dict[str, dict[str, Any]] = {
    "sft": IMITATING,
    "rft": IMITATING,
    "nat": {"learning_rate": 3e-3, "max_steps": 180, "samples_per_task": 8},
    "coh": {"learning_rate": 3e-3, "max_steps": 150},
    "dpo": {"learning_rate": 1e-4},
    "dmpo": {"learning_rate": 1e-4},
    **dict.fromkeys(("ppo", "rloo", "grpo", "gigpo"), ONLINE),
}
"""What differs from the options of :func:`trainer_for`: losses of summed log-probs need smaller steps."""

SHORT = ("--evaluation.num-tasks", "2", "--max-episode-steps", "6", "--data-dir", "embedded")
"""Options of the main job for an evaluation of seconds."""


@pytest.fixture(scope="module")
def sft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that greedily fails 7 of the world's 16 tasks."""
    folder = tmp_path_factory.mktemp("sft")
    policy = sft_policy(folder)
    policy.save(folder / "policy")
    assert 4 < len(won(policy)) < 12
    return folder / "policy"


def trainer_for(name: str, policy: Path, folder: Path, **options: Any) -> Trainer[Any]:
    """The trainer of a name on the small world; options that its arguments do not have are left out."""
    arguments, kind = ALL[name]
    defaults = {
        "learning_rate": 3e-4,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_ratio": 0.1,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "max_steps": 16,
        "samples_per_task": 4,
        "temperature": 1.0,
        "logging_steps": 1,
        "save_steps": None,
    }
    if issubclass(kind, OnlineTrainer) and options.get("samples_per_task") == 1:
        options = {**options, "samples_per_task": 4}  # an episode is compared with others of its task
    known = {field.name for field in fields(arguments)}
    chosen = {**defaults, **LEARNING.get(name, {}), **options, "output_dir": str(folder)}
    made: TrainingArguments = arguments(**{key: value for key, value in chosen.items() if key in known})
    return kind(LanguageModelPolicy.load(policy, device="cpu"), ENVS, made)


@pytest.mark.parametrize("name", NAMES)
def test_solves_the_small_world(name: str, sft_folder: Path, tmp_path: Path) -> None:
    """From a policy that fails some tasks to one that, saved and loaded, wins all of them."""
    trainer = trainer_for(name, sft_folder, tmp_path)
    trainer.train()
    lost = set(ENVS.manifest("train")) - set(won(LanguageModelPolicy.load(trainer.save(), device="cpu")))
    assert not lost


@dataclass
class Collected:
    """A trainer that has collected its data, and up to 8 items of it."""

    trainer: Trainer[Any]
    items: list[Item]
    weights: dict[str, Tensor]

    def gradient(self, items: list[Item], size: int, accumulate: int = 1) -> tuple[float, Tensor]:
        """Loss and gradient of one update on ``items`` from the policy as it was given, by the loop itself."""
        trainer = self.trainer
        trainer.module(trainer.policy.model).load_state_dict(self.weights)
        trainer.args = replace(
            trainer.args, per_device_train_batch_size=size, gradient_accumulation_steps=accumulate, max_steps=1
        )
        losses: list[float] = []
        found: list[Tensor] = []
        clip = trainer.accelerator.clip_grad_norm_

        def keep(parameters: Iterator[torch.nn.Parameter], limit: float) -> Any:
            parameters = list(parameters)  # type: ignore[assignment]
            found.append(torch.cat([p.grad.flatten().clone() for p in parameters if p.grad is not None]))
            return clip(parameters, limit)

        def on_log(line: Mapping[str, float]) -> None:
            losses.extend(line[name] for name in line if name == "loss")

        trainer.on_log = on_log
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer.accelerator, "clip_grad_norm_", keep)
            trainer.fit(items)
        trainer.module(trainer.policy.model).load_state_dict(self.weights)
        return losses[0], found[0]


def collected(name: str, policy: Path, folder: Path, **options: Any) -> Collected:
    """The trainer's own data, up to the moment when it would begin to learn from it."""
    trainer = trainer_for(name, policy, folder, **options)
    kept: list[Item] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "fit", kept.extend)
        trainer.train()
    weights = {key: value.clone() for key, value in trainer.module(trainer.policy.model).state_dict().items()}
    step = max(1, len(kept) // 8)
    return Collected(trainer, kept[::step][:8], weights)


@pytest.fixture(scope="module", params=NAMES)
def data(request: pytest.FixtureRequest, sft_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Collected:
    samples = 8 if issubclass(ALL[request.param].trainer, OnlineTrainer) else 2
    folder = tmp_path_factory.mktemp("data")
    return collected(request.param, sft_folder, folder, samples_per_task=samples, num_iterations=1)


@pytest.mark.parametrize(("size", "accumulate"), [(4, 2), (1, 8), (3, 3)])
def test_an_update_does_not_depend_on_its_split(data: Collected, size: int, accumulate: int) -> None:
    """Padded beside others, alone without padding, or in uneven parts: the same loss and the same gradient."""
    assert len(data.items) == 8
    loss, gradient = data.gradient(data.items, 8)
    split_loss, split_gradient = data.gradient(data.items, size, accumulate)
    assert gradient.abs().max() > 0
    assert split_loss == pytest.approx(loss, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(split_gradient, gradient, rtol=1e-3, atol=1e-5)


def test_order_of_the_data_changes_nothing(data: Collected) -> None:
    loss, gradient = data.gradient(data.items, 8)
    other_loss, other_gradient = data.gradient([data.items[i] for i in (5, 2, 7, 0, 3, 6, 1, 4)], 8)
    assert other_loss == pytest.approx(loss, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(other_gradient, gradient, rtol=1e-3, atol=1e-5)


def test_only_what_the_policy_wrote_is_learnt(data: Collected) -> None:
    """The gradient with respect to the logits before a token of prompts and observations is exactly 0.

    It is not 0 at any token of a response, the end of the turn included: a policy that is not taught to stop, never
    does.
    """
    trainer, items = data.trainer, data.items
    data.gradient(items, 8)
    batch = collate(*zip(*items, strict=True))
    trainer.before_update([items], [1.0])
    module = trainer.module(trainer.policy.model)
    seen: list[Tensor] = []

    def keep(_: torch.nn.Module, __: Any, outputs: Any) -> None:
        outputs.last_hidden_state.retain_grad()  # all that the logits are made of
        seen.append(outputs.last_hidden_state)

    handle = trainer.policy.model.base_model.register_forward_hook(keep)
    trainer.loss(module(batch.input_ids, batch.loss_mask, batch.groups), batch)[0].backward()
    handle.remove()
    assert len(seen) == len(batch.groups)
    for (start, stop, length), hidden in zip(batch.groups, seen, strict=True):
        assert hidden.grad is not None
        touched = hidden.grad.abs().sum(-1) > 0
        assert torch.equal(touched[:, : length - 1], batch.loss_mask[start:stop, 1:length])
        assert not touched[:, length - 1 :].any()
    responses = batch.turn_ids >= 0
    assert not (batch.loss_mask & ~responses).any()
    ends = (batch.input_ids == trainer.policy.renderer.end_of_turn_id) & batch.loss_mask
    turns = sum(len(set(row.turn_ids[row.loss_mask].tolist())) for item in items for each in item for row in each.rows)
    assert turns - 2 <= int(ends.sum()) <= turns  # a response that ran out of tokens has no end


def reference_logprobs(examples: list[Example], model: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Of every example, the log-probs that it carries and those of ``model``, one by one."""
    for example in examples:
        batch = collate([example])
        with torch.no_grad():
            yield batch.flat(batch.ref_logprobs), token_logprobs(model, batch)


def test_reference_is_the_policy_before_training(data: Collected) -> None:
    """The scores that are computed once and kept are those of the policy as it was given, computed again."""
    examples = [example for item in data.items for example in item]
    if any(row.ref_logprobs is None for example in examples for row in example.rows):
        pytest.skip(f"{type(data.trainer).__name__} has no reference")
    data.trainer.module(data.trainer.policy.model).load_state_dict(data.weights)
    for kept, again in reference_logprobs(examples, data.trainer.policy.model):
        torch.testing.assert_close(kept, again, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_model_without_its_adapters_stays_the_reference(name: str, sft_folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"lora": LoraArguments(r=4), "samples_per_task": 1, "max_steps": 3, "learning_rate": 1e-2}
    options["num_iterations"] = 1
    trainer = trainer_for(name, sft_folder, tmp_path, **options)
    kept: list[Item] = []
    fit = trainer.fit

    def keep(items: Sequence[Item]) -> None:
        kept.extend(items)
        fit(items)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "fit", keep)
        trainer.train()
    model: Any = trainer.policy.model
    before = trainer_for(name, sft_folder, tmp_path / "before").policy.model
    batch = collate([example for item in kept[:8] for example in item])
    with torch.no_grad():
        assert not torch.allclose(token_logprobs(model, batch), token_logprobs(before, batch), atol=1e-3)
        with model.disable_adapter():
            assert torch.equal(token_logprobs(model, batch), token_logprobs(before, batch))
            if batch.ref_logprobs is not None:
                torch.testing.assert_close(
                    batch.flat(batch.ref_logprobs), token_logprobs(model, batch), rtol=1e-5, atol=1e-5
                )


class _StoppedError(Exception):
    """Stands for whatever ends a run."""


@pytest.mark.parametrize("name", NAMES)
def test_stopped_run_ends_as_one_that_was_not(name: str, sft_folder: Path, tmp_path: Path) -> None:
    """Stopped in the middle, of a second iteration where there is one, and resumed, it learns the same weights."""
    options = {"num_iterations": 2, "samples_per_task": 1, "max_steps": 2, "save_steps": 1, "learning_rate": 1e-3}
    whole = trainer_for(name, sft_folder, tmp_path / "whole", **options)
    whole.train()
    updates = whole.state.step
    for stop in (updates, None):
        trainer = trainer_for(name, sft_folder, tmp_path / "stopped", **options)

        def on_log(line: Mapping[str, float], stop: int | None = stop) -> None:
            if line["step"] == stop and "loss" in line:
                raise _StoppedError

        trainer.on_log = on_log
        if stop is None:
            trainer.resume()
            assert trainer.state.step == updates - 1
            trainer.train()
        else:
            with pytest.raises(_StoppedError):
                trainer.train()
    for expected, found in zip(whole.policy.model.parameters(), trainer.policy.model.parameters(), strict=True):
        assert torch.equal(expected, found)


@pytest.fixture(scope="module")
def alfworld_sft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SFT policy of a shrunken main job on ALFWorld-v0's embedded default."""
    folder = tmp_path_factory.mktemp("alfworld")
    options = "--trainer sft --expert.num-tasks 24 --tiny.hidden-size 32 --tiny.layers 1 --tiny.intermediate-size 64"
    assert main(["train", *options.split(), *SHORT, "--output-dir", str(folder)]) == 0
    return folder / "sft" / "policy"


@pytest.mark.parametrize(
    "lora", [pytest.param(False, marks=pytest.mark.slow, id="full"), pytest.param(True, id="lora")]
)
@pytest.mark.parametrize("name", METHODS)
def test_main_job_on_alfworld(name: str, lora: bool, alfworld_sft: Path, tmp_path: Path) -> None:
    """``agentgym-tlm train --trainer NAME`` samples, learns, evaluates, with all weights and with adapters."""
    options = [f"--{name}.lora.r", "8"] if lora else []
    if any(field.name == "num_tasks" for field in fields(METHODS[name].arguments)):
        options += [f"--{name}.num-tasks", "8"]
    if issubclass(METHODS[name].trainer, OnlineTrainer):
        options += [f"--{name}.num-iterations", "2", f"--{name}.samples-per-task", "2"]
    command = ["train", "--trainer", name, "--sft-policy", str(alfworld_sft), "--output-dir", str(tmp_path / "run")]
    assert main([*command, *options, *SHORT]) == 0
    results = read_results(tmp_path / "run" / "results.json")
    assert [result.label for result in results] == ["sft", "sft", name, name]
    assert (tmp_path / "run" / name / "adapter").is_dir() == lora
