"""Tapes with operators that other processes take part in: run as one program, or part by part.

Which of the two, the processes decide together (`Joint.propose`). Part by part means: what their tapes
begin with alike, up to a joint operator, is one program (`Joint.beginning`), and the processes decide about
the rest anew. Where that is nothing, what is before the first joint operator is a program, and that operator
runs alone. So ranks that read at other places are together again behind the next collective. Where each has
an optimizer's step of its own at the end, everything before that is one program.

A tape may have the operators of several joints, and one that knows them all. Where its processes do not
come to run that, it is run as several tapes: each up to where the operator of another joint comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_pjrt.client.stack_elements import spread
from torch_pjrt.compile.joint import Answer, digest_of, joint_nodes, texts_of
from torch_pjrt.compile.programs import is_compiled, key_of, program_for
from torch_pjrt.graph.graph import Graph, Node, graph_of
from torch_pjrt.graph.tape import Tape, Value

if TYPE_CHECKING:
    from torch_pjrt.compile.joint import Joint

Arrays = dict[int, Any]  # by numbers of a tape

# How many programs may be tried after a failure.
_ATTEMPTS = 32


def asked(
    tape: Tape, live: tuple[int, ...], reusable: Mapping[int, int], cause: object
) -> Answer | None:
    """What all processes do with this tape: run it as one program, which they have compiled then, or not.

    None: it is not known what the others do. `LaunchRefused` where they cannot be asked.
    """
    joint: Joint = tape.joint
    key = key_of(tape, live)
    if any(len(sharding.device_set) > 1 for sharding in key[-1]):
        return None
    found = digest_of(key, tape, live, reusable)
    if found is None:
        tape.joint = None
        return Answer.TOGETHER
    digest, first = found
    answer = joint.propose(digest, is_compiled(key, tuple(reusable)), first)
    if answer is not Answer.COMPILE:
        return answer
    has_failed = True
    try:
        if live:
            program_for(tape, live, reusable, cause)
        has_failed = False
    except Exception:  # it is met again where the part at fault is compiled alone
        pass
    finally:
        have_all = joint.have_compiled(digest, has_failed)
    return Answer.TOGETHER if have_all else None


def run_apart(
    tape: Tape,
    live: tuple[int, ...],
    reusable: Mapping[int, int],
    cause: object,
    answer: Answer | None,
) -> None:
    """Run a tape part by part, and give its live values what they hold.

    answer   what all processes know that they are to do with it; None, if they know nothing.

    Whatever is raised, the tape has ended: what does not depend on what failed is there.
    """
    run = _Run(tape, live, reusable, cause)
    try:
        run.all(answer)
    except BaseException as error:
        tape.failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        run.salvage()
        raise
    finally:
        run.store()
        tape.ended = True


def fail(tape: Tape, live: tuple[int, ...], cause: object, error: Exception) -> None:
    """The program of a tape has failed, or the others cannot be asked: compute what needs none of them."""
    run = _Run(tape, live, {}, cause)
    tape.failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    run.salvage()
    run.store()
    tape.ended = True


class _Run:
    """A tape that is run part by part.

    arrays    what is there, by the tape's numbers.
    position  the first node that has not run.
    """

    def __init__(
        self, tape: Tape, live: tuple[int, ...], reusable: Mapping[int, int], cause: object
    ) -> None:
        self.tape, self.live, self.reusable, self.cause = tape, live, reusable, cause
        self.graph = graph_of(tape, live)
        self.nodes = self.graph.nodes
        self.joint_at = joint_nodes(self.graph)
        self.arrays: Arrays = {-i - 1: value.array for i, value in enumerate(tape.inputs)}
        self.position = 0

    def all(self, answer: Answer | None) -> None:
        """Run everything. `answer`: as all processes know that they are to run it."""
        joint: Joint = self.tape.joint
        end = len(self.nodes)
        rest: _Part | None = None
        for at in self.joint_at:
            if at < self.position:
                continue
            if self.position:
                own = self._own_joint(joint, self._left())
                if own is not joint:
                    self._as_a_tape(end, own)
                    return
                rest = self._part(self.nodes[self.position :], end, joint)
                answer = asked(rest.tape, rest.live, rest.reusable, self.cause)
                if answer is Answer.TOGETHER:
                    rest.run()
                    return
            if answer is Answer.APART:
                of_beginning = self._beginning(joint, rest)
                if of_beginning is Answer.TOGETHER:
                    continue
                answer = of_beginning or answer
            if answer is not Answer.APART and (
                answer is Answer.SPLIT or self._own_joint(joint, [at]) is not joint
            ):
                self._by_joints(joint)
                return
            self._part(self.nodes[self.position : at], at).run()
            self.position = at
            node = self.nodes[at]
            if answer is None:
                joint.alone(node)
            _Part(self, [node], set(node.outputs), joint, is_last=False).run()
            self.position = at + 1
        self._part(self.nodes[self.position :], end).run()

    def _beginning(self, joint: Joint, rest: _Part | None) -> Answer | None:
        """Run what all processes begin with alike as one program, if it is more than one joint operator.

        Each compares what it has just proposed: its tape, or the rest of it. `TOGETHER`: it has run; `SPLIT`:
        they have not come to that.
        """
        tape, live, names = self.tape, self.live, None
        if rest is not None:
            tape, live, names = rest.tape, rest.live, rest.names
        graph = self.graph if rest is None else graph_of(tape, live)
        ends = [at + 1 for at in joint_nodes(graph)]
        n, wanted = joint.beginning(
            lambda: texts_of(tape, graph), lambda n: _needed_behind(graph, live, ends[n - 1])
        )
        if not n or ends[n - 1] == 1:
            return None
        end = self.position + ends[n - 1]
        own = {names[number] for number in wanted} if names is not None else set(wanted)
        part = _Part(self, self.nodes[self.position : end], own, joint, is_last=False)
        answer = asked(part.tape, part.live, {}, self.cause)
        if answer is not Answer.TOGETHER:
            return answer if answer is Answer.SPLIT else None
        part.run()
        self.position = end
        return answer

    def _by_joints(self, whole: Joint) -> None:
        """Run the rest as several tapes, each up to where the operator of another joint comes."""
        while left := self._left():
            own = self._own_joint(whole, left[:1])
            others = (at for at in left if self._own_joint(whole, [at]) is not own)
            self._as_a_tape(next(others, len(self.nodes)), own)
        self._part(self.nodes[self.position :], len(self.nodes)).run()

    def _left(self) -> list[int]:
        """Where the joint operators are that have not run."""
        return [at for at in self.joint_at if at >= self.position]

    def _own_joint(self, whole: Joint, positions: Sequence[int]) -> Joint:
        """The joint that these of the operators need."""
        return whole.of([self.nodes[at] for at in positions])

    def _as_a_tape(self, end: int, joint: Joint) -> None:
        """Run what is before `end` as a tape of its own."""
        self._part(self.nodes[self.position : end], end, joint).run_asking()
        self.position = end

    def _part(self, nodes: Sequence[Node], end: int, joint: Joint | None = None) -> _Part:
        """These nodes, of which those from `end` on are none."""
        read = {n for node in self.nodes[end:] for n in node.inputs}
        return _Part(self, nodes, read.union(self.live), joint, is_last=end == len(self.nodes))

    def salvage(self) -> None:
        """Compute of what has not run what needs no other process.

        What needs a collective is lost, also what it was to write in place: whoever holds it would take what
        was there before for the result.
        """
        first = next((at for at in self.joint_at if at >= self.position), len(self.nodes))
        self._try(self.nodes[self.position : first], first)
        if first == len(self.nodes):
            return
        there = set(self.arrays)
        kept: list[Node] = []
        for number, other in enumerate(self.nodes[first + 1 :], first + 1):
            if number not in self.joint_at and there.issuperset(other.inputs):
                kept.append(other)
                there.update(other.outputs)
        self._try(kept, len(self.nodes))

    def _try(self, nodes: Sequence[Node], end: int) -> None:
        """Compute what can be of these nodes: by halves, and the halves of halves that fail."""
        part = self._part(nodes, end)
        attempts, left = [part.live], _ATTEMPTS
        while attempts and left:
            live, left = attempts.pop(0), left - 1
            try:
                part.run(live)
            except Exception:  # the error that counts has been raised
                middle = len(live) // 2
                attempts += [live[:middle], live[middle:]] if middle else []

    def store(self) -> None:
        """The live values have their arrays."""
        for number in self.live:
            if number in self.arrays:
                self.tape.values[number].array = self.arrays[number]


def _needed_behind(graph: Graph, live: Sequence[int], end: int) -> list[int]:
    """Of what the nodes before `end` make, what others read, or is live."""
    made = {n for node in graph.nodes[:end] for n in node.outputs}
    read = {n for node in graph.nodes[end:] for n in node.inputs}
    return sorted(made & read.union(live))


class _Part:
    """Some nodes of a tape, in order, on a tape of their own, as if they had been recorded there.

    names   of what its tape makes, by its numbers, the numbers on the whole tape.
    """

    def __init__(
        self,
        run: _Run,
        nodes: Sequence[Node],
        wanted: set[int],
        joint: Joint | None,
        *,
        is_last: bool,
    ) -> None:
        self._run = run
        self.tape = Tape()
        self.tape.code = []
        self.tape.joint = joint
        self._numbers: dict[int, int] = {}
        self._draws: dict[int, tuple[int, int]] = {}
        for node in nodes:
            self._record(node)
        made = {n for node in nodes for n in node.outputs}
        self.names = {self._numbers[n]: n for n in made}
        self.live = tuple(sorted(self._numbers[n] for n in made & wanted))
        self.reusable = self._reusable() if is_last else {}

    def _record(self, node: Node) -> None:
        tape, run = self.tape, self._run
        code: list[Any] = [node.signature]
        for n, spec in zip(node.inputs, node.signature.specs, strict=True):
            if n not in self._numbers:
                self._numbers[n] = tape.take(Value.of_array(spec, run.arrays[n]))
            code.append(self._numbers[n])
        if node.draw is not None:
            code += self._drawn(node.draw.seeding, node.draw.index)
        tape.code += code
        for number in node.numbers:
            if number.kind is int:
                tape.ints.append(run.tape.ints[number.index])
            else:
                tape.floats.append(run.tape.floats[number.index])
        first = tape.size
        for i, (n, spec) in enumerate(zip(node.outputs, node.signature.outs, strict=True)):
            self._numbers[n] = first + i
            tape.values.append(Value(spec, first + i, tape))
        tape.size += len(node.outputs)
        tape.n_further += len(node.outputs) - 1

    def _drawn(self, seeding: int, index: int) -> tuple[int, int]:
        """The draw, counted from the first of this part: as a process counts that has recorded no more."""
        if seeding not in self._draws:
            seed, offset = self._run.tape.draws[seeding]
            self._draws[seeding] = len(self.tape.draws), index
            self.tape.draws.append((seed, offset + index))
        number, first = self._draws[seeding]
        return number, index - first

    def _reusable(self) -> dict[int, int]:
        """As `sync.reusable_inputs`. Only of the last part: another may read an input after it."""
        numbers, there = self._numbers, set(self.live)
        found = {
            numbers[origin]: numbers[made]
            for origin, made in self._run.reusable.items()
            if origin in numbers and numbers.get(made) in there
        }
        return {origin: found[origin] for origin in sorted(found, reverse=True)}

    def run(self, only: tuple[int, ...] | None = None) -> None:
        """Run it as one program; what it gives is among the arrays; `only` these, if given."""
        live, reusable = (self.live, self.reusable) if only is None else (only, {})
        if not live:
            return
        program = program_for(self.tape, live, reusable, self._run.cause)
        box: list[Any] = []
        program.run(self.tape, reusable, box)
        arrays = spread(program.boundary, box[0])
        for number, array in zip(program.outputs, arrays, strict=True):
            self._run.arrays[self.names[number]] = array

    def run_asking(self) -> None:
        """Run it as a tape of its own, of which the others are asked; what could be computed is there."""
        if self.tape.joint is None:
            self.run()
            return
        answer = asked(self.tape, self.live, self.reusable, self._run.cause)
        if answer is Answer.TOGETHER:
            self.run()
            return
        try:
            run_apart(self.tape, self.live, self.reusable, self._run.cause, answer)
        finally:
            for number in self.live:
                array = self.tape.values[number].array
                if array is not None:
                    self._run.arrays[self.names[number]] = array
