"""A windowed prompt format from end to end: one sequence per turn, and every part that must know about it."""

from __future__ import annotations

import copy
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from agentgym_tlm.batch import Example, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError, TemplateError, TrajectoryError
from agentgym_tlm.formats import sft_rows, to_messages
from agentgym_tlm.logprobs import token_logprobs
from agentgym_tlm.pairs import Pair, score_reference
from agentgym_tlm.policies.base import Conversation
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import build_tiny, tokenizer_texts
from agentgym_tlm.prefix import Prefix
from agentgym_tlm.prompt import ReactFormat, Situation, TagsFormat
from agentgym_tlm.renderer import CHATML, Renderer
from agentgym_tlm.rollout import logged_rollout, rollout
from agentgym_tlm.trainers.coh import CoHArguments, CoHTrainer
from agentgym_tlm.trainers.dpo import dpo_loss
from agentgym_tlm.trainers.nat import NATArguments, NATTrainer
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer, sft_loss
from agentgym_tlm.trainers.stepagent import StepAgentArguments, StepAgentTrainer
from agentgym_tlm.trainers.tlm_dre import TLMDREArguments, TLMDRETrainer, tlm_dre_loss
from agentgym_tlm.trajectory import FinishReason, StopReason, Trajectory, read_trajectories, write_trajectories
from tests.chat_tokenizers import QWEN3_LIKE, chat_tokenizer
from tests.toy_env import ToyEnv
from tests.trainers.crossing import ENVS, won

FORMAT = TagsFormat(instructions="")
TASKS = tuple(ToyEnv().manifest)


@cache
def experts() -> tuple[Trajectory, ...]:
    return tuple(rollout(ExpertPolicy(noise=0.3, format=FORMAT), "Toy-v0", samples_per_task=3))


def babbler(**options: Any) -> LanguageModelPolicy:
    """An untrained policy with the words of ``Toy-v0`` in the tags format."""
    texts = tokenizer_texts(experts(), FORMAT)
    policy = build_tiny(texts, hidden_size=32, layers=2, max_new_tokens=12, format=FORMAT, max_context=512)
    for name, value in options.items():
        setattr(policy, name, value)
    return policy


def turn_logprobs(model: Any, trajectory: Trajectory) -> list[torch.Tensor]:
    """Log-probs of every turn's tokens, each from one plain forward of its own sequence."""
    found = []
    for turn in trajectory.turns:
        assert turn.span is not None
        start, end = turn.span
        ids = torch.tensor(trajectory.sequences[turn.sequence])
        with torch.no_grad():
            logprobs = model(ids[None]).logits[0].float().log_softmax(-1)
        found.append(logprobs[start - 1 : end - 1].gather(-1, ids[start:end, None])[:, 0])
    return found


def test_every_turn_is_a_sequence_that_begins_anew() -> None:
    """Its prompt shows two earlier turns as they were played and the commands of this one; encoding gives the same."""
    policy = babbler()
    for trajectory in rollout(policy, "Toy-v0", TASKS, max_turns=5):
        assert len(trajectory.sequences) == len(trajectory.turns) == 5
        assert [turn.sequence for turn in trajectory.turns] == [0, 1, 2, 3, 4]
        observations = [turn.observation for turn in trajectory.turns]
        actions = [turn.action for turn in trajectory.turns]
        for i, turn in enumerate(trajectory.turns):
            assert turn.span is not None
            message = FORMAT.message(
                Situation(trajectory.instruction, observations[: i + 1], actions[:i], turn.admissible_commands)
            )
            expected = policy.tokenizer.apply_chat_template(
                [{"role": "user", "content": message}], add_generation_prompt=True, return_dict=False
            )
            assert trajectory.sequences[i][: turn.span[0]] == expected
            assert turn.admissible_commands
            assert not turn.action_valid or turn.action in turn.admissible_commands
    encoded = policy.renderer.encode_trajectory(experts()[0])
    assert encoded.prompt_format == "tags"
    for i, turn in enumerate(encoded.turns):
        assert encoded.response_ids(turn) == policy.renderer.response(turn.response)
        assert encoded.sequences[i][-1] == policy.renderer.end_of_turn_id


