"""Machines, ranks and places: where every process of a run is, by arithmetic on the configuration."""
