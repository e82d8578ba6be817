"""NAT: failures are learnt from without being imitated, because the prompt says what they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym_tlm.decorations import FOUR_CLASSES, TWO_CLASSES
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import build_tokenizer
from agentgym_tlm.prompt import format_to_dict
from agentgym_tlm.renderer import Renderer
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.base import Item
from agentgym_tlm.trainers.nat import NATArguments, NATTrainer, quality_class
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from agentgym_tlm.trajectory import StopReason, Trajectory, read_trajectories
from tests import toy_env
from tests.toy_env import expert_trajectories
from tests.trainers.toys import tiny_policy


def trainer_in(folder: Path, **options: Any) -> NATTrainer:
    defaults = {
        "learning_rate": 1e-3,
        "max_steps": 2,
        "num_tasks": 2,
        "samples_per_task": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "save_steps": 1,
        "logging_steps": 1,
    }
    policy = toy_env.tiny_policy(max_new_tokens=4, temperature=0.0)
    args = NATArguments(output_dir=str(folder), **{**defaults, **options})
    return NATTrainer(policy, EnvArgs(env="Toy-v0", max_episode_steps=3), args)


def encoded(trainer: NATTrainer, count: int, **changes: Any) -> list[Trajectory]:
    made = [trainer.policy.renderer.encode_trajectory(t) for t in expert_trajectories()[:count]]
    for trajectory in made:
        for name, value in changes.items():
            setattr(trajectory, name, value)
    return made


def weights(trainer: NATTrainer) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in trainer.policy.model.parameters()])


def seen_by(trainer: NATTrainer) -> list[str]:
    """The texts that the trainer would learn from, in the order in which it was given them."""
    seen: list[str] = []

    def fit(items: Sequence[Item]) -> None:
        for (example,) in items:
            seen.append(str(trainer.policy.tokenizer.decode(example.rows[0].input_ids.tolist())))

    trainer.fit = fit  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize(
    ("score", "index"), [(0.0, 0), (0.01, 1), (0.39, 1), (0.4, 2), (2 / 3, 2), (0.999, 2), (1.0, 3)]
)
def test_four_classes_by_f1(score: float, index: int) -> None:
    """The paper's borders: 0, 0.4 and 1."""
    assert quality_class(score) == index


def test_every_episode_says_what_it_is(tmp_path: Path) -> None:
    """A failure that is introduced as a success teaches failing."""
    trainer = trainer_in(tmp_path)
    seen = seen_by(trainer)
    won, lost = encoded(trainer, 2, won=True), encoded(trainer, 2, won=False, stop_reason=StopReason.MAX_STEPS)
    trainer.train_trajectories([*won, *lost])
    assert len(seen) == 4
    assert [text.partition("\n\n")[0] for text in seen] == [f"<|user|>[{x}orrect]" for x in ("C", "C", "Inc", "Inc")]


def test_prefix_says_the_score(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, decoration="four-class")
    seen = seen_by(trainer)
    given = encoded(trainer, 4)
    for trajectory, score in zip(given, (0.0, 0.2, 0.5, 1.0), strict=True):
        trajectory.score = score
    trainer.train_trajectories(given)
    assert [text.partition("\n\n")[0] for text in seen] == [f"<|user|>{prefix}" for prefix in FOUR_CLASSES]


def test_default_is_four_class_on_hotpotqa_alone(tmp_path: Path) -> None:
    """Where the score is the F1 that the classes were made for."""
    assert trainer_in(tmp_path).decoration == "two-class"
    hotpot = NATTrainer(
        toy_env.tiny_policy(), EnvArgs(env="HotpotQA-v0"), NATArguments(output_dir=str(tmp_path / "hotpot"))
    )
    assert hotpot.decoration == "four-class"


def test_nut_is_sft_on_all_episodes(tmp_path: Path) -> None:
    """Without decoration the very same weights come out: nothing but the prompt makes the difference."""
    options: dict[str, Any] = {"learning_rate": 1e-3, "per_device_train_batch_size": 4, "max_steps": 2}
    nut = trainer_in(tmp_path / "nut", decoration="undecorated", num_train_epochs=3.0, **options)
    given = encoded(nut, 6)
    for trajectory in given[::2]:
        trajectory.won = False
    sft = SFTTrainer(
        toy_env.tiny_policy(max_new_tokens=4), EnvArgs(), SFTArguments(output_dir=str(tmp_path / "sft"), **options)
    )
    sft.train_trajectories(given)
    nut.train_trajectories(given)
    expected = torch.cat([parameter.flatten() for parameter in sft.policy.model.parameters()])
    assert torch.equal(weights(nut), expected)


