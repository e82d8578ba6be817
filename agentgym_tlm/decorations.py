"""What the first message of an episode can say about how good the episode is, for methods that condition on it.

They are part of the vocabulary of every ``tiny`` policy, whose tokenizer knows no other words than those it was made
from; pretrained models can read any.
"""

from __future__ import annotations

TWO_CLASSES = ("[Incorrect]", "[Correct]")
"""Whether the episode was won (NAT's two classes, in words of our own)."""
FOUR_CLASSES = ("[Totally Incorrect]", "[Mostly Incorrect]", "[Mostly Correct]", "[Correct]")
"""Classes of the episode's score: 0, below 0.4, below 1, 1 (NAT's for HotpotQA, where the score is F1)."""
HINDSIGHT_MARKERS = ("An unsuccessful attempt:", "A successful attempt:")
"""Which of two episodes of a task it is (chain of hindsight, in words of our own)."""
DECORATIONS = (*TWO_CLASSES, *FOUR_CLASSES, *HINDSIGHT_MARKERS)
