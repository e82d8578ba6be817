"""The language-model policy: token-in, token-out, and a cache that changes nothing but the time it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from agentgym_tlm.batch import Example, collate
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.logprobs import token_logprobs
from agentgym_tlm.policies.base import Conversation, Generation
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import TINY_FORMAT
from agentgym_tlm.renderer import CHATML
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trajectory import FinishReason, Trajectory
from tests.chat_tokenizers import chat_tokenizer
from tests.toy_env import tiny_policy

TOKENIZER = chat_tokenizer(CHATML)


def _qwen2(**options: Any) -> PreTrainedModel:
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        **options,
    )
    return Qwen2ForCausalLM(config)


def _llama() -> PreTrainedModel:
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=2048,
    )
    return LlamaForCausalLM(config)


def _neox() -> PreTrainedModel:
    """Rotary positions in a quarter of each head only, attention and MLP side by side."""
    torch.manual_seed(4)
    config = GPTNeoXConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
    )
    return GPTNeoXForCausalLM(config)


def _policy(model: PreTrainedModel, **options: Any) -> LanguageModelPolicy:
    defaults: dict[str, Any] = {"format": TINY_FORMAT, "max_new_tokens": 10, "name": "test"}
    return LanguageModelPolicy(model, TOKENIZER, **{**defaults, **options})


def _conversation(seed: int, first: str = "You see a lamp.") -> Conversation:
    return Conversation("Toy-v0", f"task{seed}", "find it", np.random.default_rng(seed), observations=[first])


def _answer(policy: LanguageModelPolicy, conversations: Sequence[Conversation], observation: str) -> list[Generation]:
    """One turn of every conversation, then ``observation`` for each of them."""
    generations = policy.act(conversations)
    for conversation, generation in zip(conversations, generations, strict=True):
        conversation.responses.append(generation.text)
        conversation.observations.append(observation)
    return generations


@pytest.mark.parametrize("make_model", [_qwen2, _llama], ids=["qwen2", "llama"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_recorded_logprobs_are_those_of_one_plain_forward(
    make_model: Callable[[], PreTrainedModel], temperature: float
) -> None:
    """Ragged slots, refills and turns included: a trainer that recomputes them must find the ratio 1 at step 0."""
    model = make_model()
    trajectories = rollout(_policy(model, temperature=temperature), "Toy-v0", n_slots=4, max_turns=5)
    for trajectory in trajectories:
        logits = _plain_logits(model, trajectory) / (temperature or 1.0)
        logprobs = torch.log_softmax(logits, dim=-1)
        for turn in trajectory.turns:
            assert turn.span is not None
            start, end = turn.span
            rows = logprobs[start - 1 : end - 1]
            expected = rows.gather(-1, torch.tensor(trajectory.response_ids(turn))[:, None])[:, 0]
            assert turn.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
            if temperature == 0:
                assert torch.allclose(expected, rows.amax(dim=-1), atol=1e-5)


@pytest.mark.parametrize("make_model", [_qwen2, _llama, _neox], ids=["qwen2", "llama", "neox"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forty_turns_are_what_recomputing_from_scratch_gives(
    make_model: Callable[[], PreTrainedModel], temperature: float
) -> None:
    """Errors of a cache add up over the turns; drafts, right or wrong, must leave no trace in it."""
    model = make_model()
    policy, plain = _policy(model, temperature=temperature), _policy(model, temperature=temperature, kv_cache=False)
    conversations = [_conversation(i, "You see " + "a lamp and " * i + "a door.") for i in range(3)]
    for turn in range(40):
        _answer(policy, conversations[turn % 3 :] if turn % 5 else conversations, f"You see {'a door ' * (turn % 4)}.")
    for conversation in conversations:
        with torch.no_grad():
            logits: torch.Tensor = model(torch.tensor(conversation.sequences)).logits[0]
        for _, start, end in conversation.spans:
            if temperature == 0:
                assert conversation.sequences[0][start:end] == logits[start - 1 : end - 1].argmax(-1).tolist()
    for i, conversation in enumerate(conversations[2:], start=2):  # the same turns without a cache
        again = _conversation(i, conversation.observations[0])
        for observation in conversation.observations[1:9]:
            _answer(plain, [again], observation)
        assert again.sequences[0] == conversation.sequences[0][: len(again.sequences[0])]


@pytest.mark.parametrize("make_model", [_qwen2, _llama, _neox], ids=["qwen2", "llama", "neox"])
def test_recorded_logprobs_are_those_of_the_trainer(make_model: Callable[[], PreTrainedModel]) -> None:
    """Importance ratios that are not 1 before the first update clip tokens, and hide an update that went missing."""
    model = make_model()
    trajectories = rollout(_policy(model), "Toy-v0", n_slots=4, max_turns=4)
    batch = collate([Example.from_trajectory(trajectory) for trajectory in trajectories])
    with torch.no_grad():
        expected = token_logprobs(model.eval(), batch)
    assert torch.allclose(batch.flat(batch.old_logprobs), expected, atol=1e-5)


def test_drafts_save_passes_and_change_no_response() -> None:
    class Undrafted(LanguageModelPolicy):
        draft_tokens = 0

    model = _qwen2()
    passes = {}
    written = []
    for cls in (LanguageModelPolicy, Undrafted):
        policy = cls(model, TOKENIZER, format=TINY_FORMAT, max_new_tokens=20, name="test", temperature=0)
        counted: list[int] = []
        hook = model.register_forward_pre_hook(lambda *_, counted=counted: counted.append(1))
        written.append([trajectory.sequences for trajectory in rollout(policy, "Toy-v0", n_slots=3, max_turns=6)])
        hook.remove()
        passes[cls] = len(counted)
    assert written[0] == written[1]
    assert passes[LanguageModelPolicy] < 0.7 * passes[Undrafted]


@torch.no_grad()
def _plain_logits(model: PreTrainedModel, trajectory: Trajectory) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor(trajectory.sequences)).logits[0]
    return logits


@pytest.mark.parametrize("make_model", [_qwen2, _llama], ids=["qwen2", "llama"])
def test_greedy_decoding_equals_generate(make_model: Callable[[], PreTrainedModel]) -> None:
    model = make_model()
    policy = _policy(model, temperature=0, max_new_tokens=30)
    conversations = [_conversation(i, "You see " + "a lamp and " * i + "a door.") for i in range(5)]
    for conversation, generation in zip(conversations, policy.act(conversations), strict=True):
        _, start, _ = conversation.spans[0]
        prompt = torch.tensor([conversation.sequences[0][:start]])
        generate: Any = model.generate
        expected = generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=30,
            eos_token_id=sorted(policy.stop_ids),
        )
        assert generation.token_ids == expected[0, start:].tolist()


def test_the_cache_changes_nothing() -> None:
    model = _llama()
    cached, plain = (rollout(_policy(model, kv_cache=on), "Toy-v0", n_slots=3, max_turns=4) for on in (True, False))
    for one, other in zip(cached, plain, strict=True):
        assert one.sequences == other.sequences
        for turn, same in zip(one.turns, other.turns, strict=True):
            assert turn.logprobs == pytest.approx(same.logprobs, abs=1e-5)


def test_conversations_may_act_in_any_company_and_order() -> None:
    """Rows move when episodes end and begin; a moved row must take its history along."""
    model = _qwen2()
    alone = [_conversation(i) for i in range(6)]
    for conversation in alone:
        policy = _policy(model)
        for turn in range(6):
            _answer(policy, [conversation], f"You see door {turn}.")
    policy, together = _policy(model), [_conversation(i) for i in range(6)]
    for company in ([0, 1, 2, 3, 4, 5], [5, 3], [1, 4, 0], [2], [5, 4, 3, 2, 1, 0], [0], [2, 1, 5, 3], [0, 1, 4]):
        for i, generation in zip(company, policy.act([together[i] for i in company]), strict=True):
            together[i].observations.append(f"You see door {len(together[i].responses)}.")
            together[i].responses.append(generation.text)
    assert max(len(conversation.responses) for conversation in together) == 5
    for one, other in zip(together, alone, strict=True):
        assert one.sequences[0] == other.sequences[0][: len(one.sequences[0])]


def test_slots_are_reused_and_freed() -> None:
    """A slot that is not freed keeps its memory; 1,000 episodes would need 1,000 slots."""
    policy = _policy(_qwen2())
    seen: list[int] = []
    rollout(policy, "Toy-v0", n_slots=3, samples_per_task=3, max_turns=2, progress=lambda _: seen.append(_rows(policy)))
    assert max(seen) == 3
    assert policy._cache is None, "its memory is the trainer's until the next rollout"


def _rows(policy: LanguageModelPolicy) -> int:
    return len(policy._cache._slots) if policy._cache is not None else 0


@torch.no_grad()
def _perturb(model: PreTrainedModel, *, unseen: bool) -> None:
    """Change all weights; ``unseen`` in a way that leaves no trace in their version counters."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        (parameter.data if unseen else parameter).add_(0.2 * torch.randn_like(parameter))


