"""Run folders as a report reads them: options, results, metrics, and turn logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from agentgym_tlm.cells import CELL_FILE
from agentgym_tlm.errors import DataError
from agentgym_tlm.evaluate import EvalResult, read_results
from agentgym_tlm.suites import SUITES
from agentgym_tlm.trajectory import Trajectory, Turn, read_trajectories
from agentgym_tlm.variants import Variant

_NOT_A_VARIANT = {"output_dir", "logging_steps", "save_steps", "save_total_limit", "eval_steps", "report_to", "n_slots"}
_OF_A_BUDGET = {"num_tasks", "samples_per_task", "num_iterations", "max_env_steps"}


@dataclass(frozen=True)
class Log:
    """Turn logs that belong together: those of a policy on a split, or the two sides of pairs, line by line.

    ``kind`` is ``evaluation``, ``expert``, ``training`` or ``pair``; ``label`` names the policy or the trainer.
    """

    run: Run
    label: str
    kind: str
    name: str
    paths: tuple[Path, ...]
    iteration: int | None = None

    @cached_property
    def size(self) -> int:
        """Episodes, or pairs."""
        with self.paths[0].open("rb") as file:
            return sum(1 for line in file if line.strip())

    def read(self, limit: int | None) -> Iterator[tuple[Trajectory, ...]]:
        """Episodes, or pairs of the chosen and the rejected one; of more than ``limit``, evenly spaced ones."""
        wanted = range(self.size) if limit is None or limit >= self.size else self._spaced(limit)
        for i, episodes in enumerate(zip(*map(read_trajectories, self.paths), strict=True)):
            if i in wanted:
                yield episodes

    def _spaced(self, limit: int) -> set[int]:
        """Places of ``limit`` episodes: in evaluations of the same tasks for every policy, the newest of each."""
        places = list(range(self.size))
        if self.kind == "evaluation":
            newest = {episode.task_id: i for i, episode in enumerate(read_trajectories(self.paths[0]))}
            if len(newest) >= limit:
                places = [newest[task] for task in sorted(newest)]
        return {places[i * len(places) // limit] for i in range(limit)}

    @property
    def tokenizer(self) -> Path | None:
        """Folder of the policy that read and wrote these tokens; None when the run does not have it."""
        own, evaluated = self.run.folder / self.label / "policy", Path(str(self.run.config.get("policy")))
        known = (own, self.run.sft_policy, evaluated)
        return next((folder for folder in known if (folder / "tokenizer.json").is_file()), None)


@dataclass(frozen=True)
class Run:
    """A run folder of ``agentgym-tlm train``, or one of ``eval`` or ``rollout``; ``name`` is what a report calls it."""

    folder: Path
    name: str

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run's options. Raises DataError for a config.yaml of something else."""
        file = self.folder / "config.yaml"
        try:
            config = yaml.safe_load(file.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise DataError(f"{file} cannot be read: {error}") from error
        if not isinstance(config, dict) or "policy" not in config:
            raise DataError(f"{file} names no policy: it is not one that train and eval write")
        return config

    @property
    def trainer(self) -> str:
        """Name of the trainer; of an evaluated policy, its own or that of its training."""
        if "trainer" in self.config:
            return str(self.config["trainer"])
        policy = Path(str(self.config.get("policy", "")))
        return policy.parent.name if policy.name == "policy" else policy.name

    @property
    def env(self) -> str:
        """Environment id."""
        return str(self.config.get("env", ""))

    @property
    def method(self) -> dict[str, Any]:
        """The trainer's options; none for an evaluation."""
        options: dict[str, Any] = self.config.get(self.trainer.replace("-", "_")) or {}
        return options

    @property
    def choices(self) -> dict[str, Any]:
        """The options of :attr:`method` that make it another one; not how much a comparison's budget let it sample."""
        file, planned = self.folder / CELL_FILE, set[str]()
        if file.is_file():
            spec = Variant.parse(json.loads(file.read_text(encoding="utf-8"))["trainer"])
            planned = _OF_A_BUDGET - spec.options.keys()
        return {name: value for name, value in self.method.items() if name not in _NOT_A_VARIANT | planned}

    @property
    def sft_policy(self) -> Path:
        """Folder of the SFT policy from which the trainer went on."""
        given = self.config.get("sft_policy")
        beside = self.folder.parent / "sft" / "sft" / "policy"  # in a comparison that was moved or collected
        if given and not Path(given).is_dir() and beside.is_dir():
            return beside
        return Path(given) if given else self.folder / "sft" / "policy"

    @cached_property
    def results(self) -> list[EvalResult]:
        """Of every policy on every split; none while the run is unfinished."""
        path = self.folder / "results.json"
        return read_results(path) if path.is_file() else []

    def metrics(self, stage: str) -> list[dict[str, Any]]:
        """Lines of a stage's ``metrics.jsonl``, the torn last line of a killed run left out."""
        path = self.folder / stage / "metrics.jsonl"
        if not path.is_file():
            return []
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def pivot(self, iteration: int) -> float | None:
        """The confidence above which turns weighed ``omega_lower``; None where no turn had a weight."""
        if "omega_lower" not in self.method:
            return None
        logged = [
            m["p_pivot"] for m in self.metrics(self.trainer) if m.get("iteration") == iteration and "p_pivot" in m
        ]
        return float(logged[-1] if logged else self.method["p_pivot"])

    def weight(self, turn: Turn, side: str, pivot: float | None) -> float | None:
        """ω of a turn in tlm-DRE (Eq. 10); None for other methods."""
        if pivot is None or turn.confidence is None:
            return None
        if side == "chosen" and self.method.get("weight_side") == "rejected":
            return 1.0
        return float(self.method["omega_lower" if turn.confidence > pivot else "omega_upper"])

    def logs(self) -> list[Log]:
        """All turn logs that a reader may want to see: evaluations, pairs, episodes of the training, the expert's."""
        played = [*self._played("evaluation"), *self._suites(), *self._evaluated()]
        return [*played, *self.pairs(), *self._training(), *self._played("expert")]

    def pairs(self) -> list[Log]:
        """The scored pairs of every iteration."""
        return [
            Log(
                self,
                self.trainer,
                "pair",
                f"pairs, iteration {i}",
                (folder / "chosen.jsonl", folder / "rejected.jsonl"),
                i,
            )
            for i, folder in self._iterations("pairs")
        ]

    def _played(self, kind: str) -> list[Log]:
        paths = [
            path
            for path in (self.folder / "trajectories").glob("*.jsonl")
            if (path.stem == "expert") == (kind == "expert")
        ]
        known = ("expert", "sft", self.trainer)
        logs = []
        for path in sorted(paths, key=lambda path: (not path.stem.startswith("sft-"), path.stem)):
            label = next((name for name in known if f"{path.stem}-".startswith(f"{name}-")), self.trainer)
            logs.append(Log(self, label, kind, path.stem, (path,)))
        return logs

    def _suites(self) -> list[Log]:
        """Further test suites of a comparison's cell."""
        paths = sorted((self.folder / "suites").glob("*.jsonl"))
        return [Log(self, self.trainer, "evaluation", f"{self.trainer}-{path.stem}", (path,)) for path in paths]

    def _evaluated(self) -> list[Log]:
        """What eval or rollout played: a file per split, in a folder of its own for a suite."""
        suite = SUITES.get(self.folder.name)
        return [
            Log(
                self,
                self.trainer,
                "evaluation",
                f"{self.trainer}-{path.stem if suite is None or suite.env is None else suite.name}",
                (path,),
            )
            for path in sorted(self.folder.glob("*.jsonl"))
        ]

    def _training(self) -> list[Log]:
        """What was learnt from where that is no pairs: an online method's episodes, or what another sampled."""
        episodes, pairs = dict(self._iterations("episodes.jsonl")), dict(self._iterations("pairs"))
        paths = {i: path for i, path in self._iterations("sampled.jsonl") if i not in pairs} | episodes
        return [Log(self, self.trainer, "training", f"iteration {i}", (paths[i],), i) for i in sorted(paths)]

    def _iterations(self, what: str) -> list[tuple[int, Path]]:
        paths = (self.folder / self.trainer).glob(f"iteration-*/{what}")
        return sorted((int(path.parent.name.removeprefix("iteration-")), path) for path in paths)


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Runs with the shortest names that tell them apart; those of a comparison, or of suites, by their folder.

    Raises DataError for what is no run folder and has none.
    """
    if not folders:
        raise DataError("name at least one run folder, such as train writes")
    paths = list(dict.fromkeys(run.resolve() for folder in folders for run in _run_folders(folder)))
    return [Run(path, _name(path, paths)) for path in paths]


def _run_folders(folder: Path) -> list[Path]:
    for pattern in ("config.yaml", "*/config.yaml", "seed*/*/config.yaml"):
        if found := sorted(folder.glob(pattern)):
            return [file.parent for file in found]
    raise DataError(f"{folder} is no run folder: it has no config.yaml, such as train and eval write")


def _name(path: Path, paths: Sequence[Path]) -> str:
    """The last parts of a path, as many as it takes to tell it from the others."""
    tails = ("/".join(path.parts[-n:]) for n in range(1, len(path.parts)))
    return next(
        (tail for tail in tails if sum(f"/{other.as_posix()}".endswith(f"/{tail}") for other in paths) == 1), str(path)
    )


def variants(runs: Sequence[Run]) -> dict[Path, str]:
    """By run folder, its trainer, with those of its options that differ among the runs of that trainer."""
    by_trainer: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.method:
            by_trainer.setdefault((run.env, run.trainer), []).append(run)
    names = {
        run.folder: f"{run.trainer} (eval)" if (run.env, run.trainer) in by_trainer else run.trainer
        for run in runs
        if not run.method  # an evaluation has none of the options, which is no difference
    }
    for group in by_trainer.values():
        options = [run.choices for run in group]
        differing = differing_options(options)
        for run, one in zip(group, options, strict=True):
            details = ", ".join(f"{name} {_show(one.get(name))}" for name in differing)
            names[run.folder] = f"{run.trainer} ({details})" if details else run.trainer
    return names


def differing_options(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of those that have not the same value everywhere."""
    return sorted({name for one in options for name in one if any(o.get(name) != one[name] for o in options)})


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={item}" for name, item in value.items())
    return "default" if value is None else str(value)
