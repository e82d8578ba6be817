"""The one training loop: every algorithm is a way to collect examples and a loss over :class:`TurnBatch`.

Gradients are those of the mean over all units (tokens, pairs) of an update, whatever the split into micro-batches and
processes: each micro-batch's mean loss is weighted by its share of the update's units. A run is resumed exactly:
weights, optimizer, schedule, random states and the position in the data are in every checkpoint.
"""

from __future__ import annotations

import copy
import json
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, set_seed
from torch import Tensor
from transformers import PreTrainedModel, get_scheduler
from transformers.modeling_layers import GradientCheckpointingLayer

from agentgym_tlm.batch import Example, TurnBatch, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import CheckpointError, ConfigError, TrainingError
from agentgym_tlm.files import to_json, write_text
from agentgym_tlm.logprobs import TokenLogprobs
from agentgym_tlm.memory import is_half
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.prefix import Prefix
from agentgym_tlm.rollout import RolloutProgress
from agentgym_tlm.trainers.args import RUN_INDEPENDENT, TrainingArguments
from agentgym_tlm.trainers.checkpoint import (
    TrainerState,
    cut_metrics,
    data_fingerprint,
    keep_last_metrics,
    latest_checkpoint,
    preserved_rng,
    read_checkpoint,
    replaced_folder,
    save_checkpoint,
    shapes_fingerprint,
)
from agentgym_tlm.trainers.collect import claim, play, sampling_at
from agentgym_tlm.trainers.data import BatchPlan
from agentgym_tlm.trainers.lora import merged, with_adapters
from agentgym_tlm.trainers.sharding import PATIENCE, Sharding
from agentgym_tlm.trajectory import Trajectory

Item = tuple[Example, ...]
"""What is never split over batches: one trajectory, or a chosen and a rejected one."""
Metrics = dict[str, Tensor]
ArgsT = TypeVar("ArgsT", bound=TrainingArguments)


