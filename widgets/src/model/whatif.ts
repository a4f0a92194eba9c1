/** What comes of saving each value of a function or of computing it again, without Python: mirrors `jaxviz/features/explorer/whatif.py`. */

import type { Buffer, MemoryKind, Step, Timeline } from "./timeline";

export interface Table {
  function: string;
  kinds: MemoryKind[];
  /** What could be saved, by name. */
  values: { what: number; type: number; nbytes: number; row: number }[];
  slots: {
    nbytes: number[];
    type: number[];
    /** Bytes of an input of the function, which is kept where it is read again; -1 for others. */
    input: number[];
    /** What holds it in the timeline, or -1. */
    buffer: number[];
    /** What a slot is made from, where its node makes others from something else, as a cond does. */
    reads: Record<string, number[]>;
    /** For what an iteration of a scan gets from the one before: the slots of the first one's and of the one before's. */
    carried: number[][];
  };
  nodes: {
    value: number[];
    flops: number[];
    loop: number[];
    isForward: number[];
    isView: number[];
    isFree: number[];
    mayReuse: number[];
    what: number[];
    /** The equation of the function as written that each came from, or -1. */
    row: number[];
    reads: number[][];
    makes: number[][];
  };
  /** What the backward pass reads. */
  needed: number[];
  loops: { forward: number; backward: number; row: number }[];
  turn: number;
  /** The steps of the timeline where all is kept, and the needed slots that each of the backward pass reads. */
  steps: { what: number; row: number; reads: number[] }[];
  /** Bytes, kind, first step, last step, last step of the forward pass that needs it, name, type, row. */
  buffers: [number, number, number, number, number, number, number, number][];
  /** Steps that run a body, and the bytes that it takes for itself. */
  inside: [number, number][];
  everything: { nbytes: number; flops: number; work: number };
  present: { nbytes: number; flops: number; peak: number; saved: number[] };
  /** For each residual the values that a checkpoint saves in its place: as near as a name can stand to what it is made from. */
  residuals: number[][];
  least: number;
  plans: number[][];
  places: Place[];
  /** Names that the function gives already. */
  taken: string[];
  strings: string[];
}

/** An expression of the source that can be given a name, and the values that get it. */
export interface Place {
  name: string;
  file: string;
  line: number;
  /** The operation that makes the values, their type, and how many there are. */
  expression: string;
  type: string;
  count: number;
  /** The lines that it stands in, and where in them it starts and ends, in characters; empty where they are not at hand. */
  source: string;
  start: number;
  end: number;
  /** For a statement such as `x += y`, the variable that is named after it. */
  target: string;
  values: number[];
}

export interface Outcome {
  /** Those of the values that are saved and read. */
  saved: Set<number>;
  /** The nodes that are computed again. */
  again: Set<number>;
  nbytes: number;
  flops: number;
}

const NONE = -1;

export class WhatIf {
  /** The node that makes each slot, or -1. */
  readonly maker: Int32Array;

  constructor(readonly table: Table) {
    this.maker = new Int32Array(table.slots.nbytes.length).fill(NONE);
    table.nodes.makes.forEach((slots, node) => {
      for (const slot of slots) this.maker[slot] = node;
    });
  }

  /** What JAX holds and computes again with one checkpoint around the function that saves these values. */
  outcome(chosen: ReadonlySet<number>): Outcome {
    const { nodes, slots, values, needed } = this.table;
    const pending = [...needed];
    const seen = new Set<number>();
    const again = new Set<number>();
    const saved = new Set<number>();
    let [nbytes, flops] = [0, 0];
    for (let slot = pending.pop(); slot !== undefined; slot = pending.pop()) {
      if (seen.has(slot)) continue;
      seen.add(slot);
      const carried = slots.carried[slot]!;
      const node = this.maker[slot]!;
      const value = node === NONE ? NONE : nodes.value[node]!;
      if (carried.length) pending.push(...carried);
      else if (node === NONE) nbytes += Math.max(0, slots.input[slot]!);
      else if (value !== NONE && chosen.has(value)) {
        if (!saved.has(value)) nbytes += values[value]!.nbytes;
        saved.add(value);
      } else {
        pending.push(...(slots.reads[slot] ?? nodes.reads[node]!));
        if (!again.has(node)) flops += nodes.flops[node]!;
        again.add(node);
      }
    }
    return { saved, again, nbytes, flops };
  }

  /** The bytes alive over the two passes, as modelled: what is computed again comes right before it is read. */
  timeline(outcome: Outcome): Timeline {
    return new Rerun(this, outcome).timeline();
  }
}

