"""The plan of a service (`mode=plan`), from its configuration alone; nothing is started."""

from dataclasses import replace

from vime.config import RunConfig
from vime.config.learning import OF_VOCABULARY
from vime.preflight.plan import show_sections
from vime.preflight.plan.models import serving

BYTES_IN_MIB = 2**20
OF_ALL_WEIGHTS = (
    "one model at a time, of rank 0: all weights are trained",
    "servers hold one model at a time; a request for another, or for the base, waits for an exchange of all weights",
)


def show_service_plan(config: RunConfig) -> None:
    """Writes the plan to standard output. Memory is that of as many models of the largest rank as are trained at a time."""
    lora = config.trainer.lora.rank
    models = {f"model{number}": config for number in range(config.service.max_models)} if lora else {}
    show_sections(replace(config, adapters=models), [("Service", service_lines(config)), ("Serving", serving(config))])


def service_lines(config: RunConfig) -> list[str]:
    """The base, the address, and the limits of the service and of its clients."""
    own, base = config.service, config.model
    names = ", ".join(dict.fromkeys((base.name, base.checkpoint, *own.model_names)))
    each = [
        None if own.key_models is None else f"{own.key_models} models",
        None if own.key_tokens_per_minute is None else f"{own.key_tokens_per_minute:,} tokens a minute",
        None if own.key_disk_bytes is None else f"{own.key_disk_bytes / BYTES_IN_MIB:,.0f} MiB of checkpoints",
    ]
    return [
        f"at http://{own.host}:{own.port}, folder {config.output_dir}",
        f"base {names} ({base.family.value}), trained in {config.trainer.precision.value}",
        *(_of_adapters(config) if config.trainer.lora.rank else OF_ALL_WEIGHTS),
        f"each API key: {', '.join(filter(None, each)) or 'no quota'}",
        f"sessions that are silent for {own.session_timeout_seconds:g} s end",
        *(["deterministic: requests to servers are computed one by one, without a prefix cache"] if own.deterministic else []),
    ]


def _of_adapters(config: RunConfig) -> list[str]:
    own, most = config.service, config.trainer.lora.rank
    of_vocabulary = [target.value for target in config.trainer.lora.targets if target in OF_VOCABULARY]
    named = ", ".join(of_vocabulary) or "no adapter: trainer.lora.targets names none"
    return [
        f"at most {own.max_models} models at a time, of rank 1 to {most}, which take turns at the trainer",
        f"train_unembed gives {named}",
        f"servers hold {own.num_samplers} adapters at a time beside the base",
    ]