class Trainer(ABC, Generic[ArgsT]):
    """Improves a policy on environments.

    ``evaluate`` plays the policy on held-out tasks and returns numbers to log; it runs on the main process, every
    ``eval_steps`` updates while there are more to come, and when :meth:`evaluate` is called. ``on_log`` gets every line
    of ``metrics.jsonl``; ``on_rollout``, which may be set later, the progress of collecting data. ``expert_episodes``,
    if they are set, are learnt from where the environment's expert would otherwise play.
    """

    dropout: ClassVar[bool] = True
    """Whether updates use the model's dropout; off where a loss compares with a reference scored without."""
    continuous: ClassVar[bool] = False
    """Whether optimiser and schedule live through all iterations; else each of them begins anew."""

    def __init__(
        self,
        policy: LanguageModelPolicy,
        envs: EnvArgs,
        args: ArgsT,
        *,
        evaluate: Callable[[LanguageModelPolicy], Mapping[str, float]] | None = None,
        on_log: Callable[[Mapping[str, float]], None] | None = None,
    ) -> None:
        self.policy = policy
        self.envs = envs
        self.args = args
        self.output_dir = Path(args.output_dir)
        self.state = TrainerState()
        self.total_steps = 0  # updates of the current iteration
        self._evaluate = evaluate
        self.on_log = on_log
        self.on_rollout: Callable[[RolloutProgress], None] | None = None
        self.expert_episodes: Sequence[Trajectory] | None = None
        self._resume_from: Path | None = None
        self._updated = False  # since the policy was last told
        self._given_version = policy.version
        self._begun = False
        self._lines = 0  # written to metrics.jsonl
        self._module: Any = None
        AcceleratorState._reset_state(reset_partial_state=True)  # an earlier trainer's precision and sharding
        self.accelerator = Accelerator(
            mixed_precision=args.mixed_precision,
            log_with=list(args.report_to) or None,
            project_dir=self.output_dir,
            step_scheduler_with_optimizer=False,
            kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)],
        )
        self.sharding = Sharding(self.accelerator, args)
        set_seed(args.seed)
        loaded = policy.model.dtype
        policy.model = self.trainable(merged(policy.model)).to(self.accelerator.device)  # this process's own
        if policy.model.dtype != loaded:
            policy.weights_changed(policy.version)  # the same weights, but no cache of theirs fits
        if args.report_to:
            self.accelerator.init_trackers("agentgym-tlm", config={"run": json.dumps(self._run())})

    @abstractmethod
    def train(self) -> None:
        """Collect data, learn from it, and repeat as often as the algorithm says. Continues after :meth:`resume`."""

    @abstractmethod
    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        """Mean loss over the batch's units and metrics that are means over them; ``logprobs`` is :meth:`module`'s."""

    @abstractmethod
    def units(self, item: Item) -> int:
        """How much one item weighs in the mean that :meth:`loss` takes."""

    def module(self, model: torch.nn.Module) -> torch.nn.Module:
        """What is trained and wrapped for distribution, around ``model``: it gives [N] log-probs."""
        return TokenLogprobs(model)

    @property
    def schedule_steps(self) -> int:
        """Updates that the schedule of the learning rate spans."""
        return self.total_steps

    def before_update(self, parts: Sequence[Sequence[Item]], shares: Sequence[float]) -> None:
        """See what an update is about to learn from: this process's micro-batches, and their shares of its units."""
        del parts, shares

    def trainable(self, model: PreTrainedModel) -> Any:
        """The model with what the arguments train and save memory by: adapters, gradient checkpointing.

        Without adapters its weights become float32: a small update would be lost in the rounding of shorter ones.
        """
        adapted: Any = model if self.args.lora is None else with_adapters(model, self.args.lora)
        if self.args.lora is None and is_half(model.dtype):
            adapted.float()
        if self.args.gradient_checkpointing:
            adapted.gradient_checkpointing_enable({"use_reentrant": False})
        return adapted

    def evaluate(self) -> dict[str, float]:
        """Play on held-out tasks, log and return the result. Raises ConfigError when no evaluation was given."""
        if self._evaluate is None:
            raise ConfigError("this trainer was made without an evaluation: pass evaluate=...")
        results: dict[str, float] = {}
        self._tell_policy()
        if self.accelerator.is_main_process:
            with preserved_rng():
                results = dict(self._evaluate(self.policy))
            self.log({f"eval_{name}": value for name, value in results.items()})
        self.accelerator.wait_for_everyone()
        return results

    def save(self) -> Path:
        """Write the policy to ``<output_dir>/policy`` and return that path; it is there completely or not at all.

        With it goes what the environment was made with, which ``eval`` and ``rollout`` take up again.
        Adapters are merged into its weights there, which stay as short as they were loaded, and written by themselves
        to ``<output_dir>/adapter``. All else that was trained is written in float32.
        """
        path = self.output_dir / "policy"
        if self.accelerator.is_main_process:
            trained = self.policy.model
            if self.args.lora is not None:
                trained.save_pretrained(self.output_dir / "adapter")
                self.policy.model = merged(copy.deepcopy(trained))
            with replaced_folder(path) as partial:
                self.policy.save(partial)
                self.envs.remember(partial)
            self.policy.model = trained
        self.accelerator.wait_for_everyone()
        return path

    def resume(self, checkpoint: str | Path | None = None) -> None:
        """Let :meth:`train` continue from a checkpoint, by default the newest of the run folder.

        Raises CheckpointError when there is none or when it belongs to a run with other options.
        """
        path = latest_checkpoint(self.output_dir) if checkpoint is None else Path(checkpoint)
        if path is None:
            raise CheckpointError(f"no complete checkpoint in {self.output_dir}: start the run without resuming")
        self.state, _ = read_checkpoint(path, self._run())
        self._resume_from = path
        if self.accelerator.is_main_process:
            cut_metrics(self.output_dir / "metrics.jsonl", self.state)

    def sample_to(
        self, path: Path, tasks: Sequence[str | Prefix], *, temperature: float, samples: int, n_slots: int
    ) -> list[Trajectory]:
        """What the policy plays on training tasks, logged to ``path``; what is logged already is not played again."""
        with sampling_at(self.policy, temperature):
            return play(
                self.accelerator,
                self.policy,
                self.envs,
                tasks,
                path,
                samples_per_task=samples,
                seed=self.iteration_seed,
                n_slots=n_slots,
                progress=self.on_rollout,
            )

    @property
    def iteration_seed(self) -> int:
        """Seed of the current iteration's sampling and data order, far from those of neighbouring run seeds."""
        return self.args.seed + 1_000_003 * self.state.iteration

    def claim_folder(self, name: str, data: str = "") -> Path:
        """Folder of the run for data. Raises CheckpointError if it holds that of other options, weights or ``data``."""
        folder = self.output_dir / name
        if self.accelerator.is_main_process:
            claim(folder, {**self._run(), "weights": self.policy.fingerprint, "data": data})
        self.accelerator.wait_for_everyone()
        return folder

    def log_dropped(self, folder: Path, dropped: Mapping[str, int] | None = None) -> None:
        """Log how many episodes were left out, by reason, and keep it in ``folder``; None: log what is kept there.

        A resumed run has the line already.
        """
        path = folder / "dropped.json"
        if dropped is None:
            if self._resume_from is not None or not path.exists():
                return
            dropped = json.loads(path.read_text(encoding="utf-8"))
        elif self.accelerator.is_main_process:
            write_text(path, to_json(dict(dropped)))
        counts = {f"dropped_{reason}": count for reason, count in sorted(dropped.items()) if count}
        if counts:
            self.log(counts)

    def begin(self, given: Iterable[Trajectory] = ()) -> None:
        """Claim the run folder before training writes to it, and forget the metrics of an attempt that is not resumed.

        Raises CheckpointError when the folder holds a run with other options, another policy or other ``given`` data.
        """
        if self._begun:
            return
        self._begun = True
        self.claim_folder(".", data_fingerprint(map(Example.from_trajectory, given)))
        if self.accelerator.is_main_process and self._resume_from is None:
            keep_last_metrics(self.output_dir / "metrics.jsonl", self._lines)

    def fit(self, items: Sequence[Item]) -> None:
        """Learn from ``items`` for the epochs or steps of the arguments, from where a resumed run stood."""
        args, accelerator, state = self.args, self.accelerator, self.state
        if self._resume_from is None and self._evaluation_is_due:  # since the iteration before ended
            self.evaluate()
        plan = BatchPlan(
            lengths=[max(example.length for example in item) for item in items],
            seed=self.iteration_seed,
            micro_batch_size=args.per_device_train_batch_size,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
            num_processes=accelerator.num_processes,
            process_index=accelerator.process_index,
        )
        self.total_steps = (
            args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * plan.updates_per_epoch)
        )
        data = data_fingerprint(example for item in items for example in item)
        if self._module is None or not self.continuous:
            self._prepare(data)
        else:
            self._begin_iteration(data)
        self._learn_mode()
        window: defaultdict[str, Tensor | float] = defaultdict(float)
        units = [self.units(item) for item in items]
        while state.fit_step < self.total_steps:
            started = time.perf_counter()
            members, micro_batches = plan.update(state.fit_step)
            total = sum(units[i] for i in members)
            parts = [[items[i] for i in indices or members[:1]] for indices in micro_batches]
            shares = [sum(units[i] for i in indices) / total for indices in micro_batches]
            self.before_update(parts, shares)
            for number, (part, share) in enumerate(zip(parts, shares, strict=True)):
                last = number == len(parts) - 1
                with self.sharding.accumulating(self._module, last=last):
                    batch = collate(*zip(*part, strict=True), packed=args.packing)
                    self._backward(batch.to(accelerator.device), share, window)
            window["grad_norm"] += self.sharding.grad_norm(self._module.parameters())
            window["learning_rate"] += self._scheduler.get_last_lr()[0]
            self._optimizer.step()
            if not self._optimizer.step_was_skipped:
                self._scheduler.step()
            self._optimizer.zero_grad()
            self._updated = True
            state.step += 1
            state.fit_step += 1
            state.tokens += (tokens := sum(len(row.input_ids) for i in members for e in items[i] for row in e.rows))
            window["tokens"] += tokens
            window["updates"] += 1
            window["seconds"] += time.perf_counter() - started
            self.after_update(window, plan.updates_per_epoch)
        self._tell_policy()

    def _tell_policy(self) -> None:
        """Leave the policy ready to play with its newest weights."""
        if self._updated:
            self.sharding.put_together(self.policy.model, self._module)
            self.policy.weights_changed(f"{self._given_version}+{self.state.step}")
            self._updated = False
        self.policy.model.eval()

    def _learn_mode(self) -> None:
        """Training mode; without ``dropout`` for checkpointed layers alone, which take it as the word to checkpoint."""
        self.sharding.give_up(self.policy.model)
        self._module.train(self.dropout)
        if self.args.gradient_checkpointing:
            for module in self._module.modules():
                module.training |= isinstance(module, GradientCheckpointingLayer)

    def _prepare(self, data: str) -> None:
        """Wrap model and optimizer for the iteration, and load the checkpoint of a resumed run."""
        args, accelerator = self.args, self.accelerator
        accelerator.free_memory()
        module = self.sharding.module(self.policy.model, self.module)
        optimizer = torch.optim.AdamW(
            self.parameter_groups(module),
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            fused=accelerator.device.type in ("cpu", "cuda"),
        )
        self._module, self._optimizer = accelerator.prepare(module, optimizer)
        self._scheduler = get_scheduler(
            args.lr_scheduler_type,
            self._optimizer,
            num_warmup_steps=min(math.ceil(args.warmup_ratio * self.schedule_steps), self.schedule_steps - 1),
            num_training_steps=self.schedule_steps,
        )
        if self._resume_from is None:
            self._begin_iteration(data)
            return
        if self.state.data != data:
            raise CheckpointError(f"{self._resume_from} was trained on other data than this run collected or was given")
        _, scheduler = read_checkpoint(self._resume_from, self._run())
        accelerator.load_state(str(self._resume_from))
        self._updated = True
        self._scheduler.load_state_dict(scheduler)
        self._resume_from = None

    def parameter_groups(self, module: torch.nn.Module) -> list[dict[str, Any]]:
        """What the optimiser updates: matrices with weight decay, biases and norms without."""
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.args.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def _begin_iteration(self, data: str) -> None:
        self.state.data = data
        self.state.fit_step = 0
        set_seed(self.iteration_seed, device_specific=True)

    def _backward(self, batch: TurnBatch, share: float, window: defaultdict[str, Tensor | float]) -> None:
        logprobs = self._module(batch.input_ids, batch.loss_mask, batch.groups, batch.position_ids)
        loss, metrics = self.loss(logprobs, batch)
        self.accelerator.backward(loss * (share * self.accelerator.num_processes))  # processes are averaged
        for name, value in {"loss": loss.detach(), **metrics}.items():
            window[f"mean/{name}"] += value * share

    def after_update(self, window: defaultdict[str, Tensor | float], updates_per_epoch: int) -> None:
        """Log, save and evaluate what is due; ``window`` has the sums since the last line of the log."""
        args, state = self.args, self.state
        done = state.fit_step == self.total_steps
        ended = done and not self.continuous  # which has many short fits, and one schedule over all
        saving = args.save_steps is not None and (ended or state.step % args.save_steps == 0)
        if done or saving or state.step % args.logging_steps == 0:  # a resumed run starts a new window
            self._log_window(window, updates_per_epoch)
            window.clear()
        if saving:
            save_checkpoint(
                self.accelerator,
                self.output_dir,
                state,
                self._run(),
                self._scheduler.state_dict(),
                args.save_total_limit,
            )
        if self._evaluation_is_due and not done:
            self.evaluate()
            self._learn_mode()

    @property
    def _evaluation_is_due(self) -> bool:
        step, period = self.state.step, self.args.eval_steps
        return period is not None and step > 0 and step % period == 0

    def _log_window(self, window: Mapping[str, Tensor | float], updates_per_epoch: int) -> None:
        """Means over the updates since the last line; the only place where the loop waits for the device."""
        device, updates, started = self.accelerator.device, float(window["updates"]), time.perf_counter()
        names = [name for name in window if name.startswith("mean/")]
        means = torch.stack([torch.as_tensor(window[name], device=device, dtype=torch.float32) for name in names])
        means = self.accelerator.reduce(means, "sum") / updates
        metrics = {name.removeprefix("mean/"): value for name, value in zip(names, means.tolist(), strict=True)}
        metrics["grad_norm"] = float(window["grad_norm"]) / updates
        metrics["learning_rate"] = float(window["learning_rate"]) / updates
        seconds = float(window["seconds"]) + time.perf_counter() - started  # what the device had still to do counts
        metrics["tokens_per_second"] = float(window["tokens"]) / seconds
        metrics["tokens"] = self.state.tokens
        metrics["epoch"] = self.state.fit_step / updates_per_epoch
        metrics["total_steps"] = self.total_steps
        self.log(metrics)
        overflow_is_handled = self.args.mixed_precision == "fp16"  # the gradient scaler skips the update
        if not (math.isfinite(metrics["loss"]) and (overflow_is_handled or math.isfinite(metrics["grad_norm"]))):
            remedy = {"no": "", "bf16": ", or use no mixed precision", "fp16": ", or use bf16 or no mixed precision"}
            raise TrainingError(
                f"loss {metrics['loss']} and gradient norm {metrics['grad_norm']} at step {self.state.step}: "
                f"lower learning_rate{remedy[self.args.mixed_precision]}"
            )

    def log(self, metrics: Mapping[str, float]) -> None:
        """Append a line to ``metrics.jsonl`` and report it to the trackers."""
        self.accelerator.log(dict(metrics), step=self.state.step)
        if not self.accelerator.is_main_process:
            return
        record = {"step": self.state.step, "iteration": self.state.iteration, **metrics}
        self.output_dir.mkdir(parents=True, exist_ok=True)
        with (self.output_dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(to_json(record) + "\n")
        self._lines += 1
        if self.on_log is not None:
            self.on_log(record)

    def _run(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be resumed, as a flat dictionary."""
        return {
            "trainer": type(self).__name__,
            "model": shapes_fingerprint(self.policy.model),
            "num_processes": self.accelerator.num_processes,
            **{name: value for name, value in asdict(self.args).items() if name not in RUN_INDEPENDENT},
        }
