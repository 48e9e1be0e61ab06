"""What the validator of RO-Crates, and the example queries, say of a crate, as JSON.

    build/validator/bin/python tests/validate_crate.py BUNDLE

It runs in an environment of its own, because the validator wants older packages than
Snakemake. Nothing is fetched: the context of RO-Crate 1.1 is replaced by the terms that
crates of rankbench use, so a term that it lacks is an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import rdflib
from rocrate_validator import models, services
from rocrate_validator.utils import document_loader
from rocrate_validator.utils.http import HttpRequester

CONTEXT = "https://w3id.org/ro/crate/1.1/context"
PROFILE = "workflow-run-crate"

_SCHEMA = [
    *("ComputerLanguage", "CreateAction", "CreativeWork", "Dataset", "HowTo"),
    *("Organization", "Person", "PropertyValue", "SoftwareApplication"),
    *("SoftwareSourceCode", "about", "actionStatus", "additionalType", "affiliation"),
    *("agent", "author", "datePublished", "description", "encodingFormat", "endTime"),
    *("error", "exampleOfWork", "hasPart", "instrument", "license", "mainEntity"),
    *("mentions", "name", "object", "programmingLanguage", "publisher", "result"),
    *("softwareVersion", "startTime", "url", "value", "version", "workExample"),
]
TERMS = {name: f"http://schema.org/{name}" for name in _SCHEMA} | {
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "File": "http://schema.org/MediaObject",
    "FormalParameter": "https://bioschemas.org/FormalParameter",
    "conformsTo": "http://purl.org/dc/terms/conformsTo",
    "input": "https://bioschemas.org/ComputationalWorkflow#input",
    "output": "https://bioschemas.org/ComputationalWorkflow#output",
}

_PREFIXES = """
PREFIX s: <http://schema.org/>
PREFIX bioschemas: <https://bioschemas.org/>
PREFIX codemeta: <https://codemeta.github.io/terms/>
PREFIX wfrun: <https://w3id.org/ro/terms/workflow-run#>
"""

# The competency questions 4, 5 and 6 of the profile, and its environment variables.
QUERIES = {
    "workflow_environment": """
        SELECT ?workflow ?environment WHERE {
            ?workflow a s:HowTo, bioschemas:ComputationalWorkflow ;
                codemeta:buildInstructions ?environment .
            ?environment a s:MediaObject }""",
    "tool_duration": """
        SELECT ?start ?end WHERE {
            ?action a s:CreateAction ; s:instrument ?tool ;
                s:startTime ?start ; s:endTime ?end .
            ?tool a s:SoftwareApplication }""",
    "workflow_duration": """
        SELECT ?start ?end WHERE {
            ?action a s:CreateAction ; s:instrument ?workflow ;
                s:startTime ?start ; s:endTime ?end .
            ?workflow a bioschemas:ComputationalWorkflow }""",
    "variables": """
        SELECT ?action ?name ?value WHERE {
            ?action a s:CreateAction ; wfrun:environment ?set .
            ?set a s:PropertyValue ; s:name ?name ; s:value ?value }""",
}


class Response:
    status_code = 200
    headers = {"Content-Type": "application/ld+json"}

    def json(self) -> dict[str, Any]:
        return {"@context": TERMS}


def get(url: str, **_: Any) -> Response:
    assert url == CONTEXT, f"the validator asks for {url}"
    return Response()


def main(bundle: Path) -> None:
    HttpRequester.get = lambda _, url, **options: get(url, **options)
    settings = services.ValidationSettings(
        rocrate_uri=str(bundle),
        profile_identifier=PROFILE,
        requirement_severity=models.Severity.RECOMMENDED,
    )
    found = services.validate(settings)
    issues = [
        [one.severity.name, one.check.identifier, one.message, str(one.violatingEntity)]
        for one in found.get_issues()
    ]
    document_loader.install_document_loader()
    graph = rdflib.Graph()
    graph.parse(bundle / "ro-crate-metadata.json", format="json-ld")
    answers = {
        name: [[str(value) for value in row] for row in graph.query(_PREFIXES + query)]
        for name, query in QUERIES.items()
    }
    json.dump({"issues": sorted(issues), "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
