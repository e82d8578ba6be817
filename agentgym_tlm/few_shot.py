"""Prompts with a worked example, for pretrained models that were never trained on an environment.

An example is a training task of the environment's own embedded data, with thoughts and actions that we wrote for it. It
is played when the prompt is made, so that its observations are the environment's and its actions do what they say,
whatever the options of the environment change in their wording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from agentgym_tlm.envs.alfworld.engine import PLACE_COMMAND
from agentgym_tlm.envs.alfworld.env import normalize_action
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.prompt import DEFAULT_INSTRUCTIONS, ReactFormat


class Example(NamedTuple):
    """An episode that is won: its task, and the thought and action of each turn.

    ``made_with`` are the options of the environment that it is always made with, ``follows`` the names of those that it
    shares with the episodes it is an example for. Given the latter, ``commands`` says what can be done beyond the
    example, and ``word`` words an action.
    """

    task_id: str
    turns: tuple[tuple[str, str], ...]
    made_with: dict[str, Any]
    follows: tuple[str, ...]
    commands: Callable[[dict[str, Any]], str] = lambda options: ""
    word: Callable[[str, dict[str, Any]], str] = lambda action, options: action


def _alfworld_commands(options: dict[str, Any]) -> str:
    place = PLACE_COMMAND[options.get("action_style", "move")].format("THING", "PLACE")
    return (
        f"The commands are: go to PLACE, open PLACE, close PLACE, take THING from PLACE, {place}, clean THING with "
        "PLACE, heat THING with PLACE, cool THING with PLACE, use LAMP, examine THING, look, inventory. You can reach "
        "only what is at the place where you are, and carry one thing at a time."
    )


EXAMPLES = {
    "ALFWorld-v0": Example(
        "train/pick_clean_then_place_in_recep-Apple-None-CounterTop-3/trial_G00028851",
        (
            ("The apple may lie in the open, so I begin with the countertop.", "go to countertop 1"),
            ("There is no apple here. Food is often kept in a fridge.", "go to fridge 1"),
            ("It is closed. I have to open it to see what is inside.", "open fridge 1"),
            ("Only a bottle. An apple that has to be washed may be at the sink already.", "go to sinkbasin 1"),
            ("Here is apple 1. I take it, and name it as it is written.", "take apple 1 from sinkbasin 1"),
            ("I hold the apple and stand at a sink, so I can clean it at once.", "clean apple 1 with sinkbasin 1"),
            ("The apple is clean. Now it has to be brought to the countertop.", "go to countertop 1"),
            ("I am there with the clean apple. I put it down.", "move apple 1 to countertop 1"),
        ),
        made_with={"data_dir": "embedded"},
        follows=("action_style", "banner", "allow_revisit"),
        commands=_alfworld_commands,
        word=lambda action, options: normalize_action(action, options.get("action_style", "move")),
    ),
    "ScienceWorld-v0": Example(
        "chemistry-mix-paint-secondary-color/0",
        (
            ("Paint is most likely in the art studio, so I go there.", "teleport to art studio"),
            ("I have to see which colours there are, and what they can be mixed in.", "look around"),
            (
                "Blue and yellow make green, and the jug is empty. The blue paint goes in first.",
                "pour cup containing blue paint in art studio in jug",
            ),
            (
                "The jug holds the blue paint. Now the yellow one.",
                "pour cup containing yellow paint in art studio in jug",
            ),
            ("Both colours are in the jug, but they are not mixed yet.", "mix jug"),
            ("Green paint: that is what the task wants me to focus on when I am done.", "focus on green paint"),
        ),
        made_with={},
        follows=("simplifications", "instructions", "ambiguity", "java"),
    ),
    "HotpotQA-v0": Example(
        "train/bridge/person.birthplace-town.region/Karl_Crane",
        (
            ("First I need to know where Karl Crane was born, so I look for his page.", "Search[Karl Crane]"),
            ("The beginning does not tell his birthplace. Further down it may.", "Lookup[born]"),
            ("He was born in Abber Bridge. The question is in which region that is.", "Search[Abber Bridge]"),
            ("The town belongs to the region Amber Uplands, which is the answer.", "Finish[Amber Uplands]"),
        ),
        made_with={"data_dir": "embedded"},
        follows=("protocol", "compat"),
    ),
}


def few_shot_format(envs: EnvArgs) -> ReactFormat:
    """``react`` with a worked example of the environment in its instructions.

    Raises ConfigError for an environment without one, or whose options are such that the example is not won.
    """
    env_id = envs.env.rpartition(":")[2]
    if env_id not in EXAMPLES:
        raise ConfigError(f"there is no worked example of {envs.env}: there are examples of {', '.join(EXAMPLES)}")
    example = EXAMPLES[env_id]
    options = {name: envs.env_kwargs[name] for name in example.follows if name in envs.env_kwargs}
    transcript = _play(envs.env, example, options)
    parts = [DEFAULT_INSTRUCTIONS, example.commands(options), "Here is an example of a task that is done well."]
    return ReactFormat(instructions="\n\n".join(filter(None, (*parts, transcript, "The example ends here."))))


def _play(env_id: str, example: Example, options: dict[str, Any]) -> str:
    """The example as text, with what the environment says."""
    format, lines = ReactFormat(instructions=""), []
    env = EnvArgs(env=env_id, env_kwargs={**example.made_with, **options}).make("train")
    try:
        observation, info = env.reset(seed=0, options={"task_id": example.task_id})
        observation = format.first_message(info["instruction"], observation)
        for thought, action in example.turns:
            action = example.word(action, options)
            lines += [f"Observation: {observation.strip()}", format.compose(thought, action)]
            observation, _, _, _, info = env.step(action)
            if not info["action_valid"]:
                break
    finally:
        env.close()
    if not info["won"]:
        given = " ".join(f"{name}={value}" for name, value in options.items())
        raise ConfigError(
            f"the worked example of {env_id} cannot be played with {given} (it ends: {observation.strip()[:80]!r}): "
            "leave out --few-shot"
        )
    return "\n".join(lines)
