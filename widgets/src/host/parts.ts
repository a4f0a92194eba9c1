/**
 * Heavier parts of the page, loaded when they are first used.
 *
 * A part is a module of its own, `src/parts/NAME.ts`; `build.mjs` builds each of them into `jaxviz/static/parts/NAME.js`, and the Python
 * package ships what is there. Nothing in the main module may import it, but for its types. One that takes less than 64 KB gzipped is held by
 * the widget that holds the main module, so that a notebook has it without a kernel; a larger one is sent by the kernel. A saved page holds
 * the parts, gzipped, in blocks that are read when they are asked for; Graphviz only where it is asked to. Where there is no kernel and the part is nowhere else, the
 * promise is rejected, with a message for people, and whoever asked does without.
 *
 *     const { layout } = await loadPart<typeof import("./parts/graphviz")>(model, "graphviz");
 *
 * One that compiles WebAssembly needs `'wasm-unsafe-eval'` in the policy of saved pages, `jaxviz/page/html.py`.
 */

import { askFor } from "./ask";
import { held } from "./held";
import type { WidgetModel } from "./model";
import { moduleOf } from "./zip";

/** How long a kernel may take: it answers when the cell that runs is done. */
const PATIENCE = 10_000;

const loaded = new Map<string, Promise<unknown>>();

/** A part by name; what has been loaded once is not asked for again, and what failed is. */
export function loadPart<T>(
  model: WidgetModel,
  name: string,
  milliseconds = PATIENCE,
  evaluate: (block: DataView | Uint8Array<ArrayBuffer>) => Promise<unknown> = moduleOf,
): Promise<T> {
  const before = loaded.get(name);
  if (before !== undefined) return before as Promise<T>;
  const part = held(model, name)
    .catch(() => askFor(model, name, milliseconds))
    .then(evaluate);
  loaded.set(name, part);
  part.catch(() => loaded.delete(name));
  return part as Promise<T>;
}
