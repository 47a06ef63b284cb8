"""A replacement for bAbI's files: people, things and places are simulated, and facts, a question and its answer are written in
bAbI's forms.

The forms are those of Weston et al. 2015 (bAbI), arXiv:1502.05698, its tasks 1 to 5; the sentences are made here. An answer follows
from the facts alone: a question about a place is asked only after facts have determined it, and refers to the last one of repeated
events.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from composer.tasks.base import Split, apart

BUILT_IN = "simulated"
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS = ("apple", "football", "milk")
PEOPLE = ("Daniel", "John", "Mary", "Sandra")
GIVERS = ("Bill", "Fred", "Jeff", "Mary")
"""The people of task 5."""
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}

MOVED = ("went", "moved", "journeyed", "travelled")
TOOK = ("got", "grabbed", "took", "picked up")
LEFT = ("left", "dropped", "discarded", "put down")
GAVE = ("gave", "handed", "passed")

MOVES = 0.6
"""The share of moves among all actions, where other actions are possible."""
FACTS = {1: (2, 10), 2: (2, 20), 3: (3, 40), 5: (2, 20)}
"""The least and the most facts of a story, by task."""


class Fact(NamedTuple):
    """A sentence, and what it means. who did it; thing: the thing, or the place of a move; to: who got it.

    Of two places: ``who`` lies on the side ``thing`` of ``to``.
    """

    text: str
    deed: Literal["move", "take", "leave", "give", "lie"]
    who: str
    thing: str
    to: str = ""


@dataclass(frozen=True)
class Question:
    """One question, with all facts before it."""

    facts: tuple[str, ...]
    text: str
    answer: str
    supports: tuple[int, ...]
    """Which of the facts answer it."""


def ask(number: int, rng: random.Random, split: Split) -> Question:
    """Draw a question of bAbI's task 1 to 5 about facts of this split only."""
    facts = apart(rng, split, lambda rng: tell(number, rng))
    text, answer, supports = rng.choice(ASKED[number](facts))
    return Question(tuple(fact.text for fact in facts), text, answer, supports)


def tell(number: int, rng: random.Random) -> tuple[Fact, ...]:
    """Draw facts that a question can be about."""
    while True:
        facts = _map(rng) if number == 4 else tuple(_lives(number, rng))
        if ASKED[number](facts):
            return facts


def _lives(number: int, rng: random.Random) -> Iterator[Fact]:
    """People move, pick things up, leave them, and hand them to each other. Everybody is at a place from the start, though no fact
    states it; a thing that nobody has touched may be anywhere."""
    people = GIVERS if number == 5 else PEOPLE
    here = {person: rng.choice(PLACES) for person in people}
    been: dict[str, set[str]] = defaultdict(set)
    holder: dict[str, str] = {}
    lies: dict[str, str] = {}
    for _ in range(rng.randint(*FACTS[number])):
        person = rng.choice(people)
        place = here[person]
        things_in_hand = [thing for thing in THINGS if holder.get(thing) == person]
        near = [thing for thing in THINGS if thing not in holder and lies.get(thing, place) == place]
        beside = [other for other in people if other != person and here[other] == place]
        able = {
            "take": near and (number == 5 or been[person]),
            "leave": things_in_hand,
            "give": number == 5 and things_in_hand and beside,
        }
        deeds = [deed for deed, can in able.items() if can and number != 1]
        deed = rng.choice(deeds) if deeds and rng.random() > MOVES else "move"
        if deed == "move":
            here[person] = rng.choice([other for other in PLACES if other != place])
            yield Fact(_write_move(rng, person, here[person], been[person]), "move", person, here[person])
            been[person].add(here[person])
            continue
        thing = rng.choice(near if deed == "take" else things_in_hand)
        adverb = rng.choice(("", " there"))
        if deed == "take":
            holder[thing] = person
            yield Fact(f"{person} {rng.choice(TOOK)} the {thing}{adverb}.", "take", person, thing)
        elif deed == "leave":
            lies[thing] = place
            del holder[thing]
            yield Fact(f"{person} {rng.choice(LEFT)} the {thing}{adverb}.", "leave", person, thing)
        else:
            holder[thing] = rng.choice(beside)
            yield Fact(f"{person} {rng.choice(GAVE)} the {thing} to {holder[thing]}.", "give", person, thing, holder[thing])


