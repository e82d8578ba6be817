"""IPR: step rewards are what playing on is worth, pairs are what was left of an episode, the loss is the paper's."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym_tlm.batch import Example, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.pairs import Pair, as_continuation, read_pairs
from agentgym_tlm.prefix import Prefix
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.ipr import IPRArguments, IPRTrainer, ipr_loss, mean_outcome
from agentgym_tlm.trajectory import StopReason, Trajectory, read_trajectories
from tests.trainers.students import ENVS, demonstrations, student
from tests.trainers.toys import episode


def ipr(folder: Path, envs: EnvArgs = ENVS, **options: Any) -> IPRTrainer:
    defaults: dict[str, Any] = {
        "learning_rate": 3e-4,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_iterations": 1,
        "num_continuations": 2,
        "step_margin": 0.0,
        "temperature": 1.0,
        "save_steps": None,
        "logging_steps": 1,
    }
    return IPRTrainer(student(), envs, IPRArguments(output_dir=str(folder), **{**defaults, **options}))


def with_reference(trajectory: Trajectory, values: list[list[float]]) -> Trajectory:
    for turn, logprobs in zip([t for t in trajectory.turns if t.trainable], values, strict=True):
        turn.ref_logprobs = logprobs
    return trajectory


def hand_pairs() -> list[Pair]:
    """One whole pair, of two and one tokens of the loss, and two step pairs whose first turn is context."""
    whole = Pair(
        with_reference(episode([(2, 1), (2, 1)], won=True), [[-1.0], [-2.0]]),
        with_reference(episode([(2, 1)], seed=1), [[-1.0]]),
    )
    steps = [
        Pair(
            with_reference(episode([(2, 2), (2, 1)], seed=s, untrainable={0}, won=True), [[-1.0]]),
            with_reference(episode([(2, 2), (2, 1)], seed=s + 9, untrainable={0}), [[-1.0]]),
        )
        for s in (2, 3)
    ]
    return [whole, *steps]


LOGPROBS = torch.tensor([-0.5, -1.5, -0.8, -0.9, -1.2, -1.0, -1.1])
"""Chosen: 2 tokens, 1, 1; rejected: 1, 1, 1. Δ_w = 1.0, 0.2, 0.1; Δ_l = -0.2, 0.0, -0.1."""
DPO = [math.log(1 + math.exp(-0.5 * margin)) for margin in (1.2, 0.2, 0.2)]
NLL = [2.0, 0.8, 0.9]


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        # a mean over the one whole pair, and one over the two step pairs
        ("paper", DPO[0] + NLL[0] + (DPO[1] + DPO[2]) / 2),
        # one mean over all three, each imitated
        ("code", (sum(DPO) + sum(NLL)) / 3),
    ],
)
def test_loss_by_hand(tmp_path: Path, mix: Any, expected: float) -> None:
    trainer = ipr(tmp_path, loss_mix=mix, beta=0.5)
    items = trainer.items(hand_pairs())
    batch = collate([item[0] for item in items], [item[1] for item in items])
    loss, metrics = trainer.loss(LOGPROBS, batch)
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert metrics["dpo"].item() == pytest.approx(sum(DPO) / 3, abs=1e-6)
    assert metrics["nll"].item() == pytest.approx(sum(NLL) / 3, abs=1e-6)
    parts = [
        trainer.loss(LOGPROBS[at], collate([items[i][0]], [items[i][1]]))[0]
        for i, at in enumerate([torch.tensor([0, 1, 4]), torch.tensor([2, 5]), torch.tensor([3, 6])])
    ]
    assert sum(part.item() for part in parts) / 3 == pytest.approx(expected, abs=1e-6), "whatever the micro-batches"


def test_context_gets_no_gradient() -> None:
    """The sum covers the continuation only: what was given was not decided."""
    pair = hand_pairs()[1]
    batch = collate([Example.from_trajectory(pair.chosen)], [Example.from_trajectory(pair.rejected)])
    assert int(batch.loss_mask.sum()) == 2
    whole = as_continuation(episode([(2, 3), (2, 4), (1, 2)]), 2)
    (row,) = Example.from_trajectory(whole).rows
    assert row.loss_mask.tolist() == [False] * 12 + [True] * 2


def test_mean_outcome_leaves_failures_of_the_machinery_out() -> None:
    """Counted as 0, a simulator that crashes would make the expert's step look bad."""
    episodes = [episode([(2, 1)], won=won) for won in (True, False, True, True)]
    episodes[1].stop_reason, episodes[2].stop_reason = StopReason.ENV_ERROR, StopReason.ABORTED
    episodes[0].score = 0.5
    assert mean_outcome(episodes) == 0.75
    assert mean_outcome(episodes[1:3]) is None
    assert mean_outcome([]) is None


