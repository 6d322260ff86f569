"""The OpenAPI document is true: requests made from it are answered as it says, never with a fault of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from instar.gateway.openapi import OPEN
from instar.gateway.waiting_room import AnsweringRoute
from tests.kit.malformed import resolved, routes_with_body
from tests.kit.malformed_tables import VALID
from tests.kit.scripted_gateway import Gateway, scripted_gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with scripted_gateway(tmp_path_factory.mktemp("openapi")) as gateway:
        yield gateway


def refuses_what_it_forbids(ctx: Any, answer: Any, case: Any) -> bool | None:
    """For bodies only: parameters that are not known are ignored, as everywhere on the web."""
    body = case.meta.components.get(ParameterLocation.BODY)
    return negative_data_rejection(ctx, answer, case) if body and body.mode.is_negative else None


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    refuses_what_it_forbids,
]
"""Not that all is taken which fits the schema: no schema can say what fits into the model's context."""

NAMES = {"version": ["base", "v1", "v2", "v3"], "model": ["instar", "instar@v1", "instar@base", "instar@v9"]}
SAMPLING = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
WEIGHT = 8
"""Cases of a route with a body, to one of a route without: there is more to go wrong."""


def exercise(gateway: Gateway, cases: int, start: int) -> Counter[tuple[str, int]]:
    """About `cases` requests over all routes, half of them wrong on purpose. Returns what was seen how often."""
    schema = schemathesis.openapi.from_dict(gateway.app.openapi())
    plan = [(found.ok(), mode) for found in schema.get_all_operations() for mode in _modes_of(found.ok())]
    whole = sum(WEIGHT if operation.body else 1 for operation, _ in plan)
    seen: Counter[tuple[str, int]] = Counter()
    with requests.Session() as session:
        for number, (operation, mode) in enumerate(plan):
            examples = max(2, round(cases * (WEIGHT if operation.body else 1) / whole))
            _run(gateway, session, operation, mode, examples, start + number, seen)
    return seen


def _modes_of(operation: Any) -> list[GenerationMode]:
    takes = any((operation.body, operation.query, operation.path_parameters, operation.headers))
    return [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if takes else [GenerationMode.POSITIVE]


def _run(
    gateway: Gateway,
    session: requests.Session,
    operation: Any,
    mode: GenerationMode,
    examples: int,
    start: int,
    seen: Counter[tuple[str, int]],
) -> None:
    @seed(start)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def check(case: Any, data: st.DataObject) -> None:
        if mode is GenerationMode.POSITIVE and data.draw(st.booleans()):
            _sharpen(case, data)
        answer = case.call_and_validate(
            base_url=gateway.url, session=session, headers=gateway.headers, checks=CHECKS
        )
        seen[operation.label, answer.status_code] += 1

    check()


def _sharpen(case: Any, data: st.DataObject) -> None:
    """Give it names that are there, and leave out what is refused though it fits the schema."""
    for name, known in NAMES.items():
        if name in (case.path_parameters or {}):
            case.path_parameters[name] = data.draw(st.sampled_from(known))
    if isinstance(case.body, dict):
        takes = {"temperature", "top_p", "seed", "n", "stream", "logprobs", "stop", "user", "score", "reason"}
        kept = {name: value for name, value in case.body.items() if name in takes}
        case.body = {**kept, **VALID[case.operation.path], "max_tokens": 4}


def failures_of(seen: Counter[tuple[str, int]]) -> list[tuple[str, int]]:
    return [found for found in seen if found[1] >= 500]


def test_generated_requests_are_answered_as_documented(gateway: Gateway) -> None:
    """A small part of what `make soak-protocol` sends: making up these requests takes longer than answering them."""
    seen = exercise(gateway, 150, start=0)
    print(sum(seen.values()), sorted(seen.items()))
    assert not failures_of(seen)
    assert sum(seen.values()) >= 120
    assert min(seen[f"POST {path}", status] for path in SAMPLING for status in (200, 400)) >= 1


@pytest.mark.soak
@pytest.mark.protocol
@pytest.mark.timeout(3600)
def test_ten_thousand_generated_requests_are_answered_as_documented(gateway: Gateway) -> None:
    seen = exercise(gateway, 10_000, start=1_000)
    print(sum(seen.values()), sorted(seen.items()))
    assert not failures_of(seen)
    assert sum(seen.values()) >= 9_000


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, ways in document["paths"].items():
        for operation in ways.values():
            yield path, operation


def test_every_route_says_what_it_answers(gateway: Gateway) -> None:
    document = gateway.app.openapi()
    for path, operation in operations(document):
        answers = operation["responses"]
        assert operation["summary"]
        assert path == "/openapi.json" or answers["200"]["content"]["application/json"]["schema"], path
        assert {"400", "500", "503"} <= set(answers), path
        assert ("401" in answers) == (path not in OPEN) == ("security" in operation), path
        for status, answer in answers.items():
            if int(status) >= 400 and (path, status) != ("/ready", "503"):
                schema = answer["content"]["application/json"]["schema"]
                name = "AnthropicError" if path.startswith("/v1/messages") else "Error"
                assert schema == {"$ref": f"#/components/schemas/{name}"}, (path, status)
    for path in routes_with_body(document):
        [content] = document["paths"][path]["post"]["requestBody"]["content"].values()
        assert resolved(content["schema"], document)["properties"], path


def test_routes_that_sample_document_their_streams_and_headers(gateway: Gateway) -> None:
    document = gateway.app.openapi()
    sampling = {
        route.path
        for included in gateway.app.routes
        for route in getattr(getattr(included, "original_router", None), "routes", [included])
        if isinstance(route, AnsweringRoute)
    }
    assert sampling == SAMPLING
    for path in sampling:
        operation = document["paths"][path]["post"]
        assert "text/event-stream" in operation["responses"]["200"]["content"]
        assert {"x-instar-turn", "x-instar-version"} <= set(operation["responses"]["200"]["headers"])
        assert "X-Session-Id" in {p["name"] for p in operation["parameters"]}
        assert {"429", "502"} <= set(operation["responses"])


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref":
                yield value
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_every_reference_leads_somewhere(gateway: Gateway) -> None:
    document = gateway.app.openapi()
    found = set(references(document))
    assert len(found) > 20
    for reference in found:
        place = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


def test_document_is_served_with_the_key_alone(gateway: Gateway) -> None:
    with gateway.http as http:
        assert http.get("/openapi.json").json() == gateway.app.openapi()
        assert http.get("/openapi.json", headers={"authorization": "Bearer x"}).status_code == 401
