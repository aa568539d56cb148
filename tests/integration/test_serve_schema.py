"""Whatever fits the published description, and much that does not, gets a documented response."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from blockdraft.config import DraftConfig
from blockdraft.session import Session
from tests.serving import live

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_every_response_is_documented(tiny_model: Callable[..., Path]) -> None:
    import schemathesis
    from schemathesis.core.result import Ok
    from schemathesis.specs.openapi import checks

    session = Session.load(tiny_model(), num_threads=1, ctx_size=64, drafting=DraftConfig("ngram"))
    with live(session, max_tokens=4) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        found = [each for each in schema.get_all_operations() if isinstance(each, Ok)]
        operations = [each.ok() for each in found]
        modes = schemathesis.GenerationMode
        strategies = [
            operation.as_strategy(generation_mode=mode)
            for operation in operations
            for mode in (modes.POSITIVE, modes.NEGATIVE)
        ]

        @settings(
            max_examples=300, deadline=None, derandomize=True, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=st.one_of(strategies))
        def check(case: Any) -> None:
            response = case.call()
            assert response.status_code < 500, response.text
            # What fits the description may still not fit this model: ids, a context, its name.
            case.validate_response(response, excluded_checks=[checks.positive_data_acceptance])

        check()
    assert len(operations) == 10
