"""Wrong logins: who guesses is slowed down, and nobody else."""

from __future__ import annotations

from hubbub.auth.guesses import HALF_LIFE, OF_ADDRESS, OF_USER, REMEMBERED, Guesses


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_too_many_wrong_ones_of_a_user_from_an_address() -> None:
    time = Time()
    guesses = Guesses(time)
    for _ in range(int(OF_USER)):
        assert not guesses.blocked("a", "ann")
        guesses.wrong("a", "ann")
    assert guesses.blocked("a", "ann")
    assert not guesses.blocked("a", "bob") and not guesses.blocked("b", "ann")
    time.now = HALF_LIFE
    assert not guesses.blocked("a", "ann")
    for _ in range(int(OF_USER / 2)):
        guesses.wrong("a", "ann")
    assert guesses.blocked("a", "ann"), "half of the old ones still count"


def test_too_many_users_from_an_address() -> None:
    guesses = Guesses(Time())
    for number in range(int(OF_ADDRESS)):
        assert not guesses.blocked("a", "honest")
        guesses.wrong("a", f"user{number}")
    assert guesses.blocked("a", "honest") and not guesses.blocked("b", "honest")


def test_who_says_no_name_is_a_user_of_its_own() -> None:
    guesses = Guesses(Time())
    for number in range(int(OF_USER)):
        guesses.wrong("a", f"user{number}")
    assert not guesses.blocked("a", ""), "the others' are not its own"
    for _ in range(int(OF_USER)):
        assert not guesses.blocked("a", ""), "each counts once"
        guesses.wrong("a", "")
    assert guesses.blocked("a", "") and not guesses.blocked("a", "ann")


def test_a_right_one_forgives_typing_errors() -> None:
    guesses = Guesses(Time())
    for _ in range(100):
        guesses.wrong("a", "ann")
        guesses.right("a", "ann")
        assert not guesses.blocked("a", "ann") or guesses.blocked("a", "somebody")


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    guesses = Guesses(Time())
    for number in range(REMEMBERED):
        guesses.wrong(f"a{number}", "x")
    assert len(guesses._scores) == REMEMBERED
    assert not guesses._score(("a0", "x")) and guesses._score((f"a{REMEMBERED - 1}", "x")) == 1.0
