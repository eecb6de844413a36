"""Fields that are set in the shell: they count for what this run does, not for what its base has done."""

import json
import logging
from collections.abc import Collection

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.config import fields
from retrieval.runs.pipeline.records import field_of, get_field
from retrieval.runs.pipeline.stage import STAGES, is_among, readers_of, reads_of
from retrieval.runs.pipeline.work_directory import WorkDirectory

_log = logging.getLogger(__name__)
_READ_BY_ALL = ("vocab",)  # where no stage of the chain prepares a corpus


def settle(config: ConfigDict, set_fields: Collection[str]) -> None:
    """Puts fields of the experiment to their defaults that do not go with those which were set in the shell.

    Such a field would keep one of these from being read, or makes no sense beside its value.
    """
    for path, field in fields.declared().items():
        other = "" if path in set_fields else _set_instead(config, field, set_fields)
        if other and (value := field_of(config, path)):  # that a field is missing, the checks say
            values = other, get_field(config, other), path, f"{value:g}" if isinstance(value, float) else value
            _log.info("config.%s=%s is set, so config.%s=%s of the experiment does not count", *values)
            config.update_from_flattened_dict({path: field.default})


def _set_instead(config: ConfigDict, field: fields.Field, set_fields: Collection[str]) -> str:
    """The field that was set in the shell and with which another does not go; '' where there is none."""
    other = field.in_place_of
    while other and other not in set_fields:
        other = fields.declared()[other].in_place_of
    if other:
        return other
    other, fits = field.partner
    return other if other in set_fields and not fits(get_field(config, other)) else ""


def check(run: WorkDirectory, names: Collection[str], set_fields: Collection[str]) -> None:
    """Checks that a stage of this run reads each field, where one of the base would read another value of its own.

    Args:
      names: the stages that are asked for.
      set_fields: what was set in the shell.

    Raises:
      UserError: only the base would read it.
    """
    for field in set_fields:
        _check_decided(run, names, field)
        if any(readers_of(field, [name]) for name in dict.fromkeys((*names, *run.config.stages))):
            continue
        readers = readers_of(field)
        if readers and field not in _READ_BY_ALL and all(run.owner(name) is run for name in readers):
            _log.info("config.%s: no stage of this run reads it, only --stage=%s would", field, ",".join(readers))
        for name in readers:
            owner = run.owner(name)
            if owner is not run and _value(owner.config, field) != _value(run.config, field):
                whose = f"'{name}', which is one of the base, {owner.display_path}"
                way = f"set it there, or add '{name}' to config.stages"
                raise UserError(f"config.{field}: no stage of this run reads it, but {whose}: {way}")


def _check_decided(run: WorkDirectory, names: Collection[str], field: str) -> None:
    """A base's stage has decided some fields for all who read its output, such as the sizes of a trained model."""
    for name in sorted({name for base in run.chain[1:] for name in base.config.stages if name in STAGES}):
        owner, fixed = run.owner(name), STAGES[name].protected
        if owner is run or not is_among(fixed.decides(owner.config) if fixed else (), field):
            continue
        reads_itself = any(reader in names for reader in readers_of(field) if not _reads_output(run, reader, name))
        if not reads_itself and _value(owner.config, field) != _value(run.config, field):
            what = f"stage '{name}' of {owner.display_path} ran with another value, and what it made is used as it is"
            raise UserError(f"config.{field}: {what}: leave it out, or run '{name}' in a --workdir of its own")


def _reads_output(run: WorkDirectory, name: str, of: str) -> bool:
    """Whether a stage reads what another one makes, directly or not, or is that one."""
    read = [read.stage for read in reads_of(name, run.config) if read.stage in STAGES]
    return name == of or any(_reads_output(run, other, of) for other in read)


def _value(config: ConfigDict, field: str) -> str:
    """As JSON, for which lists and tuples are the same; a version may lack the field."""
    return json.dumps(field_of(config, field))
