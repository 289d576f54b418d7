"""All checks, in the order in which one would make them: this machine, the namespaces, the entities, Delta.

Knows which check comes when, and no check itself.
"""

from collections.abc import Sequence

from spark_sb_sink import doctor_machine
from spark_sb_sink.doctor_backlog import secondary
from spark_sb_sink.doctor_entities import entities as look_at_entities
from spark_sb_sink.doctor_service import clock, limits, primary
from spark_sb_sink.findings import Finding, warn
from spark_sb_sink.options import Options


def machine(options: Options) -> list[Finding]:
    """What needs no network."""
    return list(doctor_machine.examine(delta_needed=options.state is not None))


async def service(options: Options, named: Sequence[str]) -> list[Finding]:
    """Both namespaces. `named` are entities to look at, besides those of the options."""
    wanted = tuple(dict.fromkeys((*named, *([options.entity] if options.entity else []), *options.partitioned)))
    found, there = await look_at_entities(options, wanted)
    # Where none is named, one that there is tells as much of the credential.
    at_home, home = await primary(options, wanted or tuple(there[:1]))
    away, backlog = await secondary(options)
    findings = [*at_home, *away]
    if not wanted and not there:
        cure = "name some with --entity, and Send on them is checked"
        findings.append(warn("entities", "it is not known which there are", cure))
    findings += [
        await clock("primary", options.primary, options.send_timeout),
        await clock("secondary", options.secondary, options.send_timeout),
        limits(options, home, backlog),
    ]
    return [*findings, *found]
