"""ScienceWorld: thirty kinds of elementary-school science tasks in text, on one Java process for many environments."""

from agentgym_tlm.envs.scienceworld.env import ScienceWorldEnv

__all__ = ["ScienceWorldEnv"]
