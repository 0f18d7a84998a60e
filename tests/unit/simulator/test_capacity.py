"""Capacities as people write them."""

import pytest

from tierkv.errors import InvalidRequestError
from tierkv.simulator.capacity import parse_capacity
from tierkv.simulator.catalogue import POLICY_NAMES, check_policy


@pytest.mark.parametrize(
    ("text", "num_unique", "blocks"),
    [
        ("5%", 1000, 50),
        ("5%", 1019, 50),
        (" 0.1% ", 58_727, 58),
        ("12.5%", 8, 1),
        ("100%", 7, 7),
        ("250%", 10, 25),
        ("29%", 100, 29),  # in binary floating point it is 28.999…
        ("1", 5, 1),
        ("1000", 5, 1000),
    ],
)
def test_percent_are_rounded_down_and_blocks_are_as_given(text, num_unique, blocks):
    capacity = parse_capacity(text)
    assert capacity.blocks(num_unique) == blocks
    assert capacity.text == text.strip()


@pytest.mark.parametrize(
    "text", ["", "%", "5%%", "-1", "+5%", "1.5", "5 %", "1e3", "five", "5%,", "0x10", "9" * 40, "٣%", "nan", "1_000"]
)
def test_malformed_ones_are_refused_with_the_form(text):
    with pytest.raises(InvalidRequestError, match="malformed") as caught:
        parse_capacity(text)
    assert caught.value.context["capacity"] == text
    assert "5%" in caught.value.context["expected"]


@pytest.mark.parametrize("text", ["0", "0%", "0.0%", "000"])
def test_nothing_is_refused(text):
    with pytest.raises(InvalidRequestError, match="nothing"):
        parse_capacity(text)


@pytest.mark.parametrize(("num_unique", "text"), [(50, "1%"), (99, "1%"), (200, "0.1%"), (3, "33%"), (123_456, "0.0001%")])
def test_less_than_a_block_is_refused_with_the_smallest_that_works(num_unique, text):
    with pytest.raises(InvalidRequestError, match="smaller than one block") as caught:
        parse_capacity(text).blocks(num_unique)
    blocks, percent = str(caught.value.context["smallest"]).split(", or ")
    assert blocks == "1"
    assert parse_capacity(percent).blocks(num_unique) >= 1


def test_an_unknown_policy_gets_the_known_ones_and_the_nearest():
    with pytest.raises(InvalidRequestError, match="arc-papr") as caught:
        check_policy("arc-papr")
    assert caught.value.context["did_you_mean"] == "arc-paper"
    assert str(caught.value.context["known"]).split(", ") == list(POLICY_NAMES)
    with pytest.raises(InvalidRequestError) as caught:
        check_policy("zzz")
    assert "did_you_mean" not in caught.value.context