def _write_move(rng: random.Random, person: str, place: str, been: set[str]) -> str:
    """Return the sentence of a move. It may be ``went back`` only for a place that an earlier fact gave for the person."""
    return f"{person} {rng.choice((*MOVED, 'went back') if place in been else MOVED)} to the {place}."


def _map(rng: random.Random) -> tuple[Fact, ...]:
    """Draw two places on two sides of a third, each described from either end."""
    middle, *others = rng.sample(PLACES, 3)
    facts = []
    for place, side in zip(others, rng.sample(list(OPPOSITE), 2), strict=True):
        subject, way, other = (place, side, middle) if rng.random() < 0.5 else (middle, OPPOSITE[side], place)
        facts.append(Fact(f"The {subject} is {way} of the {other}.", "lie", subject, way, other))
    return tuple(facts)


AnsweredQuestion = tuple[str, str, tuple[int, ...]]
"""A question, its answer, and the facts that answer it."""


class _Story:
    """The places of people and things that follow from facts, each with the number of its fact."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self.at: dict[str, tuple[str, int]] = {}
        self.trails: dict[str, list[tuple[str, int]]] = {}
        """Places that a thing has been to, one after another."""
        self.touched: dict[str, int] = {}
        """Whether this fact determines who has a thing, or where somebody has left it."""
        things_of: dict[str, set[str]] = defaultdict(set)
        for number, fact in enumerate(facts):
            if fact.deed == "move":
                self.at[fact.who] = (fact.thing, number)
                for thing in things_of[fact.who]:
                    self.trails[thing].append((fact.thing, number))
                continue
            self.touched[fact.thing] = number
            if fact.deed == "take":
                things_of[fact.who].add(fact.thing)
                self.trails[fact.thing] = [*self.trails.get(fact.thing, ())[:-1], self.at[fact.who]]
            else:
                things_of[fact.who].remove(fact.thing)


def _people(facts: Sequence[Fact]) -> list[AnsweredQuestion]:
    return [(f"Where is {person}?", place, (number,)) for person, (place, number) in _Story(facts).at.items()]


def _things(facts: Sequence[Fact]) -> list[AnsweredQuestion]:
    story = _Story(facts)
    return [(f"Where is the {thing}?", trail[-1][0], (story.touched[thing], trail[-1][1])) for thing, trail in story.trails.items()]


def _before(facts: Sequence[Fact]) -> list[AnsweredQuestion]:
    story, questions = _Story(facts), []
    for thing, trail in story.trails.items():
        if len(trail) > 1:
            (before, went), (now, came) = trail[-2:]
            questions.append((f"Where was the {thing} before the {now}?", before, (story.touched[thing], came, went)))
    return questions


def _sides(facts: Sequence[Fact]) -> list[AnsweredQuestion]:
    """If all three places are in a row, the outer ones are on the same side of two places: these are not asked about."""
    first, second = ({fact.who, fact.to} for fact in facts)
    (middle,) = first & second
    sides = {fact.thing if fact.to == middle else OPPOSITE[fact.thing] for fact in facts}
    row = len({*sides, *(OPPOSITE[side] for side in sides)}) == 2
    questions: list[AnsweredQuestion] = []
    for number, (_, _, subject, side, other) in enumerate(facts):
        if not row or other == middle:
            questions.append((f"What is {side} of the {other}?", subject, (number,)))
        if not row or subject == middle:
            questions.append((f"What is the {subject} {side} of?", other, (number,)))
    return questions


def _gifts(facts: Sequence[Fact]) -> list[AnsweredQuestion]:
    """A question has the answer of the last gift that it fits."""
    questions: dict[str, AnsweredQuestion] = {}
    for number, (_, deed, who, thing, to) in enumerate(facts):
        if deed == "give":
            for text, answer in (
                (f"What did {who} give to {to}?", thing),
                (f"Who gave the {thing} to {to}?", who),
                (f"Who did {who} give the {thing} to?", to),
                (f"Who gave the {thing}?", who),
                (f"Who received the {thing}?", to),
            ):
                questions[text] = (text, answer, (number,))
    return list(questions.values())


ASKED = {1: _people, 2: _things, 3: _before, 4: _sides, 5: _gifts}
"""Return all possible questions about facts, by task."""
