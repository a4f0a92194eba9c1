/**
 * Larger parts of the page, loaded on first use.
 *
 * A part is a separate module, `src/host/parts/NAME.ts`. `build.mjs` builds each into `jaxviz/static/parts/NAME.js`, and the Python package
 * ships them. The main module may import only types from it. A part of less than 64 KB gzipped is stored in the widget with the main
 * module, so that a notebook has it without a kernel; a larger one is sent by the kernel. A saved page contains the parts, gzipped, and
 * reads them on demand; Graphviz only on request. If a part is not available, the promise is rejected with a readable message, and the
 * caller does without it.
 *
 *     const { loadDot } = await loadPart<typeof import("./parts/graphviz")>(model, "graphviz");
 *
 * A part that compiles WebAssembly needs `'wasm-unsafe-eval'` in the policy of saved pages, `jaxviz/page/html.py`.
 */

import { askFor } from "./ask";
import { held } from "./held";
import type { WidgetModel } from "./model";
import { moduleOf } from "./zip";

/** How long to wait for the kernel, which answers after the running cell. */
const PATIENCE = 10_000;

const loaded = new Map<string, Promise<unknown>>();

/** Loads a part; successful loads are cached, failed ones are tried again. */
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