def build(trainer: IPRTrainer) -> tuple[list[Pair], Any]:
    trainer.begin()
    tasks = trainer.envs.manifest("train").take(trainer.args.num_tasks)
    return trainer.build(tasks, [t for t in demonstrations(trainer.policy) if t.task_id in tasks])


def continuations(folder: Path, name: str) -> dict[str, list[Trajectory]]:
    played: dict[str, list[Trajectory]] = {}
    for trajectory in read_trajectories(folder / "iteration-0" / f"{name}.jsonl"):
        played.setdefault(trajectory.metadata["prefix"], []).append(trajectory)
    return played


def test_pairs_are_steps_of_less_reward(tmp_path: Path) -> None:
    """Every pair is justified by the continuations in the log, and no explored episode is neither pair nor counted."""
    trainer = ipr(tmp_path, step_margin=0.4)
    pairs, dropped = build(trainer)
    experts = {t.task_id: t for t in demonstrations(trainer.policy)}
    own, theirs = continuations(tmp_path, "explored_continued"), continuations(tmp_path, "expert_continued")
    steps = [pair for pair in pairs if not pair.chosen.turns[0].trainable]
    whole = len(pairs) - len(steps)
    assert whole
    assert steps
    explored = sum(len(t.turns) - 1 for t in experts.values())
    assert len(steps) + dropped.total() == explored + len(experts) - whole
    for pair in steps:
        turn = pair.rejected.metadata["prefix_turns"]
        expert = experts[pair.chosen.task_id]
        assert [t.trainable for t in pair.chosen.turns] == [i >= turn for i in range(len(expert.turns))]
        assert [t.trainable for t in pair.rejected.turns] == [i >= turn for i in range(len(pair.rejected.turns))]
        assert (
            pair.rejected.sequences[0][: (expert.turns[turn - 1].span or (0, 0))[1]]
            == (expert.sequences[0][: (expert.turns[turn - 1].span or (0, 0))[1]])
        )
        rewards = []
        for side, played in ((pair.chosen, theirs), (pair.rejected, own)):
            ended = turn + 1 == len(side.turns)
            outcomes = [side.score] if ended else [t.score for t in played[Prefix(side, turn + 1).name]]
            assert ended or len(outcomes) == 2
            rewards.append(sum(outcomes) / len(outcomes))
        assert rewards[1] < rewards[0] - 0.4
        assert not pair.rejected.won
    recorded = json.loads((tmp_path / "step_rewards.json").read_text())
    assert set(recorded.values()) <= {0.0, 0.5, 1.0}


def test_slots_do_not_matter(tmp_path: Path) -> None:
    found = [
        [
            (p.chosen.sequences, p.rejected.sequences)
            for p in build(ipr(tmp_path / str(n), n_slots=n, num_tasks=2, num_continuations=1))[0]
        ]
        for n in (1, 7)
    ]
    assert found[0] == found[1]


def test_broken_steps_make_no_pair(tmp_path: Path) -> None:
    """An environment that fails on every second step of a task: neither side of a pair, nor a reward of 0."""
    envs = EnvArgs(env="Toy-v0", max_episode_steps=10, env_kwargs={"fail_on": "lamp-cellar-hall"})
    pairs, dropped = build(ipr(tmp_path, envs, temperature=0.7))
    assert dropped["env_error"] >= 6
    assert all(pair.chosen.task_id != "lamp-cellar-hall" for pair in pairs)


def test_limit_of_a_task(tmp_path: Path) -> None:
    pairs, dropped = build(ipr(tmp_path, max_pairs_per_task=1))
    assert len({pair.chosen.task_id for pair in pairs}) == len(pairs)
    assert dropped["over_task_limit"] > 0