def test_saved_policy_asks_for_success(tmp_path: Path) -> None:
    """eval, rollout and the experiment load the policy and know nothing of NAT."""
    trainer = trainer_in(tmp_path, eval_steps=1)
    prompts: list[str] = []

    def evaluate(policy: LanguageModelPolicy) -> dict[str, float]:
        (played,) = rollout(policy, "Toy-v0", ["lamp-hall-study"], max_turns=1)
        prompts.append(played_prompt(policy, played))
        return {}

    trainer._evaluate = evaluate
    trainer.train()
    evaluate(LanguageModelPolicy.load(trainer.save(), device="cpu"))
    assert len(prompts) == 2  # while training, and as it was saved
    assert all(prompt.startswith("<|user|>[Correct]\n\nYou are in the hall.") for prompt in prompts)


def played_prompt(policy: LanguageModelPolicy, trajectory: Trajectory) -> str:
    assert trajectory.turns[0].span is not None
    text = policy.tokenizer.decode(trajectory.sequences[0][: trajectory.turns[0].span[0]])
    assert isinstance(text, str)
    return text


def test_samples_come_from_the_undecorated_policy(tmp_path: Path) -> None:
    """The SFT policy has never seen the decoration: with it, its episodes would be worse than it is."""
    trainer = trainer_in(tmp_path)
    trainer.train()
    for trajectory in read_trajectories(tmp_path / "sampled.jsonl"):
        assert not any(text in played_prompt(trainer.policy, trajectory) for text in TWO_CLASSES)


def test_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole = trainer_in(tmp_path)
    whole.train()
    resumed = trainer_in(tmp_path)
    resumed.resume(tmp_path / "checkpoint-1")
    resumed.train()
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.policy.format == whole.policy.format


def test_adapters(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, lora=LoraArguments(r=2), learning_rate=1e-2)
    trainer.train()
    assert format_to_dict(LanguageModelPolicy.load(trainer.save(), device="cpu").format)["prefix"] == TWO_CLASSES[1]


def test_what_cannot_be_learnt_from_is_left_out_and_counted(tmp_path: Path) -> None:
    """An infrastructure failure is nobody's failure: as a negative it would be an invented one."""
    lines: list[dict[str, float]] = []
    trainer = trainer_in(tmp_path, max_repeats=2)
    trainer.on_log = lambda line: lines.append(dict(line))
    seen = seen_by(trainer)
    good = encoded(trainer, 3)
    broken = encoded(trainer, 1, stop_reason=StopReason.ENV_ERROR, won=False)
    stuck = encoded(trainer, 1, won=False)
    for turn in stuck[0].turns:
        turn.action = "look"
    lengths = sorted(len(t.sequences[0]) for t in good)
    trainer.policy.max_context = lengths[-1] + 4  # the decoration has 5
    trainer.train_trajectories([*good, *broken, *stuck])
    assert len(seen) == 2 == lines[0]["positives"]
    assert (lines[0]["dropped_env_error"], lines[0]["dropped_repetitive"], lines[0]["dropped_beyond_context"]) == (
        1,
        1,
        1,
    )
    with pytest.raises(ConfigError, match=r"no episode to learn from: .*env_error"):
        trainer_in(tmp_path / "none").train_trajectories(broken)


def test_words_that_the_tokenizer_does_not_know_are_an_error(tmp_path: Path) -> None:
    """Two decorations of unknown words are the same ids: the policy would learn to fail."""
    renderer = Renderer(build_tokenizer(["nothing"]), trainer_in(tmp_path).policy.format)
    with pytest.raises(ConfigError, match=r"does not know all words of '\[Correct\]'"):
        renderer.decorated(prefix=TWO_CLASSES[1])


def test_tiny_policy_learns_the_words_first(tmp_path: Path) -> None:
    """The SFT policy that all trainers begin with was made without them; what it could do it still does."""
    policy = tiny_policy()
    ids = policy.renderer.first_prompt("worda", "wordb")
    with torch.no_grad():
        before = policy.model(torch.tensor([ids])).logits
    known = len(policy.tokenizer)
    NATTrainer(policy, EnvArgs(), NATArguments(output_dir=str(tmp_path)))
    assert len(policy.tokenizer) == policy.model.config.vocab_size > known
    assert policy.renderer.first_prompt("worda", "wordb") == ids
    with torch.no_grad():
        torch.testing.assert_close(policy.model(torch.tensor([ids])).logits[..., :known], before)
    policy.save(tmp_path / "policy")
    again = LanguageModelPolicy.load(tmp_path / "policy")
    one, other = (again.renderer.decorated(prefix=prefix).first_prompt("worda", "wordb") for prefix in TWO_CLASSES)
    assert one != other
