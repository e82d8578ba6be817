"""Broken model folders: an error of ours that names the folder and the way out, whatever library met it first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

from agentgym_tlm.errors import AgentGymError, DataError, TemplateError
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.rollout import rollout
from tests.toy_env import tiny_policy


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that was saved as it should be."""
    folder = tmp_path_factory.mktemp("model") / "saved"
    tiny_policy(hidden_size=16, layers=1).save(folder)
    return folder


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (write("chat_template.jinja", "{{ raise_exception('no user') }}"), TemplateError, "TemplateError: no user"),
        (write("chat_template.jinja", "{% for %}"), TemplateError, "TemplateSyntaxError"),
        (write("chat_template.jinja", "{{ 'a' + 1 }}"), TemplateError, "TypeError"),
        (cut("model.safetensors", 500), DataError, "SafetensorError.*again"),
        (remove("model.safetensors"), DataError, "no file named model.safetensors.*again"),
        (remove("tokenizer.json"), DataError, "holds no tokenizer.*again"),
        (write("tokenizer.json", "{"), DataError, "JSONDecodeError.*again"),
        (remove("config.json"), DataError, "model_type.*again"),
        (write("agentgym_policy.json", "{"), DataError, "agentgym_policy.json cannot be read.*again"),
        (write("agentgym_policy.json", "[1]"), DataError, "not a JSON object"),
        (write("agentgym_policy.json", '{"colour": 1}'), DataError, "colour=1 is no setting"),
        (write("agentgym_policy.json", '{"temperature": "hot"}'), DataError, "temperature='hot'"),
        (write("agentgym_policy.json", '{"format": {"x": 1}}'), DataError, "'x'"),
    ],
)
def test_broken_folder_is_named_with_the_remedy(
    saved: Path, tmp_path: Path, damage: Callable[[Path], object], error: type[AgentGymError], message: str
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(saved, folder)
    damage(folder)
    with pytest.raises(error, match=f"(?s){folder}.*{message}"):
        LanguageModelPolicy.load(folder, device="cpu")


def test_folder_of_another_program_needs_no_settings(saved: Path, tmp_path: Path) -> None:
    """They are ours; a downloaded model has none."""
    folder = tmp_path / "plain"
    shutil.copytree(saved, folder)
    (folder / "agentgym_policy.json").unlink()
    assert LanguageModelPolicy.load(folder, device="cpu").version == "0"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_no_numbers_are_an_error(saved: Path, temperature: float) -> None:
    """Greedy decoding would otherwise play on with arbitrary tokens, and log-probabilities that are no numbers."""
    policy = LanguageModelPolicy.load(saved, device="cpu", temperature=temperature)
    with torch.no_grad():
        next(policy.model.parameters()).fill_(torch.nan)
    with pytest.raises(DataError, match=rf"{saved}.*NaN.*checkpoint"):
        rollout(policy, "Toy-v0", ["lamp-hall-study"])


def test_loading_and_saving_show_no_bar(saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Three lines of example code should print what they print; the caller's own setting is left alone."""
    logging.enable_progress_bar()  # the command line has none
    LanguageModelPolicy.load(saved, device="cpu").save(tmp_path)
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()


def test_fingerprint_tells_weights_apart_and_survives_the_disk(saved: Path) -> None:
    """Logs are gone on with by it: it must change with the weights, however they are changed, and with nothing else."""
    policy = LanguageModelPolicy.load(saved, device="cpu")
    before = policy.fingerprint
    assert before == LanguageModelPolicy.load(saved, device="cpu", temperature=0.5).fingerprint
    assert before != tiny_policy(hidden_size=16, layers=1, seed=1).fingerprint
    with torch.no_grad():
        list(policy.model.parameters())[-1][0] += 1.0
    assert policy.fingerprint != before