def test_the_environment_lists_commands_only_for_a_format_that_shows_them(tmp_path: Path) -> None:
    """They cost time, and room in the log; and an older log, which has neither field, is read as it was written."""
    react, tags = (logged_rollout(tmp_path / f"{f.name}.jsonl", ExpertPolicy(format=f), "Toy-v0", TASKS[:1])
                   for f in (ReactFormat(""), FORMAT))  # fmt: skip
    assert [turn.admissible_commands for turn in react[0].turns] == [None] * len(react[0].turns)
    text = (tmp_path / "react.jsonl").read_text()
    assert "admissible_commands" not in text
    assert "well_formed" not in text
    assert list(read_trajectories(tmp_path / "tags.jsonl")) == tags
    record = json.loads((tmp_path / "tags.jsonl").read_text())
    assert record["turns"][0]["admissible_commands"] == tags[0].turns[0].admissible_commands
    with pytest.raises(ConfigError, match="prompt format 'react', now 'tags'"):
        logged_rollout(tmp_path / "react.jsonl", ExpertPolicy(format=FORMAT), "Toy-v0", TASKS[:1])


def test_logprobs_and_cache() -> None:
    """The ratio of an online trainer is 1 at its first step; reusing what two prompts share changes nothing."""
    cached, plain = babbler(), babbler(kv_cache=False)
    kept = []
    open_row = cached._open_row

    def watched(conversation: Conversation) -> Any:
        row = open_row(conversation)
        kept.append(row.slot.length if row is not None and row.slot is not None else 0)
        return row

    cached._open_row = watched  # type: ignore[method-assign]
    played, same = (rollout(policy, "Toy-v0", TASKS, n_slots=4, max_turns=6) for policy in (cached, plain))
    assert max(kept) > 0
    for one, other in zip(played, same, strict=True):
        assert one.sequences == other.sequences
        for turn, expected in zip(one.turns, turn_logprobs(cached.model.eval(), one), strict=True):
            assert turn.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_new_weights_see_the_whole_prompt() -> None:
    """What the old weights cached of a common beginning is worth nothing."""
    policy = babbler(temperature=0.0)
    conversation = Conversation("Toy-v0", "t", "go", np.random.default_rng(0), observations=["You see a lamp."])
    conversation.commands = [["look"]]
    for _ in range(2):
        [generation] = policy.act([conversation])
        conversation.responses.append(generation.text)
        conversation.observations.append("You see nothing.")
        conversation.commands.append(["look"])
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    [generation] = policy.act([conversation])
    sequence, start, end = conversation.spans[-1]
    with torch.no_grad():
        logits = policy.model(torch.tensor([conversation.sequences[sequence]])).logits[0, start - 1 : end - 1]
    assert generation.token_ids == logits.argmax(-1).tolist()


def test_one_turn_that_does_not_fit_ends_the_episode_as_token_budget() -> None:
    """Not earlier, however long the episode is, and without a half-written turn; what was played stays in the loss."""
    long = rollout(babbler(), "Toy-v0", TASKS[:3], max_turns=12)
    assert {t.stop_reason for t in long} == {StopReason.MAX_STEPS}
    room = max(len(t.sequences[0]) for t in long) + 1
    assert sum(map(len, long[0].sequences)) > 5 * room
    for trajectory in rollout(babbler(max_context=room), "Toy-v0", TASKS[:3], max_turns=12):
        assert trajectory.stop_reason is StopReason.TOKEN_BUDGET
        assert 0 < len(trajectory.turns) == len(trajectory.sequences) < 12
        assert trajectory.final_observation
        assert Example.from_trajectory(trajectory).loss_tokens > 0


def test_a_response_that_is_cut_off_is_invalid_and_trained_on_as_sampled() -> None:
    for trajectory in rollout(babbler(max_new_tokens=3), "Toy-v0", TASKS[:2], max_turns=3):
        for turn, row in zip(trajectory.turns, Example.from_trajectory(trajectory).rows, strict=True):
            assert turn.finish_reason is FinishReason.LENGTH
            assert (turn.action, turn.action_valid, turn.well_formed) == (None, False, False)
            assert row.input_ids[row.loss_mask].tolist() == trajectory.response_ids(turn)


@pytest.mark.parametrize("text_only", [False, True])
def test_goes_on_behind_given_turns(text_only: bool) -> None:
    """IPR and StepAgent begin in the middle of an expert's episode; the window then shows the expert's turns."""
    policy = babbler(temperature=0.0)
    given = experts()[4] if text_only else rollout(policy, "Toy-v0", TASKS[:1], max_turns=6)[0]
    encoded = policy.renderer.encode_trajectory(given) if text_only else given
    [found] = rollout(policy, "Toy-v0", [Prefix(given, 3, max_turns=3)])
    assert [turn.trainable for turn in found.turns] == [False] * 3 + [True] * (len(found.turns) - 3)
    assert found.turns[3].span is not None
    start = found.turns[3].span[0]
    for mine, ids in zip(found.sequences[:3], encoded.sequences[:3], strict=True):
        assert mine == ids[: len(mine)]
    assert found.sequences[3][:start] == encoded.sequences[3][:start]
    assert len(Example.from_trajectory(found).rows) == len(found.turns) - 3
    if not text_only:
        assert [turn.response for turn in found.turns] == [turn.response for turn in given.turns]


