"""The program: composes the configuration, checks it, and trains, evaluates or shows the plan.

    python -m vime.run +method=memagent                                   # train on this machine
    python -m vime.run +method=memagent model=qwen2.5-7b mode=eval        # score
    python -m vime.run +method=memagent model=qwen2.5-7b mode=plan        # show what would run, start nothing
    python -m vime.run +method=memagent mode=try                          # one prompt on a server, shown turn by turn
    python -m vime.run +experiment=memagent_paper_7b rehearse=true        # all of it on this machine, with a random small model
    python -m vime.run +method=memagent trainer.lr=1e-4,3e-4 --multirun   # a sweep, one run after another
    python -m vime.run +method=mine --config-dir my_conf                  # options from your own folder
    python -m vime.run new mine                                           # write a folder with an agent to start from
    python -m vime.run servers outputs/latest 3                           # more or fewer servers for a run that trains

An installed vime also answers to `vime`, as in `vime new mine`. Exit code 2 means that the configuration is invalid and that
nothing was started; every problem is on the screen. A run that Ctrl-C interrupts ends with 130, one that is terminated with 143.
"""

import errno
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from vime.config import TRY, Mode
from vime.errors import ConfigError, Problem, VimeError
from vime.new.write import write_agent
from vime.preflight.compose import CONF, Composed, compose_run, register_schemas
from vime.preflight.documentation import help_topics, show_documentation
from vime.preflight.overrides import LISTED_GROUPS
from vime.preflight.search_path import FoundFolders, option_folders, search_path_word, with_search_path
from vime.preflight.sweep import run_sweep
from vime.preflight.validation import find_problems
from vime.surroundings import restart_in_utf8, settle
from vime.warm.hosted_run import run_on_new_host, run_on_waiting_host

CONFIG_ERROR, FAILED, INTERRUPTED, TERMINATED = 2, 1, 130, 143
MULTIRUN = ("--multirun", "-m")
HELP = ("--help", "-h")
COMPLETION = {"--shell-completion", "-sc"}
CFG = ("--cfg", "-c")
SHOWS = (*CFG, "--info", "-i", "--hydra-help", *sorted(COMPLETION), "--version")
"""Flags of Hydra that show something and start nothing."""
OF_CFG = ("--resolve", "--package", "-p")
"""Flags of Hydra that change the output of `--cfg`."""
CONFIG_DIR = ("--config-dir", "-cd")
REPLACED = {
    "--config-path": "would replace vime's options: add your own folder to them with --config-dir DIR",
    "--config-name": "would replace vime's root configuration: write the settings to change into DIR/experiment/NAME.yaml, and "
    "add --config-dir DIR +experiment=NAME",
}
"""Flags of Hydra that would replace vime's options, and what to do instead."""
REPLACED |= {"-cp": REPLACED["--config-path"], "-cn": REPLACED["--config-name"]}
NEW, SERVERS = "new", "servers"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: list[str] | None = None) -> None:
    """Runs the program with the given arguments, by default those of the command line, and exits."""
    if arguments is None:
        restart_in_utf8()
    words = sys.argv[1:] if arguments is None else arguments
    settle()
    try:
        if current_folder() not in sys.path:
            sys.path.insert(0, current_folder())  # `vime` finds modules of the current folder, as `python -m vime.run` does
        if words[:1] == [NEW]:
            sys.stdout.write(write_agent(words[1:]))
            sys.exit(0)
        if words[:1] == [SERVERS]:
            from vime.sync.wanted_servers import ask_for_servers

            sys.stdout.write(ask_for_servers(words[1:]))
            sys.exit(0)
        words = take_config_dirs(words)
        overrides = [word for word in words if word not in MULTIRUN]
        flags = [word for word in overrides if word.startswith("-")]
        if any(word in HELP for word in flags):
            show_help(overrides)
        check_flags(flags, sweep=len(overrides) < len(words))
        if flags:
            show_with_hydra(words)
    except ConfigError as error:
        report(error)
        sys.exit(CONFIG_ERROR)
    sweep = len(overrides) < len(words)
    code = None if sweep else run_warm(overrides)
    sys.exit(run(overrides, sweep=sweep) if code is None else code)


def current_folder() -> str:
    """The folder in which the program was started. Raises `ConfigError` if it is gone or may not be looked at."""
    try:
        return os.getcwd()
    except OSError as error:
        remedy = f"the current folder cannot be found ({error.strerror}): change to another folder, then start again"
        raise ConfigError([Problem(key="PWD", value=os.environ.get("PWD", ""), remedy=remedy)]) from None


def take_config_dirs(words: list[str]) -> list[str]:
    """The arguments with all `--config-dir DIR` replaced by one `hydra.searchpath=[…]`.

    Raises `ConfigError` for a flag without a folder.
    """
    others, folders = [], []
    left = iter(words)
    for word in left:
        flag, separator, folder = word.partition("=")
        if flag not in CONFIG_DIR:
            others.append(word)
        elif folder := folder if separator else next(left, ""):
            folders.append(Path(folder).expanduser())
        else:
            raise ConfigError([Problem(key=word, value="", remedy="has no folder: use --config-dir DIR")])
    return [*others, search_path_word(folders)] if folders else others


