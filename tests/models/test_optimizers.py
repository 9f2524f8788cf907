"""The optimizers and their legacy defaults."""

import pytest
from absl import flags

from models import optimizers
from models.usage_error import UsageError


def parse(*argv):
    values = flags.FlagValues()
    optimizers.define_flags(values)
    values(["", *argv])
    return values


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adadelta", {"rho": 0.95, "epsilon": 1.0}),
        ("adagrad", {"initial_accumulator_value": 0.1}),
        ("adam", {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1.0}),
        ("ftrl", {"learning_rate_power": -0.5, "initial_accumulator_value": 0.1}),
        ("momentum", {"momentum": 0.9, "nesterov": False}),
        ("rmsprop", {"rho": 0.9, "momentum": 0.9, "epsilon": 1.0}),
        ("sgd", {"momentum": 0.0}),
    ],
)
def test_every_optimizer_has_the_legacy_defaults(name, settings):
    optimizer = optimizers.build(parse(f"--optimizer={name}"), learning_rate=0.01)

    config = optimizer.get_config()
    assert {key: config[key] for key in settings} == settings
    assert float(optimizer.learning_rate) == pytest.approx(0.01)


def test_a_flag_reaches_its_optimizer():
    values = parse("--optimizer=momentum", "--momentum=0.5")

    assert optimizers.build(values, learning_rate=0.01).momentum == 0.5


def test_an_unknown_optimizer_is_answered_with_the_names():
    with pytest.raises(UsageError, match=r"--optimizer 'adm'.*did you mean 'adam'\?"):
        optimizers.check(parse("--optimizer=adm"))
