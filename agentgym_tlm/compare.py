"""A comparison: trainers x seeds on one benchmark, every trainer from the same SFT policy of its seed.

A cell is a run folder of the main job (:mod:`agentgym_tlm.experiment`) in the folder of the comparison:

=========================== =========================================================================
``benchmark.lock``          what all cells share: see :mod:`agentgym_tlm.benchmark`
``seed<k>/sft/``            the imitation and the evaluation of its policy
``seed<k>/<trainer>/``      a trainer that goes on from it; for a spec, ``:`` is written as ``,``
``<cell>/cell.json``        of a finished cell: what became of every test task, and the environment steps sampled
``<cell>/suites/*.jsonl``   turn logs of further test suites
``<cell>/failure.txt``      why a cell failed; it is tried again by the next call
=========================== =========================================================================

A call does what is not done yet, so that it can be repeated after a stop, and called for some trainers or seeds on one
machine and for others on another: :meth:`Comparison.collect` merges their folders.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym_tlm.benchmark import LOCK_FILE, benchmark_lock, check_lock, keep_lock, read_lock
from agentgym_tlm.cells import CELL_FILE, Cell, cell_name, finished_cells, last_outcomes
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import AgentGymError, ConfigError
from agentgym_tlm.experiment import Experiment, Rollouts, Training
from agentgym_tlm.files import sole_worker, write_text
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.recipes import ExperimentConfig
from agentgym_tlm.rollout import logged_rollout
from agentgym_tlm.suites import Suite, unknown_share
from agentgym_tlm.takeover import resumed, share_evaluation, share_samples
from agentgym_tlm.trainers.collect import sampled_turns, sampling_at
from agentgym_tlm.trajectory import Trajectory, read_trajectories
from agentgym_tlm.variants import Variant

FAILURE_FILE = "failure.txt"
CALIBRATION_TASKS = 64
"""Training tasks on which the length of the SFT policy's sampled episodes is measured, to plan a budget."""
_NAMES = {"valid_seen": "seen", "valid_unseen": "unseen"}
_FAILURES = (AgentGymError, OSError, RuntimeError, MemoryError)
"""What ends a cell but not the comparison; anything else is a mistake in the program."""


