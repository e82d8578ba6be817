"""The main job's options: what they may be, and that a file gives them back."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from agentgym_tlm import ENV_IDS, config
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.recipes import ExperimentConfig
from agentgym_tlm.trainers.methods import METHODS


@pytest.mark.parametrize("env", ENV_IDS)
@pytest.mark.parametrize("policy", ["tiny", "smollm2"])
@pytest.mark.parametrize("trainer", ["sft", *METHODS])
def test_defaults_are_written_as_they_are_read(env: str, policy: str, trainer: str, tmp_path: Path) -> None:
    """A number that a file gives back as another type would make every resumed run look like another one."""
    options = ExperimentConfig.defaults_for(policy, env, trainer)
    file = tmp_path / "options.yaml"
    file.write_text(config.dump(options))
    assert config.dump(config.load(ExperimentConfig.with_trainer(trainer)(), file)) == config.dump(options)


@pytest.mark.parametrize(
    "text",
    [
        "seed: -1",
        "num_threads: 0",
        "max_episode_steps: 0",
        "policy: expert",
        "expert: {num_tasks: 0}",
        "expert: {noise: 1}",
        "tiny: {layers: 0}",
        "tiny: {hidden_size: 30, heads: 4}",
        "tiny: {max_context: 10}",
        "sft: {learning_rate: -1}",
        "sft: {learning_rate: .nan}",
        "sft: {num_train_epochs: 0}",
        "sft: {warmup_ratio: 2}",
        "sft: {max_grad_norm: -1}",
        "sft: {adam_beta1: 1.5}",
        "sft: {logging_steps: 0}",
        "sft: {save_steps: 0}",
        "sft: {save_total_limit: 0}",
        "sft: {eval_steps: 0}",
        "sft: {report_to: [foo]}",
        "sft: {lora: {r: 0}}",
        "tlm_dre: {num_iterations: 0}",
        "tlm_dre: {n_slots: 0}",
        "tlm_dre: {samples_per_task: 0}",
        "tlm_dre: {max_pairs_per_task: 0}",
        "tlm_dre: {temperature: -1}",
        "tlm_dre: {p_pivot: 5}",
        "tlm_dre: {beta: -1}",
        "tlm_dre: {z_clip: 0}",
        "tlm_dre: {coefficient: turn_local, include_end_of_turn: false}",
        "evaluation: {num_tasks: 0}",
        "evaluation: {temperature: -1}",
        "evaluation: {splits: []}",
        "evaluation: {splits: [valid_seen, valid_seen]}",
    ],
)
def test_nonsense_is_refused_before_anything_runs(text: str, tmp_path: Path) -> None:
    """Found only after the imitation, it costs the hours of that; not found at all, it costs the result."""
    file = tmp_path / "options.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        config.load(ExperimentConfig.defaults_for("tiny", "ALFWorld-v0", "tlm-dre"), file)
    group, _, rest = text.partition(": {")
    assert group.partition(":")[0] in str(error.value)
    assert rest.partition(":")[0] in str(error.value)


def test_every_method_can_be_named() -> None:
    """A method that is registered but no choice of ``--trainer`` cannot be used."""
    assert get_args(get_type_hints(ExperimentConfig)["trainer"]) == ("sft", *METHODS)


def test_swapping_the_trainer_keeps_the_rest_of_a_file(tmp_path: Path) -> None:
    """``train --config RUN/config.yaml --trainer sft`` is the same run with another trainer."""
    file = tmp_path / "config.yaml"
    file.write_text(
        config.dump(ExperimentConfig.defaults_for("tiny", "HotpotQA-v0", "tlm-dre").with_method(omega_lower=0.5))
    )
    options = config.parse(ExperimentConfig, ["--config", str(file), "--trainer", "sft", "--seed", "3"], prog="train")
    assert (options.trainer, options.envs.env, options.seed) == ("sft", "HotpotQA-v0", 3)
    assert "tlm_dre" not in config.to_dict(options)
    assert "omega_lower: 0.5" in config.dump(config.parse(ExperimentConfig, ["--config", str(file)], prog="train"))
