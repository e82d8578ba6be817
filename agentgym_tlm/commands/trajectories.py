"""``agentgym-tlm data import-trajectories`` and ``export``: trajectories from and for other projects."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import tyro

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError, DataError
from agentgym_tlm.files import replaced_file, to_json
from agentgym_tlm.prompt import PromptFormat, ReactFormat
from agentgym_tlm.ranges import check_ranges
from agentgym_tlm.trajectory import Trajectory, read_trajectories, write_trajectories

if TYPE_CHECKING:
    from agentgym_tlm.policies.language_model import LanguageModelPolicy

Layout = Literal["messages", "trl-sft", "trl-dpo", "atif", "parquet"]


@dataclass(frozen=True, kw_only=True)
class ImportTrajectories:
    """Read an ETO, AgentTraj or messages file: agentgym-tlm data import-trajectories FILE --output expert.jsonl.

    The turn log that it writes is what train imitates with --expert.file. Broken records are listed, and left out.
    """

    summary: ClassVar[str] = "read ETO, AgentTraj or messages files as an expert's episodes"

    path: tyro.conf.Positional[Path] = tyro.MISSING
    """JSON or JSONL."""
    output: Path = tyro.MISSING
    """The turn log to write."""
    envs: tyro.conf.OmitArgPrefixes[EnvArgs] = field(default_factory=EnvArgs)
    skip_messages: int | None = None
    """Messages at the beginning of each record that are no part of the episode, such as an instruction, its
    acknowledgement and a worked example; None: an instruction that is answered with an acknowledgement."""

    def __post_init__(self) -> None:
        check_ranges(self, skip_messages="[0, inf)")

    def run(self) -> int:
        """Write the file and print what is in it; exit code 1 when records were left out."""
        from agentgym_tlm.formats import read_expert

        _check_new(self.output)
        episodes, broken = read_expert(self.path, self.envs.manifest("train"), skip_messages=self.skip_messages)
        write_trajectories(self.output, episodes)
        won, named = (sum(map(bool, values)) for values in zip(*((t.won, t.task_id) for t in episodes), strict=True))
        print(
            f"{self.output}: {len(episodes)} episodes, {won} of them won, {sum(len(t.turns) for t in episodes)} turns"
        )
        print(f"{named} name a training task of {self.envs.env}; the others serve SFT alone")
        for record in broken:
            print(f"{self.path}: {record}", file=sys.stderr)
        if broken:
            print(f"{len(broken)} of {len(broken) + len(episodes)} records were left out", file=sys.stderr)
        return 1 if broken else 0


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write trajectories for other tools: agentgym-tlm export LOG.jsonl --to messages --output FILE.jsonl.

    What others learn from (messages, trl-sft, trl-dpo) has no episodes of which the environment broke down, or nothing
    may be learnt; they are counted. What keeps whole episodes (atif, parquet) has all of them.
    """

    summary: ClassVar[str] = "write trajectories as messages, as a dataset for TRL, as ATIF or as Parquet"

    path: tyro.conf.Positional[Path] = tyro.MISSING
    """A turn log; for trl-dpo a folder with chosen.jsonl and rejected.jsonl, such as RUN/TRAINER/iteration-0/pairs."""
    output: Path = tyro.MISSING
    """The file to write: Parquet, or JSONL."""
    to: Layout = "messages"
    """messages: role and content; trl-sft: input_ids and assistant_masks, the tokens of the loss; trl-dpo: prompt,
    chosen and rejected messages; atif: an ATIF document per episode; parquet: a row per episode."""
    won: bool = False
    """Only episodes that were won."""
    policy: str | None = None
    """Folder or hub id of the model whose prompt format (messages, trl-dpo) and, for episodes without tokens, whose
    tokenizer (trl-sft) to use; None: the texts of the environment alone, and episodes with tokens."""

    def run(self) -> int:
        """Write the file and print what is in it."""
        from agentgym_tlm.formats import dpo_row, messages_row
        from agentgym_tlm.pairs import read_pairs

        _check_new(self.output)
        if self.to in ("atif", "parquet"):
            return self._archive()
        policy = _language_model(self.policy)
        format: PromptFormat = policy.format if policy else ReactFormat(instructions="")
        dropped: Counter[str] = Counter()
        rows: Iterator[dict[str, Any]]
        if self.to == "trl-dpo":
            if not (self.path / "chosen.jsonl").is_file():
                raise DataError(f"{self.path} is no folder of pairs: it has no chosen.jsonl, such as a trainer writes")
            rows = (dpo_row(pair, format) for pair in read_pairs(self.path))
        elif self.to == "trl-sft":
            rows = _sft_rows(self._episodes(dropped), policy, dropped)
        else:
            rows = (messages_row(trajectory, format) for trajectory in self._episodes(dropped))
        self._report(_write_rows(self.output, rows), dropped)
        return 0

    def _archive(self) -> int:
        """Write whole episodes, whatever became of them."""
        from agentgym_tlm.archives import to_atif, write_parquet

        if self.policy is not None:
            raise ConfigError(f"{self.to} has the episodes as they were logged: leave out --policy")
        dropped: Counter[str] = Counter()
        episodes = self._episodes(dropped, whole=True)
        if self.to == "atif":
            count = _write_rows(self.output, map(to_atif, episodes))
        else:
            count = write_parquet(self.output, episodes)
        self._report(count, dropped)
        return 0

    def _report(self, rows: int, dropped: Counter[str]) -> None:
        print(f"{self.output}: {rows} rows" + "".join(f", {n} left out: {why}" for why, n in sorted(dropped.items())))

    def _episodes(self, dropped: Counter[str], *, whole: bool = False) -> Iterator[Trajectory]:
        if self.path.is_dir():
            raise DataError(f"{self.path} is a folder: name one of the turn logs in it (*.jsonl)")
        if not self.path.is_file():
            raise DataError(f"there is no turn log {self.path} to export")
        for trajectory in read_trajectories(self.path):
            if not whole and (trajectory.stop_reason.is_breakdown or not trajectory.turns):
                dropped[trajectory.stop_reason.value] += 1
            elif self.won and not trajectory.won:
                dropped["not won"] += 1
            else:
                yield trajectory


def _sft_rows(
    episodes: Iterable[Trajectory], policy: LanguageModelPolicy | None, dropped: Counter[str]
) -> Iterator[dict[str, Any]]:
    from agentgym_tlm.batch import untrainable_reason
    from agentgym_tlm.formats import sft_rows

    for trajectory in episodes:
        if not trajectory.sequences:
            if policy is None:
                raise ConfigError(
                    "trl-sft writes token ids, and these episodes have none: name a --policy to encode with"
                )
            trajectory = policy.renderer.encode_trajectory(trajectory)
        reason = untrainable_reason(trajectory)
        if reason is None:
            yield from sft_rows(trajectory)
        else:
            dropped[reason] += 1


def _language_model(name: str | None) -> LanguageModelPolicy | None:
    if name is None:
        return None
    from agentgym_tlm.policies import load_language_model

    return load_language_model(name)


def _write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write JSONL; returns how many rows it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with replaced_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(to_json(row) + "\n")
            count += 1
    return count


def _check_new(path: Path) -> None:
    """Nothing is overwritten. Raises ConfigError when the file is there."""
    if path.exists():
        raise ConfigError(f"{path} is there already: choose another --output")
