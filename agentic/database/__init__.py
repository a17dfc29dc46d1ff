"""Questions about a database, asked of agents that others wrote: they are trained through their URL, without any code of vime."""
