"""Chat tokenizers for tests: a byte-level BPE with ChatML tokens, and templates that real models use."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

QWEN3_LIKE = """{%- set last = namespace(user=0) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and loop.index0 < last.user and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Drops the thinking of earlier turns, as Qwen3 does."""

NO_THINKING = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{%- endif %}"""
"""Opens a response with an empty thinking block that the rendered history does not have."""

LLAMA2_LIKE = """{%- for message in messages %}
{%- if message.role == 'user' %}{{- '<s>[INST] ' + message.content + ' [/INST]' }}
{%- else %}{{- ' ' + message.content + ' </s>' }}{%- endif %}
{%- endfor %}"""
"""No generation prompt; a space before the response."""

LLAMA2_PREFIX = LLAMA2_LIKE.replace("' [/INST]'", "' [/INST] '").replace("' ' + message.content", "message.content")
"""The same, with the space before the response in the prompt; one before the end of turn stays."""

NO_END = """{%- for message in messages %}{{- message.role + ': ' + message.content + '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"""
"""Ends a response with a line break only."""


def chat_tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    """Byte-level BPE that merges across words and line breaks wherever its pre-tokenizer lets it."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    text = (
        "user\nYou see a lamp.\n\nThought: I go on.\nAction: go to study\nassistant\nThe door is closed. [INST] [/INST]"
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    backend.train_from_iterator([text] * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>", "<s>", "</s>"],
        chat_template=chat_template,
    )
