"""KTO on whole trajectories: no pairs, a reference point from mismatched prompts, weights of wins and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentgym_tlm.batch import Example, TurnBatch, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import CheckpointError, ConfigError
from agentgym_tlm.pairs import Pair, score_reference
from agentgym_tlm.trainers.base import Item
from agentgym_tlm.trainers.kto import KTOArguments, KTOTrainer, draw_mismatched, kto_loss, mismatched
from agentgym_tlm.trajectory import Trajectory
from tests.trainers.toys import episode, tiny_policy


def trainer(folder: Path, **options: object) -> KTOTrainer:
    defaults: dict[str, object] = {"learning_rate": 3e-3, "save_steps": None, "logging_steps": 1}
    args = KTOArguments(output_dir=str(folder), **{**defaults, **options})  # type: ignore[arg-type]
    return KTOTrainer(tiny_policy(), EnvArgs(), args)


def hand_batch() -> tuple[TurnBatch, Tensor]:
    """A win with Δ = 0.2 + 0.6 and a failure with Δ = -0.5."""
    win, failure = episode([(2, 1), (1, 2)], won=True), episode([(2, 2)], seed=1)
    win.turns[0].ref_logprobs, win.turns[1].ref_logprobs = [-1.0], [-2.0, -2.0]
    failure.turns[0].ref_logprobs = [-1.5, -0.5]
    batch = collate([Example.from_trajectory(win), Example.from_trajectory(failure)])
    return batch, torch.tensor([-0.8, -1.7, -1.7, -2.0, -0.5])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_example_by_hand() -> None:
    batch, logprobs = hand_batch()
    loss, metrics = kto_loss(logprobs, batch, torch.tensor(0.3), 0.5, 1.2, 0.7)
    expected = (1.2 * (1 - sigmoid(0.5 * (0.8 - 0.3))) + 0.7 * (1 - sigmoid(0.5 * (0.3 + 0.5)))) / 2
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert metrics["margin"].item() == pytest.approx((0.25 + 0.4) / 2, abs=1e-6)
    assert metrics["accuracy"].item() == 1.0


def test_policy_equal_to_the_reference() -> None:
    """Half of each weight: σ(0)."""
    batch, _ = hand_batch()
    loss, _ = kto_loss(batch.flat(batch.ref_logprobs), batch, torch.zeros(()), 0.1, 1.0, 0.5)
    assert loss.item() == pytest.approx((0.5 + 0.25) / 2)


def test_wins_are_raised_and_failures_lowered() -> None:
    """Tokens of a win have all one gradient, those of a failure the opposite sign; the reference point has none."""
    batch, logprobs = hand_batch()
    logprobs.requires_grad_()
    z_ref = torch.tensor(0.3)
    (gradient,) = torch.autograd.grad(kto_loss(logprobs, batch, z_ref, 0.1, 1.0, 1.0)[0], logprobs)
    assert (gradient[:3] < 0).all()
    assert (gradient[3:] > 0).all()
    assert gradient[:3].unique().numel() == gradient[3:].unique().numel() == 1


def test_mismatched_pair_is_one_prompt_with_another_body() -> None:
    prompt, body = episode([(5, 2), (1, 1)], task="a"), episode([(2, 3), (4, 2)], seed=1, task="b", won=True)
    both = mismatched(prompt, body, max_context=100)
    assert both.sequences == [prompt.sequences[0][:5] + body.sequences[0][2:]]
    assert [turn.span for turn in both.turns] == [(5, 8), (12, 14)]
    assert [both.response_ids(turn) for turn in both.turns] == [body.response_ids(turn) for turn in body.turns]
    assert (both.task_id, both.won) == ("a", False)
    assert body.turns[0].span == (2, 5)  # the trajectory itself is not touched


def test_mismatched_pair_ends_at_the_context() -> None:
    """Beyond it the model was never trained, and a mean over nonsense would be the reference point."""
    prompt, body = episode([(5, 2)], task="a"), episode([(2, 3), (4, 2)], seed=1, task="b")
    assert [turn.span for turn in mismatched(prompt, body, max_context=13).turns] == [(5, 8), (12, 13)]
    cut = mismatched(prompt, body, max_context=10)
    assert [turn.span for turn in cut.turns] == [(5, 8)]
    assert len(cut.sequences[0]) == 10


def test_mismatched_pair_of_a_windowed_format() -> None:
    """Every turn of the one after the prompt of the same turn of the other, the last one where that has no more."""
    prompt = episode([(5, 2), (6, 1)], task="a", windowed=True)
    body = episode([(2, 3), (4, 2), (3, 1)], seed=1, task="b", windowed=True)
    both = mismatched(prompt, body, max_context=100)
    assert [turn.span for turn in both.turns] == [(5, 8), (6, 8), (6, 7)]
    assert both.sequences[2][:6] == prompt.sequences[1][:6]
    assert Example.from_trajectory(both).loss_tokens == 6


def test_other_trajectory_is_of_another_task() -> None:
    """Beside its own prompt it would be no mismatch; of several samples of a task there are many."""
    trajectories = [episode([(2 + i, 2)], seed=i, task=f"task{i % 3}") for i in range(9)]
    trajectories += [episode([(20, 2)], seed=20, task="task0")]
    bodies = {tuple(t.response_ids(t.turns[0])): t.task_id for t in trajectories}
    for seed in range(5):
        drawn = draw_mismatched(trajectories, 100, seed)
        for mine, other in zip(trajectories, drawn, strict=True):
            assert other.sequences[0][:-2] == mine.sequences[0][:-2]
            assert bodies[tuple(other.response_ids(other.turns[0]))] != mine.task_id
    assert [t.sequences for t in draw_mismatched(trajectories, 100, 4)] == [t.sequences for t in drawn]
    with pytest.raises(ConfigError, match="at least two tasks"):
        draw_mismatched([episode([(2, 2)], seed=s) for s in range(2)], 100, 0)


def data(failures: int = 4) -> list[Trajectory]:
    return [episode([(4, 3), (5, 2)], seed=s, task=f"task{s}", won=s >= failures) for s in range(6)]


@pytest.mark.parametrize("size", [6, 2])
def test_reference_point_is_the_mean_over_the_update(tmp_path: Path, size: int) -> None:
    """Of all mismatched pairs of the update, however it is split, under the policy as it is now; at least 0."""
    kto = trainer(tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=6 // size, max_steps=6)
    found: list[float] = []
    expected: list[float] = []
    kto.on_log = lambda line: found.append(line["z_ref"]) if "z_ref" in line else None
    before = kto.before_update

    def watch(parts: Sequence[Sequence[Item]], shares: Sequence[float]) -> None:
        again = score_reference(kto.policy.model, drawn)
        totals = [
            math.fsum(sum(turn.ref_logprobs or []) for turn in new.turns)
            - math.fsum(sum(turn.ref_logprobs or []) for turn in old.turns)
            for new, old in zip(again, drawn, strict=True)
        ]
        expected.append(max(0.0, sum(totals) / len(totals)))
        before(parts, shares)

    drawn = score_reference(
        kto.policy.model, draw_mismatched(data(failures=1), kto.policy.max_context, kto.iteration_seed)
    )
    kto.before_update = watch  # type: ignore[method-assign]
    kto.train_trajectories(data(failures=1))
    assert found[0] == pytest.approx(0.0, abs=1e-5)
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(found) > 0.1


def test_training_tells_wins_from_failures(tmp_path: Path) -> None:
    kto = trainer(tmp_path, per_device_train_batch_size=6, gradient_accumulation_steps=1, max_steps=15)
    lines: list[float] = []
    kto.on_log = lambda line: lines.append(line["margin"]) if "margin" in line else None
    kto.train_trajectories(data())
    assert lines[0] == pytest.approx(0.0, abs=1e-5)
    assert lines[-1] > 0.1


def test_pairs_are_taken_apart(tmp_path: Path) -> None:
    """An expert's win that is the better side of two pairs is one win."""
    win, *failures = data(failures=2)[::-1]
    kto = trainer(tmp_path, max_steps=1)
    lines: list[Mapping[str, float]] = []
    kto.on_log = lines.append
    kto.train_pairs([Pair(win, failure) for failure in failures[-2:]])
    assert (lines[0]["desirable"], lines[0]["trajectories"]) == (1, 3)