/** A buffer under way. */
interface Draft extends Buffer {
  /** What is written into its memory leaves it one step early. */
  isTaken: boolean;
}

/** The timeline where all is kept, gone through again with some of it computed again. */
class Rerun {
  private readonly table: Table;
  private readonly maker: Int32Array;
  private readonly steps: Step[] = [];
  /** What the slots that are computed again are held by; null where nothing is. */
  private readonly made = new Map<number, Draft | null>();
  /** Values of the bodies of scans, and of shard_maps, that leave them because they are saved. */
  private readonly stacked = new Map<number, Draft>();
  /** The last step of the backward pass that reads a buffer of the given timeline. */
  private readonly lastRead = new Map<number, number>();
  /** Nodes with a step of their own, and what they read and make. */
  private readonly reuses: { step: number; reads: Draft[]; result: Draft }[] = [];
  /** Steps that run a body, the bytes that it takes for itself, and the row. */
  private readonly insides: [number, number, number][] = [];
  private readonly inserted = new Set<number>();
  /** What is read outside of the loop that it is made in, and so stacked up there. */
  private readonly leaves: Set<number>;

  constructor(
    whatIf: WhatIf,
    private readonly outcome: Outcome,
  ) {
    this.table = whatIf.table;
    this.maker = whatIf.maker;
    this.leaves = new Set(this.table.needed);
    const { loop, reads } = this.table.nodes;
    for (const node of outcome.again)
      for (const slot of reads[node]!) {
        const maker = this.maker[slot]!;
        if (maker !== NONE && loop[maker] !== loop[node]) this.leaves.add(slot);
      }
  }

  timeline(): Timeline {
    const { steps, turn, slots, needed, buffers, strings, kinds } = this.table;
    const neededOf = new Map<number, number[]>();
    for (const slot of needed) {
      const buffer = slots.buffer[slot]!;
      neededOf.set(buffer, [...(neededOf.get(buffer) ?? []), slot]);
    }
    const placeOf: number[] = [];
    steps.forEach((step, i) => {
      this.compute(step.reads);
      placeOf.push(this.step(step.what, step.row, i >= turn, false));
      for (const slot of step.reads) this.touch(slot);
    });
    const end = this.steps.length;
    const at = (i: number) => placeOf[i] ?? end;
    const lastReadBefore = new Map<number, number>();
    steps.forEach((step, i) => {
      for (const slot of step.reads) lastReadBefore.set(slots.buffer[slot]!, i);
    });
    const drafts: Draft[] = [];
    buffers.forEach(([nbytes, kind, born, last, lastForward, name, type, row], i) => {
      if (nbytes === 0) return;
      const draft: Draft = {
        nbytes,
        kind: kinds[kind]!,
        born: at(born),
        last: at(last),
        row,
        name: strings[name]!,
        type: strings[type]!,
        residuals: [],
        isTaken: false,
      };
      const slotsHeld = neededOf.get(i);
      const read = this.lastRead.get(i);
      if (draft.kind === "residual" || draft.kind === "temporary") {
        if (read !== undefined) {
          draft.kind = "residual";
          // Where the given timeline writes a result into it, so does this one.
          const isTaken = slotsHeld !== undefined && last < lastReadBefore.get(i)!;
          draft.last = Math.max(isTaken ? read - 1 : read, draft.born);
        } else if (slotsHeld !== undefined) {
          if (!slotsHeld.some((slot) => this.isForward(slot))) return;
          draft.kind = "temporary";
          draft.last = at(lastForward);
        }
      }
      drafts.push(draft);
    });
    this.reuse();
    for (const made of new Set(this.made.values())) if (made) drafts.push(made);
    drafts.push(...this.stacked.values());
    for (const [i, nbytes] of this.table.inside) this.insides.push([at(i), nbytes, steps[i]!.row]);
    for (const [step, nbytes, row] of this.insides)
      drafts.push({
        nbytes,
        kind: "temporary",
        born: step,
        last: step,
        row,
        name: "inside the loop",
        type: "",
        residuals: [],
        isTaken: false,
      });
    return {
      steps: this.steps,
      buffers: drafts
        .filter((draft) => draft.nbytes > 0 && draft.last - Number(draft.isTaken) >= draft.born)
        .map(({ isTaken, ...draft }) => ({ ...draft, last: draft.last - Number(isTaken) })),
    };
  }

