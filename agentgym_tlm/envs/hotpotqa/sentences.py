"""Running text as sentences."""

from __future__ import annotations

import re

_END = re.compile(r"[.!?]+[\"'\u201d\u2019)\]]*(?=\s+[\"'\u201c\u2018(\[]*[A-Z0-9À-ÞА-Я])")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'\u201c\u2018])(?:(?:[A-Za-z]\.)*[A-Za-z]|Adm|Ave|Brig|Capt|Co|Col|Corp|Dr|Ft|Gen|Gov|Hon|Inc|Jr|Lt|Ltd|Maj|Messrs|"
    r"Mr|Mrs|Ms|Mt|No|Prof|Rep|Rev|Sen|Sgt|Sr|St|Ste|approx|ca|cf|etc|vs|"
    r"Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec)\.$"
)


def split_sentences(paragraph: str) -> tuple[str, ...]:
    """Sentences of a paragraph; joined without anything between them they are the paragraph.

    A full stop after an initial or a common abbreviation ("Gen.", "U.S.") ends no sentence.
    """
    sentences = []
    start = 0
    for end in _END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[max(start, end.end() - 20) : end.end()]):
            sentences.append(paragraph[start : end.end()])
            start = end.end()
    return (*sentences, paragraph[start:]) if paragraph[start:] else tuple(sentences)
