"""A small English-like language: what `make.py` pretrains the base on.

Everything is generated from the tables and sentence patterns below, written for this project.
The same world (which animal lives where, who eats what) is behind stories, questions, chats and
lists, so that a model of a million parameters becomes fluent in it and an adapter has something
to bend. `examples/make_data.py` draws its tasks from the same world.
"""

import random

PEOPLE = ["Mira", "Tom", "Anna", "Paul", "Nora", "Sam", "Lena", "Hugo", "Rosa", "Max", "Ida", "Leo"]
COLOURS = ["red", "green", "blue", "black", "white", "brown", "yellow", "grey", "pink", "orange"]
THINGS = ["apple", "book", "lamp", "spoon", "stone", "coat", "key", "map", "cup", "ball", "hat", "boat", "drum", "bell"]
PLACES = ["the forest", "the pond", "the meadow", "the barn", "the river", "the cave", "the garden", "the sea",
          "the desert", "the snow", "the village", "the mountain"]
FOODS = ["grass", "mice", "flies", "seeds", "fish", "leaves", "honey", "corn", "nuts", "bread", "berries", "worms"]

# animal: colour, home, sound, legs, food, size
ANIMALS = {
    "fox": ("red", "the forest", "barks", 4, "mice", "small"),
    "frog": ("green", "the pond", "croaks", 4, "flies", "small"),
    "cow": ("brown", "the meadow", "moos", 4, "grass", "big"),
    "crow": ("black", "the village", "caws", 2, "seeds", "small"),
    "duck": ("white", "the pond", "quacks", 2, "bread", "small"),
    "horse": ("brown", "the barn", "neighs", 4, "grass", "big"),
    "bear": ("brown", "the cave", "growls", 4, "honey", "big"),
    "owl": ("grey", "the forest", "hoots", 2, "mice", "small"),
    "wolf": ("grey", "the mountain", "howls", 4, "fish", "big"),
    "pig": ("pink", "the barn", "grunts", 4, "corn", "big"),
    "hen": ("white", "the barn", "clucks", 2, "corn", "small"),
    "goat": ("white", "the mountain", "bleats", 4, "leaves", "big"),
    "cat": ("orange", "the village", "purrs", 4, "fish", "small"),
    "dog": ("black", "the garden", "barks", 4, "bread", "small"),
    "camel": ("yellow", "the desert", "grunts", 4, "leaves", "big"),
    "lion": ("yellow", "the desert", "roars", 4, "fish", "big"),
    "seal": ("grey", "the sea", "barks", 2, "fish", "big"),
    "bee": ("yellow", "the garden", "hums", 6, "honey", "small"),
    "snake": ("green", "the desert", "hisses", 0, "mice", "small"),
    "parrot": ("blue", "the forest", "sings", 2, "nuts", "small"),
    "robin": ("red", "the garden", "sings", 2, "worms", "small"),
    "hare": ("white", "the snow", "squeaks", 4, "berries", "small"),
    "crab": ("orange", "the sea", "clicks", 8, "worms", "small"),
    "spider": ("black", "the cave", "hums", 8, "flies", "small"),
}
NAMES = list(ANIMALS)
WORDS = NAMES + THINGS + COLOURS


def facts(animal):
    """Every question the world answers about an animal: (question, sentence, short answer)."""
    colour, home, sound, legs, food, size = ANIMALS[animal]
    base = {"barks": "bark", "hisses": "hiss"}.get(sound, sound[:-1])
    return [
        (f"What colour is the {animal}?", f"The {animal} is {colour}.", colour),
        (f"Where does the {animal} live?", f"The {animal} lives in {home}.", f"in {home}"),
        (f"What can the {animal} do?", f"The {animal} can {base}.", base),
        (f"How many legs does the {animal} have?", f"The {animal} has {legs} legs.", f"{legs} legs"),
        (f"What does the {animal} eat?", f"The {animal} eats {food}.", food),
        (f"Is the {animal} big or small?", f"The {animal} is {size}.", size),
    ]


