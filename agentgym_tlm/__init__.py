"""Gymnasium suite of multi-turn text environments for language-model agents, with trainers that improve them.

Importing the package registers its environments: ``import agentgym_tlm; gymnasium.make("ALFWorld-v0")``.
"""

import gymnasium
from gymnasium.envs.registration import WrapperSpec

__version__ = "0.1.0.dev0"

ENV_IDS = ("ALFWorld-v0", "HotpotQA-v0")

if "ALFWorld-v0" not in gymnasium.registry:
    gymnasium.register(
        id="ALFWorld-v0",
        entry_point="agentgym_tlm.envs.alfworld:ALFWorldEnv",
        max_episode_steps=50,
        additional_wrappers=(WrapperSpec("StepLimit", "agentgym_tlm.envs.base:StepLimit", kwargs={}),),
    )

if "HotpotQA-v0" not in gymnasium.registry:
    gymnasium.register(
        id="HotpotQA-v0",
        entry_point="agentgym_tlm.envs.hotpotqa:HotpotQAEnv",
        max_episode_steps=7,
        additional_wrappers=(WrapperSpec("StepLimit", "agentgym_tlm.envs.base:StepLimit", kwargs={}),),
    )
