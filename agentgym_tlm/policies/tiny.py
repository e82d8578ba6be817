"""``tiny``: a small Qwen2-shaped language model from scratch, with a word-level tokenizer made from given texts.

It exists so that every part of the package runs, trains and learns on one CPU core. The tokenizer splits a text into
words, single digits, punctuation and line breaks, each with the space before it, so that decoding an encoded text gives
it back exactly as long as its words are known. A word is the same piece after ``[`` as after a space, so that what an
action such as ``Search[Orla Brandt]`` takes from the text before it is a plain copy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.prompt import PromptFormat, ReactFormat, Situation
from agentgym_tlm.renderer import Renderer
from agentgym_tlm.trajectory import Trajectory

TINY_FORMAT = ReactFormat(instructions="")
"""The usual prompt format of ``tiny``: it cannot read instructions, it learns the environment's own texts."""

_SPECIAL_TOKENS = ("<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_ALWAYS = "Thought: Action:\nAction: 00123456789 0 1 2 3 4 5 6 7 8 9"
_BRACKET = "\ue000"
"""Stands for a ``[`` that a word follows: the word then gets the space which it has elsewhere."""
_PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s"


def tokenizer_texts(trajectories: Iterable[Trajectory], format: PromptFormat = TINY_FORMAT) -> Iterator[str]:
    """Everything a policy would read or write in the given episodes, which were played in ``format``."""
    for trajectory in trajectories:
        observations = [*(turn.observation for turn in trajectory.turns), trajectory.final_observation]
        first = trajectory.turns[0].admissible_commands
        yield format.message(Situation(trajectory.instruction, observations[:1], (), first))
        yield from observations[1:]
        yield from (turn.response for turn in trajectory.turns)
        if format.windowed:  # what is said again and again
            actions = [None, *(turn.action for turn in trajectory.turns)]
            commands = {command for turn in trajectory.turns for command in turn.admissible_commands or ()}
            last = Situation(trajectory.instruction, observations, actions, sorted(commands))
            yield format.message(last)


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Word-level tokenizer of every piece in ``texts``, digits and the tags of the prompt format.

    The vocabulary does not depend on the order of the texts. Raises ConfigError when there is no text at all.
    """
    normalizer = normalizers.Replace(Regex(r"\[(?=[\p{L}\p{N}])"), f"{_BRACKET} ")
    splitter = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    pieces: Counter[str] = Counter()
    for text in texts:
        pieces.update(piece for piece, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    if not pieces:
        raise ConfigError("the tiny tokenizer needs texts of the environment to learn its words from; none were given")
    pieces.update(piece for piece, _ in splitter.pre_tokenize_str(_ALWAYS))
    vocabulary = [*_SPECIAL_TOKENS, *sorted(pieces, key=lambda piece: (-pieces[piece], piece))]
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(vocabulary)}, unk_token="<unk>"))
    backend.normalizer = normalizer
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.Sequence(
        [decoders.Fuse(), decoders.Replace(f"{_BRACKET} ", "["), decoders.Replace(_BRACKET, "[")]
    )
    return _wrapped(backend)


def add_words(policy: LanguageModelPolicy, texts: Iterable[str], *, seed: int) -> None:
    """Let a policy with a word-level tokenizer learn words that it does not know yet; others know all words.

    The embeddings of new words are drawn from ``seed`` as those of :func:`build_tiny`; everything else stays.
    """
    backend = policy.tokenizer.backend_tokenizer
    if not isinstance(backend.model, models.WordLevel):
        return
    state = json.loads(backend.to_str())
    vocabulary = state["model"]["vocab"]
    pieces = {
        piece
        for text in texts
        for piece, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
    }
    new = sorted(pieces - vocabulary.keys())
    if not new:
        return
    vocabulary.update({piece: len(vocabulary) + i for i, piece in enumerate(new)})
    policy.tokenizer = _wrapped(Tokenizer.from_str(json.dumps(state)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy.model.resize_token_embeddings(len(vocabulary), mean_resizing=False)
    policy.use_renderer(Renderer(policy.tokenizer, policy.format))


def _wrapped(backend: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|end|>",
        extra_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_tiny(
    texts: Iterable[str],
    *,
    hidden_size: int = 128,
    layers: int = 4,
    heads: int = 2,
    key_value_heads: int | None = None,
    intermediate: int | None = None,
    max_context: int = 4096,
    seed: int = 0,
    temperature: float = 1.0,
    max_new_tokens: int = 64,
    format: PromptFormat = TINY_FORMAT,
) -> LanguageModelPolicy:
    """Untrained ``tiny`` policy: float32 weights drawn from ``seed``, vocabulary from ``texts``.

    ``key_value_heads`` defaults to ``heads`` and ``intermediate`` to three times ``hidden_size``. Nothing outside, the
    global random state included, is changed.
    """
    tokenizer = build_tokenizer(texts)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=intermediate or 3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads or heads,
        max_position_embeddings=max_context,
        initializer_range=0.7 * hidden_size**-0.5,  # from the 0.02 of wide models, copying is learnt late
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    return LanguageModelPolicy(
        model, tokenizer, name="tiny", format=format, temperature=temperature, max_new_tokens=max_new_tokens
    )
