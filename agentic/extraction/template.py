"""Gives a checkpoint whose chat template shows no tools the template of Qwen3: `python agentic/extraction/template.py FOLDER`.

Both templates write a conversation in the same form.
"""

import json
import sys
from pathlib import Path

from vime.tiny.qwen3_tokenizer import fetched

if __name__ == "__main__":
    template = json.loads(Path(fetched(), "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    Path(sys.argv[1], "chat_template.jinja").write_text(template, encoding="utf-8")
