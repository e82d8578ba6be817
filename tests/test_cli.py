"""The command line as a user meets it: help, exit codes, one-line errors, and a quick start."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_tlm.cli import COMMANDS, main
from agentgym_tlm.commands.data import COMMANDS as DATA
from agentgym_tlm.commands.play import Play
from agentgym_tlm.errors import DataError


def run(*argv: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "agentgym_tlm", *argv],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", **environment},
        check=False,
    )


@pytest.mark.parametrize("argv", [(), ("--help",)])
def test_overview_names_every_command(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", [*(name for name in COMMANDS if name != "data"), *(f"data {name}" for name in DATA)])
def test_help_of_every_command_fits_and_shows_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"agentgym-tlm {name}" in shown
    assert "--help" in shown
    assert "``" not in shown
    assert "(default: )" not in shown


@pytest.mark.parametrize("argv", [("data",), ("data", "--help")])
def test_overview_of_a_group_names_its_commands(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: agentgym-tlm data COMMAND")
    assert all(f"  {name} " in shown for name in DATA)


def test_unknown_command_of_a_group_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "imprt"]) == 2
    assert "did you mean import?" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("train", "compare", "doctor")])
def test_help_and_listings_do_not_wait_for_torch(name: str) -> None:
    """`agentgym-tlm envs` must answer at once: importing torch takes seconds."""
    code = (
        "import sys; from agentgym_tlm.cli import main\n"
        f"try: main([{name!r}, *{[] if name == 'envs' else ['--help']}])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("agentgym-tlm 0.")


@pytest.mark.parametrize(("name", "hint"), [("evl", "did you mean eval?"), ("xyz", "the commands are train, eval")])
def test_unknown_command_is_answered_with_the_nearest(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    assert hint in capsys.readouterr().err


def test_error_is_one_line_without_traceback(tmp_path: Path) -> None:
    """Whoever mistypes a path wants to read what is wrong, not forty frames."""
    result = run("play", "--data-dir", str(tmp_path / "nowhere"))
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert f"{tmp_path}/nowhere" in line


@pytest.mark.parametrize(
    "command",
    [
        "play --env CartPole-v1",
        "play --env NoSuchEnv-v0",
        "play --seed -1",
        "play --max-episode-steps 0",
        "play --env-kwargs num_gmes=3",
        "play --log /etc/passwd/log.jsonl",
        "eval --policy expert --num-threads 0",
        "eval --policy /etc",
        "eval --policy random --temperature -1",
        "eval --policy random --splits valid_seen valid_seen",
        "rollout --policy random --limit 1 --output-dir /etc/passwd",
        "train --policy ./nope --output-dir {folder}",
        "train --policy expert --output-dir {folder}",
        "train --sft-policy ./nope --output-dir {folder}",
        "train --sft.logging-steps 0 --output-dir {folder}",
        "train --sft.report-to foo --output-dir {folder}",
        "train --env-kwargs num_gmes=3 --output-dir {folder}",
        "train --resume --output-dir {folder}",
    ],
)
def test_mistake_ends_with_2_and_leaves_nothing_behind(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, and no run folder that the corrected command would then refuse."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(":q\n"))
    folder = tmp_path / "run"
    try:
        code: object = main(command.format(folder=folder).split())
    except SystemExit as stop:  # of the parser of options
        code = stop.code
    assert code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") == (error.count("\n") == 1)
    assert error
    assert not folder.exists()


def test_missing_extra_is_answered_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not with the ImportError of a package that nobody asked for by name."""
    monkeypatch.setitem(sys.modules, "scienceworld", None)
    assert main(["train", "--env", "ScienceWorld-v0", "--output-dir", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ScienceWorld-v0 needs")
    assert "install" in line
    assert not (tmp_path / "run").exists()


def test_full_disk_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: Play) -> int:
        with open("/dev/full", "w") as file:
            file.write("x")
        return 0

    monkeypatch.setattr(Play, "run", fail)
    assert main(["play"]) == 2
    assert capsys.readouterr().err == "error: No space left on device\n"


def test_debug_variable_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTGYM_TLM_DEBUG", "1")
    with pytest.raises(DataError):
        main(["play", "--data-dir", str(tmp_path / "nowhere")])


def test_interrupt_exits_with_130_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: Play) -> int:
        raise KeyboardInterrupt("Go on with: agentgym-tlm play")

    monkeypatch.setattr(Play, "run", interrupt)
    assert main(["play"]) == 130
    assert capsys.readouterr().err == "\nInterrupted. Go on with: agentgym-tlm play\n"


def test_reader_that_stops_reading_is_no_error() -> None:
    """`agentgym-tlm envs | head -1` must not end in a BrokenPipeError."""
    with subprocess.Popen(
        [sys.executable, "-m", "agentgym_tlm", "envs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode in (0, 141)