@pytest.mark.parametrize("reported", [True, False])
def test_a_stale_cache_is_never_used(reported: bool) -> None:
    """Keys of old weights under new ones give plausible, wrong text: the worst kind of bug."""
    model = _qwen2()
    policy = _policy(model, temperature=0)
    conversation = _conversation(0)
    for turn in range(2):
        _answer(policy, [conversation], f"You see door {turn}.")
    before = list(conversation.sequences[0])
    _perturb(model, unseen=reported)
    if reported:
        policy.weights_changed()
    generation = policy.act([conversation])[0]
    assert policy.version == "1"
    _, start, end = conversation.spans[-1]
    assert conversation.sequences[0][: len(before)] == before, "what was sampled stays, whoever sampled it"
    with torch.no_grad():
        logits = model(torch.tensor([conversation.sequences[0]])).logits[0, start - 1 : end - 1]
    assert generation.token_ids == logits.argmax(-1).tolist()


def test_loaded_weights_and_another_adapter_are_never_mixed_with_old_keys() -> None:
    """A trainer goes back to a checkpoint, or asks the reference by switching its adapter off."""
    peft = pytest.importorskip("peft")
    base = _qwen2()
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    policy = _policy(model, temperature=0)
    conversation = _conversation(0)
    _answer(policy, [conversation], "You see a door.")
    model.load_state_dict({name: 1.3 * tensor for name, tensor in model.state_dict().items()})
    _check_fresh(policy, conversation)
    with model.disable_adapter():
        policy.weights_changed()
        _check_fresh(policy, conversation)
    policy.weights_changed()
    _check_fresh(policy, conversation)


