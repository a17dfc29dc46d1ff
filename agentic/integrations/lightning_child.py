"""vime as a child of Agent Lightning's algorithm: the program of `vime.run`, which ends with the process that started it."""

import signal

from vime.processes.launch import die_with_parent
from vime.run import main

if __name__ == "__main__":
    die_with_parent(signal.SIGTERM)
    main()
