/**
 * Heavier parts of the explorer, loaded when they are first used.
 *
 * A part is a module of its own, `src/parts/NAME.ts`; `build.mjs` builds each of them into `jaxviz/static/parts/NAME.js`, and the Python
 * package ships what is there. Nothing in the main module may import it, but for its types. In a notebook the kernel sends it, gzipped;
 * a saved page holds all parts, gzipped, in blocks that are read when they are asked for. A notebook that is opened without a kernel has
 * none: the promise is then rejected, with a message for people, and whoever asked does without.
 *
 *     const { layout } = await loadPart<typeof import("./parts/graphviz")>(ask, "graphviz");
 *
 * One that compiles WebAssembly needs `'wasm-unsafe-eval'` in the policy of saved pages, `jaxviz/views/page.py`.
 */

import { type Asked, askFor } from "./ask";
import { moduleOf } from "./zip";

/** How long a kernel may take: it answers when the cell that runs is done. */
const PATIENCE = 10_000;

const loaded = new Map<string, Promise<unknown>>();

/** A part by name; what has been loaded once is not asked for again, and what failed is. */
export function loadPart<T>(
  model: Asked,
  name: string,
  milliseconds = PATIENCE,
  evaluate: (block: DataView) => Promise<unknown> = moduleOf,
): Promise<T> {
  const before = loaded.get(name);
  if (before !== undefined) return before as Promise<T>;
  const part = askFor(model, name, milliseconds).then(evaluate);
  loaded.set(name, part);
  part.catch(() => loaded.delete(name));
  return part as Promise<T>;
}
