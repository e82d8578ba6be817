"""The viewer as a reader uses it, in headless Chromium, from a file on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from agentgym_tlm.pairs import Pair
from agentgym_tlm.report import write_report
from agentgym_tlm.trajectory import StopReason, Turn, read_trajectories, write_trajectories
from tests.report.browser import Reader, reader
from tests.report.folders import episode, pair, run_folder

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><img src=x onerror='window.hacked = 1'>",
    "<!--<script><svg onload='window.hacked = 1'>",
    "\"' onmouseover='window.hacked = 1' autofocus onfocus='window.hacked = 1' x=\"",
    "javascript:window.hacked = 1",
    "{{SCRIPT}} ${window.hacked = 1} &lt;b&gt; & \x00\x1b[31m",
    "\u2028window.hacked = 1\u2029",
    "\ud800 alone",
)
MANY = 5000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with reader(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on one run of tlm-DRE with two pairs, and an evaluation in which one episode was windowed."""
    folder = tmp_path_factory.mktemp("report")
    alike = Pair(pair().chosen, replace(pair().chosen, won=False, stop_reason=StopReason.MAX_STEPS))
    run = run_folder(folder / "run", pairs=[pair(), alike])
    turn = Turn("You see a lamp.", "<think>mine</think>", None, False, 0.0, admissible_commands=["look", "put lamp"])
    turn.well_formed = False
    windowed = replace(episode([], tokens=False), turns=[turn], prompt_format="tags", instruction="windowed")
    write_trajectories(run / "trajectories" / "tlm-dre-windowed.jsonl", [windowed])
    write_report([run], folder / "report.html", title="Lamps")
    return folder / "report.html"


def test_filters_and_search_narrow_the_list(browser: Reader, page: Path) -> None:
    browser.open(page)
    assert browser.text("#count") == "12 episodes"  # four per policy, the windowed one, two pairs, the expert
    browser.choose("label", "sft")
    assert browser.text("#count") == "4 of 12 episodes"
    browser.choose("outcome", "won")
    assert browser.text("#count") == "2 of 12 episodes"
    browser.js("document.getElementById('clear').click()")
    assert browser.text("#count") == "12 episodes"
    browser.press(Keys.ESCAPE, "/", "RUB lamp")
    assert browser.text("#count") == "4 of 12 episodes"  # two of the SFT policy, one of the trained, one pair
    browser.press(Keys.ENTER)
    assert browser.wait(browser.heading) == "bring the lamp to the study."
    assert browser.js("return document.activeElement.id") == "list"


def test_keys_walk_through_episodes_and_turns(browser: Reader, page: Path) -> None:
    browser.open(page)
    browser.press("j")
    assert browser.wait(browser.heading) == "bring the lamp to the study."
    selected = "return document.querySelector('[aria-selected=true]')?.getAttribute('aria-posinset')"
    browser.press("j", "j", "k")
    assert browser.js(selected) == "2"
    assert browser.js("return location.hash") == "#/episodes/1"
    browser.press("n", "n")
    browser.wait(lambda: browser.js("return document.activeElement.getAttribute('aria-label')") == "Turn 2")
    assert browser.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("p")
    assert browser.js("return document.activeElement.getAttribute('aria-label')") == "Turn 1"
    browser.press(Keys.ESCAPE, Keys.ARROW_DOWN)
    assert browser.js(selected) == "3"
    assert browser.js("return document.getElementById('list').getAttribute('aria-activedescendant')") == "row-2"
    browser.press(Keys.END)
    assert browser.js(selected) == "12"
    browser.press("?")
    assert browser.js("return document.getElementById('help').open")
    browser.press("k", Keys.ESCAPE)
    assert browser.js("return !document.getElementById('help').open")
    assert browser.js(selected) == "12"  # a key in the dialog is not one for the list


def test_a_link_leads_to_its_episode(browser: Reader, page: Path) -> None:
    browser.open(page, "#/episodes/8")
    assert browser.wait(browser.heading) == "windowed"
    assert browser.text("details summary:not(figure *)").endswith("turn logs")
    assert browser.text("#detail summary") == "2 admissible commands"
    assert browser.js("return !document.querySelector('#detail details').open")
    assert browser.texts("#detail .meta span") == ["malformed"]
    assert "No action could be read." in browser.text("#detail")
    assert "null" not in browser.text("#detail")


