"""The parts of `tools/bench_gateway.py`: the engine, the sides that are measured and their clients, each in its own process."""
