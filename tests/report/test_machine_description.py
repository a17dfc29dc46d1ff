"""The machine describes itself in plain data."""

import json

from vime.report.machine_description import describe_machine, matrix_product_rate


def test_a_machine_is_described_in_plain_data() -> None:
    machine = describe_machine()
    assert json.loads(json.dumps(machine)) == machine
    assert machine["num_cores"] >= 1 and len(machine["load_average"]) == 3 and machine["matmul_gflops_float32"] > 0


def test_a_rate_is_measured_however_short_the_time() -> None:
    assert matrix_product_rate(seconds=0.0) > 0
