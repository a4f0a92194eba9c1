/** Stylesheets, which are strings in the modules. */

import { remembered } from "../base/maps";
import { h } from "./dom";

const sheetsIn = remembered((_: Node) => new Set<string>());

/** Adds a stylesheet to the document or shadow root of an element, once. */
export function addSheet(el: HTMLElement, text: string): void {
  const tree = el.getRootNode();
  const place = tree instanceof ShadowRoot ? tree : document.head;
  const there = sheetsIn(place);
  if (there.has(text)) return;
  there.add(text);
  place.append(h("style", text));
}
