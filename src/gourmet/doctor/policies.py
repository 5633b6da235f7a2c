"""Who may speak to whom by network policies, which add up: a single one that opens something is enough.

The rules are those of deploy/kubernetes; pods are known by their label `app.kubernetes.io/name`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

Spec = Mapping[str, Any]

_NAME: Final = "app.kubernetes.io/name"
_ANYBODY: Final = "anybody"
_EVERY: Final = "every port"
# Who may reach which server; what is not named here, such as the proxy, lets in whom its policy says.
_LET_IN: Final = {"triton": {"flask"}, "flask": {"proxy"}, "redis": {"flask"}}
# Where Prometheus' namespace may, too.
_METRICS: Final = {"triton": {8002}, "flask": {5000}}
# Where anybody may be reached: names, and stores of objects.
_OUTSIDE: Final = {53, 443}
_REACHES_NOBODY: Final = ("triton", "redis")
_CLOSED: Final = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def faults(policies: Mapping[str, Spec], pods: Iterable[tuple[Mapping[str, str], Spec]]) -> Iterator[str]:
    """Of policies by their names, and of pods' labels and specs."""
    if policies and policies.get("nothing-else") != _CLOSED:
        yield "what no policy names is open"
    for labels, pod in pods if policies else ():
        name = labels.get(_NAME, "a pod without a name")
        chosen = [spec for spec in policies.values() if _selects(spec.get("podSelector") or {}, labels)]
        opened = [rule for spec in chosen for rule in spec.get("ingress") or ()]
        if any(_is_open_to_others(name, rule) for rule in opened) and name in _LET_IN:
            yield f"{name} lets in others than {_LET_IN[name]}"
        ports = {port for rule in opened for port in _ports(rule)}
        listens = {port["containerPort"] for each in pod["containers"] for port in each.get("ports", ())}
        if ports != listens:
            opens, own = (", ".join(sorted(map(str, each))) or "none" for each in (ports, listens))
            yield f"{name} listens at {own} and its policy opens {opens}"
        if any(_leads_anywhere(name, rule) for spec in chosen for rule in spec.get("egress") or ()):
            yield f"{name} may reach others than it has to"


def _selects(selector: Spec, labels: Mapping[str, str]) -> bool:
    """What an expression leaves out is not looked at, so that nothing that it may choose is missed."""
    return bool((selector.get("matchLabels") or {}).items() <= labels.items())


def _is_open_to_others(name: str, rule: Spec) -> bool:
    allowed = _LET_IN.get(name, set())
    for who in map(_who, rule.get("from") or [{}]):
        is_prometheus = who.startswith("namespace ") and _ports(rule) <= _METRICS.get(name, set())
        if who not in allowed and not is_prometheus:
            return True
    return False


def _leads_anywhere(name: str, rule: Spec) -> bool:
    """A peer that is named is somebody's decision, but for what is to reach nobody."""
    everybody = _ANYBODY in map(_who, rule.get("to") or [{}])
    return (everybody or name in _REACHES_NOBODY) and not _ports(rule) <= _OUTSIDE


def _ports(rule: Spec) -> set[int | str]:
    return {
        each["port"] if "port" in each and "endPort" not in each else _EVERY
        for each in rule.get("ports") or [{}]
    }


def _who(peer: Spec) -> str:
    """Pods of this namespace by their name, another namespace by its own, or anybody."""
    if "ipBlock" in peer:
        cidr = str(peer["ipBlock"]["cidr"])
        return _ANYBODY if cidr.endswith("/0") else f"addresses {cidr}"
    if "namespaceSelector" in peer:
        space = (peer["namespaceSelector"] or {}).get("matchLabels") or {}
        there = space.get("kubernetes.io/metadata.name")
        return f"namespace {there}" if there else _ANYBODY
    labels = (peer.get("podSelector") or {}).get("matchLabels") or {}
    return str(labels.get(_NAME, _ANYBODY))