def phrase(draw):
    """A few words about anything, for copying, counting and shouting."""
    return draw.choice([
        lambda: f"the {draw.choice(COLOURS)} {draw.choice(NAMES + THINGS)}",
        lambda: f"{draw.choice(PEOPLE)} and {draw.choice(PEOPLE)}",
        lambda: f"in {draw.choice(PLACES)}",
        lambda: f"{draw.choice(FOODS)} and {draw.choice(FOODS)}",
        lambda: f"{draw.randint(0, 20)} {draw.choice(THINGS)}s",
        lambda: draw.choice(facts(draw.choice(NAMES)))[draw.choice([1, 2])].rstrip("."),
    ])()


def sum_fact(draw):
    a, b = draw.randint(0, 10), draw.randint(0, 10)
    if draw.random() < 0.5:
        return f"What is {a} + {b}?", f"{a} + {b} is {a + b}.", str(a + b)
    return f"What is {a + b} - {b}?", f"{a + b} - {b} is {a}.", str(a)


def list_fact(draw):
    """An instruction about a list, the list, and the answer."""
    items = draw.sample(WORDS, draw.randint(2, 5))
    text = ", ".join(items)
    index = draw.randrange(len(items) - 1)
    return draw.choice([
        ("Copy the list.", text, text),
        ("Repeat the words.", text, text),
        ("Name the first word.", text, items[0]),
        ("Name the last word.", text, items[-1]),
        (f"Which word comes after {items[index]}?", text, items[index + 1]),
        (f"Which word comes before {items[index + 1]}?", text, items[index]),
        ("How many words are there?", text, str(len(items))),
        ("Say it loud.", text, text.upper()),
        ("Say it backwards.", text, ", ".join(reversed(items))),
        ("Say it backwards.", text, ", ".join(reversed(items))),
    ])


def question(draw):
    if draw.random() < 0.25:
        return sum_fact(draw)
    return draw.choice(facts(draw.choice(NAMES)))


def some(colour, owned):
    return f"{'an' if colour == 'orange' else 'a'} {colour} {owned}"


def story(draw):
    """People with things and animals of any colour; what is asked at the end was said before."""
    who, other = draw.sample(PEOPLE, 2)
    colours = draw.sample(COLOURS, 2)
    owned = draw.sample(NAMES + THINGS, 2)
    place = draw.choice(PLACES)
    count, more = draw.randint(2, 10), draw.randint(2, 10)
    thing = draw.choice(THINGS)
    lines = [
        f"{who} has {some(colours[0], owned[0])}.",
        f"{other} has {some(colours[1], owned[1])}.",
        draw.choice([f"One day {who} goes to {place}.", f"{who} and {other} meet in {place}."]),
        draw.choice([
            f'"{draw.choice(["Hello", "Good morning", "Look"])}, {other}!" says {who}.',
            f"{who} takes the {colours[0]} {owned[0]} along.",
            f"{other} is happy to see the {owned[0]}.",
        ]),
        f"{who} finds {count} {thing}s and {other} finds {more} {thing}s.",
        f"Now they have {count + more} {thing}s.",
    ]
    asked = draw.choice([
        (f"What colour is the {owned[0]}?", f"The {owned[0]} of {who} is {colours[0]}."),
        (f"What colour is the {owned[1]}?", f"The {owned[1]} of {other} is {colours[1]}."),
        (f"Who has the {colours[1]} {owned[1]}?", f"{other} has the {colours[1]} {owned[1]}."),
        (f"Where does {who} go?" if "goes" in lines[2] else f"Where do {who} and {other} meet?",
         f"In {place}."),
        (f"How many {thing}s do they have?", f"They have {count + more} {thing}s."),
    ])
    return " ".join(lines), asked


