"""Drafts save passes of the model and change nothing else."""

from __future__ import annotations

from agentgym_tlm.policies.drafting import Drafter


def test_drafts_what_followed_the_longest_known_context() -> None:
    drafter = Drafter()
    drafter.learn([1, 2, 3, 4, 9, 2, 3, 4, 5], 0)
    assert drafter.draft([2, 3], 3) == [4, 5], "the newest continuation of the pair; nothing is known behind 4 5"
    assert drafter.draft([1, 2, 3, 4], 1) == [9], "four tokens tell more than two"
    assert drafter.draft([7, 7], 3) == []
    assert drafter.draft([2, 3], 0) == []


def test_learns_from_where_it_is_told_with_the_context_before_it() -> None:
    drafter = Drafter()
    drafter.learn([1, 2, 3], 3)
    assert drafter.draft([1, 2], 2) == []
    drafter.learn([1, 2, 3, 4], 3)
    assert drafter.draft([2, 3], 1) == [4]
    assert drafter.draft([1, 2], 1) == []
