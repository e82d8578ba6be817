"""What the first message of an episode can say about how good the episode is, for methods that condition on it.

Pretrained models can read any words; a ``tiny`` policy, whose tokenizer knows the words that it was made from, learns
new ones first (:func:`~agentgym_tlm.policies.tiny.add_words`).
"""

from __future__ import annotations

TWO_CLASSES = ("[Incorrect]", "[Correct]")
"""Whether the episode was won (NAT's two classes, in words of our own)."""
FOUR_CLASSES = ("[Totally Incorrect]", "[Mostly Incorrect]", "[Mostly Correct]", "[Correct]")
"""Classes of the episode's score: 0, below 0.4, below 1, 1 (NAT's for HotpotQA, where the score is F1)."""
HINDSIGHT_MARKERS = ("An unsuccessful attempt:", "A successful attempt:")
"""Which of two episodes of a task it is (chain of hindsight, in words of our own)."""
