"""The errors that users meet; each message says what was wrong and what to do about it."""


class AgentGymError(Exception):
    """Base of every error that this package raises on purpose."""


class DataError(AgentGymError):
    """Environment data or a model is missing, incomplete or broken; the message names the path and the remedy."""


class TaskNotFoundError(DataError, KeyError):
    """A task id is not in the manifest of the split that was asked for."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class SplitNotFoundError(DataError):
    """The data is there and holds other splits, but not the one that was asked for."""


class DependencyError(AgentGymError, ImportError):
    """An optional dependency is missing; the message names the extra that installs it."""


class ConfigError(AgentGymError, ValueError):
    """Options contradict each other or the environment they are used with."""


class TemplateError(AgentGymError):
    """A chat template fails, or cannot be used append-only (it rewrites earlier turns)."""


class SchemaError(AgentGymError):
    """A record on disk cannot be read: wrong schema version or a corrupt line."""


class TrajectoryError(AgentGymError, ValueError):
    """A trajectory cannot be trained on: no tokens, an environment failure, or spans that do not fit."""


class TrainingError(AgentGymError):
    """Training cannot go on: the loss or its gradients are no longer finite."""


class CheckpointError(AgentGymError):
    """A checkpoint is missing, incomplete, or belongs to a different run."""


class PolicyFailureError(AgentGymError):
    """A policy's machinery failed, such as its server: an episode ends as ``policy_error``, never as reward 0."""


class EnvironmentFailureError(AgentGymError):
    """The environment's machinery failed, not the agent: the episode ends as ``env_error``, never as reward 0."""
