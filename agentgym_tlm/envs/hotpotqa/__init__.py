"""HotpotQA with a Wikipedia tool."""

from agentgym_tlm.envs.hotpotqa.env import HotpotQAEnv

__all__ = ["HotpotQAEnv"]
