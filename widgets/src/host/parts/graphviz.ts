/** Graphviz, as WebAssembly: 0.6 MB, which a notebook requests from the kernel and a saved page includes only on request. */

import { Graphviz } from "@hpcc-js/wasm-graphviz";
import type { Dot } from "../../graph/layout/graphviz";

/** The program `dot`; rejected on pages that do not allow WebAssembly. */
export async function loadDot(): Promise<Dot> {
  const graphviz = await Graphviz.load();
  // The package's types omit this format, which has positions only.
  return (text) => graphviz.layout(text, "json0" as "json", "dot");
}
