"""The settings checked by pydantic: models made from the dataclasses in values.py, and back."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from . import durations, fields
from .layers import Layer
from .values import Domain, Settings, domain_of

# With PYDANTIC_SETTINGS_DEBUG set the library logs each source's values, passwords among them.
logging.getLogger("pydantic_settings").setLevel(logging.INFO)

_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Root(BaseSettings):
    """Takes values from the layers it is called with, highest first; from nowhere else."""

    model_config = SettingsConfigDict(strict=True, extra="forbid", frozen=True, validate_default=False)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Replace the library's own: its environment source passes over unknown names and lowers every name."""
        layers = cast("tuple[Layer, ...]", cast("Any", init_settings).init_kwargs["layers"])
        return tuple(InitSettingsSource(settings_cls, init_kwargs=layer.values) for layer in layers)


def checked(layers: tuple[Layer, ...]) -> Settings:
    """The settings that the layers give, highest first. Raises pydantic's ValidationError with every fault."""
    return cast("Settings", _filled(Settings(), _root()(layers=layers)))


@cache
def _root() -> Callable[..., BaseModel]:
    sections: dict[str, Any] = {name: (_annotation(key), None) for name, key in fields.keys_of(Settings).items()}
    return create_model("Settings", __base__=_Root, **sections)


@cache
def _model(table: type[Any]) -> type[BaseModel]:
    # The trailing _ keeps keys such as `schema` apart from BaseModel's own attributes. The defaults stay in values.py:
    # what nobody set is never read from a model.
    inside: dict[str, Any] = {
        f"{name}_": (_annotation(key), Field(default=None, alias=name)) for name, key in fields.keys_of(table).items()
    }
    return create_model(table.__name__, __config__=_STRICT, **inside)


def _annotation(key: fields.Key) -> Any:
    if key.named is not None:
        return dict[str, _model(key.named)]
    if key.table is not None:
        return _model(key.table)
    if key.kind == fields.SECONDS:
        return Annotated[float, BeforeValidator(_seconds(key))]
    if key.rule.pattern:
        return Annotated[key.kind, AfterValidator(_matching(key.rule.pattern))]
    return Annotated[key.kind, Field(ge=key.low, le=key.high)]


def _seconds(key: fields.Key) -> Callable[[object], float]:
    """Reads the text and holds it to its limits in one step, so that the fault shows the text as it was written."""
    low, high = key.low or 0.0, math.inf if key.high is None else key.high

    def read(value: object) -> float:
        try:
            seconds = durations.seconds(value) if isinstance(value, str) else -1.0
        except ValueError:
            seconds = -1.0
        if not low <= seconds <= high:
            raise PydanticCustomError("duration", "not a duration within the limits")
        return seconds

    return read


def _matching(pattern: str) -> Callable[[str], str]:
    form = re.compile(pattern)

    def check(value: str) -> str:
        if form.fullmatch(value) is None:
            raise PydanticCustomError("pattern", "not of the wanted form")
        return value

    return check


def _filled(default: Any, model: BaseModel) -> Any:
    """`default` with what the checked model holds: the frozen dataclass that every process uses."""
    given = {field.removesuffix("_"): getattr(model, field) for field in model.model_fields_set}
    keys = fields.keys_in(default)
    return replace(
        default, **{name: _value(keys[name], getattr(default, name), value) for name, value in given.items()}
    )


def _value(key: fields.Key, default: Any, value: Any) -> Any:
    if key.named is not None:
        entries = cast("Mapping[str, BaseModel]", value)
        return {**default, **{name: _filled(_entry(key.named, name, entry), entry) for name, entry in entries.items()}}
    return _filled(default, value) if key.table is not None else value


def _entry(table: type[Any], name: str, model: BaseModel) -> Any:
    """The defaults of a named table: a domain's depend on its kind, which is its name when none is written."""
    if table is Domain:
        return domain_of(cast("str | None", getattr(model, "kind_")) or name)  # noqa: B009 - a name made in _model
    return table()
