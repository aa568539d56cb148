"""Decisions of the controller that a trace holds, decided again."""

import json

from blockdraft.speculative.costs import CostModel
from blockdraft.speculative.policy import Prospect, Switch, choose_nodes, next_switch

__all__ = ["assert_replays"]


def assert_replays(text: str) -> list[Switch]:
    """Every line of a trace gives the same decision again; returns those about the network."""
    switches = []
    for line in map(json.loads, text.splitlines()):
        known, costs = line["known"], CostModel.from_json(line["costs"])
        if line["what"] == "nodes":
            found = choose_nodes(known["chances"], costs, sunk_s=known["sunk_s"])
            assert found == line["decision"]
        else:
            assert line["what"] == "network"
            prospects = [
                Prospect(tuple(p["ready"]), p["gain"], p["nodes"]) for p in known["prospects"]
            ]
            switch = next_switch(prospects, costs, known["name"], Switch(**known["switch"]))
            assert switch == Switch(**line["decision"])
            switches.append(switch)
    return switches
