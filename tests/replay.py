"""Decisions of the controller that a trace holds, decided again."""

import json

from blockdraft.speculative.costs import CostModel
from blockdraft.speculative.policy import (
    Network,
    Prospect,
    Switch,
    choose_nodes,
    next_switch,
    rest_rounds,
)

__all__ = ["assert_replays"]


def assert_replays(text: str) -> list[Switch]:
    """Every line of a trace gives the same decision again; returns those about the network."""
    switches = []
    for line in map(json.loads, text.splitlines()):
        known, costs = line["known"], CostModel.from_json(line["costs"])
        if line["what"] == "nodes":
            options = {name: known[name] for name in ("sunk_s", "context", "least")}
            nodes = choose_nodes(known["chances"], costs, **options)
            assert nodes == line["decision"]
        elif line["what"] == "rest":
            assert rest_rounds(**known) == line["decision"]
        else:
            assert line["what"] == "network"
            prospects = [
                Prospect(tuple(p["ready"]), tuple(p["shares"]), p["lag"])
                for p in known["prospects"]
            ]
            network, before = Network(**known["network"]), Switch(**known["switch"])
            options = {name: known[name] for name in ("context", "rounds", "kept")}
            switch = next_switch(prospects, costs, network, before, **options)
            assert switch == Switch(**line["decision"])
            switches.append(switch)
    return switches