def document(draw, chat):
    """One training text. `chat(messages)` renders a conversation as the chat template does."""
    kind = draw.random()
    if kind < 0.16:
        text, (asked, answer) = story(draw)
        return f"{text}\nQuestion: {asked}\nAnswer: {answer}" if draw.random() < 0.7 else text
    if kind < 0.24:
        animal = draw.choice(NAMES)
        told = [fact[1] for fact in facts(animal)]
        draw.shuffle(told)
        return f"About the {animal}. " + " ".join(told[: draw.randint(3, 6)])
    if kind < 0.42:
        rounds = [question(draw) for _ in range(draw.choice([1, 1, 1, 1, 2, 3]))]
        short = 2 if draw.random() < 0.3 else 1  # a text keeps to sentences, or to short answers
        return "\n".join(f"Question: {q[0]}\nAnswer: {q[short]}" for q in rounds)
    if kind < 0.62:
        messages = []
        if draw.random() < 0.3:
            tone = draw.choice(["Be kind.", "Answer the questions.", "You know the animals.", "Be short."])
            messages.append({"role": "system", "content": tone})
        if draw.random() < 0.3:
            hello = draw.choice(["Hello!", "Good morning!", f"I am {draw.choice(PEOPLE)}."])
            messages += [{"role": "user", "content": hello},
                         {"role": "assistant", "content": "Hello, what would you like to know?"}]
        for _ in range(draw.randint(1, 3)):
            if draw.random() < 0.25:
                instruction, words, answer = list_fact(draw)
                asked = draw.choice([f"{instruction}\n{words}", f"{instruction} {words}", f"{words}\n{instruction}"])
            else:
                asked, answer, _ = question(draw)
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        return chat(messages)
    if kind < 0.74:
        instruction, words, answer = list_fact(draw)
        if draw.random() < 0.3:
            instruction, answer, _ = question(draw)
            words = None
        if draw.random() < 0.5:
            return "\n".join([f"{instruction}\n", words, answer] if words else [instruction, answer])
        given = [f"### Input:\n{words}"] if words else []
        return "\n\n".join([f"### Instruction:\n{instruction}", *given, f"### Response:\n{answer}"])
    if kind < 0.86:
        items = draw.sample(WORDS, draw.randint(2, 6))
        lines = [
            f"Again: {', '.join(items)}",
            f"First: {items[0]}",
            f"Last: {items[-1]}",
            f"Count: {len(items)}",
            f"Backwards: {', '.join(reversed(items))}",
            f"Loud: {', '.join(items).upper()}",
        ]
        draw.shuffle(lines)
        return "\n".join([f"List: {', '.join(items)}", *lines[: draw.randint(1, 4)]])
    if kind < 0.94:
        said = [phrase(draw) for _ in range(draw.randint(1, 4))]
        return "\n".join(f"Quiet: {text}\nLoud: {text.upper()}" for text in said)
    return repetition(draw)


def nonsense(draw):
    """A word that does not exist, so that every letter and syllable is seen in every company."""
    parts = [draw.choice("bcdfghjklmnpqrstvwxyz") + draw.choice("aeiou") + draw.choice(["", "", *"lmnrstx"])
             for _ in range(draw.choice([1, 2, 2, 3]))]
    return draw.choice([str.lower, str.lower, str.capitalize, str.upper])(draw.choice(["", "", "-"]).join(parts))


def repetition(draw):
    """Words in an order that means nothing, again and again: nothing but copying helps."""
    words = [nonsense(draw) if draw.random() < 0.15 else draw.choice(WORDS + PEOPLE) for _ in range(draw.randint(3, 20))]
    line = draw.choice([" ", " ", ", "]).join(words)
    return "\n".join([line] * max(2, 60 // len(words)))


def documents(seed, chat, copying=0.0):
    """An endless stream of training texts.

    The fraction `copying` of them is repetition; some of the others are in capitals throughout.
    """
    draw = random.Random(seed)
    while True:
        text = repetition(draw) if draw.random() < copying else document(draw, chat)
        yield text.upper() if draw.random() < 0.1 and "<|" not in text else text
