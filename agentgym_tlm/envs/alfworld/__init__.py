"""ALFWorld: household tasks in text."""

from agentgym_tlm.envs.alfworld.env import ALFWorldEnv

__all__ = ["ALFWorldEnv"]
