"""Harbor's task folders (instruction, environment, tests) as tasks of the coding agent, without containers."""