@pytest.mark.parametrize(
    ("desirable", "expected"), [(10, (1.5, 0.5)), (36, (1.0, 9.0)), (40, (1.0, 0.5)), (0, (1.0, 0.5))]
)
def test_balanced_weights(tmp_path: Path, desirable: int, expected: tuple[float, float]) -> None:
    """Of 40 trajectories: 1.5 x 10 = 0.5 x 30, 1 x 36 = 9 x 4; with one kind only there is nothing to balance."""
    kto = trainer(tmp_path, desirable_weight=1.0, undesirable_weight=0.5, balance_weights=True)
    assert kto.weights(desirable, 40) == pytest.approx(expected)
    assert trainer(tmp_path, undesirable_weight=0.5).weights(desirable, 40) == (1.0, 0.5)


def test_scores_are_kept_and_belong_to_their_data(tmp_path: Path) -> None:
    kto = trainer(tmp_path, max_steps=1)
    kto.train_trajectories(data())
    folder = tmp_path / "iteration-0"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert {path.name for path in before} == {"unpaired.jsonl", "mismatched.jsonl"}
    trainer(tmp_path, max_steps=1).train_trajectories(data())
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(CheckpointError, match="choose another output_dir"):
        trainer(tmp_path, max_steps=1).train_trajectories(data()[:4])


def test_nothing_to_learn_from_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no trajectory"):
        trainer(tmp_path).train_trajectories([])
    with pytest.raises(ConfigError, match="at least 2"):
        KTOArguments(per_device_train_batch_size=1, gradient_accumulation_steps=1)