@dataclass(frozen=True)
class Comparison:
    """What is compared, and in which folder. ``shared`` holds the options that all cells have in common.

    With a ``budget``, each trainer samples about so many environment steps; ``sft`` samples none.
    """

    folder: Path
    shared: ExperimentConfig
    variants: Sequence[Variant]
    seeds: Sequence[int]
    budget: int | None = None
    suites: Sequence[Suite] = ()

    @property
    def names(self) -> list[str]:
        """The cells that are wanted."""
        sft = Variant("sft")
        variants = [sft, *(variant for variant in self.variants if variant != sft)]
        return [cell_name(variant, seed) for seed in self.seeds for variant in variants]

    def check(self) -> None:
        """Raise ConfigError for options that no cell could run with, before anything is played."""
        for variant in self.variants:
            config = self._config(variant, 0)
            if self.budget is not None:
                variant.within_budget(config, self.budget, 1.0, 1)

    def run(
        self,
        *,
        rollouts: Rollouts,
        training: Training,
        only: Sequence[str] | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> dict[str, str]:
        """Do what is not done yet; returns the reasons of the cells that failed, by name.

        ``only`` names cells, and the imitation that they start from is done with them. Raises ConfigError as
        :meth:`check`, or when the folder holds cells of another benchmark.
        """
        wanted = self.begin(only)
        failures: dict[str, str] = {}
        for seed in self.seeds:
            failures |= self.run_seed(seed, wanted, rollouts=rollouts, training=training, report=report)
        return failures

    def begin(self, only: Sequence[str] | None = None) -> list[str]:
        """Check everything, keep the lock, and return the cells that are wanted. Raises ConfigError as :meth:`run`."""
        self.check()
        wanted = self.names if only is None else list(only)
        if unknown := [name for name in wanted if name not in self.names]:
            raise ConfigError(f"only: there is no cell {unknown[0]}; there are {', '.join(self.names)}")
        keep_lock(self.folder, benchmark_lock(self.shared, budget=self.budget, suites=self.suites))
        return wanted

    def run_seed(
        self,
        seed: int,
        wanted: Sequence[str],
        *,
        rollouts: Rollouts,
        training: Training,
        report: Callable[[str], None],
    ) -> dict[str, str]:
        """The wanted cells of one seed, its imitation first, when no other process works on it; see :meth:`run`."""
        failures: dict[str, str] = {}
        variants = [Variant("sft"), *(variant for variant in self.variants if variant.trainer != "sft")]
        names = {cell_name(variant, seed): variant for variant in variants}
        if not any(name in wanted for name in names):
            return failures
        with sole_worker(
            self.folder / f"seed{seed}", lambda: report(f"seed{seed}: another process works on it: waits")
        ):
            for i, (name, variant) in enumerate(names.items()):
                if name not in wanted and i > 0:
                    continue
                failed = self._attempt(variant, seed, rollouts, training, report)
                if failed is None:
                    continue
                if i == 0:  # the others start from it
                    return {other: "its SFT policy is missing" for other in names if other in wanted} | {name: failed}
                failures[name] = failed
        return failures

    def collect(self, folders: Sequence[Path]) -> list[str]:
        """Copy the finished cells of other folders, without checkpoints, into this one; their names.

        Of a cell that is here, too, suites are copied that were played only there. Raises ConfigError when a folder has
        another lock, or a cell that is here with other outcomes or unfinished.
        """
        copied = []
        for other in folders:
            lock = read_lock(other)
            if (self.folder / LOCK_FILE).exists():
                check_lock(read_lock(self.folder), lock, other)
            keep_lock(self.folder, lock)
            for source, cell in finished_cells(other):
                target = self.folder / cell.name
                if (target / CELL_FILE).exists():
                    if _add_suites(Cell.read(target), target, cell, source):
                        copied.append(cell.name)
                    continue
                if target.exists():
                    raise ConfigError(f"{target} is begun, and finished in {other}: remove it to take the finished one")
                partial = self.folder / ".collected"
                shutil.rmtree(partial, ignore_errors=True)
                shutil.copytree(source, partial, ignore=shutil.ignore_patterns("checkpoint-*"))
                target.parent.mkdir(exist_ok=True)
                partial.rename(target)
                copied.append(cell.name)
        return copied

    def cells(self) -> list[Cell]:
        """All finished cells of the folder. Raises ConfigError when a seed has cells of different SFT policies."""
        cells = [cell for _, cell in finished_cells(self.folder)]
        starts: dict[int, Cell] = {}
        for cell in cells:
            first = starts.setdefault(cell.seed, cell)
            if first.start != cell.start:
                raise ConfigError(
                    f"{cell.name} and {first.name} do not start from the same SFT policy, so that they do not compare: "
                    "run one of them again, on the machine of the other or beside its sft folder"
                )
        return cells

    def _attempt(
        self, variant: Variant, seed: int, rollouts: Rollouts, training: Training, report: Callable[[str], None]
    ) -> str | None:
        """Finish a cell; the reason if that failed."""
        name = cell_name(variant, seed)
        folder = self.folder / name
        try:
            if self._is_done(folder):
                report(f"{name}: done before")
                return None
            report(f"{name}: begins")
            self._finish(variant, seed, folder, rollouts, training)
        except _FAILURES as error:
            reason = f"{type(error).__name__}: {error}"
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / FAILURE_FILE, reason + "\n")
            report(f"{name}: failed: {reason}")
            return reason
        (folder / FAILURE_FILE).unlink(missing_ok=True)
        return None

    def _is_done(self, folder: Path) -> bool:
        return (folder / CELL_FILE).exists() and {s.name for s in self.suites} <= Cell.read(folder).outcomes.keys()

    def _finish(self, variant: Variant, seed: int, folder: Path, rollouts: Rollouts, training: Training) -> None:
        """Train and evaluate what is not done yet, and write the cell down."""
        before = Cell.read(folder) if (folder / CELL_FILE).exists() else None
        began = time.monotonic()
        sft = self.folder / cell_name(Variant("sft"), seed)
        config = replace(self._config(variant, seed), output_dir=folder)
        if variant.trainer != "sft":
            config = replace(config, sft_policy=sft / "sft" / "policy")
            share_evaluation(sft, folder)
        if self.budget is not None and variant.trainer != "sft":
            tasks = len(config.envs.manifest("train"))
            config = variant.within_budget(config, self.budget, self._turns_per_episode(sft, seed, rollouts), tasks)
        if before is None:
            share_samples(variant, config, folder)
            config = resumed(config)
            Experiment(config, rollouts=rollouts, training=training).run()
        policy = LanguageModelPolicy.load(folder / variant.trainer / "policy")
        outcomes, unknown = (before.outcomes, before.unknown) if before else ({}, {})
        evaluated = {_NAMES.get(split, split) for split in config.evaluation.splits}
        played = {
            suite.name: self._play_suite(policy, suite, folder, seed, rollouts)
            for suite in self.suites
            if suite.name not in evaluated
        }
        logs = {
            _NAMES.get(split, split): list(
                read_trajectories(folder / "trajectories" / f"{variant.trainer}-{split}.jsonl")
            )
            for split in config.evaluation.splits
        } | played
        Cell(
            trainer=variant.name,
            seed=seed,
            start=LanguageModelPolicy.load(sft / "sft" / "policy").fingerprint,
            env_steps=0 if variant.trainer == "sft" else sampled_turns(folder / variant.trainer),
            seconds=round(time.monotonic() - began + (before.seconds if before else 0.0), 1),
            outcomes=outcomes | {name: last_outcomes(trajectories) for name, trajectories in logs.items()},
            unknown=unknown
            | {name: unknown_share(policy.tokenizer.unk_token_id, trajectories) for name, trajectories in logs.items()},
        ).write(folder)

    def _config(self, variant: Variant, seed: int) -> ExperimentConfig:
        """Options of a cell: the trainer's own defaults, with those that are shared, and the variant's."""
        shared = self.shared
        own = ExperimentConfig.defaults_for(shared.policy, shared.envs.env, variant.trainer)
        names = ("envs", "num_threads", "prompt_format", "tags", "expert", "tiny", "sft", "evaluation")
        changes: dict[str, Any] = {name: getattr(shared, name) for name in names}
        return variant.configured(replace(own, **changes, seed=seed))

    def _turns_per_episode(self, sft: Path, seed: int, rollouts: Rollouts) -> float:
        """Mean length of the episodes that the SFT policy samples at temperature 1 on training tasks."""
        envs = self.shared.envs
        played = self._rollout(
            LanguageModelPolicy.load(sft / "sft" / "policy"),
            envs,
            "train",
            envs.manifest("train").take(CALIBRATION_TASKS),
            sft.parent / "calibration.jsonl",
            seed,
            1.0,
            rollouts,
        )
        lengths = [len(t.turns) for t in played if t.turns and not t.stop_reason.is_breakdown]
        if not lengths:
            raise AgentGymError(
                f"a budget cannot be planned: no episode of the SFT policy came to a turn; the first ended as "
                f"{played[0].stop_reason} ({played[0].error or 'no error'})"
            )
        return fmean(lengths)

    def _play_suite(
        self, policy: LanguageModelPolicy, suite: Suite, folder: Path, seed: int, rollouts: Rollouts
    ) -> list[Trajectory]:
        envs = suite.envs(self.shared.envs)
        options = self.shared.evaluation
        tasks = envs.manifest(suite.split).take(options.num_tasks)
        log = folder / "suites" / f"{suite.name}.jsonl"
        return self._rollout(policy, envs, suite.split, tasks, log, seed, options.temperature, rollouts)

    def _rollout(
        self,
        policy: LanguageModelPolicy,
        envs: EnvArgs,
        split: str,
        tasks: Sequence[str],
        log: Path,
        seed: int,
        temperature: float,
        rollouts: Rollouts,
    ) -> list[Trajectory]:
        with sampling_at(policy, temperature), rollouts(log.stem) as progress:
            return logged_rollout(
                log,
                policy,
                envs.env,
                tasks,
                split=split,
                n_slots=self.shared.evaluation.n_slots,
                env_kwargs=envs.options,
                seed=seed,
                progress=progress,
            )


def _add_suites(here: Cell, target: Path, there: Cell, source: Path) -> bool:
    """Copy suites of a cell that only ``there`` has; whether it has any. Raises ConfigError for other outcomes."""
    common = here.outcomes.keys() & there.outcomes.keys()
    if here.start != there.start or any(here.outcomes[suite] != there.outcomes[suite] for suite in common):
        raise ConfigError(f"{source} and {target} are the same cell with other outcomes: move one of them away")
    further = [suite for suite in there.outcomes if suite not in common]
    for suite in further:
        (target / "suites").mkdir(exist_ok=True)
        shutil.copy(source / "suites" / f"{suite}.jsonl", target / "suites")
    if further:
        replace(here, outcomes=there.outcomes | here.outcomes, unknown=there.unknown | here.unknown).write(target)
    return bool(further)
