/** Graphviz, as WebAssembly: 0.6 MB, which a notebook requests from the kernel and a saved page includes only on request. */

import { Graphviz } from "@hpcc-js/wasm-graphviz";
import type { Dot } from "../../graph/layout/graphviz";

/** The program `dot`; rejected on a page that lets no WebAssembly be compiled. */
export async function loadDot(): Promise<Dot> {
  const graphviz = await Graphviz.load();
  // The types of the package leave out a format that Graphviz has: positions alone, without what is drawn.
  return (text) => graphviz.layout(text, "json0" as "json", "dot");
}
