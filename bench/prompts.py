"""Everyday questions that a small model can answer: to train on, to evaluate with, and unrelated ones.

No question stands in two lists, and no held-out question is a rewording of a training one. The topics of
the held-out questions differ from each other on purpose: relevance is measured by finding the right one of
twenty.
"""

from __future__ import annotations

from collections.abc import Sequence

TRAIN: tuple[str, ...] = (
    "How do I keep basil alive on a windowsill?",
    "What is a good way to fall asleep faster?",
    "Why do cats knead blankets with their paws?",
    "How can I get a wine stain out of a tablecloth?",
    "What should I pack for a weekend in the mountains?",
    "How do bees make honey?",
    "What is the best way to learn a few words of Spanish before a trip?",
    "How do I ask my boss for a raise?",
    "Why is the sky blue during the day?",
    "What can I cook with leftover rice?",
    "How do I stop my glasses from fogging up?",
    "What makes bread dough rise?",
    "How often should I water a cactus?",
    "What is a simple stretch for a stiff neck?",
    "How do I make friends in a new city?",
    "Why do leaves change colour in autumn?",
    "What is the difference between a crocodile and an alligator?",
    "How do I clean a burnt pan?",
    "What are the benefits of walking every day?",
    "How does a microwave oven heat food?",
    "How do I write a thank-you note to a teacher?",
    "What is a good present for a grandmother who loves gardening?",
    "How can I save money on groceries?",
    "Why do we yawn?",
    "How do I teach a dog to sit?",
    "What should I do if my phone falls into water?",
    "How do tides work?",
    "What is a healthy breakfast for a busy morning?",
    "How do I keep my desk tidy?",
    "What causes thunder?",
    "How can I remember people's names better?",
    "Why does ice float on water?",
    "How do I choose a ripe watermelon?",
    "What is the purpose of a savings account?",
    "How do I get rid of fruit flies in the kitchen?",
    "What can I do about a squeaky door?",
    "How do I start running as a complete beginner?",
    "Why do onions make us cry?",
    "How do I introduce two cats to each other?",
    "What is the best way to store potatoes?",
    "How do rainbows form?",
    "How can I be less nervous before an exam?",
    "What should I look for when I buy a used bicycle?",
    "How do I fold a fitted sheet?",
    "Why is exercise good for the heart?",
    "How do I keep a white shirt white?",
    "What is a fun game to play with a toddler indoors?",
    "How do vaccines protect us?",
    "How do I plan a surprise birthday party?",
    "What is the quickest way to peel garlic?",
    "Why do some birds fly south in winter?",
    "How can I make my flat feel warmer without more heating?",
    "What should I write in a card for a newborn's parents?",
    "How do I treat a mild sunburn?",
    "How does recycling paper work?",
    "What is a good hobby for rainy evenings?",
    "How do I say no to an invitation politely?",
    "Why do stars twinkle?",
    "How do I keep squirrels away from a bird feeder?",
    "What is the best way to sharpen a kitchen knife?",
    "How can I read more books in a year?",
    "What does a carbon monoxide alarm do?",
    "How do I make a paper aeroplane that flies far?",
    "Why should I back up my photos?",
    "How do I get my child to eat vegetables?",
    "What is the difference between jam and jelly?",
    "How do I remove a sticky label from a jar?",
    "How can I stop biting my nails?",
    "What is a good first houseplant?",
    "Why do we have leap years?",
    "How do I hang a picture straight?",
    "What helps against hiccups?",
)

HELDOUT: tuple[str, ...] = (
    "How do I brew a good cup of green tea?",
    "Why do dogs wag their tails?",
    "How can I learn to play the guitar at home?",
    "What should I do when I miss my train?",
    "How do I grow tomatoes on a balcony?",
    "What is the point of brushing my teeth at night?",
    "How do volcanoes erupt?",
    "How do I polish leather shoes?",
    "What is a good way to thank a neighbour for help?",
    "How do I boil an egg so that it peels easily?",
    "Why does the moon look different every night?",
    "How can I prepare for a job interview?",
    "What should I wear to an outdoor wedding in summer?",
    "How do I protect my laptop from viruses?",
    "How do I unclog a kitchen sink?",
    "What makes a good bedtime story for children?",
    "How do I learn to swim as an adult?",
    "Why do we need to sort our rubbish?",
    "What can I do to drink less coffee?",
    "How do I change a flat tyre on a car?",
    "How do spiders build their webs?",
    "What is an easy dessert with apples?",
    "How do I set a monthly budget?",
    "How do I take a nice photo of a sunset?",
)

