"""Chain of hindsight: both episodes of a pair are learnt, each after its marker, and the good marker is played with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym_tlm.batch import Example
from agentgym_tlm.decorations import HINDSIGHT_MARKERS
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.pairs import Pair, read_pairs
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.prompt import format_to_dict
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.coh import CoHArguments, CoHTrainer, hindsight
from agentgym_tlm.trajectory import Trajectory
from tests import toy_env
from tests.toy_env import expert_trajectories

BAD, GOOD = HINDSIGHT_MARKERS


def trainer_in(folder: Path, **options: Any) -> CoHTrainer:
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
    args = CoHArguments(output_dir=str(folder), **{**defaults, **options})
    return CoHTrainer(policy, EnvArgs(env="Toy-v0", max_episode_steps=3), args)


def some_pair(policy: LanguageModelPolicy, chosen: int = 0, rejected: int = 1) -> Pair:
    """Two episodes of the same task."""
    first, second = (policy.renderer.encode_trajectory(expert_trajectories()[i]) for i in (chosen, rejected))
    assert first.task_id == second.task_id
    return Pair(first, second)


def sequences(policy: LanguageModelPolicy, pairs: list[Pair], mix: Any, limit: int = 4096) -> tuple[Any, Any]:
    good, bad = (policy.renderer.decorated(suffix=text) for text in (GOOD, BAD))
    return hindsight(pairs, good, bad, mix, limit)


def weights(trainer: CoHTrainer) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in trainer.policy.model.parameters()])


@pytest.mark.parametrize(("kind", "markers"), [("p", [GOOD]), ("n", [BAD]), ("np", [BAD, GOOD]), ("pn", [GOOD, BAD])])
def test_sequences_are_what_a_conversation_would_be(kind: str, markers: list[str]) -> None:
    """Bit for bit the chat template's ids of the episodes one after the other, with every response a target."""
    policy = toy_env.tiny_policy()
    pair = some_pair(policy)
    made, counts = sequences(policy, [pair], [kind])
    assert counts == {kind: 1}
    (sequence,) = made
    order = [pair.chosen if marker == GOOD else pair.rejected for marker in markers]
    messages = []
    for trajectory, marker in zip(order, markers, strict=True):
        for i, turn in enumerate(trajectory.turns):
            text = f"{turn.observation}\n\n{marker}" if i == 0 else turn.observation
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": turn.response}]
    assert sequence.sequences == [policy.tokenizer.apply_chat_template(messages, return_dict=False)]
    responses = [trajectory.response_ids(turn) for trajectory in order for turn in trajectory.turns]
    assert [sequence.response_ids(turn) for turn in sequence.turns] == responses
    example = Example.from_trajectory(sequence)
    assert example.loss_tokens == sum(
        len(t.response_ids(turn)) for t in order for turn in t.turns if turn.trainable
    )  # and no token of a prompt, an observation or a marker


def test_shared_episodes_and_long_sequences_are_counted() -> None:
    """An expert's win that beats three failures is one p; what does not fit is left out, not cut."""
    policy = toy_env.tiny_policy()
    pairs = [some_pair(policy, 0, other) for other in (1, 2, 3)]
    made, counts = sequences(policy, pairs, ["p", "n", "np"])
    assert (counts["p"], counts["n"], counts["np"]) == (1, 3, 3)
    limit = max(len(t.sequences[0]) for t in made[:2])
    made, counts = sequences(policy, pairs[:1], ["p", "n", "np"], limit)
    assert len(made) == 2
    assert counts == {"p": 1, "n": 1, "dropped_np": 1}


def test_no_sequence_that_fits_is_an_error(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    trainer.policy.max_context = 20
    with pytest.raises(ConfigError, match="max_context of 20 tokens"):
        trainer.train_pairs([some_pair(trainer.policy)])


def test_loss_is_the_mean_over_the_tokens_of_both_episodes(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, mix=("np",), max_steps=1)
    pair = some_pair(trainer.policy)
    (sequence,), _ = sequences(trainer.policy, [pair], ["np"])
    ids = torch.tensor(sequence.sequences)
    with torch.no_grad():
        logprobs = trainer.policy.model(input_ids=ids).logits[0].log_softmax(-1)
    targets = [
        (position - 1, int(ids[0, position]))
        for turn in sequence.turns
        if turn.trainable
        for position in range(*turn.span)
    ]
    expected = -sum(float(logprobs[at, token]) for at, token in targets) / len(targets)
    lines: list[dict[str, float]] = []
    trainer.on_log = lambda line: lines.append(dict(line))
    trainer.train_pairs([pair])
    assert lines[-1]["loss"] == pytest.approx(expected, rel=1e-5)


def test_plays_with_the_positive_marker_afterwards(tmp_path: Path) -> None:
    """And samples without, as long as the policy has not learnt it; later rounds sample with it."""
    trainer = trainer_in(tmp_path, num_iterations=2)
    trainer.train()
    assert format_to_dict(LanguageModelPolicy.load(trainer.save(), device="cpu").format)["suffix"] == GOOD
    for iteration, expected in ((0, False), (1, True)):
        for pair in read_pairs(tmp_path / f"iteration-{iteration}" / "pairs"):
            for side, marked in ((pair.rejected, expected), (pair.chosen, expected)):
                assert (GOOD in prompt(trainer.policy, side)) == marked
                assert side.turns[0].ref_logprobs is None  # there is no reference to pay for


def prompt(policy: LanguageModelPolicy, trajectory: Trajectory) -> str:
    assert trajectory.turns[0].span is not None
    text = policy.tokenizer.decode(trajectory.sequences[0][: trajectory.turns[0].span[0]])
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("step", [1, 2, 3])
def test_resumed_run_ends_with_the_same_weights(tmp_path: Path, step: int) -> None:
    """In either round, and between them."""
    whole = trainer_in(tmp_path, num_iterations=2, save_total_limit=None)
    whole.train()
    resumed = trainer_in(tmp_path, num_iterations=2, save_total_limit=None)
    resumed.resume(tmp_path / f"checkpoint-{step}")
    resumed.train()
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.policy.format == whole.policy.format


def test_adapters(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, lora=LoraArguments(r=2), learning_rate=1e-2)
    trainer.train()
    assert format_to_dict(LanguageModelPolicy.load(trainer.save(), device="cpu").format)["suffix"] == GOOD


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": ()}, "mix must name at least one kind"),
        ({"mix": ("p", "p")}, "each once"),
        ({"positive_marker": " "}, "positive_marker"),
        ({"negative_marker": GOOD}, "same as negative_marker"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CoHArguments(**options)


def test_own_markers_are_learnt(tmp_path: Path) -> None:
    """Whoever words them otherwise must not get a policy that cannot tell them apart."""
    trainer = trainer_in(tmp_path, positive_marker="Bravo:")
    assert trainer.policy.tokenizer.unk_token_id not in trainer.policy.tokenizer("Bravo:")["input_ids"]
