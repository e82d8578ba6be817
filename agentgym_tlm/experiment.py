"""The main job: imitate the expert, align, and evaluate before and after, in one resumable run folder.

1. The environment's expert plays training tasks, with injected mistakes from which it recovers; or a file is read.
2. SFT: the policy imitates the episodes that the expert won; the mistakes themselves are never trained on.
3. The SFT policy is evaluated on every evaluation split.
4. The trainer goes on from the SFT policy (tlm-DRE: sample, pair the failures with the expert, learn).
5. The trained policy is evaluated on the same tasks.

Every stage leaves its result in the run folder and is skipped once that is complete, so that a run killed at any moment
goes on with ``resume`` and ends with the same numbers:

=========================== =========================================================================
``config.yaml``             all options; give it back with ``--config``
``versions.json``           versions of the environment, the libraries and the machine
``manifests/<split>.json``  the task ids of every split, with their hash
``trajectories/*.jsonl``    turn logs of the expert and of every evaluation
``sft/``, ``<trainer>/``    collected data, metrics, checkpoints, the trained ``policy/``
``sft/initial/``            ``tiny`` before the imitation, from which RFT learns anew
``results.json``            success, turns and invalid actions of every policy on every split
=========================== =========================================================================
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env

import agentgym_tlm
from agentgym_tlm.config import differences, dump, load
from agentgym_tlm.errors import CheckpointError, ConfigError
from agentgym_tlm.evaluate import EvalResult, write_results
from agentgym_tlm.files import to_json, write_text
from agentgym_tlm.formats import read_expert, summary
from agentgym_tlm.policies import load_language_model
from agentgym_tlm.policies.base import Policy
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import TINY_FORMAT, build_tiny, tokenizer_texts
from agentgym_tlm.prompt import PromptFormat, format_to_dict, make_format
from agentgym_tlm.recipes import ExperimentConfig
from agentgym_tlm.renderer import Renderer
from agentgym_tlm.rollout import RolloutProgress, logged_rollout, rollout
from agentgym_tlm.suites import TASK_CHOICES
from agentgym_tlm.trainers.args import RUN_INDEPENDENT
from agentgym_tlm.trainers.base import Trainer
from agentgym_tlm.trainers.checkpoint import latest_checkpoint, replaced_folder
from agentgym_tlm.trainers.collect import sampling_at, training_tasks
from agentgym_tlm.trainers.methods import METHODS, option_group
from agentgym_tlm.trainers.preference import PreferenceTrainer
from agentgym_tlm.trainers.rft import RFTArguments
from agentgym_tlm.trainers.sft import SFTTrainer
from agentgym_tlm.trainers.sharding import PATIENCE
from agentgym_tlm.trajectory import Trajectory, read_trajectories, write_trajectories

Rollouts = Callable[[str], AbstractContextManager[Callable[[RolloutProgress], None]]]
"""Shows the progress of one named rollout, e.g. :func:`agentgym_tlm.progress.rollout_progress`."""
Training = Callable[[str], AbstractContextManager[Callable[[Mapping[str, float]], None]]]
"""Shows the progress of one named training, from its log lines."""

MONITORED_TASKS = 32
"""Tasks of an evaluation during training, which is for watching, not for reporting."""

_HARMLESS = {"resume", "output_dir", "num_threads"} | {
    f"{stage}.{name}" for stage in ("sft", *map(option_group, METHODS)) for name in RUN_INDEPENDENT
}
"""Options that a resumed run may change."""


class Experiment:
    """One run of the main job in its folder; :meth:`run` does all of it."""

    def __init__(self, config: ExperimentConfig, *, rollouts: Rollouts, training: Training) -> None:
        self.config = config
        self.folder = config.run_dir
        self._rollouts = rollouts
        self._training = training
        if not torch.cuda.is_available():
            torch.set_num_threads(config.num_threads)

    def run(self) -> list[EvalResult]:
        """All stages, or those that an earlier call left undone; the results are those of ``results.json``.

        Policies are passed from stage to stage through their folders, so that a resumed run is no different. Raises
        CheckpointError when the folder holds another run, this one and ``resume`` is off, or none and it is on; and
        ConfigError or DataError for a policy or expert file that is of no use, before anything is written.
        """
        PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=PATIENCE)  # models go to its own device
        config = self.config
        sft_policy = config.sft_policy or self.folder / "sft" / "policy"
        pretrained = self._pretrained(sft_policy)
        given = self._read_expert()
        with PartialState().main_process_first():
            self._open_folder()
            if given is not None and not self._expert_log.exists():
                self._expert_log.parent.mkdir(exist_ok=True)
                write_trajectories(self._expert_log, given)
        if not sft_policy.is_dir():
            self._imitate(pretrained)
        del pretrained, given  # the stages below load what they need
        results = self._evaluate(LanguageModelPolicy.load(sft_policy), "sft")
        if config.trainer != "sft":
            trained = self.folder / config.trainer / "policy"
            if not trained.is_dir():
                trainer = self._trainer(LanguageModelPolicy.load(sft_policy))
                self._fit(trainer, trainer.train)
            results += self._evaluate(LanguageModelPolicy.load(trained), config.trainer)
        if PartialState().is_main_process:
            write_results(self.folder / "results.json", results)
        return results

    def _pretrained(self, sft_policy: Path) -> LanguageModelPolicy | None:
        """What the imitation starts from, None if that is nothing or there is an SFT policy already."""
        config = self.config
        if config.sft_policy is not None:
            trained = load_language_model(str(sft_policy)).format
            format = make_format(config.prompt_format, config.tags, own=trained)
            if format not in (None, trained):
                raise ConfigError(
                    f"{sft_policy} was trained with another prompt format ({format_to_dict(trained)}): leave "
                    "--prompt-format and --tags out, or imitate the expert anew"
                )
            return None
        if config.policy == "tiny" or sft_policy.is_dir():
            return None
        policy = load_language_model(config.policy)
        format = make_format(config.prompt_format, config.tags, own=policy.format)
        if format is not None:
            policy.use_renderer(Renderer(policy.tokenizer, format))
        return policy

    def _open_folder(self) -> None:
        """Create the run folder, or check that it holds this very run."""
        config, file = self.config, self.folder / "config.yaml"
        if not PartialState().is_main_process:
            return
        if file.exists():
            changes = [
                f"{name}: {before} -> {now}"
                for name, (before, now) in differences(load(config, file), config).items()
                if name not in _HARMLESS
            ]
            if changes:
                raise CheckpointError(
                    f"{self.folder} holds a run with other options ({', '.join(changes)}): resume it "
                    f"with --config {file} --resume, or choose another --output-dir"
                )
            if not config.resume:
                raise CheckpointError(
                    f"{self.folder} holds a run already: add --resume to go on with it, or choose another --output-dir"
                )
            return
        if config.resume:
            raise CheckpointError(f"{self.folder} holds no run to go on with: leave --resume out to begin one there")
        versions = self._versions()
        manifests = {split: config.envs.manifest(split) for split in ("train", *config.evaluation.splits)}
        (self.folder / "manifests").mkdir(parents=True, exist_ok=True)
        _write_json(self.folder / "versions.json", versions)
        for split, manifest in manifests.items():
            _write_json(
                self.folder / "manifests" / f"{split}.json",
                {
                    "env_id": manifest.env_id,
                    "split": split,
                    "source": manifest.source,
                    "sha256": manifest.sha256,
                    "task_ids": list(manifest),
                },
            )
        write_text(file, dump(replace(config, resume=False, output_dir=self.folder)))

    def _versions(self) -> dict[str, Any]:
        libraries = ("torch", "transformers", "accelerate", "gymnasium", "numpy")
        return {
            "agentgym-tlm": agentgym_tlm.__version__,
            "environment": self.config.envs.version(),
            "python": platform.python_version(),
            "machine": platform.platform(),
            **{name: metadata.version(name) for name in libraries},
        }

    def _imitate(self, pretrained: LanguageModelPolicy | None) -> None:
        """SFT on the expert's wins, from scratch without a pretrained policy."""
        config, folder = self.config, self.folder / "sft"
        tiny_format = make_format(config.prompt_format, config.tags, instructions="") or TINY_FORMAT
        played = self._given_expert() or self._play_expert(tiny_format if pretrained is None else pretrained.format)
        expert = [trajectory for trajectory in played if trajectory.won]
        policy = pretrained or self._build_tiny(expert, tiny_format)
        if pretrained is None and PartialState().is_main_process:
            with replaced_folder(folder / "initial") as partial:
                policy.save(partial)
        args = replace(config.sft, output_dir=str(folder), seed=config.seed)
        trainer = SFTTrainer(policy, config.envs, args, evaluate=self._monitor)
        encoded = [policy.renderer.encode_trajectory(trajectory) for trajectory in expert]
        self._fit(trainer, lambda: trainer.train_trajectories(encoded))

    @property
    def _expert_log(self) -> Path:
        return self.folder / "trajectories" / "expert.jsonl"

    def _read_expert(self) -> list[Trajectory] | None:
        """Won episodes of the expert file, unless the run has a copy; warns of what is left out.

        Raises DataError for a file that cannot be read, ConfigError for one that is of no use to the trainer.
        """
        config, file = self.config, self.config.expert.file
        if file is None or self._expert_log.exists():
            return None
        read, broken = read_expert(file, config.envs.manifest("train"))
        chosen = [option for option in TASK_CHOICES if config.envs.env_kwargs.get(option) is not None]
        episodes = [trajectory for trajectory in read if trajectory.task_id or not chosen]
        won = [trajectory for trajectory in episodes if trajectory.won]
        wins = [trajectory for trajectory in won if any(turn.trainable for turn in trajectory.turns)]
        if not wins:
            raise ConfigError(
                f"{file} holds no episode that was won and may be imitated"
                + (f", of a task that {chosen[0]} allow for certain" if len(episodes) < len(read) else "")
                + ": there is nothing to learn from"
            )
        if config.trainer != "sft" and issubclass(METHODS[config.trainer].trainer, PreferenceTrainer):
            training_tasks(config.envs, None, wins)
        if broken:
            warnings.warn(f"{file}: {len(broken)} records are left out: {summary(broken)}", stacklevel=2)
        if len(episodes) < len(read):
            warnings.warn(
                f"{file}: {len(read) - len(episodes)} episodes of other tasks than {chosen[0]} allow, or of tasks that "
                "are not known, are left out",
                stacklevel=2,
            )
        if len(won) < len(episodes):
            warnings.warn(f"{file}: {len(episodes) - len(won)} episodes that were not won are left out", stacklevel=2)
        if len(wins) < len(won):
            warnings.warn(
                f"{file}: {len(won) - len(wins)} episodes without a trainable turn are left out", stacklevel=2
            )
        return wins

    def _given_expert(self) -> list[Trajectory] | None:
        """The run's copy of the expert file; None when the environment's expert plays."""
        return None if self.config.expert.file is None else list(read_trajectories(self._expert_log))

    def _play_expert(self, format: PromptFormat) -> list[Trajectory]:
        config = self.config
        tasks = config.envs.manifest("train").take(config.expert.num_tasks)
        policy = ExpertPolicy(noise=config.expert.noise, format=format)
        return self._play(policy, "train", tasks, "expert", n_slots=1)

    def _build_tiny(self, expert: Sequence[Trajectory], format: PromptFormat) -> LanguageModelPolicy:
        shape = self.config.tiny
        return build_tiny(
            tokenizer_texts(expert, format),
            hidden_size=shape.hidden_size,
            layers=shape.layers,
            heads=shape.heads,
            intermediate=shape.intermediate_size,
            max_context=shape.max_context,
            seed=self.config.seed,
            format=format,
        )

    def _trainer(self, policy: LanguageModelPolicy) -> Trainer[Any]:
        """The trainer that goes on from the SFT policy."""
        config, folder = self.config, str(self.folder / self.config.trainer)
        args = replace(config.method, output_dir=folder, seed=config.seed)
        if isinstance(args, RFTArguments):
            args = self._with_origin(args)
        trainer = METHODS[config.trainer].trainer(policy, config.envs, args, evaluate=self._monitor)
        trainer.expert_episodes = self._given_expert()
        return trainer

    def _with_origin(self, args: RFTArguments) -> RFTArguments:
        """With what the SFT policy was made of, as far as it is known: the policy before, and the expert's episodes."""
        config = self.config
        run = (config.sft_policy or self.folder / "sft" / "policy").parent.parent
        initial, log = run / "sft" / "initial", run / "trajectories" / "expert.jsonl"
        known = None if config.policy == "tiny" else config.policy
        if initial.is_dir() and args.lora is None:  # adapters of random weights would learn next to nothing
            known = str(initial)
        return replace(args, base_policy=args.base_policy or known, expert_log=str(log) if log.is_file() else None)

    def _fit(self, trainer: Trainer[Any], train: Callable[[], None]) -> None:
        """Train, going on from the newest checkpoint if there is one, and save the policy to ``policy/``."""
        if latest_checkpoint(trainer.output_dir) is not None:
            trainer.resume()
        with self._training(trainer.output_dir.name) as trainer.on_log, self._rollouts("samples") as trainer.on_rollout:
            train()
        trainer.save()

    def _evaluate(self, policy: LanguageModelPolicy, label: str) -> list[EvalResult]:
        """The policy on every evaluation split; ``label`` names it in the table and in the logs."""
        options = self.config.evaluation
        results = []
        for split in options.splits:
            tasks = self.config.envs.manifest(split).take(options.num_tasks)
            with sampling_at(policy, options.temperature):
                played = self._play(policy, split, tasks, f"{label}-{split}", n_slots=options.n_slots)
            results.append(EvalResult.of(played, label=label))
        return results

    def _monitor(self, policy: LanguageModelPolicy) -> dict[str, float]:
        """A few tasks of the first evaluation split, for the metrics of a training with ``eval_steps``."""
        options, envs = self.config.evaluation, self.config.envs
        split = options.splits[0]
        tasks = envs.manifest(split).take(min(MONITORED_TASKS, options.num_tasks or MONITORED_TASKS))
        with sampling_at(policy, options.temperature):
            played = rollout(policy, envs.env, tasks, split=split, n_slots=options.n_slots, env_kwargs=envs.options)
        result = EvalResult.of(played)
        return {
            f"{split}/success": result.success.value,
            f"{split}/mean_turns": result.mean_turns,
            f"{split}/invalid_action_rate": result.invalid_action_rate,
        }

    def _play(self, policy: Policy, split: str, tasks: Sequence[str], name: str, *, n_slots: int) -> list[Trajectory]:
        """Play ``tasks``, logged to ``trajectories/<name>.jsonl``; what is logged already is not played again."""
        path = self.folder / "trajectories" / f"{name}.jsonl"
        with PartialState().main_process_first(), self._rollouts(name) as progress:
            return logged_rollout(
                path,
                policy,
                self.config.envs.env,
                tasks,
                split=split,
                n_slots=n_slots,
                env_kwargs=self.config.envs.options,
                seed=self.config.seed,
                progress=progress,
            )


def _write_json(path: Path, value: Any) -> None:
    write_text(path, to_json(value, indent=1) + "\n")
