"""Sentences of the embedded world's pages that state no relation, or those that every page of a kind begins with."""

from __future__ import annotations

INTRODUCTIONS = {
    "region": (
        "{x} is a region of wooded hills and wide, windy fields.",
        "{x} is a thinly settled region with short summers and mild winters.",
    ),
    "river": (
        "{x} is a river with clear water and many small islands.",
        "{x} is a slow, brown river that floods the meadows each spring.",
    ),
    "town": (
        "{x} is a quiet town with narrow streets and a wide market square.",
        "{x} is a busy town of brick houses and tall chimneys.",
    ),
    "person": (
        "{x} ({born}-{died}) was a {occupation} with a sharp tongue and many friends.",
        "{x} ({born}-{died}) was a {occupation} who loved quiet evenings and long walks.",
        "{x} ({born}-{died}) became a {occupation} against the wishes of the family.",
    ),
    "university": (
        "{x} is a school for higher studies with strict rules.",
        "{x} is a small school known for its old lecture rooms.",
    ),
    "company": (
        "{x} is a family company that has never borrowed from a bank.",
        "{x} is a large company with plants on both sides of the border.",
    ),
    "band": (
        "{x} were a band of four who wore white suits on stage.",
        "{x} were a band that toured the country in an old bus.",
    ),
    "club": (
        "{x} is a club whose players wear green and yellow shirts.",
        "{x} is a club with loyal fans and very little money.",
    ),
    "book": (
        "{x} is a novel about two sisters and a locked door.",
        "{x} is a novel told by an old man to a judge.",
    ),
    "film": (
        "{x} is a film about a teacher who finds a lost child.",
        "{x} is a film without any spoken words until the last scene.",
    ),
    "song": (
        "{x} is a song about a letter that came too late.",
        "{x} is a song with a simple tune and three short verses.",
    ),
    "building": (
        "{x} is a building of red stone with a copper roof.",
        "{x} is a building with a round hall and forty tall windows.",
    ),
}
"""First sentences by kind."""

FILLERS = {
    "region": (
        "Two main roads lead through it from east to west.",
        "Its flag shows a white bird over three green lines.",
        "Wild horses can still be seen on the higher land.",
        "A large part of the forest was cut for ships.",
        "In winter many of the roads are closed by snow.",
        "The local dialect has nine different words for fog.",
    ),
    "river": (
        "Old stories say that a giant sleeps under its bed.",
        "Flat boats carry sand and timber in the dry months.",
        "A dam was planned there, but the plan was dropped.",
        "Many birds rest on its banks during the autumn.",
        "The ice is thick enough for skating in most winters.",
        "Fishing is allowed only on the left side.",
    ),
    "town": (
        "A fire once burned down half of the wooden houses.",
        "The clock on the square is always four minutes slow.",
        "Its oldest inn still has a stable for twenty horses.",
        "Every autumn there is a race with painted carts.",
        "The last train leaves the station before nine in the evening.",
    ),
    "person": (
        "{He} kept bees behind the house and gave honey to neighbours.",
        "{He} collected old maps and spoke three foreign languages.",
        "{He} never learned to drive and walked everywhere.",
        "{His} letters were found in a wooden box much later.",
        "In old age {he} lost {his} hearing but not {his} humour.",
        "{He} played cards with the same friends every week.",
    ),
    "university": (
        "Students there still wear short grey coats at dinner.",
        "Its library holds more maps than any other in the country.",
        "A bell calls the students to breakfast at six.",
        "The main hall was rebuilt with bricks after a storm.",
        "Lessons in law and medicine are held in the evening.",
    ),
    "company": (
        "It paid its workers a bonus of coal each winter.",
        "A strike over longer breaks lasted for seven weeks.",
        "Its sign, a red wheel, can be seen from far away.",
        "The night shift has its own kitchen and its own cook.",
        "A flood damaged the stores, but nobody was hurt.",
    ),
    "band": (
        "Their concerts often went on until the early morning.",
        "They never once agreed to appear on television.",
        "A fan once gave them a goat after a show.",
        "They split up after a quarrel over a lost suitcase.",
        "Their last tour sold out within a few hours.",
    ),
    "club": (
        "Its oldest rival comes from the other side of the hills.",
        "A black cat is shown on the scarf and the flag.",
        "The changing rooms were painted pink to calm the guests.",
        "Children under twelve may watch all matches for free.",
        "Heavy debts almost closed it in a cold winter.",
    ),
    "book": (
        "Critics found the end too sad and the jokes too rare.",
        "It has been translated into more than twenty languages.",
        "Many schools use it in lessons for older pupils.",
        "The first page describes a table in great detail.",
        "A lost chapter was found years later in a drawer.",
    ),
    "film": (
        "The music was written by three students in a week.",
        "It won a prize for the best use of colour.",
        "Some scenes had to be cut because of bad light.",
        "Critics praised the camera work more than the story.",
        "A dog that appears in it became very popular.",
    ),
    "song": (
        "It is often heard at weddings and at funerals.",
        "The first verse was changed because it was too sad.",
        "Children sing it in the car on long trips.",
        "It has only four chords and no real ending.",
        "A bank used it in a loud advertisement.",
    ),
    "building": (
        "Its cellar was used to store wine and old paintings.",
        "Bees have lived in the north wall for decades.",
        "A ghost is said to walk there before a storm.",
        "The front door is opened only on public holidays.",
        "Tours are given on the second Sunday of the month.",
    ),
}
"""Sentences that could be on any page of a kind."""
