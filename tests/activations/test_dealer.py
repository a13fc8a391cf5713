"""Units in hands: each is done by somebody, whoever dies and whoever is slow."""

import random

import pytest

from llama_lab.activations.dealer import IN_HAND, Dealer


def test_a_worker_has_so_many_at_a_time_in_order_and_those_of_a_dead_one_come_last():
    dealer = Dealer(range(100))
    assert dealer.deal("a") == list(range(IN_HAND))
    assert dealer.deal("b") == list(range(IN_HAND, 2 * IN_HAND))
    assert dealer.deal("a") == []
    dealer.committed("a", 1)
    assert dealer.deal("a") == [2 * IN_HAND]
    assert 1 not in dealer.left
    dealer = Dealer(range(IN_HAND + 2))
    dealer.deal("dead")
    dealer.committed("other", 0)
    dealer.lost("dead")
    assert dealer.deal("other") == [IN_HAND, IN_HAND + 1, 1, 2, 3, 4]
    dealer.lost("nobody")


def test_who_is_idle_takes_what_lies_last_in_the_hand_of_a_slow_one():
    dealer = Dealer([7, 8, 9])
    assert dealer.deal("slow") == [7, 8, 9]
    assert dealer.deal("idle") == [9]
    assert dealer.deal("idle") == []  # one at a time
    assert dealer.deal("third") == [8]  # what fewer have
    dealer.committed("idle", 9)
    assert dealer.deal("idle") == [7]
    dealer.committed("idle", 7)
    dealer.committed("third", 8)
    assert not dealer.left
    assert dealer.deal("idle") == []
    assert dealer.hands["slow"] == [7, 8, 9]  # it has not said so: it is at one of them


@pytest.mark.parametrize("seed", range(20))
def test_all_is_done_whoever_dies(seed):
    rng = random.Random(seed)
    dealer, alive, born = Dealer(range(50)), [0, 1, 2], 3
    hands = {}
    while dealer.left:
        worker = rng.choice(alive)
        hands.setdefault(worker, []).extend(dealer.deal(worker))
        if rng.random() < 0.1:
            dealer.lost(worker)
            alive[alive.index(worker)] = born = born + 1
        elif hands[worker]:
            dealer.committed(worker, hands[worker].pop(0))
        else:
            assert len(alive) > 1  # it waits for what others have, all of which it has overtaken already
    assert not dealer.waiting or set(dealer.waiting) <= set(range(50))