@pytest.mark.parametrize("lora", [None, LoraArguments(r=4)], ids=["full", "lora"])
def test_scorer_and_reference_stay_the_sft_policy(tmp_path: Path, lora: LoraArguments | None) -> None:
    """In the second iteration, too, and the trained weights come back when it has played."""
    options: dict[str, Any] = {"num_iterations": 2, "max_steps": 2, "num_tasks": 2, "learning_rate": 3e-3}
    trainer = ipr(tmp_path, lora=lora, **options)
    trainer.train()
    assert trainer.state.iteration == 1
    policy = trainer.policy
    prefix = Prefix(demonstrations(policy)[0], 2)

    def play(policy: Any) -> list[list[int]]:
        policy.temperature = 0.0
        return rollout(policy, "Toy-v0", [prefix], env_kwargs=ENVS.options)[0].sequences

    trained, version = play(policy), policy.version
    with trainer._scorer():
        assert play(policy) == play(student())
    assert play(policy) == trained
    assert policy.version == version
    with torch.no_grad():
        after = torch.cat([p.flatten() for p in policy.model.parameters()])
    assert after.isfinite().all()


def test_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """Killed while it explored, while it played on, and while it learnt, in both iterations."""
    options: dict[str, Any] = {"num_iterations": 2, "max_steps": 2, "save_steps": 1, "num_tasks": 2}
    whole = ipr(tmp_path / "whole", **options)
    whole.train()

    class Stop(Exception):
        pass

    def stop_when(name: str) -> Any:
        def stop(event: Any) -> None:
            if (tmp_path / "killed" / name).exists():
                raise Stop

        return stop

    places = [
        *(f"iteration-0/{name}.jsonl" for name in ("sampled", "explored", "explored_continued")),
        "checkpoint-1",
        "iteration-1/explored_continued.jsonl",
        "checkpoint-3",
    ]
    for place in places:
        killed = ipr(tmp_path / "killed", **options)
        if list((tmp_path / "killed").glob("checkpoint-*")):
            killed.resume()
        killed.on_rollout = killed.on_log = stop_when(place)
        with pytest.raises(Stop):
            killed.train()
    killed = ipr(tmp_path / "killed", **options)
    killed.resume()
    killed.train()
    for one, other in zip(whole.policy.model.parameters(), killed.policy.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert read_pairs(tmp_path / "killed" / "iteration-1" / "pairs")


def test_learns_the_expert_and_unlearns_the_failures(tmp_path: Path) -> None:
    trainer = ipr(tmp_path, num_tasks=3, max_steps=12)
    lines: list[Any] = []
    trainer.on_log = lines.append
    trainer.train()
    first, *_, last = [line for line in lines if "loss" in line]
    assert first["dpo"] == pytest.approx(math.log(2), abs=1e-4)
    assert last["dpo"] < first["dpo"]
    assert last["nll"] < first["nll"]
    assert last["accuracy"] == 1.0


def test_an_expert_that_begins_with_a_mistake_makes_whole_pairs() -> None:
    """What tells whole episodes from continuations is the policy's side: the expert's first turn may be a mistake."""
    chosen = episode([(3, 2), (2, 3)], won=True, untrainable={0})
    whole, continuation = episode([(3, 2), (2, 2)], seed=1), episode([(3, 2), (2, 2)], seed=2, untrainable={0})
    batch = collate(*([Example.from_trajectory(t) for t in side] for side in ([chosen, chosen], [whole, continuation])))
    batch = replace(batch, ref_logprobs=torch.zeros_like(batch.input_ids, dtype=torch.float32))
    logprobs = torch.full((int(batch.loss_mask.sum()),), -1.0)
    loss, _ = ipr_loss(logprobs, batch, IPRArguments(loss_mix="paper", beta=1.0))
    # DPO: margins -3 + 4 and -3 + 2; SFT: the three tokens of the one whole pair
    dpo = (math.log1p(math.exp(-1)) + math.log1p(math.exp(1))) / 2
    assert loss.item() == pytest.approx(dpo + 3 / 2)
