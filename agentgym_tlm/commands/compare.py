"""``agentgym-tlm compare``: trainers on one shared benchmark, with statistics."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from agentgym_tlm.benchmark import read_lock
from agentgym_tlm.cells import Cell, finished_cells
from agentgym_tlm.compare import Comparison
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.files import sole_worker
from agentgym_tlm.jobs import run_side_by_side
from agentgym_tlm.progress import plain_warnings, rollout_progress, training_progress
from agentgym_tlm.protocols import ENV_ID, PROTOCOLS, ProtocolName
from agentgym_tlm.ranges import COUNT, check_ranges
from agentgym_tlm.recipes import ExperimentConfig, TrainerName
from agentgym_tlm.standings import Metric, Standings
from agentgym_tlm.suites import find_suites, held_out
from agentgym_tlm.variants import Variant, parse_variants


@dataclass(frozen=True, kw_only=True)
class Compare(ExperimentConfig):
    """Compare trainers on the same tasks, budget and starting policies. Give the same command again after a stop."""

    trainer: Annotated[TrainerName, tyro.conf.Suppress] = "sft"
    seed: Annotated[int, tyro.conf.Suppress] = 0
    resume: Annotated[bool, tyro.conf.Suppress] = False
    sft_policy: Annotated[Path | None, tyro.conf.Suppress] = None
    hidden: ClassVar[tuple[str, ...]] = ("trainer", "seed", "resume", "sft_policy")

    trainers: tuple[str, ...] = ("sft", "dpo", "tlm-dre")
    """Trainers, with options of their own behind a colon: tlm-dre:omega_lower=1,kernel=lsif."""
    seeds: tuple[int, ...] = (0, 1)
    """Every trainer goes on from the SFT policy of each seed."""
    budget: int | None = None
    """Environment steps that every trainer samples for a seed, up to an episode or an iteration; None: its recipe's."""
    protocol: ProtocolName | None = None
    """Of ALFWorld, as published (see eval): sets steps, splits, temperature and prompt format, in training, too."""
    suites: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: none)")] = ()
    """Further test suites, such as type-heat, paraphrased, swapped or renamed; see eval --suites."""
    hold_out: str | None = None
    """A suite such as type-heat or topic-genetics whose tasks are left out of training; it is tested, too."""
    output_dir: Path | None = None
    """Folder of the comparison; None: runs/compare-<environment>-<policy>."""
    collect: Annotated[tuple[Path, ...], tyro.conf.arg(help_behavior_hint="(default: none)")] = ()
    """Folders of the same comparison from other machines: copy their finished cells, and train nothing."""
    only: tuple[str, ...] | None = None
    """Cells to do now, such as seed0/dpo; None: all."""
    jobs: int = 1
    """Seeds that are worked on side by side, each with num_threads; what they print is in seed0.log and so on."""
    baseline: str | None = None
    """Trainer that the others are compared with; None: sft."""
    metric: Metric = "success"
    """What is compared: episodes that were won, or the environment's score."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, budget=COUNT, jobs=COUNT)
        for seed in self.seeds:
            if not isinstance(seed, int) or seed < 0:
                raise ConfigError(f"seeds must be numbers from 0 on, not {seed}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError("seeds: need one or more, each once")
        find_suites(self.suites)

    @classmethod
    def defaults_for(cls, policy: str, env: str, trainer: str) -> Compare:
        """The defaults that cells share; see :mod:`agentgym_tlm.recipes`."""
        shared = ExperimentConfig.defaults_for(policy, env, "sft")
        return cls(**{option.name: getattr(shared, option.name) for option in fields(ExperimentConfig)})

    @classmethod
    def foreign_groups(cls) -> set[str]:
        """What the config.yaml of an sft cell has beside the options that cells share."""
        return set(cls.hidden)

    def loaded_from(self, file: Path) -> Compare:
        """These options; the folder of a cell is not that of a comparison."""
        return self if super().loaded_from(file) is self else replace(self, output_dir=None)

    def run(self) -> int:
        """Do what is not done, print tables and verdicts, write files; 1 if a cell failed."""
        disable_progress_bar()
        comparison = self.comparison()
        baseline = self._baseline(comparison)
        failures: dict[str, str] = {}
        if self.collect:
            copied = comparison.collect(self.collect)
            print(f"Collected: {' '.join(copied) or 'nothing new'}")
        else:
            try:
                if self.jobs > 1:
                    failures = run_side_by_side(comparison, self.jobs, self.only)
                else:
                    with plain_warnings():
                        failures = comparison.run(
                            rollouts=rollout_progress, training=training_progress, only=self.only, report=_say
                        )
            except KeyboardInterrupt:
                raise KeyboardInterrupt("Go on with the same command; what is finished is not done again.") from None
        cells = comparison.cells()
        order = [variant.name for variant in comparison.variants]
        if baseline is not None and not any(cell.trainer == baseline for cell in cells):
            print(f"No cell of {baseline} is finished yet: until then, sft is the baseline.")
            baseline = None
        standings = Standings.of(cells, baseline=baseline, metric=self.metric, order=order)
        with sole_worker(comparison.folder):
            standings.write(comparison.folder, cells, failures)
        console = Console(highlight=False)
        for table in standings.tables():
            console.print(table)
        for line in (*standings.verdicts, *(f"{name} FAILED: {reason}" for name, reason in failures.items())):
            console.print(line, soft_wrap=True, markup=False)
        finished = {cell.name for cell in cells}
        missing = [name for name in comparison.names if name not in finished and name not in failures]
        if missing and not self.collect:
            console.print(f"Not done yet: {' '.join(missing)}", soft_wrap=True)
        console.print(f"comparison.md, .csv, .json, report.html: {comparison.folder}", soft_wrap=True)
        with sole_worker(comparison.folder):
            _write_report(comparison, cells, standings, failures)
        return 1 if failures else 0

    def _baseline(self, comparison: Comparison) -> str | None:
        """The baseline in the one spelling of its spec. Raises ConfigError for one that there will be no cell of."""
        if self.baseline is None:
            return None
        name = Variant.parse(self.baseline).name
        finished = [cell.trainer for folder in (comparison.folder, *self.collect) for _, cell in finished_cells(folder)]
        if name not in (known := dict.fromkeys(["sft", *(v.name for v in comparison.variants), *finished])):
            raise ConfigError(f"baseline: {name} is not one of the trainers, which are {', '.join(known)}")
        return name

    def comparison(self) -> Comparison:
        """What the options mean. Raises ConfigError where they contradict each other."""
        envs = self.envs if self.hold_out is None else held_out(self.envs, self.hold_out)
        names = dict.fromkeys((*self.suites, *([] if self.hold_out is None else [self.hold_out])))
        shared = ExperimentConfig.defaults_for(self.policy, self.envs.env, "sft")
        options = {o.name: getattr(self, o.name) for o in fields(ExperimentConfig) if o.name not in self.hidden}
        shared = replace(shared, **{**options, "envs": envs, "output_dir": None})
        folder = Path("runs") / f"compare-{envs.env}-{Path(self.policy).name}".lower()
        return Comparison(
            folder=self.output_dir or folder,
            shared=shared if self.protocol is None else _with_protocol(shared, self.protocol),
            variants=parse_variants(self.trainers),
            seeds=self.seeds,
            budget=self.budget,
            suites=find_suites(list(names)),
        )


def _with_protocol(config: ExperimentConfig, name: ProtocolName) -> ExperimentConfig:
    protocol = PROTOCOLS[name]
    default = ExperimentConfig.defaults_for(config.policy, config.envs.env, "sft")
    if config.envs.env != ENV_ID:
        raise ConfigError(f"the protocol {name} is one of {ENV_ID}: leave it out for {config.envs.env}")
    if protocol.num_draws is not None:
        raise ConfigError(f"the protocol {name} plays some tasks twice: compare with gigpo, and use it with eval")
    if config.prompt_format not in (None, protocol.format.name):
        raise ConfigError(f"the protocol {name} has the prompt format {protocol.format.name}: leave one of the two out")
    if config.evaluation.num_tasks is not None:
        raise ConfigError(f"the protocol {name} plays every task: leave out --evaluation.num-tasks")
    fixed = {
        "max_episode_steps": (
            config.envs.max_episode_steps,
            default.envs.max_episode_steps,
            protocol.max_episode_steps,
        ),
        "splits": (config.evaluation.splits, default.evaluation.splits, protocol.splits),
        "temperature": (config.evaluation.temperature, default.evaluation.temperature, protocol.temperature),
    }
    for option, (given, usual, wanted) in fixed.items():
        if given not in (usual, wanted):
            raise ConfigError(f"the protocol {name} has {option} {wanted}, not {given}: leave out one of the two")
    return replace(
        config,
        envs=replace(config.envs, max_episode_steps=protocol.max_episode_steps),
        prompt_format="tags" if protocol.format.name == "tags" else "react",
        evaluation=replace(config.evaluation, splits=protocol.splits, temperature=protocol.temperature),
    )


def _write_report(
    comparison: Comparison, cells: Sequence[Cell], standings: Standings, failures: Mapping[str, str]
) -> None:
    """``report.html``: the tables, then figures and episodes of all cells."""
    from agentgym_tlm.report import write_report
    from agentgym_tlm.report.comparison import comparison_section

    write_report(
        [comparison.folder / cell.name for cell in cells],
        comparison.folder / "report.html",
        title=f"{read_lock(comparison.folder)['environment']['id']}: {', '.join(standings.trainers)}",
        sections=[("Comparison", comparison_section(standings, failures))],
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
