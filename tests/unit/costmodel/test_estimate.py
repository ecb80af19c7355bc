"""What time costs."""

from costmodel.estimate import per_billion_tokens, usd, watt_hours


def test_money_and_energy_of_a_step():
    """An hour of 8 GPUs at $2.50 is $20; a step of 4 Mi tokens scales to a billion."""
    assert float(usd(3600.0, 8, 2.5)) == 20.0
    assert float(watt_hours(1800.0, 8, 700.0)) == 2800.0
    assert float(per_billion_tokens(2.0, 4_000_000)) == 500.0
