"""Pairs hold an expert win and a failure of the same task; reference scores are those of the frozen model, once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from agentgym_tlm.batch import Example, collate
from agentgym_tlm.errors import ConfigError, TrajectoryError
from agentgym_tlm.logprobs import token_logprobs
from agentgym_tlm.pairs import (
    Pair,
    build_pairs,
    is_scored,
    read_pairs,
    score_pairs,
    score_reference,
    turn_confidence,
    write_pairs,
)
from agentgym_tlm.trajectory import FinishReason, StopReason, Trajectory
from tests.trainers.toys import episode, tiny_model


def failure(task: str, seed: int = 9) -> Trajectory:
    return episode([(3, 2), (2, 2)], seed=seed, task=task)


def test_failures_meet_the_expert_of_their_task() -> None:
    """Everything that is left out is counted: a lost trajectory would go unnoticed otherwise."""
    expert = [
        episode([(3, 2)], task="a", won=True),
        episode([(3, 4)], seed=1, task="a", won=True),  # a second win on the same task
        episode([(3, 2)], seed=2, task="b"),  # the expert failed as well
        episode([(3, 2)], seed=3, task="c", won=True),
    ]
    sampled = [failure("a"), episode([(3, 2)], seed=8, task="a", won=True), failure("b"), failure("c"), failure("d")]
    broken, aborted, empty, silent, no_tokens = (failure("c", seed) for seed in range(20, 25))
    broken.stop_reason, aborted.stop_reason = StopReason.ENV_ERROR, StopReason.ABORTED
    empty.turns[1].response = " \n"
    silent.turns.clear()
    no_tokens.turns[0].span = None
    pairs, dropped = build_pairs(expert, [*sampled, broken, aborted, empty, silent, no_tokens])
    assert [(p.chosen, p.rejected) for p in pairs] == [(expert[0], sampled[0]), (expert[3], sampled[3])]
    assert dropped == {
        "won": 1,
        "no_expert": 1,
        "tie": 1,
        "env_error": 1,
        "aborted": 1,
        "empty_turn": 1,
        "no_tokens": 2,
    }


def test_the_higher_score_is_preferred_whoever_got_it() -> None:
    """An imperfect expert, as in imported data, must not be preferred to an agent that did better (ETO)."""
    expert, better, worse = (episode([(3, 2)], seed=seed, task="a") for seed in range(3))
    expert.score, better.score, worse.score = 0.5, 0.8, 0.2
    winner = episode([(3, 2)], seed=3, task="a", won=True)
    pairs, dropped = build_pairs([expert], [better, worse, winner])
    assert [(p.chosen, p.rejected) for p in pairs] == [(better, expert), (expert, worse), (winner, expert)]
    assert not dropped


def test_failures_are_filtered_and_cut_as_asked() -> None:
    """Repetitive, overlong and endless failures: named options, and counted."""
    expert = [episode([(3, 2), (1, 2)], task="a", won=True)]
    failures = [episode([(3, 2)] * 6, seed=seed, task="a") for seed in (5, 6)]
    for i, turn in enumerate(failures[0].turns):
        turn.action = f"go to shelf {i}"
    pairs, dropped = build_pairs(expert, failures, max_repeats=3)
    assert [pair.rejected for pair in pairs] == failures[:1]
    assert dropped == {"repetitive": 1}
    assert build_pairs(expert, failures, max_rejected_tokens=29) == ([], {"overlong": 2})
    cut = build_pairs(expert, failures, max_extra_turns=1, max_rejected_tokens=29)[0][0].rejected
    assert (len(cut.turns), cut.sequences, cut.final_observation) == (3, [failures[0].sequences[0][:15]], "o")
    assert Example.from_trajectory(cut).loss_tokens == 6
    assert len(failures[0].turns) == 6


def test_limit_per_task() -> None:
    expert = [episode([(3, 2)], task="a", won=True)]
    pairs, dropped = build_pairs(expert, [failure("a", seed) for seed in range(5)], max_pairs_per_task=2)
    assert len(pairs) == 2
    assert dropped == {"over_task_limit": 3}


def grouped(task: str, group: str, outcomes: str) -> list[Trajectory]:
    """Samples of a group, ``w`` for a win."""
    played = [episode([(3, 2), (2, 2)], seed=i, task=task, won=outcome == "w") for i, outcome in enumerate(outcomes)]
    for trajectory in played:
        trajectory.group_id = group
    return played


def test_failures_meet_the_wins_of_their_group() -> None:
    """Its wins take turns; the expert stands in where there is none, or none to learn from."""
    expert = [episode([(3, 2)], seed=40 + i, task=task, won=True) for i, task in enumerate("ab")]
    first, second = grouped("a", "a/0", "wlwlwl"), grouped("a", "a/1", "ll")
    empty, alone, lost = grouped("b", "b/0", "wl"), grouped("c", "c/0", "lw"), grouped("d", "d/0", "l")
    empty[0].turns[0].response = " "
    sampled = [*first, *second, *empty, *alone, *lost]
    pairs, dropped = build_pairs(expert, sampled, within_group=True)
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [
        (first[0], first[1]),
        (first[2], first[3]),
        (first[4], first[5]),
        (expert[0], second[0]),
        (expert[0], second[1]),
        (expert[1], empty[1]),
        (alone[1], alone[0]),
    ]
    assert dropped == {"won": 1, "no_expert": 1}
    limited, dropped = build_pairs(expert, first, within_group=True, max_pairs_per_task=2)
    assert [pair.chosen for pair in limited] == [first[0], first[2]]
    assert dropped == {"won": 1, "over_task_limit": 1}
    more = [*first, *grouped("a", "a/0", "lllll")]
    chosen = [pair.chosen for pair in build_pairs([], more, within_group=True)[0]]
    assert chosen == [first[0], first[2], first[4], first[0], first[2], first[4], first[0], first[2]]


def test_filters_hold_within_a_group() -> None:
    """Failures are cut with respect to the win that they are paired with."""
    win, *failures = grouped("a", "a/0", "wll")
    win.turns = win.turns[:1]
    for i, turn in enumerate(failures[0].turns):
        turn.action = f"go to shelf {i}"
    pairs, dropped = build_pairs([], [win, *failures], within_group=True, max_repeats=1, max_extra_turns=0)
    assert [len(pair.rejected.turns) for pair in pairs] == [1]
    assert dropped == {"repetitive": 1}


def test_scores_are_the_logprobs_of_the_model_in_any_company() -> None:
    """p_i does not depend on padding, order or batch size, and skips what the policy did not produce."""
    model = tiny_model()
    trajectories = [
        episode([(3, 2), (4, 3)]),
        episode([(30, 9)], seed=1),
        episode([(3, 2), (2, 4), (1, 1)], seed=2, untrainable={1}),
        episode([(3, 2), (5, 4)], seed=3, windowed=True),
    ]
    scored = score_reference(model, trajectories, batch_size=3)
    for original, copy in zip(trajectories, scored, strict=True):
        assert not any(turn.ref_logprobs for turn in original.turns)
        batch = collate([Example.from_trajectory(original)])
        with torch.no_grad():
            sums = batch.turn_sums(token_logprobs(model, batch))[0] / batch.turn_counts()[0]
        for turn, mean in zip(copy.turns, sums.tolist(), strict=True):
            if turn.trainable:
                assert turn.confidence == pytest.approx(math.exp(mean), rel=1e-4)
            else:
                assert turn.ref_logprobs is None
                assert turn.confidence is None
        assert is_scored(copy)
        rebuilt = collate([Example.from_trajectory(copy)])
        with torch.no_grad():
            expected = token_logprobs(model, batch)
        torch.testing.assert_close(rebuilt.flat(rebuilt.ref_logprobs), expected, rtol=1e-4, atol=1e-5)


def test_shared_expert_is_scored_once() -> None:
    chosen = episode([(3, 2)], won=True)
    first, second = score_pairs(tiny_model(), [Pair(chosen, failure("a")), Pair(chosen, failure("a", 10))])
    assert first.chosen is second.chosen
    assert first.rejected is not second.rejected


def test_confidence_with_and_without_the_end_of_turn() -> None:
    turn = failure("a").turns[0]
    with pytest.raises(TrajectoryError, match="score"):
        turn_confidence(turn)
    turn.ref_logprobs = [-0.5, -0.1]
    assert turn_confidence(turn) == pytest.approx(math.exp(-0.3))
    assert turn_confidence(turn, include_end_of_turn=False) == pytest.approx(math.exp(-0.5))
    turn.finish_reason = FinishReason.LENGTH  # cut off: its last token is not an end of turn
    assert turn_confidence(turn, include_end_of_turn=False) == pytest.approx(math.exp(-0.3))


def test_pairs_survive_the_disk_bit_for_bit(tmp_path: Path) -> None:
    """A resumed run trains on the very scores that the killed one computed."""
    pairs = score_pairs(tiny_model(), [Pair(episode([(3, 2)], won=True), failure("a"))])
    write_pairs(tmp_path / "pairs", pairs)
    (read,) = read_pairs(tmp_path / "pairs")
    assert (read.chosen, read.rejected) == (pairs[0].chosen, pairs[0].rejected)
    with pytest.raises(ConfigError, match="exists already"):
        write_pairs(tmp_path / "pairs", pairs)