def check_flags(flags: list[str], *, sweep: bool) -> None:
    """Raises `ConfigError` for every flag that vime does not know, and for flags that do not go together."""
    remedy = (
        "there is no such flag: write settings as trainer.lr=1e-5 or model=tiny, without dashes. "
        f"The flags are {', '.join((*HELP, *MULTIRUN, *CONFIG_DIR, *SHOWS, *OF_CFG))}"
    )
    names = {flag: flag.split("=")[0] for flag in flags}
    unknown = [flag for flag, name in names.items() if name not in (*SHOWS, *OF_CFG)]
    if unknown:
        raise ConfigError([Problem(key=flag, value="", remedy=REPLACED.get(names[flag], remedy)) for flag in unknown])
    shows = [name for name in names.values() if name in SHOWS]
    if len(shows) + (sweep and bool(flags)) > 1 or (len(shows) < len(flags) and not set(shows) & set(CFG)):
        remedy = f"do not go together: use one of {', '.join(SHOWS)}, without --multirun; {', '.join(OF_CFG)} need --cfg"
        raise ConfigError([Problem(key=" ".join(flags), value="", remedy=remedy)])


def run_warm(overrides: list[str]) -> int | None:
    """Runs on the host that an earlier run of this folder has kept (`cluster.keep_warm`); the exit code, or None without one."""
    take_signals()
    try:
        return run_on_waiting_host(overrides)
    except KeyboardInterrupt:  # the host has said so
        return interrupted()


def run(overrides: list[str], *, sweep: bool = False, started: float | None = None) -> int:
    """Makes one run, or a sweep; returns the exit code. A host passes the time at which the command was `started`."""
    settle()
    take_signals()
    has_started = False
    try:
        if sweep:
            return run_sweep(overrides)
        composed = compose_run(overrides, check=find_problems)
        if composed.sweep:
            return run_sweep(overrides)
        if started is not None:
            composed = replace(composed, started=started)
        elif (code := run_on_own_host(composed)) is not None:
            return code
        if composed.config.rehearse:
            from vime.rehearse import rehearse

            return rehearse(composed)
        if composed.config.mode is Mode.plan:
            from vime.preflight.plan import show_plan

            show_plan(composed.config)
            return 0

        has_started = True
        if composed.config.mode is TRY:
            from vime import trial

            return 0 if trial.try_once(composed) else FAILED

        from vime import loop

        (loop.train if composed.config.mode is Mode.train else loop.evaluate)(composed)
        return 0
    except ConfigError as error:
        report(error, started=has_started)
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
        return interrupted()


def run_on_own_host(composed: Composed) -> int | None:
    """Runs on a new host that waits for further runs, if `cluster.keep_warm` is set; returns the exit code, None without it."""
    config = composed.config
    if not config.cluster.keep_warm or config.rehearse or config.mode not in (Mode.train, Mode.eval):
        return None
    try:
        return run_on_new_host(composed.overrides, seconds=config.cluster.keep_warm, started=composed.started)
    except KeyboardInterrupt:  # the host has said so
        return interrupted()


def take_signals() -> None:
    """Lets SIGINT, SIGTERM and SIGHUP interrupt the run, even in a script's background job, which is started to ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, end_in_order)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # the terminal is gone; nohup has it ignored
        signal.signal(signal.SIGHUP, end_in_order)


def interrupted() -> int:
    """The exit code after an interruption."""
    return TERMINATED if signal.getsignal(signal.SIGTERM) is ignore else INTERRUPTED


def end_in_order(*_: object) -> None:
    """Turns the first SIGTERM or SIGHUP into Ctrl-C; later ones are ignored so that shutdown can finish."""
    signal.signal(signal.SIGTERM, ignore)
    signal.signal(signal.SIGHUP, ignore)
    signal.raise_signal(signal.SIGINT)


def ignore(*_: object) -> None:
    """Handles a signal that needs no further response."""


def report(error: ConfigError, *, started: bool = False) -> None:
    """Prints each problem with its setting and remedy."""
    number, end = len(error.problems), "The run has ended." if started else "Nothing was started."
    sys.stderr.write(f"Invalid configuration: {number} problem{'s' if number > 1 else ''}. {end}\n")
    for problem in error.problems:
        sys.stderr.write(f"  {problem.setting}\n      {problem.remedy}\n")


def show_help(words: list[str]) -> None:
    """Writes the documentation of settings (`--help trainer.lr`), or without a key the text of `conf/hydra/help/vime.yaml`.

    The options of other folders are added at its end. Hydra itself would first list all options of all groups, which is slow.
    Raises `ConfigError` for a key that is not a setting.
    """
    from omegaconf import OmegaConf

    if topics := help_topics(words):
        sys.stdout.write(show_documentation(topics))
        sys.exit(0)
    text = OmegaConf.create({"hydra": {"help": OmegaConf.load(CONF / "hydra" / "help" / "vime.yaml")}})
    sys.stdout.write(text.hydra.help.template)
    for folder in option_folders(words):
        options = sorted((file.parent.name, file.stem) for file in folder.glob("*/*.yaml"))
        lines = "".join(f"    {'' if group in LISTED_GROUPS else '+'}{group}={option}\n" for group, option in options)
        sys.stdout.write(f"\n  Choices from {folder}\n{lines}")
    sys.exit(0)


def show_with_hydra(words: list[str]) -> None:
    """Calls Hydra for the flags that it implements: `--cfg job`, `--info defaults`, `--hydra-help`, shell completion."""
    import hydra
    from hydra.core.plugins import Plugins

    register_schemas()
    if COMPLETION & set(words):
        Plugins.instance().register(FoundFolders)
    sys.argv = [sys.argv[0], *with_search_path(words)]
    hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(lambda config: None)()
    sys.exit(0)


if __name__ == "__main__":
    main()
