"""Methods are chosen by a short text that says all there is to say."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbue.errors import InvalidInput
from rbue.lab import methods
from rbue.lab.methods import base


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("single", "single"),
        ("deep-ensemble", "deep-ensemble:4"),
        ("deep-ensemble:3", "deep-ensemble:3"),
        ("svi", "svi"),
        ("svi:0.1", "svi:0.1"),
        ("mc-rrelu", "mc-rrelu"),
        ("mc-rrelu:0.1,0.2", "mc-rrelu:0.1,0.2"),
        ("mc-droprelu", "mc-droprelu:0.9"),
        ("mc-droprelu:0.80,last", "mc-droprelu:0.8,last"),
    ],
)
def test_specs_have_one_canonical_form(spec, canonical):
    method = methods.parse(spec)
    assert methods.spec_of(method) == canonical
    assert methods.parse(canonical) == method
    assert isinstance(method, methods.Method)


@given(st.floats(0, 1))
def test_every_q_survives_the_round_trip(q):
    assert methods.parse(methods.spec_of(methods.parse(f"mc-droprelu:{q}"))).q == q


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mc-dropreul:0.9", "did you mean 'mc-droprelu'"),
        ("nonsense", "there are"),
        ("single:1", "1 settings"),
        ("mc-droprelu:high", "'high'"),
        ("mc-droprelu:1.5", r"1\.5"),
        ("mc-rrelu:0.5,0.2", r"lower=0\.5"),
        ("deep-ensemble:1", "not 1"),
        ("deep-ensemble:2.5", r"'2\.5'"),
        ("mc-droprelu:0.9,", r"where in 'mc-droprelu:0\.9,' is empty; give it a value, or leave out the comma"),
        ("mc-droprelu: , last", "q in .* is empty"),
        ("svi:0.1,,0.05", "in .* is empty"),
    ],
)
def test_bad_specs_are_explained(spec, message):
    with pytest.raises(InvalidInput, match=message):
        methods.parse(spec)


def test_a_seventh_method_needs_only_its_own_class():
    @base.register("seventh", shown=1)
    @dataclass(frozen=True)
    class Seventh:
        strength: float = 2.0

    try:
        assert "seventh" in methods.list_methods()
        assert methods.spec_of(methods.parse("seventh:3")) == "seventh:3.0"
    finally:
        del base._methods["seventh"]


def test_settings_that_are_true_or_false():
    assert methods.parse("svi:1.0,0.5,0.05,false").tied is False
    assert methods.spec_of(methods.parse("svi:1.0,0.5,0.05,True")) == "svi"
    assert methods.parse(methods.spec_of(methods.parse("svi:1.0,0.5,0.05,false"))).tied is False
    with pytest.raises(InvalidInput, match="must be true or false, not 'perhaps'"):
        methods.parse("svi:1.0,0.5,0.05,perhaps")


@pytest.mark.parametrize("spec", ["svi:-1", "svi:nan", "svi:1,-1", "svi:1,2", "svi:1,0.5,0"])
def test_svi_refuses_settings_that_cannot_train(spec):
    with pytest.raises(InvalidInput, match="of svi must lie between"):
        methods.parse(spec)