def test_pair_stands_side_by_side_from_the_first_difference(browser: Reader, page: Path) -> None:
    """Chosen and rejected, turn by turn, with the confidence and the weight that each turn had."""
    browser.open(page)
    browser.choose("kind", "pair")
    assert browser.text("#count") == "2 of 12 episodes"
    browser.press(Keys.ESCAPE, "j")
    browser.wait(lambda: browser.text("#split") == "The actions differ from turn 2 on")
    assert browser.texts(".sides h3") == ["Chosen", "Rejected"]
    acts = "[...turn.querySelectorAll('.a')].map(part => part.textContent).join('').trim()"
    place = f"{acts} + ' at ' + Math.round(turn.getBoundingClientRect().top)"
    rows = "[...document.querySelectorAll('.pair-row')].slice(0, 2)"
    left, right = browser.js(f"return {rows}.map(row => [...row.children].map(turn => {place}))")
    assert left[0] == left[1]
    assert [text.split(" at ")[0] for text in right] == ["put lamp", "rub lamp"]
    assert len({text.split(" at ")[1] for text in right}) == 1
    assert [t for t in browser.texts(".pair-row .meta span") if t.startswith("ω")] == [
        "ω 0.2", "ω 0.2", "ω 0.2", "ω 1", "ω 0.2",
    ]  # fmt: skip
    shaded = "return [...document.querySelectorAll(\".pair-row [data-turn='1'] .response span\")].map(e => e.className)"
    assert {name.split()[-1] for name in browser.js(shaded)[-5:]} == {"s2"}  # p = 0.5 on the rejected side
    browser.press("g")
    browser.press("j")
    browser.wait(lambda: browser.text("#split") == "All actions are the same")  # in the other pair


def test_policies_are_read_side_by_side_on_the_same_task(browser: Reader, tmp_path: Path) -> None:
    """What a trainer changed: filter for tasks that are newly won, and read both from the first difference on."""
    first = run_folder(tmp_path / "tlm-dre", won=(2, 3))
    second = run_folder(tmp_path / "dpo", "dpo", won=(2, 1), sft_policy=first / "sft" / "policy")
    write_report([first, second], tmp_path / "report.html", title="Two trainers")
    browser.open(tmp_path / "report.html")
    browser.choose("label", "dpo")
    browser.choose("change", "won no more")
    assert browser.text("#count").startswith("1 of ")
    browser.press(Keys.ESCAPE, "j")
    browser.wait(lambda: browser.texts("#beside option"))
    assert browser.texts("#beside option") == ["nobody", "sft · tlm-dre (won)", "tlm-dre · tlm-dre (won)"]
    assert not browser.texts(".sides h3")
    browser.driver.find_element(By.CSS_SELECTOR, "#beside option:nth-child(2)").click()
    browser.wait(lambda: browser.texts(".sides h3") == ["sft · tlm-dre", "dpo · dpo"])
    assert browser.text("#split") == "The actions differ from turn 2 on"
    assert browser.texts(".ending p:not(.observation)") == ["✓ Won.", "✗ Not won: max_steps."]
    browser.choose("label", "tlm-dre")
    browser.choose("change", "newly won")
    browser.press(Keys.ESCAPE, "j")
    browser.wait(lambda: browser.texts(".sides h3") == ["sft · tlm-dre", "tlm-dre · tlm-dre"])
    browser.choose("change", "still won")
    browser.press(Keys.ESCAPE, "j")
    browser.wait(lambda: browser.text("#split") == "All actions are the same")


def test_an_episode_that_was_played_again_counts_once(browser: Reader, tmp_path: Path) -> None:
    """What was aborted before says nothing about what training changed."""
    run = run_folder(tmp_path / "dpo", "dpo", won=(4, 4))
    for label in ("sft", "dpo"):
        log = run / "trajectories" / f"{label}-valid_seen.jsonl"
        played = list(read_trajectories(log))
        write_trajectories(log, [replace(played[0], won=False, stop_reason=StopReason.ABORTED), *played])
    write_report([run], tmp_path / "report.html", title="Again")
    browser.open(tmp_path / "report.html")
    assert browser.texts("[data-facet=change] option") == ["any change from SFT", "none (7)", "still won (4)"]


def test_beside_follows_to_the_policy_of_the_same_seed(browser: Reader, tmp_path: Path) -> None:
    """Read through all seeds of a trainer: each beside the SFT policy from which it went on."""
    folders = []
    for seed in (0, 1):
        first = run_folder(tmp_path / f"seed{seed}" / "sft", "tlm-dre", seed=seed)
        folders += [first, run_folder(tmp_path / f"seed{seed}" / "dpo", "dpo", sft_policy=first / "sft" / "policy")]
    write_report(folders, tmp_path / "report.html", title="Two seeds")
    browser.open(tmp_path / "report.html")
    browser.choose("label", "dpo")
    browser.press(Keys.ESCAPE, "j")
    browser.wait(lambda: browser.texts("#beside option"))
    options = browser.texts("#beside option")
    at = options.index("sft · seed0/sft (won)") + 1
    browser.driver.find_element(By.CSS_SELECTOR, f"#beside option:nth-child({at})").click()
    browser.wait(lambda: browser.texts(".sides h3") == ["sft · seed0/sft", "dpo · seed0/dpo"])
    browser.press(Keys.ESCAPE, Keys.END)
    browser.wait(lambda: browser.texts(".sides h3") == ["sft · seed1/sft", "dpo · seed1/dpo"])


