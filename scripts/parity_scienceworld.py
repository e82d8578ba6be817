"""Play the same actions in ScienceWorld-v0 and in stock ScienceWorld, and compare what they show.

Random play, with actions from the list of valid ones, shortened ones that may be ambiguous, and nonsense. The stock
simulator runs in a Java process of its own, started by its own wrapper; since its wrapper draws random numbers to list
the valid actions, it is asked below that, with ``server.step``. Both with constant identity hashes, without which the
stock simulator differs from itself.

    python scripts/parity_scienceworld.py --variations 2 --steps 40
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from random import Random

from scienceworld import ScienceWorldEnv as StockEnv

from agentgym_tlm.envs.scienceworld import simplifications
from agentgym_tlm.envs.scienceworld.actions import normalize_action
from agentgym_tlm.envs.scienceworld.env import ScienceWorldEnv
from agentgym_tlm.envs.scienceworld.jvm import DETERMINISTIC
from agentgym_tlm.envs.scienceworld.tasks import TASKS

NONSENSE = ("", "dance", "pick up", "look at the", "teleport to", "use thermometer", "move to", "0", "connect a to b")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variations", type=int, default=2, help="variations of each task")
    parser.add_argument("--steps", type=int, default=40, help="steps in each")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join(DETERMINISTIC)
    stock = StockEnv("", envStepLimit=10**9)
    del os.environ["JAVA_TOOL_OPTIONS"]
    rng = Random(args.seed)
    episodes = steps = differences = 0
    for task in TASKS:
        split = TASKS[task].variations("train")
        for variation in rng.sample(list(split), min(args.variations, len(split))):
            preset = rng.choice(["easy", "none"])
            played, differing = compare(stock, task, variation, preset, args.steps, rng)
            episodes, steps, differences = episodes + 1, steps + played, differences + differing
            print(f"{task}/{variation} {preset}: {played} steps, {differing} differences", flush=True)
    print(f"{episodes} episodes, {steps:,} steps, {differences} differences")
    stock.close()
    return differences > 0


def compare(stock: StockEnv, task: str, variation: int, preset: str, steps: int, rng: Random) -> tuple[int, int]:
    """Steps played in both, and how many of them showed something else."""
    env = ScienceWorldEnv(tasks=task, simplifications=preset, max_episode_steps=10**9)
    env.reset(options={"task_id": f"{task}/{variation}"})
    server = stock.server
    server.load(task, variation, simplifications.for_task(preset, task), False)
    server.step("look around")  # as both do at the start of an episode
    played = differences = 0
    for _ in range(steps):
        valid = env.admissible_commands()
        kind = rng.choice(sorted({action.split()[0] for action in valid}))
        action = rng.choice([action for action in valid if action.split()[0] == kind and kind != "focus"] or ["wait1"])
        if rng.random() < 0.3:
            action = rng.choice([action.rpartition(" ")[0], action.replace(" in inventory", ""), *NONSENSE[:3]])
        elif rng.random() < 0.1:
            action = rng.choice(NONSENSE)
        observation, _, terminated, _, info = env.step(action)
        played += 1
        shown = tidy(observation, info["score"], info["moves"], info["look"], info["inventory"])
        expected = server.step(normalize_action(action))
        score = max(0.0, round(server.getScore(), 2))
        wanted = tidy(expected, score, server.getNumMoves(), server.freeActionLook(), server.freeActionInventory())
        if shown != wanted:
            differences += 1
            print(f"{task}/{variation}, {action!r}:\n  {shown}\n  {wanted}")
        if terminated:
            break
    return played, differences


def tidy(*shown: object) -> list[str]:
    """As texts with single spaces, which the simulator has in observations only."""
    return [re.sub(" +", " ", str(value).strip()) for value in shown]


if __name__ == "__main__":
    sys.exit(main())
