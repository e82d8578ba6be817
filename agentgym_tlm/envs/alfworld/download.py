"""ALFWorld's own downloader, run for its games."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from agentgym_tlm.errors import DataError, DependencyError


def download_games(folder: Path) -> None:
    """Run ``alfworld-download`` into ``folder``, where it goes on with what an earlier, interrupted call has fetched.

    Its progress is shown on stderr. Raises DependencyError where alfworld is not installed, DataError when it fails.
    """
    script = shutil.which("alfworld-download", path=sysconfig.get_path("scripts")) or shutil.which("alfworld-download")
    if script is None:
        raise DependencyError("alfworld-download comes with alfworld: pip install 'agentgym-tlm[alfworld]'")
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, script, "--data-dir", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "ALFWORLD_DATA": str(folder)},
    )
    assert process.stderr is not None
    shown, errors = True, b""
    with process:
        while chunk := os.read(process.stderr.fileno(), 4096):
            errors = (errors + chunk)[-8192:]
            shown = shown and b"Traceback" not in errors
            if shown:
                sys.stderr.write(chunk.decode(errors="replace"))
                sys.stderr.flush()
    if process.returncode != 0:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {process.returncode}"
        raise DataError(
            f"alfworld-download failed: {reason}\nIt needs the network, and github.com. Run this again to go on with "
            f"what is in {folder}; or run alfworld-download elsewhere, then: agentgym-tlm data import alfworld FOLDER"
        )
