/** Stylesheets, which are strings in the modules. */

import { h } from "./dom";

const styled = new WeakMap<Node, Set<string>>();

/** Adds a stylesheet to the document or shadow root of an element, once. */
export function addSheet(el: HTMLElement, text: string): void {
  const tree = el.getRootNode();
  const place = tree instanceof ShadowRoot ? tree : document.head;
  const there = styled.get(place) ?? new Set();
  if (there.has(text)) return;
  styled.set(place, there.add(text));
  place.append(h("style", text));
}
