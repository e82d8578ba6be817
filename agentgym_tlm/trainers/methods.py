"""Every trainer by the name that ``--trainer`` takes."""

from __future__ import annotations

from typing import Any, NamedTuple

from agentgym_tlm.trainers.args import TrainingArguments
from agentgym_tlm.trainers.base import Trainer
from agentgym_tlm.trainers.coh import CoHArguments, CoHTrainer
from agentgym_tlm.trainers.dil import DILArguments, DILTrainer
from agentgym_tlm.trainers.dmpo import DMPOArguments, DMPOTrainer
from agentgym_tlm.trainers.dpo import DPOArguments, DPOTrainer
from agentgym_tlm.trainers.gigpo import GiGPOArguments, GiGPOTrainer
from agentgym_tlm.trainers.grpo import GRPOArguments, GRPOTrainer
from agentgym_tlm.trainers.ipr import IPRArguments, IPRTrainer
from agentgym_tlm.trainers.kto import KTOArguments, KTOTrainer
from agentgym_tlm.trainers.nat import NATArguments, NATTrainer
from agentgym_tlm.trainers.ppo import PPOArguments, PPOTrainer
from agentgym_tlm.trainers.rft import RFTArguments, RFTTrainer
from agentgym_tlm.trainers.rloo import RLOOArguments, RLOOTrainer
from agentgym_tlm.trainers.stepagent import StepAgentArguments, StepAgentTrainer
from agentgym_tlm.trainers.tlm_dre import TLMDREArguments, TLMDRETrainer


class Method(NamedTuple):
    """A way to go on from an SFT policy."""

    arguments: type[TrainingArguments]
    trainer: type[Trainer[Any]]


METHODS: dict[str, Method] = {
    "rft": Method(RFTArguments, RFTTrainer),
    "dpo": Method(DPOArguments, DPOTrainer),
    "dmpo": Method(DMPOArguments, DMPOTrainer),
    "dil": Method(DILArguments, DILTrainer),
    "kto": Method(KTOArguments, KTOTrainer),
    "ipr": Method(IPRArguments, IPRTrainer),
    "stepagent": Method(StepAgentArguments, StepAgentTrainer),
    "nat": Method(NATArguments, NATTrainer),
    "coh": Method(CoHArguments, CoHTrainer),
    "tlm-dre": Method(TLMDREArguments, TLMDRETrainer),
    "ppo": Method(PPOArguments, PPOTrainer),
    "rloo": Method(RLOOArguments, RLOOTrainer),
    "grpo": Method(GRPOArguments, GRPOTrainer),
    "gigpo": Method(GiGPOArguments, GiGPOTrainer),
}
"""``sft`` is none of these: it is where they all start."""


def option_group(method: str) -> str:
    """Name of a method's options in a configuration."""
    return method.replace("-", "_")
