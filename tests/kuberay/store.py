"""What a Kubernetes API server keeps: objects with versions, and the log of changes that watches read."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.kuberay.crd import Definition

Thing = dict[str, Any]
Choice = Callable[[Thing], bool]
HOME = "default"  # the namespace where none is given


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Thing:
        """As the server writes it."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": self.reason,
            "message": self.message,
            "code": self.code,
        }


def timestamp() -> str:
    """Now, as Kubernetes writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """Objects by (plural, namespace, name). Every method may be called from any thread; what it gives is a copy."""

    def __init__(self, definitions: dict[str, Definition]) -> None:
        self.definitions = definitions
        self.lock = threading.RLock()
        self.version = 100
        self.expired_before = 0  # versions that can't be watched from any more
        self.log: list[tuple[int, str, str, Thing]] = []  # (version, plural, type, object)
        self._things: dict[tuple[str, str, str], Thing] = {}

    def create(self, plural: str, thing: Thing, namespace: str = HOME, strict: bool = False) -> Thing:
        """A new object; 409 where the name is taken, 422 where the definition refuses it."""
        with self.lock:
            meta = copy.deepcopy(thing.get("metadata", {}))
            key = (plural, namespace, meta.get("name", ""))
            if key in self._things:
                raise Refused(409, "AlreadyExists", f'{plural} "{key[2]}" already exists')
            body = self._checked(plural, copy.deepcopy(thing), strict)
            meta |= {"namespace": namespace, "uid": str(uuid.uuid4()), "generation": 1}
            meta.setdefault("creationTimestamp", timestamp())
            body["metadata"] = meta
            return self._put(key, body, "ADDED")

    def get(self, plural: str, name: str, namespace: str = HOME) -> Thing:
        """The object; 404 where there is none."""
        with self.lock:
            if (plural, namespace, name) not in self._things:
                raise Refused(404, "NotFound", f'{plural}.ray.io "{name}" not found')
            return copy.deepcopy(self._things[plural, namespace, name])

    def list(self, plural: str, namespace: str = HOME, chosen: Choice | None = None) -> list[Thing]:
        """All of one kind, by name."""
        with self.lock:
            keys = sorted(key for key in self._things if key[:2] == (plural, namespace))
            return [copy.deepcopy(self._things[key]) for key in keys if chosen is None or chosen(self._things[key])]

    def update(
        self,
        plural: str,
        name: str,
        thing: Thing,
        namespace: str = HOME,
        status: bool = False,
        strict: bool = False,
    ) -> Thing:
        """Replace all but the status, or the status alone; 409 when `thing` carries an older version."""
        with self.lock:
            old = self.get(plural, name, namespace)
            sent = thing.get("metadata", {}).get("resourceVersion")
            if sent and sent != old["metadata"]["resourceVersion"]:
                raise Refused(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on {plural}.ray.io "{name}": the object has been modified; '
                    "please apply your changes to the latest version and try again",
                )
            if status:
                new = {**old, "status": copy.deepcopy(thing.get("status", {}))}
            else:
                new = {**copy.deepcopy(thing), "status": old["status"]} if "status" in old else copy.deepcopy(thing)
                if plural not in self.definitions and "status" in thing:
                    new["status"] = copy.deepcopy(thing["status"])  # pods are written whole by tests
            new = self._checked(plural, new, strict)
            changed = new.get("spec") != old.get("spec")
            fixed = ("name", "namespace", "uid", "creationTimestamp")
            meta = {**new["metadata"], **{key: old["metadata"][key] for key in fixed}}
            meta["generation"] = old["metadata"]["generation"] + int(changed)
            return self._put((plural, namespace, name), {**new, "metadata": meta}, "MODIFIED")

    def change(self, plural: str, name: str, edit: Callable[[Thing], None], status: bool = False) -> Thing:
        """Edit the newest version in place."""
        with self.lock:
            thing = self.get(plural, name)
            edit(thing)
            return self.update(plural, name, thing, status=status)

    def delete(self, plural: str, name: str, namespace: str = HOME) -> Thing:
        """Take it away at once."""
        with self.lock:
            thing = self.get(plural, name, namespace)
            del self._things[plural, namespace, name]
            self.version += 1
            thing["metadata"]["resourceVersion"] = str(self.version)
            self.log.append((self.version, plural, "DELETED", thing))
            return thing

    def expire(self) -> None:
        """Forget the log: no watch can begin at a version before this."""
        with self.lock:
            self.version += 1
            self.expired_before = self.version

    def _checked(self, plural: str, thing: Thing, strict: bool) -> Thing:
        definition = self.definitions.get(plural)
        if definition is None:
            return thing
        if strict and (unknown := definition.unknown(thing)):
            raise Refused(400, "BadRequest", f"strict decoding error: unknown field {', '.join(unknown)}")
        thing = definition.completed(thing)
        if faults := list(definition.errors(thing)):
            raise Refused(422, "Invalid", f"{definition.kind} is invalid: {'; '.join(faults[:3])}")
        return thing

    def _put(self, key: tuple[str, str, str], thing: Thing, event: str) -> Thing:
        same = {**thing, "metadata": {**thing["metadata"], "resourceVersion": ""}}
        old = self._things.get(key)
        if old is not None and {**old, "metadata": {**old["metadata"], "resourceVersion": ""}} == same:
            return copy.deepcopy(old)  # as the real server: nothing changed, no new version
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self._things[key] = thing
        self.log.append((self.version, key[0], event, copy.deepcopy(thing)))
        return copy.deepcopy(thing)


def json_patched(thing: Thing, operations: list[Thing]) -> Thing:
    """RFC 6902 without move and copy; 422 for a test that fails and a path that is not there."""
    thing = copy.deepcopy(thing)
    for operation in operations:
        op, path = operation["op"], operation["path"]
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
        try:
            place: Any = thing
            for part in parents:
                place = place[int(part)] if isinstance(place, list) else place[part]
            _operate(place, op, last, operation.get("value"))
        except (KeyError, IndexError, TypeError, ValueError):
            raise Refused(422, "Invalid", f"{op} operation does not apply: doc is missing path: {path}") from None
    return thing


def _operate(place: Any, op: str, last: str, value: Any) -> None:
    key: Any = last
    if isinstance(place, list):
        key = len(place) if last == "-" else int(last)
    if op == "test":
        if place[key] != value or isinstance(place[key], bool) != isinstance(value, bool):
            raise Refused(422, "Invalid", f"testing value {last} failed: test failed")
    elif op == "remove":
        del place[key]
    elif op == "replace":
        _ = place[key]  # it must be there
        place[key] = value
    elif op == "add":
        if isinstance(place, list):
            place.insert(key, value)
        else:
            place[key] = value
    else:
        raise Refused(400, "BadRequest", f"Unexpected kind: {op}")


def merge_patched(thing: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(thing) if isinstance(thing, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patched(merged.get(key), value)
    return merged
