"""Published benchmarks as environments, for `+benchmark=NAME`."""
