"""What the viewer is given: every string as it was, tokens that make up the response, weights, and pairs."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentgym_tlm.report.episodes import COLUMNS, EPISODES_PER_CHUNK, EpisodeData, TokenTexts, collect, packed
from agentgym_tlm.report.runs import read_runs
from agentgym_tlm.trajectory import Turn, write_trajectories
from tests.report.folders import SAY, episode, pair, run_folder


def unpack(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def episodes(data: EpisodeData) -> list[dict[str, Any]]:
    """Index and turns of every episode in one dictionary."""
    opened = [one for chunk in data.chunks for one in unpack(chunk)]
    return [
        {**dict(zip(COLUMNS, row, strict=True)), **one, "count": row[9]}
        for row, one in zip(data.rows, opened, strict=True)
    ]


def test_pairs_carry_weights_and_know_each_other(tmp_path: Path) -> None:
    data = collect(read_runs([run_folder(tmp_path / "run", pairs=[pair()])]), None)
    chosen, rejected = (one for one in episodes(data) if one["kind"] == "pair")
    assert data.rows[chosen["partner"]][COLUMNS.index("side")] == "rejected"
    assert data.rows[rejected["partner"]][COLUMNS.index("side")] == "chosen"
    assert [turn["omega"] for turn in rejected["turns"]] == [0.2, 1.0, 0.2]
    assert [turn["p"] for turn in rejected["turns"]] == [0.95, 0.5, 0.92]
    assert rejected["pivot"] == 0.9
    assert chosen["actions"] == "go to study | put lamp"


def test_tokens_make_up_the_response_with_their_log_probs(tmp_path: Path) -> None:
    data = collect(read_runs([run_folder(tmp_path / "run")]), None)
    sampled = next(one for one in episodes(data) if one["label"] == "sft")
    turn = sampled["turns"][0]
    assert "".join(text for text, _, _ in turn["tokens"]) == SAY.format("go to study") + "<|end|>"
    assert {(own, reference) for _, own, reference in turn["tokens"]} == {(-0.693, None)}
    assert turn["own"] == 0.5
    assert turn["parts"] == [
        ["", "Thought: "],
        ["t", "The lamp is here."],
        ["", "\nAction: "],
        ["a", "go to study"],
    ]
    assert next(one for one in episodes(data) if one["label"] == "expert")["turns"][0]["tokens"] is None


def test_a_run_without_its_tokenizer_shows_text_and_is_named(tmp_path: Path) -> None:
    """Someone else's run, whose SFT policy stayed on their machine."""
    folder = run_folder(tmp_path / "run", sft_policy=tmp_path / "elsewhere")
    data = collect(read_runs([folder]), None)
    assert [log.name for log in data.without_tokens] == ["sft-valid_seen", "tlm-dre-valid_seen"]
    assert all(turn["tokens"] is None for one in episodes(data) for turn in one["turns"])


def test_an_sft_policy_that_runs_share_is_shown_once(tmp_path: Path) -> None:
    """A comparison gives each of its cells a copy of the evaluation."""
    first = run_folder(tmp_path / "one")
    second = run_folder(tmp_path / "two", "dpo", sft_policy=first / "sft" / "policy")
    shown = episodes(collect(read_runs([second, first]), None))
    assert {(one["run"], one["start"]) for one in shown if one["label"] == "sft"} == {("one", "one")}
    assert {one["start"] for one in shown if one["label"] == "dpo"} == {"one"}


def test_windowed_episodes_keep_the_commands_that_were_shown(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    turn = Turn(
        "o",
        "<think>why</think><action>Put  lamp</action>",
        "put lamp",
        True,
        0.0,
        admissible_commands=["put lamp", "look"],
    )
    windowed = replace(episode([], tokens=False), turns=[turn], prompt_format="tags")
    write_trajectories(folder / "trajectories" / "sft-valid_seen.jsonl", [windowed])
    shown = episodes(collect(read_runs([folder]), None))[0]["turns"][0]
    assert shown["commands"] == ["put lamp", "look"]
    assert ["t", "why"] in shown["parts"]
    assert "".join(text for _, text in shown["parts"]) == turn.response


def test_chunks_hold_the_rows_in_order(tmp_path: Path) -> None:
    """The viewer finds row i in chunk i // 16; pairs across the border of a chunk included."""
    data = collect(read_runs([run_folder(tmp_path / "run", pairs=[pair() for _ in range(20)])]), 17)
    assert [len(unpack(chunk)) for chunk in data.chunks[:-1]] == [EPISODES_PER_CHUNK] * (len(data.chunks) - 1)
    assert [count for _, count in data.shown] == [4, 4, 17, 1]
    assert all(one["count"] == len(one["turns"]) for one in episodes(data))


def test_packed_text_is_ascii_whatever_a_model_wrote() -> None:
    wild = "</script><!-- \u2028 \ud800 \x00 é 🦊"
    text = packed([wild])
    assert text.isascii()
    assert "<" not in text
    assert unpack(text) == [wild]
    assert packed([wild]) == text


def test_a_character_of_several_tokens_is_one_piece() -> None:
    """Byte-level tokenizers split a fox into four tokens, none of which is text by itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    ids = tokenizer.encode("aé🦊").ids
    assert list(texts.pieces(ids)) == [("a", 0, 1), ("é", 1, 3), ("🦊", 3, 7)]
    assert list(texts.pieces(ids[:2])) == [("a", 0, 1), ("\ufffd", 1, 2)]