UNRELATED: tuple[str, ...] = (
    "Write a Python function that reverses a string.",
    "Translate into French: The library opens at nine.",
    "Continue the story: The lighthouse keeper found a letter under the door.",
    "What is 17 plus 26?",
    "List the planets of the solar system.",
    "Write a haiku about a quiet harbour.",
    "Explain what a prime number is.",
    "Who wrote the play Hamlet?",
    "Give me a synonym for the word brave.",
    "Write an SQL query that counts the rows of a table called orders.",
    "Summarise the plot of Cinderella.",
    "What is the capital of Portugal?",
    "Correct the grammar: She go to school yesterday.",
    "Describe the rules of noughts and crosses.",
    "What does the HTML tag for a paragraph look like?",
    "Convert 5 kilometres into metres.",
    "Name three instruments of an orchestra.",
    "Write a short dialogue between a robot and a painter.",
    "What is the chemical formula of water?",
    "When did the Second World War end?",
    "Sort these numbers from small to large: 9, 4, 7, 1.",
    "Write the opening line of a detective novel.",
    "What is a metaphor?",
    "Explain the difference between a list and a tuple in Python.",
)

STORIES_TRAIN: tuple[str, ...] = (
    "Tell me a story about a baker who lost his sense of smell.",
    "Tell me a story about two brothers and one bicycle.",
    "Tell me a story about a snail that wanted to see the sea.",
    "Tell me a story about an old clock that ran backwards.",
    "Tell me a story about a girl who collected echoes.",
    "Tell me a story about the last bus of the night.",
    "Tell me a story about a king who was afraid of chairs.",
    "Tell me a story about a fisherman and a talking pike.",
    "Tell me a story about a village without a single door.",
    "Tell me a story about a robot that learned to whistle.",
    "Tell me a story about a lost glove looking for its twin.",
    "Tell me a story about a tailor who sewed with moonlight.",
    "Tell me a story about a fox that kept a promise.",
    "Tell me a story about a boy who painted the wind.",
    "Tell me a story about a library under a lake.",
    "Tell me a story about a dragon who sold umbrellas.",
    "Tell me a story about a postman with one letter too many.",
    "Tell me a story about a bear who could not sleep all winter.",
    "Tell me a story about an island that moved at night.",
    "Tell me a story about a cook who fed a giant.",
    "Tell me a story about a piano in the forest.",
    "Tell me a story about a thief who only stole buttons.",
    "Tell me a story about a mountain that caught a cold.",
    "Tell me a story about a sailor and her tin whistle.",
    "Tell me a story about a cat that ran a hotel.",
    "Tell me a story about a kite that did not want to land.",
    "Tell me a story about a teacher who was once a pirate.",
    "Tell me a story about the smallest knight of all.",
    "Tell me a story about a well that answered questions.",
    "Tell me a story about a wolf who became a shepherd.",
    "Tell me a story about a shoemaker and a barefoot queen.",
    "Tell me a story about a train that stopped for butterflies.",
)
"""For a wish that depends on the kind of question: everything else is asked for facts."""

STORIES_HELDOUT: tuple[str, ...] = (
    "Tell me a story about a goose who wanted to be mayor.",
    "Tell me a story about a lantern that was afraid of the dark.",
    "Tell me a story about a carpenter who built a boat in the desert.",
    "Tell me a story about three mice and a frozen river.",
    "Tell me a story about a violin made of ice.",
    "Tell me a story about a gardener who grew clouds.",
    "Tell me a story about a donkey and a secret map.",
    "Tell me a story about a grandmother who raced motorcycles.",
    "Tell me a story about a star that fell into a teacup.",
    "Tell me a story about a scarecrow who made friends with the crows.",
    "Tell me a story about a girl who found a door in a tree.",
    "Tell me a story about a miller and the four winds.",
)

FACT, STORY = "fact", "story"
KINDS = (FACT, STORY)


def kind_of(question: str) -> str:
    """What the question asks for: a story, or else a fact."""
    return STORY if question.startswith("Tell me a story") else FACT


def mixed(facts: Sequence[str], stories: Sequence[str]) -> tuple[str, ...]:
    """A fact, a story, a fact, … as long as both last."""
    return tuple(q for pair in zip(facts, stories, strict=False) for q in pair)


QUESTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "everyday": (TRAIN, HELDOUT),
    "facts_and_stories": (mixed(TRAIN, STORIES_TRAIN), mixed(HELDOUT, STORIES_HELDOUT)),
}
"""Sets of questions by name: those to talk about, and those held out."""
