"""Episodes as the viewer reads them: an index of all, and their turns in compressed chunks that it opens on demand.

Every chunk is the gzip of a JSON text in ASCII, in base64: no string of an episode is ever part of the page's markup.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym_tlm.policies.loading import load_tokenizer, read_settings
from agentgym_tlm.prompt import FORMATS
from agentgym_tlm.report.runs import Log, Run
from agentgym_tlm.trajectory import Trajectory, Turn

EPISODES_PER_CHUNK = 16
_BROKEN = "\ufffd"  # what a part of a character decodes to
_PARTS_OF_A_CHARACTER = 8  # tokens that a character of UTF-8 may be spread over, with some to spare

COLUMNS = (
    "run", "label", "kind", "log", "split", "type", "won", "stop", "score", "turns", "invalid", "instruction", "task",
    "side", "partner", "start", "actions",
)  # fmt: skip
"""Of the index. ``partner`` is the row of the other side of a pair, ``start`` the run that evaluated the SFT policy,
``actions`` are there to be searched."""


@dataclass
class EpisodeData:
    """What the page holds of episodes; ``rows`` have the :data:`COLUMNS`, ``shown`` says of which logs they are."""

    rows: list[list[Any]] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)
    shown: list[tuple[Log, int]] = field(default_factory=list)
    without_tokens: list[Log] = field(default_factory=list)


def collect(runs: Sequence[Run], limit: int | None) -> EpisodeData:
    """Episodes of all logs of the runs, at most ``limit`` of each; token texts where a run has its tokenizer.

    The evaluation of an SFT policy that several runs went on from is taken from the run that made it.
    """
    data = EpisodeData()
    readers: dict[Path, TokenTexts] = {}
    waiting: list[dict[str, Any]] = []
    owners = {(run.folder / "sft" / "policy").resolve(): run for run in runs}
    starts = {run.name: owners.get(run.sft_policy.resolve(), run) for run in runs}
    for log in (log for run in runs for log in run.logs()):
        start = starts[log.run.name]
        if log.label == "sft" and log.kind == "evaluation" and start is not log.run:
            continue  # it is the other run's
        pivot = log.run.pivot(log.iteration) if log.iteration is not None else None
        count, lacking = 0, False
        for episodes in log.read(limit):
            count += 1
            sides = ("chosen", "rejected") if len(episodes) > 1 else ("",)
            first = len(data.rows)
            for at, (side, episode) in enumerate(zip(sides, episodes, strict=True)):
                texts = _texts(log, readers) if episode.has_tokens else None
                lacking |= episode.has_tokens and texts is None
                partner = first + 1 - at if side else None
                data.rows.append(_row(log, episode, side, partner, start.name))
                waiting.append(_episode(log, episode, side, pivot, texts))
                if len(waiting) == EPISODES_PER_CHUNK:
                    data.chunks.append(packed(waiting))
                    waiting = []
        data.shown.append((log, count))
        if lacking:
            data.without_tokens.append(log)
    if waiting:
        data.chunks.append(packed(waiting))
    return data


def packed(value: Any) -> str:
    """JSON, compressed, in base64; the same bytes for the same value."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("ascii"), mtime=0)).decode("ascii")


class TokenTexts:
    """Texts of single tokens of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._decode: Callable[[list[int]], str] = lambda ids: tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        self._known: dict[int, str] = {}

    @classmethod
    def of_policy(cls, folder: Path) -> TokenTexts:
        """Of the policy that was saved in ``folder``."""
        return cls(load_tokenizer(folder, verbatim=bool(read_settings(folder))))

    def pieces(self, ids: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Texts that make up ``ids``, each with the range of its tokens: one, or those that share a character."""
        start = 0
        while start < len(ids):
            end, text = start + 1, self._known.get(ids[start])
            if text is None:
                text = self._known[ids[start]] = self._decode([ids[start]])
            if text.endswith(_BROKEN):
                end, text = self._character(ids, start, text)
            yield text, start, end
            start = end

    def _character(self, ids: Sequence[int], start: int, alone: str) -> tuple[int, str]:
        """End and text of the tokens from ``start`` on that share a character; of the first alone where none do."""
        for end in range(start + 2, min(len(ids), start + _PARTS_OF_A_CHARACTER) + 1):
            text = self._decode(list(ids[start:end]))
            if not text.endswith(_BROKEN):
                return end, text
        return start + 1, alone


