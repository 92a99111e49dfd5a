"""Schemathesis's requirements of a refusal here.

Its own check of valid data expects that everything valid for the schema is accepted. Ours are refused for
more than a schema can express: an org that does not exist, two fields that exclude each other. So the check
below asks for more and for less: a refusal is a problem document with a code that the contract lists
for this operation and status, and if the request has the form that the contract asks for, the rule
that refused it is in EXPLAINED, with a reason. Anything else is a finding.
"""

import re

import schemathesis
from schemathesis.core.failures import Failure

# Rules that the contract states in words only: the refusal's field and sentence, and why no schema
# expresses it. The sentences are the API's, so that a new or reworded rule is checked again.
EXPLAINED = [
    (r"cursor", r"^must be the next_cursor of an earlier answer", "a cursor is opaque, and valid only with the sort that it was made with"),
    (r"owner", r"^must be a tenant( or|, an org or) a volume", "whose policy it is decides what can be done with it; the schema has one type of owner"),
    (r"keep_daily", r"^something must be kept$", "three numbers, and one must not be 0"),
    (r"schedule|patch_window(\..*)?", r"cron expression|must leave \d+ minutes|never comes|needs a schedule|^must be ", "a cron expression is more than a pattern, and belongs to how long the window is open"),
    (r"principal_id", r"^must be absent if issuer and subject name ", "a grant names its principal in one of two ways"),
    (r"account_id", r"^is required for a program's token|^is for programs' tokens", "depends on the type of the token that is exchanged"),
    (r"caveats\.operations", r"is not an operation: ", "the ids of this contract's operations, which are too many for an enum"),
    (r"target", r"^must be at least low_watermark$", "compares two numbers"),
    (r"min_size", r"^must not be above max_size$", "compares two numbers"),
    (r"limit", r"^must be a whole number for ", "depends on the dimension in the path"),
    (r"email|admin_email|sender", r"^must be an email address", "an address is checked by the rules of Frappe and of SMTP"),
    (r"hostname|name", r"DNS name|^must be in the DNS: |^is required for http and https$|^must be left out for tcp|^must not be a wildcard$", "depends on the protocol; names are checked label by label"),
    (r"hostname|name|slug", r"^is no name that browsers or certificate authorities take", "which labels IDNA allows is computed from tables of Unicode"),
    (r"slug", r"^is reserved: ", "belongs to reserved_slug, and has classes of names besides a list"),
    (r"server", r"^must be a (host's name or an IPv4 address$|mail server: )", "names are checked label by label"),
    (r"port", r"^must not be 465", "all ports but one"),
    (r"tls|login|password", r"^(must be true with|needs|is required with) a login", "fields that belong together"),
    (r"login|password|sender_name|username", r"printable characters$|on one line$|^must be 1 to 255 characters, and no colon$|^must be a name of", "text is more than a pattern: no control characters, and counted in bytes where the site does"),
    (r"reason|description|message", r"^is required|^must be (text|at most)", "text is more than a pattern: something besides blanks, counted in bytes"),
    (r"snapshot_id|force_app_server_id|request", r"^or \w+( or \w+)* (must be given, and not both|is required(, and not both)?)$|^is lost with its server", "two fields that exclude each other, and the meaning of the others with them"),
    (r"signed(\..*)?", r"^must be what prego keys sign-agent prints$", "a signed document"),
    (r"rings.*", r"", "the rings of a release depend on each other: names, percentages, and the last one"),
    (r"dedicated_redis", r"^is part of the plans ", "depends on the plan"),
    (r"infra_provider", r"provider's name", "the names of providers are configured"),
    (r"(spec\.)?image", r"^must be (an image like|of a registry) ", "references of images have a separate grammar"),
    (r"location", r"^must be one of .*, the region's$", "depends on the region"),
    (r"size_bytes", r"^must not be less than", "compares with the current size"),
    (r"mount_path|spec\.volumes\[\d+\]", r"^must be an absolute path of plain names|^is that of another volume", "paths are compared with each other and with the system's"),
    (r"workload_(memory|disk)_bytes", r"^must be at most [\d.]+( \w+)?: of the ", "depends on the machine types of the fleet"),
    (r"tail", r"^can't be combined with since$", "two parameters that exclude each other"),
    (r"requested_by|id|actor", r"^must be 1 to \d+ characters$", "a comma separates values, and none may be empty"),
    (r"serves_(tenants|workloads)", r"^must be false: ", "depends on the role"),
    (r"replicas", r"^must be 0 or 1: a volume is attached", "depends on the attachments"),
    (r"parent_org_id", r"^must be (another org|\S+, the parent of org)", "compares orgs"),
    (r"(spec\.)?(tags|(constraint\.)?(require|disallow))", r"^must hold each tag once", "case does not matter, which uniqueItems does not know"),
    (r"inputs(\.[\s\S]*)?", r"", "the inputs of an action depend on its type: the schema has any object"),
    (r"spec(\.[\s\S]*)?", r"^(is not known|is required|requires|is only for|is given|is there twice|must )", "the spec of a policy depends on its type: the schema has any object; in a group's, fields depend on each other"),
    (r"plan\..*", r"^must |^is ", "what prego plan pack printed: its sums and moves belong together"),
    (r"keep_tenants", r"^is not possible", "depends on the server's state"),
    (r"(rollout_policy\.)?max_unavailable", r"^and max_surge must not both be 0", "compares two fields"),
    (r"accepts_trial|plan_tier_lock|tenant_capacity", r"^is a property of ", "depends on the server's role"),
    (r"apps", r' with version ".*" is no app$', "names of members, which a schema cannot restrict, and what belongs to them"),
    (r"server_id", r"^must be an app server or a node", "depends on the server's role"),
]

