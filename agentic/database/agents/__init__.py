"""Agents of several libraries, each as its users write it; none of them knows vime."""
