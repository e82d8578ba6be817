"""What online methods share: whose failures count, whose log-probs are learnt from, and that playing gets better."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from agentgym_tlm.batch import collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.envs.base import Info
from agentgym_tlm.envs.registration import register
from agentgym_tlm.errors import ConfigError, EnvironmentFailureError
from agentgym_tlm.logprobs import token_logprobs
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import TINY_FORMAT, build_tiny, tokenizer_texts
from agentgym_tlm.prompt import TagsFormat
from agentgym_tlm.rollout import RolloutProgress, rollout
from agentgym_tlm.trainers.grpo import GRPOArguments, GRPOTrainer
from agentgym_tlm.trainers.methods import METHODS
from agentgym_tlm.trainers.online import ROLLOUT_KL_ALARM, OnlineTrainer
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from agentgym_tlm.trajectory import StopReason, Trajectory, read_trajectories
from tests.trainers.crossing import ENVS, Crossing, sft_folder, sft_policy


class Flaky(Crossing):
    """Breaks down at the bridge in the third episode that it plays."""

    _episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        self._episodes += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._episodes == 3 and self._play.steps == 1:
            raise EnvironmentFailureError("the bridge is closed")
        return super().step(action)


class Closed(Crossing):
    """Breaks down in every episode until it is opened."""

    opened: ClassVar[bool] = False

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if not Closed.opened:
            raise EnvironmentFailureError("the bridge is closed")
        return super().step(action)


register("Closed-v0", "tests.trainers.test_online:Closed", max_episode_steps=4)
register("Flaky-v0", "tests.trainers.test_online:Flaky", max_episode_steps=4)


@pytest.fixture(scope="module")
def crossing() -> Path:
    """A policy that wins some of the tasks of ``Crossing-v0``."""
    return sft_folder()


def grpo(policy: Path, folder: Path, envs: EnvArgs = ENVS, **options: Any) -> GRPOTrainer:
    defaults = {
        "learning_rate": 1e-3,
        "num_tasks": 8,
        "samples_per_task": 6,
        "per_device_train_batch_size": 48,
        "gradient_accumulation_steps": 1,
        "num_iterations": 1,
        "n_slots": 12,
        "logging_steps": 1,
        "save_steps": None,
    }
    args = GRPOArguments(output_dir=str(folder), **{**defaults, **options})
    return GRPOTrainer(LanguageModelPolicy.load(policy, device="cpu"), envs, args)


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_failures_of_the_environment_are_nobodys(crossing: Path, tmp_path: Path) -> None:
    """An episode whose environment broke down is no reward of 0: its group is smaller, it is counted, the run goes on.

    Advantages are those among the others, computed here from the log of what was played.
    """
    trainer = grpo(crossing, tmp_path, EnvArgs(env="Flaky-v0"), num_iterations=2)
    trainer.train()
    for iteration in range(2):
        folder = tmp_path / f"iteration-{iteration}"
        sampled, kept = (list(read_trajectories(folder / f"{name}.jsonl")) for name in ("sampled", "episodes"))
        broken = [episode for episode in sampled if episode.stop_reason is StopReason.ENV_ERROR]
        assert len(sampled) == 48
        assert len(kept) == 48 - len(broken) < 48
        assert all(episode.turns for episode in broken), "they look like failures that earned nothing"
        assert len(set(Counter(episode.group_id for episode in kept).values())) > 1, "groups are ragged"
        (dropped,) = (
            line for line in lines(tmp_path) if "dropped_env_error" in line and line["iteration"] == iteration
        )
        (summary,) = (line for line in lines(tmp_path) if "success" in line and line["iteration"] == iteration)
        assert dropped["dropped_env_error"] == len(broken)
        assert summary["episodes"] == len(kept)
        assert summary["success"] == pytest.approx(sum(episode.won for episode in kept) / len(kept))
        scores = defaultdict(list)
        for episode in kept:
            scores[episode.task_id].append(10 * episode.won - sum(costs(episode)))
        for episode, example in zip(kept, trainer.examples(kept), strict=True):
            group = scores[episode.task_id]
            own = 10 * episode.won - sum(costs(episode))
            expected = (own - np.mean(group)) / (np.std(group, ddof=1) + 1e-6) if max(group) > min(group) else 0.0
            np.testing.assert_allclose(example.flat("advantages"), expected, rtol=1e-5)


def test_attempt_that_is_begun_again_logs_what_was_left_out(crossing: Path, tmp_path: Path) -> None:
    """Killed before its first checkpoint, it finds its episodes played already: the counts are not forgotten."""
    found = []
    for _ in range(2):
        grpo(crossing, tmp_path, EnvArgs(env="Flaky-v0"), max_steps=1).train()
        found.append([line for line in lines(tmp_path) if "tokens_per_second" not in line])
    assert found[0][0]["dropped_env_error"] > 0
    assert found[0] == found[1]


def test_killed_while_it_samples_it_comes_to_the_same_weights(crossing: Path, tmp_path: Path) -> None:
    """To the last bit: episodes that were sampled in other company have log-probs that differ in theirs."""
    weights = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        if name == "killed":
            trainer = grpo(crossing, folder, n_slots=5)

            def kill(progress: RolloutProgress) -> None:
                if progress.episodes > 20:
                    raise KeyboardInterrupt

            trainer.on_rollout = kill
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
            assert 20 < len(list(read_trajectories(folder / "iteration-0" / "sampled.jsonl"))) < 48
        trainer = grpo(crossing, folder, n_slots=5)
        trainer.train()
        weights.append(trainer.policy.model.state_dict())
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())


def test_evaluation_may_be_due_where_an_iteration_ends(crossing: Path, tmp_path: Path) -> None:
    """As with all default options: an iteration has 8 updates, and every 8, 16 or 40 of them is the end of one."""
    trainer = grpo(crossing, tmp_path, num_iterations=3, max_steps=2, eval_steps=2, save_steps=2)
    trainer._evaluate = lambda policy: {"updates": float(policy.version.rpartition("+")[2])}
    trainer.train()
    found = [(line["step"], line["eval_updates"]) for line in lines(tmp_path) if "eval_updates" in line]
    assert found == [(2, 2.0), (4, 4.0)], "what follows the last update is the caller's"


def test_training_that_made_no_update_says_so(crossing: Path, tmp_path: Path) -> None:
    """All episodes fail alike, and are left out: what is saved is the policy that was given."""
    trainer = grpo(crossing, tmp_path, ENVS, num_iterations=2, drop_degenerate=True, invalid_action_penalty=0.0)
    trainer.policy.max_context = 50  # one turn
    with pytest.warns(UserWarning, match="no update was made in 2 iterations"):
        trainer.train()
    assert [line["groups_degenerate"] for line in lines(tmp_path)] == [8, 8]


def test_nothing_to_learn_from_is_an_error(crossing: Path, tmp_path: Path) -> None:
    trainer = grpo(crossing, tmp_path)
    trainer.policy.max_context = 4  # not even a prompt fits
    with pytest.raises(ConfigError, match="none of 48 sampled episodes can be learnt from: 48 no_tokens"):
        trainer.train()


def test_world_that_is_down_is_named_and_played_again(
    crossing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What broke is said at once, and the same command goes on when it is mended."""
    envs = EnvArgs(env="Closed-v0")
    with pytest.raises(ConfigError, match=r"48 env_error\. The first error: the bridge is closed"):
        grpo(crossing, tmp_path, envs, max_steps=1).train()
    monkeypatch.setattr(Closed, "opened", True)
    grpo(crossing, tmp_path, envs, max_steps=1).train()
    (summary,) = (line for line in lines(tmp_path) if "success" in line)
    assert summary["episodes"] == 48
    assert not any("dropped_env_error" in line for line in lines(tmp_path)), "they were no loss in the end"


