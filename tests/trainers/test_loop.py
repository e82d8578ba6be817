"""The loop every trainer shares: what an update learns does not depend on how it is cut up, and nothing gets lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import CheckpointError, ConfigError, TrainingError
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.data import BatchPlan
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from tests.trainers.toys import episode, tiny_policy

EPISODES = [episode([(3 + 2 * s, 1 + 3 * s), (2, 5)], seed=s) for s in range(8)]


def sft(folder: Path, **options: Any) -> SFTTrainer:
    defaults = {"learning_rate": 1e-2, "max_steps": 2, "save_steps": None, "logging_steps": 1, "warmup_ratio": 0.0}
    return SFTTrainer(tiny_policy(), EnvArgs(), SFTArguments(output_dir=str(folder), **{**defaults, **options}))


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("size", "accumulate"), [(8, 1), (4, 2), (1, 8), (3, 2)])
def test_gradients_do_not_depend_on_the_split(tmp_path: Path, size: int, accumulate: int) -> None:
    """Trajectories have 6 to 27 tokens of the loss, so that a mean of micro-batch means would be far off."""
    trainer = sft(tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=accumulate, max_steps=1)
    model = tiny_policy().model
    members = EPISODES if size * accumulate == 8 else _first_update(trainer)
    total, count = torch.zeros(()), 0
    for trajectory in members:
        ids = torch.tensor(trajectory.sequences)
        logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
        for turn in trajectory.turns:
            assert turn.span is not None
            for position in range(*turn.span):
                total = total - logprobs[position - 1, ids[0, position]]
                count += 1
    expected = total / count
    expected.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    trainer.train_trajectories(EPISODES)
    (line,) = lines(tmp_path)
    assert line["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert line["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def _first_update(trainer: SFTTrainer) -> list[Any]:
    args = trainer.args
    lengths = [len(trajectory.sequences[0]) for trajectory in EPISODES]
    plan = BatchPlan(lengths, args.seed, args.per_device_train_batch_size, args.gradient_accumulation_steps)
    return [EPISODES[i] for i in plan.update(0)[0]]


def test_same_seed_same_weights(tmp_path: Path) -> None:
    trained = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        trainer = sft(tmp_path / name, seed=seed, per_device_train_batch_size=3, max_steps=4)
        trainer.train_trajectories(EPISODES)
        trained.append(torch.cat([p.flatten() for p in trainer.policy.model.parameters()]))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


def test_gradient_checkpointing_changes_nothing(tmp_path: Path) -> None:
    trained = []
    for name, switch in (("off", False), ("on", True)):
        trainer = sft(tmp_path / name, gradient_checkpointing=switch)
        trainer.train_trajectories(EPISODES)
        trained.append(torch.cat([p.flatten() for p in trainer.policy.model.parameters()]))
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-5, atol=1e-6)


def test_schedule_and_log_lines(tmp_path: Path) -> None:
    """10 updates, 2 of warm-up from 0, then down a cosine; each line is the mean over its updates."""
    trainer = sft(tmp_path, max_steps=10, warmup_ratio=0.2, learning_rate=1.0e-3)
    trainer.train_trajectories(EPISODES)
    rates = [line["learning_rate"] for line in lines(tmp_path)]
    assert rates[:3] == pytest.approx([0.0, 5e-4, 1e-3])
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[6] == pytest.approx(5e-4)
    assert [line["step"] for line in lines(tmp_path)] == list(range(1, 11))
    assert lines(tmp_path)[-1]["epoch"] == 10.0
    assert lines(tmp_path)[-1]["tokens"] == 10 * sum(len(t.sequences[0]) for t in EPISODES)


def test_one_update_learns(tmp_path: Path) -> None:
    """Warm-up starts at a learning rate of 0: of a single update nothing would be left."""
    trainer = sft(tmp_path, max_steps=1, warmup_ratio=0.03, learning_rate=1e-3)
    trainer.train_trajectories(EPISODES)
    assert [line["learning_rate"] for line in lines(tmp_path)] == [1e-3]


def test_attempt_that_is_begun_again_logs_every_step_once(tmp_path: Path) -> None:
    """Killed before its first checkpoint: what is in the metrics already is not part of the new attempt's curve."""
    for _ in range(2):
        trainer = sft(tmp_path)
        trainer._evaluate = lambda policy: {"success": 0.0}
        trainer.evaluate()
        trainer.train_trajectories(EPISODES)
        assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize("change", ["options", "policy", "data"])
def test_folder_of_another_run_is_refused(tmp_path: Path, change: str) -> None:
    """Two runs in one folder are one curve and one set of checkpoints that belong to neither."""
    sft(tmp_path).train_trajectories(EPISODES)
    before = lines(tmp_path)
    other = sft(tmp_path, **({"learning_rate": 2e-2} if change == "options" else {}))
    if change == "policy":
        with torch.no_grad():
            next(other.policy.model.parameters()).add_(0.01)
    with pytest.raises(CheckpointError, match="choose another output_dir"):
        other.train_trajectories(EPISODES[:3] if change == "data" else EPISODES)
    assert lines(tmp_path) == before