# Codes whose sentence is about the form of a request. All others name a state or a thing that is
# not there, which no schema knows.
OF_FORM = {"invalid_field", "unknown_field", "invalid_json", "duplicate_field", "unsupported_media_type"}

# Answered before the request has been routed to an operation, so no operation lists them.
EVERYWHERE = {(404, "not_found"), (405, "method_not_allowed")}


def beyond_plane_0(case):
    """Whether a text has characters beyond U+FFFF: kin-openapi counts them as two, as UTF-16 does."""
    return any(ord(c) > 0xFFFF for c in f"{case.query}{case.body}")


def off_pattern(case):
    """Whether a header breaks its own pattern: generated values for patterns with maxLength may."""
    for parameter in case.operation.headers:
        schema = parameter.definition.get("schema", {})
        value = (case.headers or {}).get(parameter.name)
        if value is not None and "pattern" in schema and not re.search(schema["pattern"], value):
            return True
    return False


def response_of(operation, status):
    """The contract's response of a status, with its reference resolved."""
    raw = operation.schema.raw_schema
    response = operation.definition.raw["responses"].get(str(status))
    while response and "$ref" in response:
        found = raw
        for part in response["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        response = found
    return response


def declared(operation, status):
    """The codes that the contract lists, in its examples and the words of a description."""
    response = response_of(operation, status) or {}
    codes = set(re.findall(r"[a-z0-9_]+", response.get("description", "").split(":")[0]))
    for media in response.get("content", {}).values():
        codes.update(media.get("examples", {}))
    return codes


@schemathesis.check
def refusals_are_explained(ctx, response, case):
    """A refusal has a code of the contract, and a known reason if the request is well formed."""
    status = response.status_code
    if status < 400:
        return
    try:
        problem = response.json()
        code = problem["code"]
    except (ValueError, KeyError, TypeError):
        raise Failure(operation=case.operation.label, title="Refusal without a code", message=response.text[:300])
    if problem.get("status") != status:
        raise Failure(operation=case.operation.label, title="Refusal of another status", message=str(problem))
    if (status, code) in EVERYWHERE:
        return
    if code not in declared(case.operation, status):
        raise Failure(operation=case.operation.label, title=f"Undeclared code {code}", message=f"{status} {code} is not in the contract: {problem.get('detail')}")
    if case.meta is None or not case.meta.generation.mode.is_positive or code not in OF_FORM or off_pattern(case):
        return
    for error in problem.get("errors") or [problem]:
        field, sentence = error.get("field", ""), error.get("message", error.get("detail", ""))
        if re.search(r"characters$", sentence) and beyond_plane_0(case):
            continue
        if error["code"] in OF_FORM and not any(re.fullmatch(f, field) and re.search(s, sentence) for f, s, _ in EXPLAINED):
            raise Failure(operation=case.operation.label, title=f"Unexplained refusal of {field}", message=f"{code}: {field} {sentence}")
