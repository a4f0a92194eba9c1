/** Lays out text within a line width, like JAX's printer: Wadler, "A prettier printer". */

export type Doc =
  | string
  | { kind: "break"; text: string }
  | { kind: "concat"; parts: readonly Doc[] }
  | { kind: "nest"; by: number; doc: Doc }
  | { kind: "group"; doc: Doc };

/** A line break, or `text` if its group fits on one line. */
export const brk = (text = " "): Doc => ({ kind: "break", text });
export const concat = (...parts: Doc[]): Doc => ({ kind: "concat", parts });
export const nest = (by: number, doc: Doc): Doc => ({ kind: "nest", by, doc });
export const group = (doc: Doc): Doc => ({ kind: "group", doc });
export const join = (separator: Doc, docs: readonly Doc[]): Doc => ({
  kind: "concat",
  parts: docs.flatMap((doc, i) => (i > 0 ? [separator, doc] : [doc])),
});

interface Todo {
  indent: number;
  isFlat: boolean;
  doc: Doc;
}

/** Prints a document with lines of at most `width` characters, as far as its breaks allow. */
export function laidOut(doc: Doc, width = 80): string {
  const out: string[] = [];
  let column = 0;
  const todo: Todo[] = [{ indent: 0, isFlat: false, doc }];
  for (let next = todo.pop(); next !== undefined; next = todo.pop()) {
    const { indent, isFlat, doc } = next;
    if (typeof doc === "string") {
      out.push(doc);
      column += doc.length;
    } else if (doc.kind === "break" && isFlat) {
      out.push(doc.text);
      column += doc.text.length;
    } else if (doc.kind === "break") {
      out.push(`\n${" ".repeat(indent)}`);
      column = indent;
    } else if (doc.kind === "concat")
      for (let i = doc.parts.length - 1; i >= 0; i--) todo.push({ indent, isFlat, doc: doc.parts[i]! });
    else if (doc.kind === "nest") todo.push({ indent: indent + doc.by, isFlat, doc: doc.doc });
    else todo.push({ indent, isFlat: isFlat || fits(doc.doc, width - column), doc: doc.doc });
  }
  return out.join("");
}

/** Whether a group fits on the rest of the line; as in JAX, regardless of what follows it. */
function fits(doc: Doc, room: number): boolean {
  const todo: Doc[] = [doc];
  let left = room;
  for (let next = todo.pop(); next !== undefined && left >= 0; next = todo.pop()) {
    if (typeof next === "string") left -= next.length;
    else if (next.kind === "break") left -= next.text.length;
    else if (next.kind === "concat")
      for (let i = next.parts.length - 1; i >= 0; i--) todo.push(next.parts[i]!);
    else todo.push(next.doc);
  }
  return left >= 0;
}
