"""Items with ascending numbers, and the order of their ranks, against plain lists."""

from random import Random

from tunnel.messages.kept.numbered import LivingRanks, Numbered


def test_items_are_found_by_number_and_in_order_however_they_are_removed() -> None:
    random, items = Random(1), Numbered[str]()
    model: dict[int, str] = {}
    number = 0
    for _ in range(5_000):
        number += random.choice((1, 1, 1, 7, 2_000))
        items.add(number, str(number))
        model[number] = str(number)
        while model and random.random() < 0.45:
            gone = random.choice((min(model), max(model), random.choice(list(model))))
            assert items.pop(gone) == model.pop(gone)
            assert gone not in items
        assert (len(items), items.first()) == (len(model), min(model, default=None))
    assert list(items) == sorted(model)
    assert all(items[each] == text for each, text in model.items())
    middle = sorted(model)[len(model) // 2]
    for start in (middle, middle - 1, number, number + 1):
        assert list(items.numbers_from(start)) == [each for each in sorted(model) if each >= start]


def test_the_lowest_living_rank_is_found_while_others_leave() -> None:
    random, living = Random(2), dict[int, float]()
    ranks = LivingRanks(living.__contains__)
    most, looked_back = 0, 0
    for number in range(5_000):
        living[number] = float(random.randrange(100))
        ranks.push(living[number], number)
        if len(living) > 100:
            del living[random.choice(list(living))]
            ranks.tidy(2 * len(living) + 64)
        most = max(most, len(ranks))
        looked_back += len(ranks._old) > 0
    assert 264 < most < 400
    assert 0 < looked_back < 5_000
    found = [ranks.pop() for _ in range(len(ranks))]
    assert [each for each in found if each in living] == sorted(living, key=lambda each: (living[each], each))
    assert ranks.first() is None


def test_a_removal_looks_at_few_ranks() -> None:
    looks = [0]

    def is_alive(number: int) -> bool:
        looks[0] += 1
        return number % 2 == 0

    ranks = LivingRanks(is_alive)
    for number in range(1_000):
        ranks.push(0.0, number)
    ranks.tidy(100)
    assert looks == [4]
    assert len(ranks) == 998
