"""Handling of each field of a request: read, about the request alone, without effect, or refused.

Fields that ask for something and have no effect are noted (`AgentSession.notes`), and so are unknown ones. A test compares these
lists with the request types of the SDKs of OpenAI and Anthropic and of vLLM's server, so that a new field is noticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vime.chat.request import Refused

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("length_penalty", "logit_bias", "bad_words", "allowed_token_ids", "stop_token_ids", "min_tokens", "ignore_eos"),
    *("use_beam_search", "thinking_token_budget", "repetition_detection", "watermarking"),
)
"""Sampling parameters of any protocol; the run's are used in their place (`AgentSession.asked_sampling`)."""
TEMPLATE = "the chat template has the arguments of the run (model.chat_template_args)"
WHOLE = "a prompt that is too long is refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """The fields of one protocol, by how they are handled."""

    read: frozenset[str]
    about: frozenset[str]
    """Name, account, cache or priority of the request; these fields do not affect the model."""
    no_effect: Mapping[str, str]
    """The reason why they have none; "" if that is plain."""
    refused: Mapping[str, str]
    plain: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of fields that ask for nothing."""

    @property
    def known(self) -> frozenset[str]:
        """All known fields."""
        return self.read | self.about | frozenset(self.no_effect) | frozenset(self.refused) | frozenset(SAMPLING)

    def notes(self, body: Mapping[str, Any]) -> list[str]:
        """A note on each field that has no effect. Raises Refused for one that would change the answer's meaning."""
        found: list[str] = []
        for key, value in body.items():
            if value is None or value in (False, 0, "", [], {}) or value in self.plain.get(key, ()):
                continue
            if key in self.refused:
                raise Refused(f"{key}: {self.refused[key]}", code="unsupported_parameter")
            if key in self.no_effect or key not in self.known:
                why = self.no_effect.get(key, "") if key in self.known else "it is no field of this protocol that is known here"
                found.append(f"{key} has no effect" + (f": {why}" if why else ""))
        return found


_CACHE = ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_salt")
_ABOUT = frozenset({"metadata", "user", "safety_identifier", "service_tier", "request_id", "session_id", "priority", *_CACHE})

CHAT = Fields(
    read=frozenset(
        {
            *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
            *("max_tokens", "max_completion_tokens", "n", "stop", "stream", "stream_options", "logprobs", "top_logprobs"),
            *("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
            *("return_token_ids", "continue_final_message"),
        }
    ),
    about=_ABOUT | {"store", "stream_interval"},
    no_effect={
        **dict.fromkeys(("reasoning_effort", "chat_template_kwargs", "chat_template", "include_reasoning"), TEMPLATE),
        **dict.fromkeys(("add_generation_prompt", "add_special_tokens", "documents", "verbosity", "echo"), ""),
        **dict.fromkeys(("truncate_prompt_tokens", "truncation_side"), WHOLE),
        **dict.fromkeys(("prediction", "moderation", "vllm_xargs", "kv_transfer_params", "ec_transfer_params"), ""),
        **dict.fromkeys(("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens"), ""),
        **dict.fromkeys(("return_tokens_as_token_ids", "return_token_offsets", "return_prompt_text"), ""),
        **dict.fromkeys(("media_io_kwargs", "mm_processor_kwargs", "mm_payload", "return_mm_kwargs"), "there is text alone"),
        "routed_experts_prompt_start": "",
    },
    refused={
        "audio": "answers are text; leave it out",
        "modalities": "answers are text; leave it out",
        "web_search_options": "OpenAI's servers would search; leave it out",
        "prompt_logprobs": "only the logprobs of sampled tokens are known; leave it out",
        "logprob_token_ids": "only the logprobs of sampled tokens are known; leave it out",
    },
    plain={
        "modalities": (["text"],),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "include_reasoning": (True,),
        "add_generation_prompt": (True,),
    },
)

RESPONSES = Fields(
    read=frozenset(
        {
            *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "stream"),
            *("text", "previous_response_id", "store", "background", "conversation"),
        }
    ),
    about=_ABOUT | {"access_programs", "background_options", "stream_options", "max_tool_calls"},
    no_effect={
        "reasoning": TEMPLATE,
        "truncation": WHOLE,
        "context_management": WHOLE,
        "include": "",
        "image": "there is text alone",
        "moderation": "",
        "personality": "",
        "top_logprobs": "this protocol's answers have no logprobs here",
    },
    refused={"prompt": "templates that OpenAI's servers keep are not known here; send their text"},
    plain={"truncation": ("disabled",), "include": (["reasoning.encrypted_content"],)},
)

MESSAGES = Fields(
    read=frozenset(
        {
            *("model", "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream", "output_config"),
            *("output_format", "thread"),
        }
    ),
    about=_ABOUT
    | {
        *("betas", "billing_policy", "cache_control", "diagnostics", "fallback_credit_token", "fallbacks", "inference_geo"),
        *("speed", "user_profile_id", "workspace_id"),
    },
    no_effect={
        "thinking": TEMPLATE,
        "context_management": WHOLE,
        "compaction": WHOLE,
        "container": "Anthropic's servers would run it",
        "mcp_servers": "Anthropic's servers would ask them",
    },
    refused={},
)
