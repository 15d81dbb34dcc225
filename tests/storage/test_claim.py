"""A claim has one holder, whoever asks at the same time."""

from __future__ import annotations

import threading

from rmq_store.threads import Claim


def test_of_many_threads_one_gets_the_claim_and_the_others_learn_who() -> None:
    claim: Claim[int] = Claim()
    begin, seen = threading.Barrier(8), []

    def take(own: int) -> None:
        begin.wait()
        seen.append(claim.take(own))

    threads = [threading.Thread(target=take, args=(own,)) for own in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert set(seen) == {claim.holder()}


def test_a_claim_is_free_again_once_it_is_given_up() -> None:
    claim: Claim[str] = Claim()
    assert not claim
    assert (claim.take("first"), claim.take("second"), claim.holder()) == ("first", "first", "first")
    assert claim
    claim.give_up()
    claim.give_up()
    assert (bool(claim), claim.holder(), claim.take("second")) == (False, None, "second")