def test_losses_by_hand(tmp_path: Path) -> None:
    """SFT, DPO and tlm-DRE see one trajectory in the rows of its turns."""
    policy = babbler()
    model = policy.model.eval()
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    chosen = policy.renderer.encode_trajectory(experts()[0])
    rejected = rollout(policy, "Toy-v0", TASKS[:1], max_turns=4)[0]
    assert any(not turn.trainable for turn in chosen.turns), "an injected mistake is in no loss"
    scored = score_reference(reference, [chosen, rejected], batch_size=3)
    sides = []
    for trajectory, copy_ in zip((chosen, rejected), scored, strict=True):
        turns = [i for i, turn in enumerate(trajectory.turns) if turn.trainable]
        own, ref = (turn_logprobs(m, trajectory) for m in (model, reference))
        for i in turns:
            assert copy_.turns[i].ref_logprobs == pytest.approx(ref[i].tolist(), abs=1e-5)
            assert copy_.turns[i].confidence == pytest.approx(math.exp(ref[i].mean()), rel=1e-4)
        sides.append(([own[i] for i in turns], [ref[i] for i in turns]))

    examples = [Example.from_trajectory(trajectory) for trajectory in scored]
    batch = collate(*([example] for example in examples))
    logprobs = token_logprobs(model, batch)
    everything = torch.cat([values for own, _ in sides for values in own])
    torch.testing.assert_close(sft_loss(logprobs, batch), -everything.mean(), atol=1e-5, rtol=1e-5)
    whole = [torch.cat(own) for own, _ in sides]
    torch.testing.assert_close(
        sft_loss(logprobs, batch, normalization="trajectories"), -(whole[0].mean() + whole[1].mean()) / 2
    )
    delta = [sum(float((a - b).sum()) for a, b in zip(own, ref, strict=True)) for own, ref in sides]
    expected = -logsigmoid(torch.tensor(0.1 * (delta[0] - delta[1])))
    torch.testing.assert_close(dpo_loss(logprobs, batch, 0.1)[0], expected, atol=1e-5, rtol=1e-5)

    confidences = sorted(float(values.mean().exp()) for _, ref in sides for values in ref)
    middle = len(confidences) // 2
    pivot = sum(confidences[middle - 1 : middle + 1]) / 2
    args = TLMDREArguments(output_dir=str(tmp_path), p_pivot=pivot)
    z, log_c = [], []
    for own, ref in sides:
        n = sum(map(len, own))
        omega = [0.2 if float(values.mean().exp()) > args.p_pivot else 1.0 for values in ref]
        z.append(sum(w * float((a - b).sum()) for w, a, b in zip(omega, own, ref, strict=True)) / n)
        log_c.append(sum((1 - w) * float(b.sum()) for w, b in zip(omega, ref, strict=True)) / n)
    trainer = TLMDRETrainer(policy, ENVS, args)
    ((weighted_w, weighted_l),) = trainer.items([Pair(*scored)])
    weighted_batch = collate([weighted_w], [weighted_l])
    loss, metrics = tlm_dre_loss(token_logprobs(model, weighted_batch), weighted_batch, args)
    assert float(metrics["C"]) == pytest.approx(math.exp(log_c[0]), rel=1e-4)
    assert float(loss.detach()) == pytest.approx(math.exp(z[1]) - math.exp(log_c[0]) * z[0], rel=1e-4)


def test_sft_takes_a_windowed_episode_turn_by_turn(tmp_path: Path) -> None:
    """Fifty prompts of one episode in one forward pass would not fit into any memory; the loss is the same."""
    policy = babbler()
    encoded = [policy.renderer.encode_trajectory(trajectory) for trajectory in experts()[:2]]
    turns = sum(turn.trainable for trajectory in encoded for turn in trajectory.turns)
    whole = collate([Example.from_trajectory(trajectory) for trajectory in encoded])
    logs: list[Any] = []
    args = SFTArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=turns, save_steps=None,
        max_steps=1, learning_rate=1e-9,
    )  # fmt: skip
    expected = float(sft_loss(token_logprobs(policy.model, whole), whole).detach())
    SFTTrainer(policy, ENVS, args, on_log=logs.append).train_trajectories(encoded)
    assert logs[-1]["loss"] == pytest.approx(expected, abs=1e-5)


