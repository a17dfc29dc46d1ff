"""The program: composes the configuration, checks it, and trains, evaluates or shows the plan.

    python -m vime.run +method=memagent                                   # train on this machine
    python -m vime.run +method=memagent model=qwen2.5-7b mode=eval        # score
    python -m vime.run +method=memagent model=qwen2.5-7b mode=plan        # show what would run, start nothing
    python -m vime.run +method=memagent trainer.lr=1e-4,3e-4 --multirun   # a sweep, one run after another

Exit code 2 means that the configuration cannot run and that nothing was started; every problem is on the screen.
"""

import errno
import signal
import sys

from vime.config import Mode
from vime.errors import ConfigError, Problem, VimeError
from vime.preflight.compose import CONF, compose_run, register_schemas
from vime.preflight.documentation import help_topics, show_documentation
from vime.preflight.sweep import run_sweep
from vime.preflight.validation import find_problems

CONFIG_ERROR, FAILED, INTERRUPTED = 2, 1, 130
MULTIRUN = ("--multirun", "-m")
HELP = ("--help", "-h")
SHOWS = ("--cfg", "-c", "--info", "-i", "--resolve", "--package", "-p", "--hydra-help", "--shell-completion", "-sc", "--version")
"""Flags of Hydra that show something and start nothing."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: list[str] | None = None) -> None:
    """Runs the words of the command line and exits."""
    words = sys.argv[1:] if arguments is None else arguments
    overrides = [word for word in words if word not in MULTIRUN]
    flags = [word for word in overrides if word.startswith("-")]
    if any(word in HELP for word in flags):
        show_help(words)
    if unknown := [flag for flag in flags if flag.split("=")[0] not in SHOWS]:
        remedy = (
            "there is no such flag, and nothing was done: settings are words like trainer.lr=1e-5 or model=tiny; "
            f"the flags are {', '.join((*HELP, *MULTIRUN, *SHOWS))}"
        )
        report(ConfigError([Problem(key="flag", value=flag, remedy=remedy) for flag in unknown]))
        sys.exit(CONFIG_ERROR)
    if flags:
        show_with_hydra(words)
    sys.exit(run(overrides, sweep=len(overrides) < len(words)))


def run(overrides: list[str], *, sweep: bool = False) -> int:
    """One run, or a sweep of them; returns the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs are started to ignore it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # end in order, as on Ctrl-C
    try:
        if sweep:
            return run_sweep(overrides)
        composed = compose_run(overrides, check=find_problems)
        if composed.sweep:
            return run_sweep(overrides)
        if composed.config.mode is Mode.plan:
            from vime.preflight.plan import show_plan

            show_plan(composed.config)
            return 0

        from vime import loop

        (loop.train if composed.config.mode is Mode.train else loop.evaluate)(composed)
        return 0
    except ConfigError as error:
        report(error)
        return CONFIG_ERROR
    except VimeError as error:
        sys.stderr.write(f"\n{type(error).__name__}: {error}\n")
        return FAILED
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"\n{where}{error.strerror}: make room, then go on from the last checkpoint with resume=true\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return INTERRUPTED


def report(error: ConfigError) -> None:
    """Writes every problem: the key and value as they were given, and what to do."""
    number = len(error.problems)
    sys.stderr.write(f"The configuration cannot run: {number} problem{'s' if number > 1 else ''}. Nothing was started.\n")
    for problem in error.problems:
        sys.stderr.write(f"  {problem.key}={problem.value}\n      {problem.remedy}\n")


def show_help(words: list[str]) -> None:
    """Writes the documentation of settings (`--help trainer.lr`), or without any the text of `conf/hydra/help/vime.yaml`.

    Hydra would list every option of every group first, which takes seconds and which the text does not use.
    """
    from omegaconf import OmegaConf

    if topics := help_topics(words):
        try:
            sys.stdout.write(show_documentation(topics))
        except ConfigError as error:
            report(error)
            sys.exit(CONFIG_ERROR)
        sys.exit(0)
    text = OmegaConf.create({"hydra": {"help": OmegaConf.load(CONF / "hydra" / "help" / "vime.yaml")}})
    sys.stdout.write(text.hydra.help.template)
    sys.exit(0)


def show_with_hydra(words: list[str]) -> None:
    """What Hydra shows itself: `--cfg job`, `--info defaults`, `--hydra-help`, shell completion."""
    import hydra

    register_schemas()
    sys.argv = [sys.argv[0], *words]
    hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(lambda config: None)()
    sys.exit(0)


if __name__ == "__main__":
    main()