def test_dark_mode_by_key_and_by_preference(browser: Reader, page: Path) -> None:
    """Text has to stay readable on its ground: a contrast of at least 4.5 in both."""
    browser.open(page, "#/episodes/0")
    browser.wait(browser.heading)
    contrasts, grounds = [], []
    for _ in range(2):
        grounds.append(browser.js("return getComputedStyle(document.body).backgroundColor"))
        colors = [
            browser.js("return getComputedStyle(document.querySelector(arguments[0])).color", selector)
            for selector in ("body", ".observation", ".response .a", ".row .about")
        ]
        contrasts += [contrast(color, grounds[-1]) for color in colors]
        browser.press("d")
    assert sorted(map(luminance, grounds)) == [pytest.approx(luminance("rgb(22, 24, 27)")), 1.0]
    assert min(contrasts) >= 4.5
    browser.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    browser.open(page)
    assert browser.js("return getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    assert browser.text("#theme") == "Light"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_narrow_window_shows_the_list_or_the_episode(browser: Reader, page: Path) -> None:
    visible = "return document.querySelector(arguments[0]).getBoundingClientRect().width > 0"
    browser.driver.set_window_size(520, 900)
    try:
        browser.open(page)
        assert browser.js(visible, "#list")
        browser.press("j")
        browser.wait(browser.heading)
        assert not browser.js(visible, "#list")
        assert browser.js("return document.documentElement.scrollWidth <= innerWidth")
        browser.js("document.querySelector('.back').click()")
        assert browser.js(visible, "#list")
    finally:
        browser.driver.set_window_size(1400, 900)


def test_strings_of_a_model_are_text(browser: Reader, tmp_path: Path) -> None:
    """A policy may write anything, and so may the author of a dataset: nothing of it may run, or be lost."""
    everything = " ".join(HOSTILE)
    turns = [Turn(o, r, HOSTILE[0], True, 0.0, admissible_commands=[everything]) for o in HOSTILE for r in HOSTILE[:2]]
    wild = replace(
        episode([], tokens=False),
        turns=turns,
        instruction=everything,
        task_id=everything,
        task_type=everything,
        split=everything,
        policy=everything,
        final_observation=everything,
        error=everything,
    )
    run = run_folder(tmp_path / "<img src=x onerror=window.hacked=1>")
    write_trajectories(run / "trajectories" / "sft-valid_seen.jsonl", [wild])
    write_report([run], tmp_path / "report.html", title=everything, sections=[(everything, "<p>section</p>")])
    browser.complaints()
    browser.open(tmp_path / "report.html", "#/episodes/0")
    browser.wait(browser.heading)
    shown = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in everything)
    assert browser.heading() == shown
    assert browser.texts("#detail .turn")[0].count(HOSTILE[0]) >= 2
    assert shown in browser.texts("#detail .ending p")[0]
    browser.press("n", "n", "1", "2")
    assert browser.js("return window.hacked === undefined")
    assert browser.js("return document.querySelectorAll('img, iframe, object, [onmouseover], [onerror]').length") == 0
    assert browser.js("return document.scripts.length") == browser.js(
        "return document.querySelectorAll('body > script').length"
    )
    assert browser.complaints() == []
    assert browser.js("return performance.getEntriesByType('resource').length") == 0


def test_five_thousand_episodes_load_filter_and_scroll(browser: Reader, tmp_path: Path) -> None:
    """The list holds the rows in sight only, and an episode's turns are unpacked when it is opened."""
    run = run_folder(tmp_path / "run")
    one = episode(["go to study", "rub lamp", "put lamp"])
    played = (replace(one, task_id=f"task-{i}", instruction=f"bring lamp {i} to the study.") for i in range(MANY))
    write_trajectories(run / "trajectories" / "sft-valid_seen.jsonl", played)
    write_report([run], tmp_path / "report.html", title="Many", limit=None)
    browser.open(tmp_path / "report.html")
    assert browser.text("#count") == "5,005 episodes"
    assert 0 < browser.js("return document.querySelectorAll('.row').length") < 60
    browser.js("document.getElementById('list').scrollTop = 56 * 2500")
    browser.wait(lambda: "bring lamp 2500 to the study." in browser.texts(".row div:first-child"))
    assert browser.js("return document.querySelectorAll('.row').length") < 60
    browser.press("/", "lamp 4321 ")
    assert browser.text("#count") == "1 of 5,005 episodes"
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.heading() == "bring lamp 4321 to the study.")
    assert len(browser.texts("#detail .turn")) == 3


def luminance(color: str) -> float:
    """Relative luminance of ``rgb(...)`` (WCAG 2)."""
    channels = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours (WCAG 2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