  private step(what: number, row: number, isBackward: boolean, isAgain: boolean): number {
    const name = this.table.strings[what]!;
    this.steps.push({ what: isAgain ? `${name}, computed again` : name, row, isBackward });
    return this.steps.length - 1;
  }

  private isForward(slot: number): boolean {
    const node = this.maker[slot]!;
    return node === NONE || this.table.nodes.isForward[node] === 1;
  }

  private isSaved(slot: number): boolean {
    const node = this.maker[slot]!;
    return node !== NONE && this.outcome.saved.has(this.table.nodes.value[node]!);
  }

  /** Steps for what has to be computed again before some slots are read. */
  private compute(read: number[]): void {
    const { nodes, loops, slots } = this.table;
    const now = new Set<number>();
    const loopsNow = new Set<number>();
    const pending = [...read];
    for (let slot = pending.pop(); slot !== undefined; slot = pending.pop()) {
      pending.push(...slots.carried[slot]!);
      const node = this.maker[slot]!;
      if (node === NONE || this.isSaved(slot) || this.inserted.has(node) || !this.outcome.again.has(node))
        continue;
      this.inserted.add(node);
      now.add(node);
      pending.push(...nodes.reads[node]!);
      const loop = nodes.loop[node]!;
      if (loop === NONE || loopsNow.has(loop)) continue;
      // A scan is run again as a whole.
      loopsNow.add(loop);
      for (const other of this.outcome.again)
        if (nodes.loop[other] === loop) pending.push(...nodes.makes[other]!);
    }
    const inside = new Map(this.table.inside);
    let [loopUnderWay, step] = [NONE, NONE];
    for (const node of [...now].sort((a, b) => a - b)) {
      const loop = nodes.loop[node]!;
      if (loop === NONE || loop !== loopUnderWay) {
        const scan = loop === NONE ? null : loops[loop]!;
        const what = scan ? this.table.steps[scan.forward]!.what : nodes.what[node]!;
        step = this.step(what, scan ? scan.row : nodes.row[node]!, true, true);
        if (scan) this.insides.push([step, inside.get(scan.forward) ?? 0, scan.row]);
      }
      loopUnderWay = loop;
      const reads = nodes.reads[node]!.map((slot) => this.touch(slot)).filter((draft) => draft !== null);
      for (const slot of nodes.makes[node]!) {
        if (loop !== NONE) {
          if (this.leaves.has(slot)) this.made.set(slot, this.draft(slot, step, "temporary"));
        } else if (nodes.isView[node]) this.made.set(slot, reads[0] ?? null);
        else if (nodes.isFree[node]) this.made.set(slot, null);
        else {
          const result = this.draft(slot, step, "temporary");
          this.made.set(slot, result);
          if (nodes.mayReuse[node]) this.reuses.push({ step, reads, result });
        }
      }
    }
  }

  private draft(slot: number, born: number, kind: MemoryKind): Draft {
    const { nodes, slots, strings } = this.table;
    const node = this.maker[slot]!;
    const name = strings[nodes.what[node]!]!;
    const type = strings[slots.type[slot]!]!;
    const row = nodes.row[node]!;
    return {
      nbytes: slots.nbytes[slot]!,
      kind,
      born,
      last: born,
      row,
      name,
      type,
      residuals: [],
      isTaken: false,
    };
  }

  /** Notes that the last step reads a slot; what holds it, if it is not of the given timeline. */
  private touch(slot: number): Draft | null {
    const { slots, nodes, loops } = this.table;
    const step = this.steps.length - 1;
    const made = this.made.get(slot);
    if (made) made.last = step;
    if (this.made.has(slot)) return made ?? null;
    const buffer = slots.buffer[slot]!;
    const isInput = this.maker[slot] === NONE;
    if (!isInput && !this.isSaved(slot)) return null;
    if (buffer !== NONE || isInput) {
      if (buffer !== NONE) this.lastRead.set(buffer, step);
      return null;
    }
    const scan = loops[nodes.loop[this.maker[slot]!]!];
    const stack =
      this.stacked.get(slot) ?? this.draft(slot, scan?.forward ?? this.table.turn - 1, "residual");
    stack.last = Math.max(step, stack.last);
    this.stacked.set(slot, stack);
    return stack;
  }

  /** Lets results of what is computed again be written into operands that die there. */
  private reuse(): void {
    for (const { step, reads, result } of this.reuses) {
      const operand = reads.find(
        (draft) =>
          !draft.isTaken && draft.last === step && draft.born < step && draft.nbytes === result.nbytes,
      );
      if (operand) operand.isTaken = true;
    }
  }
}
