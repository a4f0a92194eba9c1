/** Programs and equations as text, exactly as JAX prints a jaxpr. */

import type { Model } from "../model/model";
import { brk, concat, type Doc, group, join, laidOut, nest } from "../ui/doc";

/** A nested program with more equations than this is named and printed first, like one that is used several times. */
const LONG_PROGRAM = 10;

/** A stage as JAX prints it: `{ lambda ; a:f32[3]. let b:f32[3] = sin a in (b,) }`. */
export function jaxprText(model: Model, stage: number): string {
  const [first, end] = model.view.stages[stage]!.programs;
  return end > first ? laidOut(new Printer(model).toplevel(first)) : "";
}

/** Equations as JAX prints them, one per line, with their nested programs inline. */
export function equationsText(model: Model, rows: readonly number[]): string {
  const printer = new Printer(model);
  return rows.map((row) => laidOut(printer.equation(row))).join("\n");
}

class Printer {
  /** The names of programs that are printed first, by `key`. */
  private readonly names = new Map<string, string>();

  constructor(private readonly model: Model) {}

  toplevel(program: number): Doc {
    const shared = this.shared(program);
    const parts = shared.map(([name, p]) => concat("let ", name, " = ", this.skeleton(p), " in", brk()));
    return concat(...parts, this.skeleton(program));
  }

  /** The programs that are printed first, in the order in which JAX visits them: outermost first. */
  private shared(top: number): [string, number][] {
    const { model } = this;
    const found = new Map<string, { program: number; times: number; name: string }>();
    const todo = [{ program: top, name: "jaxpr" }];
    for (let i = 0; i < todo.length; i++) {
      const { program, name } = todo[i]!;
      const key = this.key(program);
      const rows = model.rowsOf(program);
      const seen = found.get(key) ?? { program, times: 0, name };
      seen.times += program !== top && rows.length > LONG_PROGRAM ? 2 : 1;
      found.set(key, seen);
      for (const row of rows) {
        const inner = model.called(row).replace(/^[<>]+|[<>]+$/g, "") || "jaxpr";
        for (const p of model.nested(row)) todo.push({ program: p, name: inner });
      }
    }
    const counts = new Map<string, number>();
    const shared: [string, number][] = [];
    for (const [key, { program, times, name }] of found) {
      if (times === 1) continue;
      const count = counts.get(name) ?? 0;
      const own = count > 0 ? `${name}${count}` : name;
      counts.set(name, count + 1);
      this.names.set(key, own);
      shared.push([own, program]);
    }
    return shared;
  }

  /** A key that programs with the same equations share. */
  private key(program: number): string {
    const rows = this.model.rowsOf(program);
    return rows.length === 0 ? `program ${program}` : rows.map((row) => this.model.first(row)).join();
  }

  private program(program: number): Doc {
    return this.names.get(this.key(program)) ?? this.skeleton(program);
  }

  private skeleton(program: number): Doc {
    const { model } = this;
    const binders = model.binders(program);
    const n = model.constants(program);
    const results = model.results(program);
    const equations = model.rowsOf(program).map((row) => this.equation(row));
    const text = concat(
      "{ lambda ",
      this.binders(binders.slice(0, n)),
      "; ",
      this.binders(binders.slice(n)),
      ". let",
      nest(2, concat(brk(), join(brk("; "), equations))),
      brk(),
      "in (",
      this.atoms(results, ","),
      results.length === 1 ? ",)" : ")",
    );
    return concat(group(nest(2, text)), " }");
  }

  equation(row: number): Doc {
    const { model } = this;
    const outputs = model.outputs(row);
    const made = outputs.length > 0 ? concat(this.binders(outputs), " = ") : "";
    return concat(made, model.primitive(row), this.params(row), " ", this.atoms(model.inputs(row)));
  }

  private params(row: number): Doc {
    const params = this.model.printed(row);
    if (params.length === 0) return "";
    const left = this.model.nested(row).slice();
    const take = (matches: (label: string) => boolean) => {
      const taken = left.filter((p) => matches(this.model.programLabel(p)));
      for (const p of taken) left.splice(left.indexOf(p), 1);
      return taken;
    };
    const parts = params.map((param): Doc => {
      if (param.includes("=")) {
        const texts = param.split("{}");
        const holes = texts
          .slice(1)
          .map((text) => concat(left.length ? this.program(left.shift()!) : "{}", text));
        return concat(texts[0]!, ...holes);
      }
      const [one] = take((label) => label === param);
      if (one !== undefined) return concat(`${param}=`, this.program(one));
      const several = take((label) => label.startsWith(`${param}[`)).map((p) => this.program(p));
      return concat(
        `${param}=`,
        group(concat(nest(2, concat("(", brk(""), join(brk(), several))), brk(""), ")")),
      );
    });
    return group(concat(nest(2, concat("[", brk(""), join(brk(), parts))), brk(""), "]"));
  }

  private binders(variables: readonly number[]): Doc {
    const typed = variables.map((v) => `${this.model.atomText(v)}:${this.model.atomType(v)}`);
    return nest(2, group(join(group(brk()), typed)));
  }

  private atoms(atoms: readonly number[], separator = ""): Doc {
    const { model } = this;
    const texts = atoms.map((a) =>
      a >= 0 ? model.atomText(a) : `${model.atomText(a)}:${model.atomType(a)}`,
    );
    return nest(2, group(join(concat(separator, group(brk())), texts)));
  }
}
