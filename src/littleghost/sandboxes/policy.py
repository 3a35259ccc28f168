"""What a sandbox is asked to enforce (`Policy`), and what it says it does enforce (`EffectivePolicy`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from littleghost.errors import PolicyError

__all__ = ["Access", "EffectivePolicy", "Policy"]

Access = Literal["read_only", "read_write"]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sandbox is asked to enforce.

    ``None`` asks for nothing: the backend's default holds, and its ``effective_policy`` says which. What is asked for is enforced, or
    opening the sandbox fails.

    A policy comes from the application. It is never read from the workspace, where an agent could have written it.

    Attributes:
        root: Access to the workspace root.
        paths: Access to named paths. One that is not mentioned is read-only, unless it is below a read-write root.
        network: ``none`` or ``inherit`` (the host's).
        root_filesystem: What processes see outside the workspace: ``isolated`` (system programs and libraries only, read-only),
            ``read_only`` (the host's files, read-only) or ``host`` (the host's, as they are).
        environment: Variables that every command gets. Their values are kept out of ``repr``.
        git: Access of the file methods to what is named ``.git``, and to everything below; read-only where nothing is asked for. With the
            capability ``git_read_only_processes`` it is also that of programs, to the one at the top of the root and of each named path.
            What is in there (``config``, ``hooks``) decides what runs when somebody uses Git on the workspace later, outside the sandbox.
        hard_links: Whether the file methods ``read`` a file that has more than one name, one of which could be outside the workspace, or
            ``refuse`` it. They read it where nothing is asked for, for package caches and Git make such files too. It is a guess: a file
            whose other name is gone again passes.
    """

    root: Access | None = None
    paths: dict[str, Access] = {}
    network: Literal["none", "inherit"] | None = None
    root_filesystem: Literal["isolated", "read_only", "host"] | None = None
    environment: dict[str, str] = {}
    git: Access | None = None
    hard_links: Literal["read", "refuse"] | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise PolicyError(f"policy.{name} must be {' or '.join(map(repr, choices))}, not {value!r}")
        # A Struct's constructor does not look at types; a policy that is not understood must not be taken for one that is.
        try:
            msgspec.convert(
                {name: getattr(self, name) for name in self.__struct_fields__}, _Shape, strict=True
            )
        except msgspec.ValidationError as error:
            raise PolicyError(f"not a policy: {error}") from error

    @classmethod
    def of(cls, value: Policy | Mapping[str, Any] | None) -> Policy:
        """Return ``value`` as a policy; a mapping has this class's attributes as keys.

        Raises:
            PolicyError: It has an unknown key or value.
        """
        if value is None:
            return cls()
        if isinstance(value, Policy):
            return value
        unknown = [str(key) for key in value if key not in cls.__struct_fields__]
        if unknown:
            raise PolicyError(
                f"a policy has no {', '.join(sorted(unknown))}; it has {', '.join(cls.__struct_fields__)}"
            )
        return cls(**value)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["environment"] = dict.fromkeys(self.environment, "…")
        return list(shown.items())

    def __repr__(self) -> str:
        return "Policy(" + ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__()) + ")"


class _Shape(msgspec.Struct, forbid_unknown_fields=True):
    root: Access | None
    paths: dict[str, Access]
    network: Literal["none", "inherit"] | None
    root_filesystem: Literal["isolated", "read_only", "host"] | None
    environment: dict[str, str]
    git: Access | None
    hard_links: Literal["read", "refuse"] | None


_CHOICES = {
    "root": get_args(Access),
    "network": ("none", "inherit"),
    "root_filesystem": ("isolated", "read_only", "host"),
    "git": get_args(Access),
    "hard_links": ("read", "refuse"),
}


class EffectivePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force, in a sandbox's own words.

    Attributes:
        root: Access of the file methods to the workspace root.
        paths: Access of the file methods to the named paths.
        network: What processes have: ``none``, ``inherit``, or ``unstated`` for a backend that does not say.
        root_filesystem: What processes see: ``isolated``, ``read_only``, ``host`` or ``unstated``.
        environment: The names of the variables every command gets; no values.
        processes: One sentence: whose rights a process has.
        enforced: What holds against a hostile program.
        not_enforced: What does not, though one might expect it.
    """

    root: Access
    paths: dict[str, Access] = {}
    network: str = "unstated"
    root_filesystem: str = "unstated"
    environment: tuple[str, ...] = ()
    processes: str = "unstated"
    enforced: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()
