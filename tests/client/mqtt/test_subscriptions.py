"""Which callback gets a message."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from hubbub.client.mqtt.message import Message
from hubbub.client.mqtt.packets import Options
from hubbub.client.mqtt.subscriptions import Subscription, Subscriptions, matches
from hubbub.core import topics

level = st.sampled_from(["", "a", "b", "$x", "+", "#"])
names = st.lists(level, min_size=1, max_size=4).map("/".join)


@given(names, names)
def test_filters_match_as_in_the_hub(topic_filter: str, name: str) -> None:
    if topics.is_filter(topic_filter) and topics.is_name(name):
        expected = topics.matches(topic_filter, name)
        assert matches(topic_filter, name) == expected
        assert matches(f"$share/group/{topic_filter}", name) == expected


def heard(subscriptions: Subscriptions, topic: str, *identifiers: int) -> list[str]:
    message = Message(topic, b"", subscription_ids=identifiers)
    return [str(callback(message)) for callback in subscriptions.callbacks(message)]


def _name(topic_filter: str, message: Message) -> str:
    return topic_filter


async def subscribed(*filters: str, identified: bool) -> Subscriptions:
    """Granted subscriptions whose callbacks say their filters; identifiers count from 1."""
    subscriptions = Subscriptions()
    for number, one in enumerate(filters, 1):
        wanted = Subscription(one, Options(), partial(_name, one))
        wanted.granted = 0
        wanted.identifier = number if identified else 0
        subscriptions._wanted[one] = wanted
    return subscriptions


async def test_the_topic_decides() -> None:
    subscriptions = await subscribed("a/#", "a/+", "b", identified=False)
    assert heard(subscriptions, "a/b") == ["a/#", "a/+"]
    assert heard(subscriptions, "c") == []
    subscriptions.listen("c", lambda message: "c")
    assert heard(subscriptions, "c") == ["c"]


async def test_each_copy_goes_to_the_callback_it_was_sent_for() -> None:
    subscriptions = await subscribed("a/#", "a/+", identified=True)
    assert heard(subscriptions, "a/b", 1, 2) == ["a/#", "a/+"]
    assert heard(subscriptions, "a/b", 2) == ["a/+"]
    assert heard(subscriptions, "a/b") == [], "that copy is of a filter without a callback"


async def test_identifiers_of_an_earlier_run_mislead_nobody() -> None:
    subscriptions = await subscribed("a/#", "b/#", identified=True)
    assert heard(subscriptions, "b/1", 1) == []
    subscriptions._wanted["b/#"].granted = None  # not yet subscribed in this run
    subscriptions._routes.clear()
    assert heard(subscriptions, "b/1", 1) == ["b/#"]
