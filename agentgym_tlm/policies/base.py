"""The policy contract: a batch of conversations in, one generation each out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from agentgym_tlm.envs.base import Expert
from agentgym_tlm.prompt import PromptFormat
from agentgym_tlm.trajectory import FinishReason


@dataclass(slots=True)
class Generation:
    """One response. ``token_ids`` (end-of-turn token included) and ``logprobs`` are None for a text-only policy.

    ``overflow`` is set, and nothing generated, when the context budget has no room for another response: the rollout
    ends the episode as ``token_budget``. ``aborted`` is set when the policy gives the episode up (a person quits): the
    episode ends as ``aborted``. ``error`` is set, and nothing generated, when the policy's machinery failed (its server
    does not answer): the episode ends as ``policy_error``. ``trainable`` False marks a response that no trainer may
    imitate (an injected mistake).
    """

    text: str
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    finish_reason: FinishReason = FinishReason.STOP
    trainable: bool = True
    overflow: bool = False
    aborted: bool = False
    error: str | None = None


@dataclass(slots=True, eq=False)
class Conversation:
    """A running episode as a policy sees it.

    ``observations`` holds all environment texts so far and ``responses`` the policy's own, so that it is the policy's
    turn when there is one observation more. ``info`` is the newest info of the environment, ``expert`` makes the
    environment's scripted expert for this episode. ``commands`` are the admissible ones of every observation, where the
    policy's format lists them, else None. ``sequences`` and ``spans`` are the token ids so far, appended by the
    language model itself. ``rng`` is this episode's own random stream:
    nothing that happens in another episode changes its draws. ``memory`` is the policy's to use (expert state, cache
    slot), and ``metadata`` what it wants recorded with the trajectory (what a server says that the episode cost).
    """

    env_id: str
    task_id: str
    instruction: str
    rng: np.random.Generator
    observations: list[str] = field(default_factory=list)
    responses: list[str] = field(default_factory=list)
    commands: list[list[str] | None] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    sequences: list[list[int]] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)  # (sequence, start, end) of each response
    memory: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    expert: Callable[[], Expert] | None = None


@runtime_checkable
class Policy(Protocol):
    """Anything that can play: a language model, a script, a person, a remote API."""

    name: str
    version: str  # changes whenever the weights do

    @property
    def format(self) -> PromptFormat:
        """The prompt format that its responses are written in and parsed with."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of the weights, by which logs tell two policies of one name and version apart; "" without weights."""
        ...

    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        """One generation per conversation, in order. May use and set ``conversation.memory``."""
        ...

    def end(self, conversation: Conversation) -> None:
        """The episode is over: release what was held for it."""
        ...