def _check_fresh(policy: LanguageModelPolicy, conversation: Conversation) -> None:
    [generation] = _answer(policy, [conversation], "You see a lamp.")
    _, start, end = conversation.spans[-1]
    with torch.no_grad():
        logits = policy.model.eval()(torch.tensor(conversation.sequences)).logits[0, start - 1 : end - 1]
    assert generation.token_ids == logits.argmax(-1).tolist()


def test_a_replaced_model_is_noticed() -> None:
    """A trainer may wrap the model in adapters or merge them; the old model's keys are of no use then."""
    policy = _policy(_qwen2(), temperature=0)
    conversation = _conversation(0)
    _answer(policy, [conversation], "You see a door.")
    policy.model = _qwen2(attention_dropout=0.5)
    _perturb(policy.model, unseen=True)
    generation = policy.act([conversation])[0]
    _, start, end = conversation.spans[-1]
    with torch.no_grad():
        logits = policy.model.eval()(torch.tensor([conversation.sequences[0]])).logits[0, start - 1 : end - 1]
    assert generation.token_ids == logits.argmax(-1).tolist()


def test_plays_with_adapters() -> None:
    """LoRA models are wrapped; the wrapper hides what the forward takes."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(_qwen2(), peft.LoraConfig(target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    cached, plain = (rollout(_policy(model, kv_cache=on), "Toy-v0", max_turns=3) for on in (True, False))
    assert [t.sequences for t in cached] == [t.sequences for t in plain]


def test_versions_are_recorded_and_counted() -> None:
    policy = _policy(_qwen2(), version="sft")
    assert rollout(policy, "Toy-v0", max_turns=1)[0].turns[0].policy_version == "sft"
    policy.weights_changed()
    assert policy.version == "sft1"
    policy.weights_changed("step-20")
    assert policy.version == "step-20"
    policy.weights_changed()
    assert policy.version == "step-21"


def test_a_response_that_is_cut_off_leaves_the_template_well_formed() -> None:
    """The end of turn that the model did not write has to be in the context, and not in what is trained on."""
    policy = _policy(_qwen2(), max_new_tokens=3)
    for trajectory in rollout(policy, "Toy-v0", max_turns=3):
        for turn in trajectory.turns:
            assert turn.span is not None
            start, end = turn.span
            if turn.finish_reason is FinishReason.LENGTH:
                assert end - start == 3
                assert trajectory.sequences[0][end] == policy.renderer.end_of_turn_id
            else:
                assert trajectory.sequences[0][end - 1] in policy.stop_ids


def test_stopping_ends_the_response_and_its_span() -> None:
    """A bias towards the end of turn makes the model stop often; the token is part of the response, its text is not."""
    model = _qwen2(tie_word_embeddings=False)
    policy = _policy(model, max_new_tokens=40)
    end = policy.renderer.end_of_turn_id
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[end] += 3 * head.std() * torch.ones_like(head[end])
    turns = [turn for t in rollout(policy, "Toy-v0", max_turns=3) for turn in t.turns]
    stopped = [turn for turn in turns if turn.finish_reason is FinishReason.STOP]
    assert stopped
    assert all("<|im_end|>" not in turn.response for turn in stopped)


def test_goes_on_from_turns_that_somebody_else_played() -> None:
    """Branching from an expert's prefix: its turns are in the context, encoded as the renderer encodes them."""
    policy = _policy(_qwen2())
    conversation = _conversation(0)
    conversation.responses, conversation.observations = ["Action: look"], ["You see a lamp.", "A lamp."]
    policy.act([conversation])
    renderer = policy.renderer
    prefix = [
        *renderer.first_prompt("find it", "You see a lamp."),
        *renderer.response("Action: look"),
        *renderer.next_prompt("A lamp."),
    ]
    assert conversation.sequences[0][: len(prefix)] == prefix
    assert len(conversation.spans) == 2


