"""The one check of every setting's range."""

from blockdraft.errors import ConfigError

__all__ = ["check"]


def check(ok: bool, name: str, value: object, rule: str) -> None:
    """Refuse a value.

    Args:
        ok: Whether it keeps the rule.
        name: Of the setting.
        value: What it was given.
        rule: What it must be, in words.

    Raises:
        ConfigError: It does not.
    """
    if not ok:
        raise ConfigError(f"{name} is {value}; it must be {rule}")
