"""The singular and the plural."""

from kerasdist.counted import counted


def test_one_is_in_the_singular():
    assert [counted(number, "step") for number in (0, 1, 1437)] == [
        "0 steps",
        "1 step",
        "1,437 steps",
    ]
    assert [counted(number, "copy", "copies") for number in (1, 2)] == ["1 copy", "2 copies"]
