"""Gymnasium suite of multi-turn text environments for language-model agents, with trainers that improve them.

Importing the package registers its environments: ``import agentgym_tlm; gymnasium.make("ALFWorld-v0")``.
"""

from agentgym_tlm.envs.registration import register

__version__ = "0.1.0.dev0"

ENV_IDS = ("ALFWorld-v0", "ScienceWorld-v0", "HotpotQA-v0")

register("ALFWorld-v0", "agentgym_tlm.envs.alfworld:ALFWorldEnv", max_episode_steps=50)
register("ScienceWorld-v0", "agentgym_tlm.envs.scienceworld:ScienceWorldEnv", max_episode_steps=None)
register("HotpotQA-v0", "agentgym_tlm.envs.hotpotqa:HotpotQAEnv", max_episode_steps=7)
