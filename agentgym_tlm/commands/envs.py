"""``agentgym-tlm envs``: which tasks there are, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym_tlm import ENV_IDS
from agentgym_tlm.envs.args import EnvArgs, env_class
from agentgym_tlm.envs.base import TaskManifest
from agentgym_tlm.errors import AgentGymError, ConfigError, SplitNotFoundError


@dataclass(frozen=True, kw_only=True)
class Envs:
    """List environments, splits, task counts and where the data is."""

    env: str | None = None
    """Gymnasium id; None: all environments of this package."""
    data_dir: str | None = None
    """Folder of the data of --env, or 'embedded'; None: its variable, imported data, else the embedded default."""

    def run(self) -> int:
        """Print one row per split, or one that says why an environment has none. Raises that error with --env."""
        if self.data_dir is not None and self.env is None:
            raise ConfigError("--data-dir is the folder of one environment: name that with --env")
        rows = [("environment", "split", "tasks", "sha256 of ids", "data")]
        for env_id in [self.env] if self.env else ENV_IDS:
            try:
                found = manifests(env_id, self.data_dir)
            except AgentGymError as error:
                if self.env:
                    raise
                rows.append((env_id, "-", "-", "-", str(error)))
                continue
            for split, tasks in found.items():
                if isinstance(tasks, TaskManifest):
                    rows.append((env_id, split, str(len(tasks)), tasks.sha256[:12], tasks.source))
                else:
                    rows.append((env_id, split, "-", "-", str(tasks)))
        print("\n".join(columns(rows)))
        return 0


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns, of any length: a terminal wraps them, a pipe keeps them whole."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def manifests(env_id: str, data_dir: str | None = None) -> dict[str, TaskManifest | AgentGymError]:
    """For every split its tasks, or why there are none.

    When no split has any, raises the first of these errors that says more than that a split is not there.
    """
    envs = EnvArgs(env=env_id, data_dir=data_dir)
    found: dict[str, TaskManifest | AgentGymError] = {}
    for split in env_class(env_id).splits:
        try:
            found[split] = envs.manifest(split)
        except AgentGymError as error:
            found[split] = error
    errors = [tasks for tasks in found.values() if isinstance(tasks, AgentGymError)]
    if len(errors) == len(found):
        telling = [error for error in errors if not isinstance(error, (ConfigError, SplitNotFoundError))]
        raise [*telling, *errors][0]
    return found
