"""The fields of MIND."""

from retrieval.config.fields import PATHS, Field, checked_by, declare

_TIME = "'' or a time without a zone, such as 2019-11-14 or 2019-11-14T12:00"
_SPLIT = checked_by(_TIME, "retrieval.methods.mind.set_and_format.is_time")

declare(
    "sets",
    mind=Field("", PATHS, "MIND: news and impressions, as TSV"),
    mind_split=Field("", _SPLIT, "MIND: impressions from then on are the set, those before are trained on; '': both"),
)