def _texts(log: Log, readers: dict[Path, TokenTexts]) -> TokenTexts | None:
    folder = log.tokenizer
    if folder is not None and folder not in readers:
        readers[folder] = TokenTexts.of_policy(folder)
    return None if folder is None else readers[folder]


def _row(log: Log, episode: Trajectory, side: str, partner: int | None, start: str) -> list[Any]:
    return [
        log.run.name,
        log.label,
        log.kind,
        log.name,
        episode.split,
        episode.task_type,
        int(episode.won),
        episode.stop_reason.value,
        _number(episode.score),
        len(episode.turns),
        episode.invalid_actions,
        episode.instruction,
        episode.task_id,
        side,
        partner,
        start,
        " | ".join(turn.action or "" for turn in episode.turns),
    ]


def _episode(log: Log, episode: Trajectory, side: str, pivot: float | None, texts: TokenTexts | None) -> dict[str, Any]:
    return {
        "return": _number(episode.episode_return),
        "policy": episode.policy,
        "seed": episode.seed,
        "error": episode.error,
        "final": episode.final_observation,
        "pivot": pivot,
        "turns": [
            {
                "obs": turn.observation,
                "parts": _parts(turn, episode.prompt_format),
                "action": turn.action,
                "valid": turn.action_valid,
                "formed": turn.well_formed,
                "trainable": turn.trainable,
                "cut": turn.finish_reason.value == "length",
                "reward": _number(turn.reward),
                "p": _number(turn.confidence),
                "own": _number(_mean_probability(turn.logprobs)),
                "omega": log.run.weight(turn, side, pivot) if turn.trainable else None,
                "commands": turn.admissible_commands,
                "tokens": None if texts is None else list(_tokens(episode, turn, texts)),
            }
            for turn in episode.turns
        ],
    }


def _parts(turn: Turn, prompt_format: str) -> list[list[str]]:
    """The response in pieces: its thought ("t"), its action ("a"), and what is around them ("")."""
    response = turn.response
    thought = FORMATS[prompt_format]().parse(response).thought if prompt_format in FORMATS else ""
    start = response.find(thought) if thought else -1
    spans = [(start, start + len(thought), "t")] if start >= 0 else []
    after = spans[0][1] if spans else 0
    at = response.lower().find(turn.action.lower(), after) if turn.action else -1
    if turn.action and at >= 0 and len(response.lower()) == len(response):
        spans.append((at, at + len(turn.action), "a"))
    if not spans:
        return [["t", response]] if response else []
    parts, end = [], 0
    for start, stop, kind in spans:
        parts += [["", response[end:start]], [kind, response[start:stop]]]
        end = stop
    return [part for part in [*parts, ["", response[end:]]] if part[1]]


def _tokens(episode: Trajectory, turn: Turn, texts: TokenTexts) -> Iterator[list[Any]]:
    """Of each piece: its text, its log-prob when it was sampled, and that under the reference."""
    sampled, reference = turn.logprobs, turn.ref_logprobs
    for text, start, end in texts.pieces(episode.response_ids(turn)):
        yield [text, sampled and _total(sampled, start, end), reference and _total(reference, start, end)]


def _total(values: Sequence[float], start: int, end: int) -> float | None:
    return _number(values[start] if end == start + 1 else math.fsum(values[start:end]), 3)


def _mean_probability(logprobs: Iterable[float] | None) -> float | None:
    values = list(logprobs or ())
    return math.exp(fmean(values)) if values else None


def _number(value: float | None, digits: int = 4) -> float | None:
    """Rounded, for the page to be small; None for what is no finite number."""
    return None if value is None or not math.isfinite(value) else round(value, digits) + 0.0
