"""Which model a chat talks to."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from littleghost import (
    ConfigurationError,
    CredentialError,
    LocalModel,
    Model,
    ModelUnavailableError,
    OpenAIModel,
    OpenAIResponsesModel,
    resolve_model,
)

__all__ = ["choose_model", "what_to_expect"]

NONE = (
    "no model is configured. Choose one: --model openai:NAME, with the key in OPENAI_API_KEY, or another provider's; "
    "or --base-url URL, for a server that speaks the OpenAI API; "
    "or --model local:FILE.gguf, which needs neither key nor network (in LittleGhost's repository `make chat` fetches one)"
)
SECONDS = 10.0
KNOWN = ("openai", "openai-responses", "openai-chat", "anthropic", "bedrock", "gemini", "vertex", "local")
FORMS = "openai:NAME, anthropic:NAME, bedrock:NAME, gemini:NAME, vertex:NAME or local:FILE.gguf"


def choose_model(model: str | None, base_url: str | None) -> Model:
    """Return the model that the options name.

    Raises:
        ConfigurationError: They name none, or one that cannot be used.
        ModelUnavailableError: The server at ``base_url`` was asked for its models and did not answer.
    """
    if base_url is not None:
        prefix, colon, name = (model or "").partition(":")
        if not colon or not prefix.startswith("openai"):
            prefix, name = "openai", model or ""
        kind = OpenAIResponsesModel if prefix == "openai-responses" else OpenAIModel
        return kind(name or _only_model(base_url), base_url=base_url)
    if model is None:
        raise ConfigurationError(NONE)
    if model.partition(":")[0] not in KNOWN or ":" not in model:
        raise ConfigurationError(
            f"{model!r} names no model that a chat can talk to; write {FORMS}, or name a server that speaks "
            "the OpenAI API with --base-url URL"
        )
    chosen = resolve_model(model)
    if isinstance(chosen, OpenAIModel | OpenAIResponsesModel) and not (
        os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")
    ):
        raise CredentialError(
            "OPENAI_API_KEY is not set; set it to your key, or talk to a server of your own with --base-url"
        )
    return chosen


def _only_model(base_url: str) -> str:
    """Ask a server for its models, and return the only one."""
    if not base_url.startswith(("http://", "https://")):
        raise ConfigurationError(
            "--base-url must begin with http:// or https://, such as http://127.0.0.1:8080/v1"
        )
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    host = urlsplit(base_url).netloc.rpartition("@")[2]  # without a password that the URL may hold
    request = urllib.request.Request(base_url.rstrip("/") + "/models", headers=headers)  # noqa: S310 (checked above)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:  # noqa: S310
            listed: Any = json.load(response)
        names = [str(item["id"]) for item in listed["data"]]
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise CredentialError(
                f"the server at {host} refuses the key ({error.code}); set OPENAI_API_KEY"
            ) from error
        raise ConfigurationError(
            f"the server at {host} does not say which models it has ({error.code}); name one with --model"
        ) from error
    except OSError as error:
        raise ModelUnavailableError(
            f"the server at {host} cannot be reached ({getattr(error, 'reason', error)})"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"what answers at {host} does not speak the OpenAI API; such a URL often ends in /v1"
        ) from error
    if len(names) != 1:
        some = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise ConfigurationError(
            f"the server at {host} has {len(names)} models; choose one with --model ({some})"
        )
    return names[0]


def what_to_expect(model: Model) -> str | None:
    """Return a remark on a model that runs on this machine: how small it is, and what that means."""
    if not isinstance(model, LocalModel) or not (path := Path(model.server.path)).is_file():
        return None
    size = path.stat().st_size
    text = f"{path.name}: {size / 1e6:,.0f} MB, run on this machine by llama.cpp, with no key and no network."
    if size < 500e6:
        return (
            f"{text} That is tiny, a thousandth of the large models: it chats in plain sentences, gets most facts and all"
            " arithmetic wrong, and uses tools clumsily. It is here to show how a session works."
        )
    if size < 3e9:
        return (
            text + " That is small: good for simple questions, weak at facts, at long tasks and with tools."
        )
    return text
