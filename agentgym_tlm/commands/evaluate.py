"""``agentgym-tlm eval``: success of a policy on held-out tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from agentgym_tlm.commands.rollout import PlayOptions, new_folder, play
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.evaluate import EvalResult, results_table, task_type_table, write_results
from agentgym_tlm.protocols import ENV_ID, PROTOCOLS, ProtocolName
from agentgym_tlm.ranges import check_splits
from agentgym_tlm.suites import UNKNOWN_SHARE, find_suites, unknown_share


@dataclass(frozen=True, kw_only=True)
class Evaluate(PlayOptions):
    """Success of a policy on held-out tasks, each played once. Give the same --output-dir again after a stop."""

    protocol: ProtocolName | None = None
    """Of ALFWorld, as published. eto: 40 steps, greedy, both splits, react; gigpo: 50 steps, temperature 0.4,
    valid_seen, tags with the last 2 turns; gigpo-128: the same on 128 draws. It sets these options, and checks the
    prompt format of a policy that has one of its own."""
    splits: tuple[str, ...] | None = None
    """Splits of the environment; None: valid_seen and valid_unseen, or the protocol's."""
    suites: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: none)")] = ()
    """Named test suites instead of splits: seen, unseen; of ALFWorld type-pick, -look, -clean, -heat, -cool, -two, put,
    paraphrased, swapped, renamed; of ScienceWorld topic-matter and others; alfworld, scienceworld, hotpotqa."""
    by_task_type: bool = False
    """Show success for every task type, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.splits is not None:
            check_splits(self.splits)
        find_suites(self.suites)
        if self.suites and (self.splits or self.protocol):
            raise ConfigError("suites have splits and steps of their own: leave out --splits and --protocol")

    def run(self) -> int:
        """Play every split or suite, write ``results.json``, print the table."""
        folder = self.output_dir or new_folder("eval", self.policy)
        results = self._on_suites(folder) if self.suites else self._on_splits(folder)
        write_results(folder / "results.json", results)
        console = Console(highlight=False)
        console.print(results_table(results))
        if self.by_task_type:
            console.print(task_type_table(results))
        print(f"Turn logs and results.json: {folder}")
        return 0

    def _on_splits(self, folder: Path) -> list[EvalResult]:
        options = self.resolved()
        assert options.splits is not None
        protocol = None if self.protocol is None else PROTOCOLS[self.protocol]
        played = play(options, folder, "eval", options.splits, protocol=protocol)
        return [EvalResult.of(trajectories, protocol=self.protocol or "") for trajectories in played]

    def _on_suites(self, folder: Path) -> list[EvalResult]:
        """Each in a folder of its own; the environment is the one that the policy was trained in, if it says so."""
        from agentgym_tlm.policies.loading import load_tokenizer

        trained = self.envs.trained_on(Path(self.policy))
        unknown = load_tokenizer(self.policy, verbatim=True).unk_token_id if Path(self.policy).is_dir() else None
        results = []
        for suite in find_suites(self.suites):
            envs = suite.envs(trained)
            options = replace(self, suites=(), splits=(suite.split,), envs=envs, temperature=self.temperature or 0.0)
            (trajectories,) = play(options, folder / suite.name, "eval", [suite.split])
            results.append(replace(EvalResult.of(trajectories), split=suite.name))
            write_results(folder / suite.name / "results.json", results[-1:])
            if (share := unknown_share(unknown, trajectories)) > UNKNOWN_SHARE:
                print(f"{suite.name}: {100 * share:.1f}% of the first prompts are words that the policy does not know")
            if suite.out_of_domain(trained):
                print(f"{suite.name}: out of domain for a policy trained on {_domain(trained)}")
        return results

    def resolved(self) -> Evaluate:
        """With what the protocol, or its absence, means for options that are None.

        Raises ConfigError for options that the protocol does not allow.
        """
        if self.protocol is None:
            splits = self.splits or ("valid_seen", "valid_unseen")
            return replace(self, splits=splits, temperature=self.temperature or 0.0)
        protocol = PROTOCOLS[self.protocol]
        if self.envs.env != ENV_ID:
            raise ConfigError(f"the protocol {self.protocol} is one of {ENV_ID}: leave it out for {self.envs.env}")
        if protocol.num_draws is not None and self.limit is not None:
            raise ConfigError(f"the protocol {self.protocol} has {protocol.num_draws} episodes: leave --limit out")
        fixed = {
            "splits": (self.splits, protocol.splits),
            "temperature": (self.temperature, protocol.temperature),
            "max_episode_steps": (self.envs.max_episode_steps, protocol.max_episode_steps),
            "prompt_format": (self.prompt_format, protocol.format.name),
        }
        for name, (given, wanted) in fixed.items():
            if given is not None and given != wanted:
                raise ConfigError(
                    f"the protocol {self.protocol} has {name} {_words(wanted)}, not {_words(given)}: leave out one of "
                    "the two"
                )
        envs = replace(self.envs, max_episode_steps=protocol.max_episode_steps)
        return replace(self, envs=envs, splits=protocol.splits, temperature=protocol.temperature)


def _domain(envs: EnvArgs) -> str:
    kinds = [f"{name}={value}" for name, value in envs.env_kwargs.items()]
    return " ".join([envs.env, *kinds])


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