def test_methods_that_decorate_the_first_message_refuse_before_they_play(tmp_path: Path) -> None:
    envs = ENVS
    for trainer in (
        NATTrainer(babbler(), envs, NATArguments(output_dir=str(tmp_path / "nat"))),
        CoHTrainer(babbler(), envs, CoHArguments(output_dir=str(tmp_path / "coh"))),
    ):
        with pytest.raises(ConfigError, match="no first message to decorate"):
            trainer.train()
        assert not list(tmp_path.glob("**/*.jsonl"))
    renderer = babbler().renderer
    with pytest.raises(TrajectoryError, match="more than one sequence"):
        renderer.reprompt(renderer.encode_trajectory(experts()[0]))


def test_text_of_another_format_is_not_encoded() -> None:
    """The policy would learn to write a format in which its own responses cannot be read."""
    policy = babbler()
    [spoken] = rollout(ExpertPolicy(), "Toy-v0", TASKS[:1], env_kwargs={"admissible_commands": True})
    with pytest.raises(TrajectoryError, match="written in the prompt format react, not in tags"):
        policy.renderer.encode_trajectory(spoken)
    spoken.prompt_format = ""
    with pytest.raises(TrajectoryError, match="recorded without"):
        policy.renderer.encode_trajectory(spoken)


def test_a_template_that_rewrites_earlier_turns_will_do() -> None:
    """Qwen3 strips thoughts from the history, of which a window has none."""
    tokenizer = chat_tokenizer(QWEN3_LIKE)
    with pytest.raises(TemplateError):
        Renderer(tokenizer, ReactFormat())
    encoded = Renderer(tokenizer, TagsFormat()).encode_trajectory(experts()[0])
    text = tokenizer.decode(encoded.sequences[1])
    assert isinstance(text, str)
    assert text.endswith(f"{experts()[0].turns[1].response}<|im_end|>")
    assert Renderer(chat_tokenizer(CHATML), TagsFormat()).encode_trajectory(experts()[0]).has_tokens


def test_export(tmp_path: Path) -> None:
    policy = babbler()
    encoded = policy.renderer.encode_trajectory(experts()[0])
    with pytest.raises(ConfigError, match="trl-sft"):
        to_messages(encoded, FORMAT)
    assert len(sft_rows(encoded)) == sum(turn.trainable for turn in encoded.turns)
    write_trajectories(tmp_path / "log.jsonl", [encoded])
    assert list(read_trajectories(tmp_path / "log.jsonl")) == [encoded]


def test_imitation_solves_a_toy(tmp_path: Path) -> None:
    played = rollout(ExpertPolicy(format=FORMAT), "Crossing-v0")
    texts = tokenizer_texts(played, FORMAT)
    policy = build_tiny(texts, hidden_size=32, layers=2, max_context=192, max_new_tokens=28, format=FORMAT)
    args = SFTArguments(
        output_dir=str(tmp_path),
        learning_rate=5e-3,
        num_train_epochs=25,
        per_device_train_batch_size=4,
        adam_beta2=0.98,
        warmup_ratio=0.05,
        save_steps=None,
    )
    trainer = SFTTrainer(policy, ENVS, args)
    trainer.train_trajectories([policy.renderer.encode_trajectory(each) for each in played])
    assert len(won(LanguageModelPolicy.load(trainer.save(), device="cpu"))) == 16


@pytest.mark.parametrize(
    ("kind", "arguments"), [(TLMDRETrainer, TLMDREArguments), (StepAgentTrainer, StepAgentArguments)]
)
def test_pairs_are_sampled_and_told_apart(kind: Any, arguments: Any, tmp_path: Path) -> None:
    """From rollout to loss, with whole episodes and with single steps behind the expert's."""
    logs: list[Any] = []
    args = arguments(
        output_dir=str(tmp_path),
        num_tasks=3,
        learning_rate=1e-3,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=1,
        max_steps=8,
        logging_steps=1,
        save_steps=None,
    )
    envs = EnvArgs(env="Toy-v0", max_episode_steps=8)
    kind(babbler(), envs, args, on_log=logs.append).train()
    margins = [line["margin"] for line in logs if "margin" in line]
    assert margins[0] == pytest.approx(0, abs=1e-4)
    assert margins[-1] > 0
    assert logs[-1]["accuracy"] == 1