def test_episodes_beyond_the_context_are_left_out(tmp_path: Path) -> None:
    """The model has no positions for them, and could not play that far."""
    trainer = sft(tmp_path, max_steps=1)
    trainer.policy.max_context = 20  # of 8 episodes with 11 to 46 tokens two fit
    with pytest.warns(UserWarning, match=r"6 of 8 .* max_context of 20 tokens \(the longest has 46\)"):
        trainer.train_trajectories(EPISODES)
    assert trainer.state.tokens == sum(len(t.sequences[0]) for t in EPISODES[:2])
    trainer.policy.max_context = 10
    with pytest.raises(ConfigError, match=r"8 of 8 .* raise max_context"):
        trainer.train_trajectories(EPISODES)


def test_version_says_how_many_updates_were_made(tmp_path: Path) -> None:
    """However often it was evaluated or resumed in between: episodes are recognised by it."""
    trainer = sft(tmp_path, max_steps=4, eval_steps=1, save_steps=2)
    versions: list[str] = []

    def evaluate(policy: Any) -> dict[str, float]:
        versions.append(policy.version)
        return {}

    trainer._evaluate = evaluate
    trainer.train_trajectories(EPISODES)
    assert versions == ["0+1", "0+2", "0+3"]
    resumed = sft(tmp_path, max_steps=4, save_steps=2)
    resumed.resume(tmp_path / "checkpoint-2")
    resumed.train_trajectories(EPISODES)
    assert resumed.policy.version == trainer.policy.version == "0+4"


def test_epochs_count_updates(tmp_path: Path) -> None:
    trainer = sft(tmp_path, max_steps=-1, num_train_epochs=1.5, per_device_train_batch_size=3)
    trainer.train_trajectories(EPISODES)
    assert trainer.state.step == 5  # 3 updates per epoch, of 3, 3 and 2 trajectories


def test_policy_plays_with_its_new_weights(tmp_path: Path) -> None:
    """Caches and the version recorded in trajectories follow the weights, and only them."""
    trainer = sft(tmp_path)
    versions: list[str] = []

    def evaluate(policy: Any) -> dict[str, float]:
        versions.append(policy.version)
        return {"success": 0.0}

    trainer._evaluate = evaluate
    trainer.evaluate()
    trainer.train_trajectories(EPISODES)
    trainer.evaluate()
    trainer.evaluate()
    assert versions[0] == "0"
    assert versions[1] == versions[2] != "0"


def test_saved_policy_is_the_trained_one(tmp_path: Path) -> None:
    trainer = sft(tmp_path)
    trainer.train_trajectories(EPISODES)
    loaded = type(trainer.policy).load(trainer.save(), device="cpu")
    for mine, theirs in zip(loaded.model.parameters(), trainer.policy.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_adapters_of_an_earlier_stage_become_weights(tmp_path: Path) -> None:
    """After SFT with LoRA, the reference of the next trainer is the SFT policy, not the model before SFT."""
    first = sft(tmp_path / "first", lora=LoraArguments(r=2))
    first.train_trajectories(EPISODES)
    ids = torch.tensor(EPISODES[0].sequences)
    with torch.no_grad():
        expected = first.policy.model(ids).logits
        second = SFTTrainer(
            first.policy, EnvArgs(), SFTArguments(output_dir=str(tmp_path / "second"), lora=LoraArguments(r=2))
        )
        model: Any = second.policy.model
        with model.disable_adapter():
            torch.testing.assert_close(model(ids).logits, expected, rtol=1e-5, atol=1e-5)


def test_broken_weights_are_named(tmp_path: Path) -> None:
    trainer = sft(tmp_path)
    with torch.no_grad():
        next(trainer.policy.model.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingError, match="broken"):
        trainer.train_trajectories(EPISODES)


def test_loss_that_is_not_finite_is_named(tmp_path: Path) -> None:
    class Exploding(SFTTrainer):
        def loss(self, logprobs: Tensor, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
            return logprobs.sum() * float("inf"), {}

    trainer = Exploding(tiny_policy(), EnvArgs(), SFTArguments(output_dir=str(tmp_path), max_steps=1, logging_steps=1))
    with pytest.raises(TrainingError, match=r"lower learning_rate$"):
        trainer.train_trajectories(EPISODES)
    assert '"loss": null' in (tmp_path / "metrics.jsonl").read_text()


def test_evaluation_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="evaluate="):
        sft(tmp_path).evaluate()


def test_trackers_get_the_numbers(tmp_path: Path) -> None:
    """``report_to`` goes through Accelerate; an unknown tracker is its own clear error."""
    with pytest.raises(ValueError, match="no-such-tracker"):
        sft(tmp_path, report_to=("no-such-tracker",))
