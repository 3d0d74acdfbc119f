"""JSON: the standard library's parser, for each sample."""

from __future__ import annotations

import importlib.util

from nbloader.remedies.remedy import Proposal
from nbloader.remedies.site import Edit, Site


class JsonText:
    """`json.loads` and `json.load`: orjson parses several times as fast."""

    name = "json"

    def propose(self, site: Site) -> list[Proposal]:
        """See `Remedy`."""
        edits = [Edit(call, f"orjson.loads({site.text(call.args[0])})") for call in site.calls("json.loads")]
        edits += [Edit(call, f"orjson.loads({site.text(call.args[0])}.read())") for call in site.calls("json.load")]
        if not edits:
            return []
        why = "Each sample is parsed as JSON text, by the parser of the standard library."
        instead = (
            "Parse it with orjson. If samples are mostly numbers, store them as arrays once (numpy.save, Parquet): "
            "reading those takes no parsing."
        )
        missing = "" if importlib.util.find_spec("orjson") is not None else "orjson"
        helper = site.module("orjson", "orjson").helper
        return [Proposal(why, instead, site.rewritten(*edits), helper, missing, short="Parse JSON with orjson")]


REMEDY = JsonText()
