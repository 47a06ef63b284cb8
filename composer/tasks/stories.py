"""Small grammar-made stories: the people and things at the start of a story occur again at its end."""

from __future__ import annotations

import random
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from composer.tasks.base import Learn, Sample, Scored, Split, Task, apart
from composer.tasks.writer import Writer

# Name, then its pronouns: he, his, him.
BOY = ("he", "his", "him")
GIRL = ("she", "her", "her")
PEOPLE = {
    **dict.fromkeys(("Tom", "Ben", "Sam", "Max", "Leo", "Finn", "Jack", "Oscar"), BOY),
    **dict.fromkeys(("Mia", "Anna", "Lily", "Ella", "Nora", "Ruby", "Zoe", "Clara"), GIRL),
}

WORDS = {
    "object": "ball kite book hat drum boat lamp coin bell ring cup doll scarf shell map box",
    "color": "red blue green yellow white black brown golden",
    "place": "park forest river beach garden school market farm hill lake barn bridge",
    "pet": "cat dog bird rabbit fox pony duck mouse",
    "food": "bread soup cake apples cheese honey rice pie",
    "weather": "sunny rainy windy cold warm foggy snowy",
    "good": "happy proud glad calm brave",
    "bad": "sad scared tired lonely angry",
    "helper": "grandmother teacher aunt cousin brother sister uncle neighbor",
    "trait": "kind clever shy quiet small curious gentle funny",
    "spot": "tree bench fence rock bush door wall gate",
}
SLOTS = {slot: words.split() for slot, words in WORDS.items()}

OPENINGS = (
    "Once upon a time there was a {trait} child named {name}.",
    "{name} was a {trait} child who lived near the {home}.",
    "One {weather} morning {name} woke up early.",
    "Long ago a {trait} child named {name} lived by the {home}.",
    "It was a {weather} day and {name} wanted to play outside.",
    "In a house near the {home} lived {name}, a {trait} child, with a {pet}.",
)

# A plot is a list of steps, and a step is told in one of several ways.
LOST = (
    (
        "{He} had a {color} {object} that {he} loved very much.",
        "Of all {his} things, {he} loved a {color} {object} the most.",
        "{His} {helper} had given {him} a {color} {object}.",
    ),
    (
        "One day {he} took it to the {place} to meet {friend}.",
        "{name} went to the {place} with {friend} and a {pet}.",
        "After lunch {friend} came, and they walked to the {place} together.",
    ),
    ("They played until the sun went down.", "They ran and jumped all day.", "They sang songs and ate some {food}."),
    (
        "On the way home {name} saw that the {object} was gone.",
        "But when it was time to go, {he} could not find the {object}.",
        "Then a strong wind came, and the {object} was lost.",
    ),
    ("{name} felt {bad} and began to cry.", "{He} felt very {bad}.", "{name} was so {bad} that {he} sat down."),
    ("{friend} said, do not worry, we will find it.", "{friend} took {his} hand and said, let us look again."),
    ("They looked under the {spot} and behind the {other}.", "They looked near the {spot}, but it was not there."),
    (
        "At last the {pet} came back with the {color} {object}.",
        "Then {friend} found the {color} {object} behind the {other}.",
        "In the end the {color} {object} was under the {other}.",
    ),
    ("{name} thanked {friend} and felt {good} again.", "{name} was {good}, and {friend} was {good} too."),
)
GIFT = (
    ("Soon it would be the birthday of {friend}.", "{name} had a friend named {friend}, who was {bad} that day."),
    ("{name} wanted to make a gift.", "{He} thought about a gift for {friend} all night."),
    (
        "{He} went to the {place} and saw a {color} {object}.",
        "At the {place} {he} found an old {object} and painted it {color}.",
        "{His} {helper} helped {him} to make a {color} {object}.",
    ),
    ("It was the best {object} in the world!", "It cost all the money {he} had.", "{name} put it in a bag."),
    (
        "The next day {name} carried it to the house of {friend}.",
        "On the way {he} fell near the {spot}, but the gift was safe.",
        "{He} hid it behind the {spot} and waited for {friend}.",
    ),
    ("What is it? asked {friend}.", "{friend} opened the door and smiled.", "{friend} ran to see what it was."),
    ("It is a {color} {object}, said {name}.", "It was the {color} {object} from {name}."),
    ("{friend} felt {good} and gave {name} some {food}.", "They ate {food} and were {good} all evening."),
)
JOURNEY = (
    (
        "{His} {helper} lived far away, on the other side of the {place}.",
        "One day {his} {helper} was ill and had to stay in bed.",
        "The {helper} who lived at the {place} was {bad} and alone.",
    ),
    ("{name} put some {food} and a {color} {object} in a bag.", "{He} took some {food} and a {color} {object}."),
    ("The way was long and the day was {weather}.", "{He} walked past the {spot} and over the {home}."),
    ("Near the {spot} {he} met a hungry {pet}.", "A {color} {pet} sat under the {spot} and looked {bad}."),
    ("{name} gave it some {food}.", "{He} shared the {food} with the {pet}.", "The {pet} ate all the {food}."),
    ("Then it got dark and {name} felt {bad}.", "Soon {he} did not know the way and was {bad}."),
    ("But the {pet} came back and showed {him} the way.", "Then the {pet} ran to {him}, and they walked together."),
    ("The {helper} was {good} to see {name} and the {pet}.", "At the {place} the {helper} opened the door and smiled."),
    ("{name} gave the {helper} the {color} {object}.", "The {helper} put the {color} {object} near the bed."),
)
PROMISE = (
    ("{friend} had a {color} {object}.", "{name} asked {friend} for the {color} {object}."),
    ("{name} said, I will bring it back, I promise.", "You can have it for one day, said {friend}."),
    ("{He} took the {object} to the {place} to play.", "At the {place} {name} showed it to {his} {helper}."),
    ("But it fell on a {spot} and broke.", "But the {pet} jumped on the {object} and it broke."),
    ("{name} felt {bad} and hid behind the {other}.", "{He} was {bad} and did not know what to do."),
    ("Tell {friend}, said {his} {helper}.", "{His} {helper} said, we can mend it."),
    ("They worked until evening with some wood and string.", "They worked all night, and then they ate {food}."),
    ("{name} gave the {color} {object} back to {friend}.", "{friend} saw the {object} and was not {bad} at all."),
    ("A promise is a promise, said {name}.", "Thank you, said {friend}, now we can play together."),
)
SECRET = (
    ("In the house {he} found an old letter from {his} {helper}.", "{friend} came with a secret letter."),
    ("It said, look under the {spot} at the {place}.", "It said that a {color} {object} was hidden at the {place}."),
    ("{name} told {friend} about it, and they left at once.", "{name} and {friend} ran as fast as they could."),
    ("It was {weather} at the {place}.", "A {pet} was at the {place} too.", "There was no one at the {place}."),
    ("They looked behind the {other} and found only {food}.", "First they looked under the {other}."),
    ("{friend} was {bad} and wanted to go home.", "I am {bad}, said {friend}, let us go home."),
    ("But {name} wanted to look one more time.", "{name} said, we will look under the {spot} too."),
    ("There it was, a {color} {object}!", "Under the {spot} they found a {color} {object}."),
    ("{name} showed the {object} to {his} {helper}.", "Well done, said the {helper} to {name} and {friend}."),
)
PLOTS = (LOST, GIFT, JOURNEY, PROMISE, SECRET)