def test_truncated_distributions_are_refused(crossing: Path, tmp_path: Path) -> None:
    """Log-probs of the nucleus are not those of the policy that is trained."""
    policy = LanguageModelPolicy.load(crossing, device="cpu")
    policy.top_p = 0.9
    with pytest.raises(ConfigError, match=r"top_p=0\.9"):
        GRPOTrainer(policy, ENVS, GRPOArguments(output_dir=str(tmp_path)))


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_alarm_is_silent_when_the_policy_plays_that_is_trained(precision: Any, crossing: Path, tmp_path: Path) -> None:
    trainer = grpo(crossing, tmp_path, mixed_precision=precision, num_iterations=2, max_steps=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the trainer's log-probs")
        trainer.train()
    found = [line["rollout_kl"] for line in lines(tmp_path) if "rollout_kl" in line]
    assert len(found) == 2, "once an iteration"
    assert max(map(abs, found)) < (1e-6 if precision == "no" else ROLLOUT_KL_ALARM / 10)
    assert precision == "no" or min(found) > 1e-7


def test_alarm_goes_off_when_another_policy_played(crossing: Path, tmp_path: Path) -> None:
    """Weights that did not reach the rollout: on-policy learning would quietly not be that."""
    trainer = grpo(crossing, tmp_path, max_steps=1)
    trainer.begin()
    items = trainer.collect()
    disturb(trainer.policy.model, 0.05)
    with pytest.warns(UserWarning, match="the policy that plays is not the one that is trained"):
        trainer.fit(items)
    (divergence,) = (line["rollout_kl"] for line in lines(tmp_path) if "rollout_kl" in line)
    assert divergence > ROLLOUT_KL_ALARM


def disturb(model: Any, size: float) -> None:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn_like(parameter)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_log_probs_are_those_of_the_sampling_temperature(temperature: float, crossing: Path, tmp_path: Path) -> None:
    """Of the rollout, of the trainer and, before training, of the reference, to float32 tolerance."""
    trainer = grpo(crossing, tmp_path, temperature=temperature, num_tasks=4, samples_per_task=3)
    trainer.begin()
    batch = collate([example for (example,) in trainer.collect()])
    with torch.no_grad():
        found = trainer.module(trainer.policy.model)(batch.input_ids, batch.loss_mask, batch.groups)
        plain = token_logprobs(trainer.policy.model, batch)
    torch.testing.assert_close(found, batch.flat(batch.old_logprobs), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, batch.flat(batch.ref_logprobs), rtol=1e-4, atol=1e-5)
    assert torch.allclose(found, plain, atol=1e-3) == (temperature == 1)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that wins some of the tasks of ``Crossing-v0`` with a prompt for every turn."""
    folder = tmp_path_factory.mktemp("windowed")
    policy = sft_policy(folder, TagsFormat(instructions=""), epochs=15)
    policy.max_new_tokens = 24  # both tags are longer than what Thought and Action take
    policy.save(folder / "policy")
    return folder / "policy"


def costs(episode: Trajectory) -> list[float]:
    """Of every turn: 0.1 for a response that breaks the prompt format."""
    return [0.1 * (turn.action is None or not turn.well_formed) for turn in episode.turns]


def gigpo_advantages(group: list[Trajectory]) -> list[list[float]]:
    """As released, by the book: over all turns of the group, and over those with the same observation; γ = 0.95."""

    def standardised(value: float, values: list[float]) -> float:
        if len(values) < 2 or max(values) == min(values):
            return 0.0
        return (value - float(np.mean(values))) / (float(np.std(values, ddof=1)) + 1e-6)

    scores, returns = [], []
    for episode in group:
        rewards = [10 * turn.reward for turn in episode.turns]
        paid = costs(episode)
        scores.append([sum(rewards) - cost for cost in paid])
        returns.append(
            [sum(0.95 ** (k - t) * rewards[k] for k in range(t, len(rewards))) - paid[t] for t in range(len(rewards))]
        )
    states = defaultdict(list)
    for episode, values in zip(group, returns, strict=True):
        for turn, value in zip(episode.turns, values, strict=True):
            states[turn.observation].append(value)
    everything = [score for each in scores for score in each]
    return [
        [standardised(s, everything) + standardised(r, states[t.observation]) for t, s, r in zip(*each, strict=True)]
        for each in zip([episode.turns for episode in group], scores, returns, strict=True)
    ]


def grpo_advantages(group: list[Trajectory]) -> list[list[float]]:
    scores = [10 * episode.won - sum(costs(episode)) for episode in group]
    std = float(np.std(scores, ddof=1))
    return [
        [(score - float(np.mean(scores))) / (std + 1e-6) if std else 0.0] * len(episode.turns)
        for score, episode in zip(scores, group, strict=True)
    ]


@pytest.mark.filterwarnings("ignore:the trainer.s log-probs differ")
@pytest.mark.parametrize(("name", "by_hand"), [("grpo", grpo_advantages), ("gigpo", gigpo_advantages)])
def test_windowed_episodes(name: str, by_hand: Any, windowed: Path, tmp_path: Path) -> None:
    """The loss of an update is the one computed from the episodes' own sequences, turn by turn, one plain forward each.

    The weights are disturbed after sampling, so that ratios are not 1 and the clips are at work.
    """
    kind = METHODS[name]
    options: dict[str, Any] = {
        "output_dir": str(tmp_path),
        "num_tasks": 6,
        "samples_per_task": 5,
        "per_device_train_batch_size": 30,
        "gradient_accumulation_steps": 1,
        "max_steps": 1,
        "num_iterations": 1,
        "n_slots": 30,
        "beta": 0.2,
        "save_steps": None,
        "logging_steps": 1,
    }
    trainer = kind.trainer(LanguageModelPolicy.load(windowed, device="cpu"), ENVS, kind.arguments(**options))
    assert isinstance(trainer, OnlineTrainer)
    trainer.begin()
    items = trainer.collect()
    disturb(trainer.policy.model, 0.02)
    episodes = list(read_trajectories(tmp_path / "iteration-0" / "episodes.jsonl"))
    assert all(len(episode.sequences) == len(episode.turns) for episode in episodes)
    groups: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        groups.setdefault(episode.group_id, []).append(episode)
    of_episodes: list[list[float]] = []
    for group in groups.values():
        for episode, advantages in zip(group, by_hand(group), strict=True):
            losses: list[float] = []
            for turn, advantage in zip(episode.turns, advantages, strict=True):
                for new, old, ref in zip(
                    logprobs_of(trainer.policy.model, episode, turn),
                    turn.logprobs or [],
                    turn.ref_logprobs or [],
                    strict=True,
                ):
                    ratio = math.exp(new - old)
                    objective = min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
                    objective = max(objective, 3 * advantage) if advantage < 0 else objective
                    losses.append(-objective + 0.2 * (math.exp(ref - new) - (ref - new) - 1))
            of_episodes.append(losses)
    tokens = [loss for losses in of_episodes for loss in losses]
    expected = float(np.mean([np.mean(losses) for losses in of_episodes]) if name == "grpo" else np.mean(tokens))
    trainer.fit(items)
    (line,) = (line for line in lines(tmp_path) if "loss" in line)
    assert line["clip_fraction"] > 0.01
    assert 0 < sum(episode.won for episode in episodes) < len(episodes)
    assert line["loss"] == pytest.approx(expected, rel=1e-3, abs=1e-5)


def logprobs_of(model: Any, episode: Trajectory, turn: Any) -> list[float]:
    ids = torch.tensor(episode.sequences[turn.sequence])
    start, end = turn.span
    with torch.no_grad():
        logprobs = model(ids[None]).logits[0].log_softmax(-1)
    found: list[float] = logprobs[start - 1 : end - 1].gather(-1, ids[start:end, None])[:, 0].tolist()
    return found


ALFWORLD = EnvArgs(
    env="ALFWorld-v0",
    data_dir="embedded",
    max_episode_steps=6,
    env_kwargs={"task_types": ["look_at_obj_in_light"], "num_games": 24},
)
"""Five games that four commands can win."""


@pytest.fixture(scope="module")
def sloppy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """An SFT policy of ALFWorld, and what it reaches: its expert errs in 40% of his turns, and thinks of nothing."""
    folder = tmp_path_factory.mktemp("sloppy")
    options = {**ALFWORLD.options, "max_episode_steps": 30}
    played = rollout(ExpertPolicy(noise=0.4), "ALFWorld-v0", env_kwargs=options, samples_per_task=4)
    for episode in played:
        for turn in episode.turns:
            turn.response, turn.trainable = TINY_FORMAT.compose("", turn.action or ""), True
    policy = build_tiny(tokenizer_texts(played), hidden_size=64, layers=2, max_context=512, max_new_tokens=16)
    args = SFTArguments(output_dir=str(folder), learning_rate=1e-2, num_train_epochs=20, save_steps=None)
    encoded = [policy.renderer.encode_trajectory(episode) for episode in played]
    SFTTrainer(policy, ALFWORLD, args).train_trajectories(encoded)
    policy.save(folder / "policy")
    before = success(policy)
    assert 0.2 < before < 0.45
    return folder / "policy", before


def success(policy: LanguageModelPolicy) -> float:
    """Share of 80 sampled episodes of the training games that are won."""
    policy.temperature = 1.0
    played = rollout(policy, "ALFWorld-v0", env_kwargs=ALFWORLD.options, samples_per_task=16, n_slots=80, seed=99)
    return sum(episode.won for episode in played) / len(played)


@pytest.mark.parametrize(
    ("name", "options"), [("grpo", {}), ("rloo", {}), ("gigpo", {}), ("ppo", {"credit": "turn", "vf_coef": 0.5})]
)
def test_playing_alfworld_gets_better(
    name: str, options: dict[str, Any], sloppy: tuple[Path, float], tmp_path: Path
) -> None:
    """From a third of the episodes to more than half, in eight iterations of 40 episodes and two updates."""
    path, before = sloppy
    policy = LanguageModelPolicy.load(path, device="cpu")
    chosen: dict[str, Any] = dict(
        output_dir=str(tmp_path),
        learning_rate=1e-3,
        per_device_train_batch_size=20,
        gradient_accumulation_steps=1,
        max_steps=2,
        num_iterations=8,
        samples_per_task=8,
        penalized="refused",
        save_steps=None,
        **options,
    )
    METHODS[name].trainer(policy, ALFWORLD, METHODS[name].arguments(**chosen)).train()
    assert success(policy) > before + 0.15
