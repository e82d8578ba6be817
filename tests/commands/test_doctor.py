"""`agentgym-tlm doctor`: exit code 0 exactly when the main job can run, and a remedy where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_tlm.cli import main
from agentgym_tlm.commands import doctor


def test_healthy_installation_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "The main job can run." in shown
    for what in ("python", "torch", "transformers", "java", "ALFWorld-v0", "cpu", "smollm2"):
        assert f"  {what} " in shown


def test_broken_data_is_a_problem_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variable that points nowhere must not be found out after an hour of training."""
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "gone"))
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert f"{tmp_path}/gone" in shown
    assert "alfworld-download" in shown
    assert "The main job cannot run." in shown


def test_data_without_the_training_split_is_a_problem(
    tmp_path: Path, alfworld_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("valid_seen", "valid_unseen"):
        (tmp_path / f"{split}.jsonl.xz").symlink_to(alfworld_data / f"{split}.jsonl.xz")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    problems = [finding for finding in doctor.findings() if finding.status == "problem"]
    assert [finding.what for finding in problems] == ["ALFWorld-v0 train"]


def test_missing_extra_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.OPTIONAL, "no-such-distribution", "lora")
    (finding,) = (f for f in doctor.findings() if f.what == "no-such-distribution")
    assert finding.status == "optional"
    assert finding.remedy == 'pip install "agentgym-tlm[lora]"'


def test_broken_data_of_another_environment_is_optional(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The main job plays ALFWorld, whatever is wrong with HotpotQA."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setenv("HOTPOTQA_DATA", "/no/such/folder")
    assert main(["doctor"]) == 0
    assert "HotpotQA-v0: $HOTPOTQA_DATA=/no/such/folder is no folder" in capsys.readouterr().out
    (finding,) = (f for f in doctor.findings() if f.what == "HotpotQA-v0")
    assert finding.status == "optional"


def test_scienceworld_without_java_is_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks can be listed without Java, and not played."""
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    (finding,) = (f for f in doctor.findings() if f.what == "ScienceWorld-v0")
    assert (finding.found, finding.status) == ("cannot be played", "optional")
    assert "/no/such/java" in finding.remedy
