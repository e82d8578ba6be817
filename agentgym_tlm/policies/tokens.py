"""The token sequences of a running episode, as a policy with tokens opens them for its next response."""

from __future__ import annotations

from agentgym_tlm.policies.base import Conversation
from agentgym_tlm.renderer import Renderer


def open_sequence(conversation: Conversation, renderer: Renderer, room: int) -> list[int] | None:
    """The sequence that the next response is to be appended to, prompt included; None if that has over ``room`` tokens.

    It is one of the conversation's: the one that there is, or, with a windowed format, a new one.
    """
    open_one = _new_sequence if renderer.format.windowed else _longer_sequence
    return open_one(conversation, renderer, room)


def _longer_sequence(conversation: Conversation, renderer: Renderer, room: int) -> list[int] | None:
    """The conversation's one sequence, with the newest observation and the generation prompt appended."""
    ids = conversation.sequences[0] if conversation.sequences else []
    new: list[int] = []
    spans = []
    if ids and ids[-1] != renderer.end_of_turn_id:  # a given turn whose end was not sampled
        new.append(renderer.end_of_turn_id)
    for turn in range(len(conversation.spans), len(conversation.responses)):  # turns that somebody else played
        new += _prompt(conversation, renderer, turn)
        response = renderer.response(conversation.responses[turn])
        spans.append((0, len(ids) + len(new), len(ids) + len(new) + len(response)))
        new += response
    new += _prompt(conversation, renderer, len(conversation.responses))
    if len(ids) + len(new) > room:
        return None
    if not conversation.sequences:
        conversation.sequences.append(ids)
    ids += new
    conversation.spans += spans
    return ids


def _new_sequence(conversation: Conversation, renderer: Renderer, room: int) -> list[int] | None:
    """A sequence with the prompt of this turn, appended to those of the turns before."""
    ids = _prompt(conversation, renderer, len(conversation.responses))
    if len(ids) > room:
        return None
    for turn in range(len(conversation.spans), len(conversation.responses)):  # turns that somebody else played
        given = _prompt(conversation, renderer, turn)
        start = len(given)
        given += renderer.response(conversation.responses[turn])
        conversation.spans.append((len(conversation.sequences), start, len(given)))
        conversation.sequences.append(given)
    conversation.sequences.append(ids)
    return ids


def _prompt(conversation: Conversation, renderer: Renderer, turn: int) -> list[int]:
    commands = conversation.commands[turn] if turn < len(conversation.commands) else None
    return renderer.prompt(conversation.instruction, conversation.observations, turn, conversation.responses, commands)