def test_saves_and_loads_everything_that_decides_what_it_writes(tmp_path: Path) -> None:
    policy = tiny_policy(temperature=0, max_new_tokens=9)
    policy.weights_changed("step-5")
    policy.save(tmp_path)
    loaded = LanguageModelPolicy.load(tmp_path, device="cpu")
    assert (loaded.name, loaded.version, loaded.format) == (policy.name, "step-5", policy.format)
    assert (loaded.temperature, loaded.max_new_tokens, loaded.max_context) == (0, 9, policy.max_context)
    assert rollout(loaded, "Toy-v0", max_turns=3) == rollout(policy, "Toy-v0", max_turns=3)
    assert LanguageModelPolicy.load(tmp_path, device="cpu", temperature=0.5).temperature == 0.5


def test_sampling_leaves_global_state_alone() -> None:
    """A trainer's dropout and data order must not depend on how many tokens were sampled in between."""
    policy = _policy(_qwen2())
    policy.model.train()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    rollout(policy, "Toy-v0", max_turns=2)
    assert torch.equal(torch.rand(3), expected)
    assert policy.model.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_context": 5, "max_new_tokens": 5}, "max_new_tokens"),
        ({"max_context": 4096}, "2048 positions"),
    ],
)
def test_refuses_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _policy(_qwen2(), **options)


def test_refuses_to_cache_what_it_cannot() -> None:
    """A sliding window that the cache ignored would change what the model sees."""
    sliding = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}
    with pytest.raises(ConfigError, match=r"sliding window of 16 tokens.*kv_cache=False"):
        _policy(_qwen2(**sliding))
    assert rollout(_policy(_qwen2(**sliding), kv_cache=False), "Toy-v0", max_turns=2)
    eager = _qwen2()
    eager.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="attn_implementation='sdpa'"):
        _policy(eager)
