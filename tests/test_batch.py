"""Batches hold what the policy produced and nothing else."""

from __future__ import annotations

import pytest
import torch

from agentgym_tlm.batch import Example, TurnBatch, collate, select_trainable
from agentgym_tlm.errors import TrajectoryError
from agentgym_tlm.logprobs import token_logprobs
from agentgym_tlm.trajectory import StopReason, Trajectory
from tests.trainers.toys import episode, tiny_model


def batch_of(*trajectories: Trajectory) -> TurnBatch:
    return collate([Example.from_trajectory(trajectory) for trajectory in trajectories])


def test_turn_sums_by_hand() -> None:
    batch = batch_of(episode([(2, 2), (1, 1)]), episode([(2, 1), (1, 3), (2, 2)], seed=1, untrainable={1}))
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    assert batch.turn_sums(values).tolist() == [[3.0, 4.0, 0.0], [8.0, 0.0, 48.0]]
    assert batch.turn_counts().tolist() == [[2.0, 1.0, 0.0], [1.0, 0.0, 2.0]]
    assert batch.turn_weights.tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    assert batch.turn_ids[1].tolist() == [-1, -1, 0, -1, 1, 1, 1, -1, -1, 2, 2]


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_packed_rows_give_the_log_probs_of_padded_ones(kind: str) -> None:
    """A sequence that saw its neighbour in the row would be trained on another episode's text."""
    model = tiny_model(kind).eval()
    sides = [
        [episode([(9, 5), (3, 4)]), episode([(4, 2)], seed=1), episode([(3, 2), (2, 1)], seed=2)],
        [episode([(6, 2), (2, 2)], seed=3, windowed=True), episode([(3, 1)], seed=4), episode([(2, 2)], seed=5)],
    ]
    for turn in (turn for side in sides for trajectory in side for turn in trajectory.turns):
        turn.ref_logprobs = [-0.5 * (i + 1) for i in range(turn.span[1] - turn.span[0])] if turn.span else None
    groups = [[Example.from_trajectory(trajectory) for trajectory in side] for side in sides]
    padded, packed = collate(*groups), collate(*groups, packed=True)
    assert (len(padded.input_ids), len(packed.input_ids)) == (7, 5)
    for name, values in (("log-probs", None), ("reference", "ref_logprobs")):
        sums = [
            batch.turn_sums(token_logprobs(model, batch) if values is None else batch.flat(batch.ref_logprobs))
            for batch in (padded, packed)
        ]
        torch.testing.assert_close(*sums, atol=1e-5, rtol=1e-5, msg=name)
    assert torch.equal(padded.turn_counts(), packed.turn_counts())
    assert torch.equal(padded.turn_weights, packed.turn_weights)


def test_windowed_trajectory_has_one_row_per_turn_and_one_line_of_turns() -> None:
    windowed = episode([(4, 2), (6, 3), (3, 1)], windowed=True)
    batch = batch_of(windowed, episode([(2, 2)], seed=1))
    assert batch.trajectory_index[batch.loss_mask].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert batch.num_trajectories == 2
    assert batch.turn_counts().tolist() == [[2.0, 3.0, 1.0], [2.0, 0.0, 0.0]]


def test_reference_and_sampling_logprobs_sit_at_their_tokens() -> None:
    trajectory = episode([(2, 2), (1, 1)])
    trajectory.turns[0].ref_logprobs, trajectory.turns[1].ref_logprobs = [-1.0, -2.0], [-3.0]
    batch = batch_of(trajectory)
    assert batch.flat(batch.ref_logprobs).tolist() == [-1.0, -2.0, -3.0]
    assert batch.old_logprobs is None
    with pytest.raises(TrajectoryError, match="score"):
        batch.flat(batch.old_logprobs)


def test_failures_of_the_environment_never_enter_a_batch() -> None:
    broken = episode([(2, 2)])
    broken.stop_reason = StopReason.ENV_ERROR
    with pytest.raises(TrajectoryError, match="env_error"):
        Example.from_trajectory(broken)
    text_only = episode([(2, 2)])
    text_only.turns[0].span = None
    mistakes = episode([(2, 2)], untrainable={0})
    kept, dropped = select_trainable([broken, text_only, mistakes, episode([(2, 2)])])
    assert len(kept) == 1
    assert dropped == {"env_error": 1, "no_tokens": 1, "nothing_trainable": 1}


@pytest.mark.parametrize("span", [(0, 2), (3, 99), (1, 3)])
def test_spans_that_do_not_fit_are_refused(span: tuple[int, int]) -> None:
    """A first token has no prediction, a span ends within its sequence, and turns do not overlap."""
    trajectory = episode([(2, 2), (2, 2)])
    trajectory.turns[1].span = span
    with pytest.raises(TrajectoryError, match="span"):
        Example.from_trajectory(trajectory)


def test_scores_of_the_wrong_length_are_refused() -> None:
    trajectory = episode([(2, 2)])
    trajectory.turns[0].ref_logprobs = [-1.0]
    with pytest.raises(TrajectoryError, match="ref_logprobs"):
        Example.from_trajectory(trajectory)
