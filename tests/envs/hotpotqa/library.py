"""A small library of our own for the tests: pages, and questions whose answers take two of them."""

import gzip
import json
from pathlib import Path
from typing import Any

from agentgym_tlm.envs.hotpotqa.offline import build_wiki
from agentgym_tlm.envs.hotpotqa.question import Page, Question

PAGES = (
    Page(
        "Orla Brandt",
        (
            "Orla Brandt is a painter and writer.",
            " She was born in Tarnwick in 1931.",
            " Her first novel is The Glass Orchard.",
            " It was printed by Heron House.",
            " She never learned to swim.",
            " Brandt kept bees on her roof.",
            " In 1970 Brandt moved to Vellmar.",
            " Her bees won a prize in 1974.",
        ),
        aliases=("O. Brandt", "Brandt"),
    ),
    Page("Piet Brandt", ("Piet Brandt was a sailor.", " He was born in Vellmar in 1899."), aliases=("Brandt",)),
    Page("Tarnwick", ("Tarnwick is a town on the river Ouse.", " It has 4,200 people.", " Its mayor is U. Lind.")),
    Page("Vellmar", ("Vellmar is a port.", " It lies in the region of Sund.", " Ships of the S.S. Line call there.")),
    Page("The Glass Orchard", ("The Glass Orchard is a novel by Orla Brandt.", " It tells of a lighthouse keeper.")),
    Page("Heron (bird)", ("A heron is a bird with long legs.",)),
    Page("Heron (river)", ("The Heron is a river in Sund.",)),
    Page("Café Zoë", ("Café Zoë is a tavern in Vellmar.", " Its owner is Mina Okoro.")),
    Page("AT&T & Sons", ("AT&T & Sons sold rope, tar and C++ manuals.", r" Its code was IT\ICCU\UBO.")),
    Page("Empty Page", ()),
    Page("ICE", ("ICE is a train.",)),
    Page("Ice", ("Ice is frozen water.",)),
)

QUESTIONS = (
    Question(
        "q1",
        "On which river lies the town where Orla Brandt was born?",
        "Ouse",
        "bridge",
        "medium",
        (("Orla Brandt", 1), ("Tarnwick", 0)),
    ),
    Question(
        "q2",
        "In which region lies the port to which the writer of The Glass Orchard moved?",
        "Sund",
        "bridge",
        "hard",
        (("Orla Brandt", 6), ("The Glass Orchard", 0), ("Vellmar", 1)),
    ),
    Question(
        "q3",
        "Was Piet Brandt born before Orla Brandt?",
        "yes",
        "comparison",
        "easy",
        (("Piet Brandt", 1), ("Orla Brandt", 1)),
    ),
    Question(
        "q4", "Who owns Café Zoë in Vellmar?", "Mina Okoro", "bridge", "easy", (("Caf&eacute; Zoë", 1), ("Vellmar", 0))
    ),
    Question(
        "q5",
        "What is longer, the or the?",
        "The The",
        "comparison",
        "hard",
        (("Heron (bird)", 0), ("Heron (river)", 0)),
    ),
)
TRAIN, DEV = QUESTIONS[:2], QUESTIONS[2:]


def record(question: Question) -> dict[str, Any]:
    """A question in the official format, with its pages as context."""
    return {
        "_id": question.id,
        "question": question.question,
        "answer": question.answer,
        "type": question.type,
        "level": question.level,
        "supporting_facts": [list(fact) for fact in question.supporting_facts],
        "context": [[page.title, list(page.sentences)] for page in PAGES[:4]],
    }


def write_lines(path: Path, records: list[Any]) -> Path:
    """JSON lines, compressed if the name ends in ``.gz``."""
    text = "".join(json.dumps(each) + "\n" for each in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_library(folder: Path) -> Path:
    """A data folder: the train questions as JSON lines, the others as a JSON array, and the pages."""
    write_lines(folder / "train_distractor.jsonl.gz", [record(question) for question in TRAIN])
    (folder / "hotpot_dev_distractor_v1.json").write_text(json.dumps([record(question) for question in DEV]))
    build_wiki(PAGES, folder / "wiki.sqlite")
    return folder