DETAILS = (
    "It was a {weather} day.",
    "The {pet} came too.",
    "{name} was {good}.",
    "A {pet} looked at them from the {spot}.",
    "{friend} laughed.",
    "The air was {weather}.",
    "{name} thought about {his} {helper}.",
)
ENDINGS = (
    "That night {name} dreamed about the {color} {object}.",
    "{name} and {friend} were friends for ever.",
    "From then on {name} always took the {object} to the {place}.",
    "And {name} never forgot the {pet} or the {color} {object}.",
    "Back at the {home}, {name} told {his} {helper} about the {object}.",
    "The {trait} child and the {pet} went home and slept well.",
)


def fill(rng: random.Random) -> dict[str, str]:
    """Draw one word for each slot; all sentences of one story share them."""
    name, friend = rng.sample(list(PEOPLE), 2)
    words = {slot: rng.choice(choices) for slot, choices in SLOTS.items()}
    words["home"] = rng.choice([place for place in SLOTS["place"] if place != words["place"]])
    words["other"] = rng.choice([spot for spot in SLOTS["spot"] if spot != words["spot"]])
    he, his, him = PEOPLE[name]
    return words | {
        "name": name,
        "friend": friend,
        "he": he,
        "his": his,
        "him": him,
        "He": he.capitalize(),
        "His": his.capitalize(),
    }


def story(rng: random.Random) -> str:
    """Return one story of 9 to 18 sentences, about 75 to 160 tokens, as a single line of text."""
    words = fill(rng)
    sentences = [rng.choice(OPENINGS)]
    for step in rng.choice(PLOTS):
        sentences.append(rng.choice(step))
        if rng.random() < 0.2:
            sentences.append(rng.choice(DETAILS))
    sentences.append(rng.choice(ENDINGS))
    return " ".join(sentences).format(**words)


def templates() -> list[str]:
    """Return every piece of text a story can be made of: sentences with their slots, then the words for the slots."""
    steps = [sentence for plot in PLOTS for step in plot for sentence in step]
    pronouns = [form for word in BOY + GIRL for form in (word, word.capitalize())]
    words = [word for choices in SLOTS.values() for word in choices]
    return [*OPENINGS, *steps, *DETAILS, *ENDINGS, *PEOPLE, *pronouns, *words]


class Stories(Task):
    """One story after another, each from BOS to EOS where the tokenizer has them, cut where the length is full."""

    source: ClassVar[str] = "a grammar of this project; the shipped teacher learned it"
    scored: ClassVar[Scored] = "loss"

    kind: Literal["stories"] = "stories"
    learn: Learn = "all"
    """All tokens but BOS: a story has no answers."""

    @model_validator(mode="after")
    def _no_answers(self) -> Self:
        if self.learn == "answer":
            raise ValueError("stories have no answers to learn: leave `learn` out")
        return self

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        stories: list[str] = []
        ids: list[int] = []
        while len(ids) < length:
            stories.append(apart(rng, split, story))
            # Without special tokens, a blank line is what parts two stories.
            between = "\n\n" if len(stories) > 1 and not (writer.begin or writer.end) else ""
            ids += [*writer.encode(between + stories[-1]), *writer.end]
        ids = ids[:length]
        return Sample(tuple(ids), (False,) * len(ids), "\n\n".join(stories))
