/** Creates DOM elements. Text from programs is only ever inserted as text nodes. */

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | ((event: never) => void) | undefined>;

/**
 * An element: `h("button.jv-x", { onclick: f }, "text")`, or `h("p", "text")`. The classes that it always has follow the tag. Attributes
 * and children that are false or undefined are left out.
 */
export function h<K extends keyof HTMLElementTagNameMap>(
  selector: K | `${K}.${string}`,
  first: Attributes | Child = {},
  ...rest: Child[]
): HTMLElementTagNameMap[K] {
  const [tag, ...classes] = selector.split(".") as [K, ...string[]];
  const element = document.createElement(tag);
  if (classes.length > 0) element.className = classes.join(" ");
  const [attributes, children] = isChild(first) ? [{}, [first, ...rest]] : [first, rest];
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else if (value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const isChild = (part: Attributes | Child): part is Child =>
  typeof part !== "object" || part === null || part instanceof Node;

/** Text that may wrap after an opening bracket, a dot or a comma, and so never within a name. */
export const breakable = (text: string): Child[] =>
  text.split(/(?<=[([{.,])/).flatMap((part, i) => (i > 0 ? [h("wbr"), part] : [part]));

/** Shows "gradient of `loss` in `params`" as `loss in params`, so that the name is visible if it is cut off. */
export function heading(title: string): HTMLElement {
  const text = title.replaceAll("`", "");
  return h("strong.jv-title.jv-cut", { title: text }, text.replace(/^(gradient of|function) /, ""));
}

/** An SVG element: `svg("path", { d: "M0 0H9" })`. */
export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | number> = {},
  ...children: (Node | string)[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** The keys of a list of rows, one of which is in the tab order: arrows, Home and End move, Enter and space choose. */
export function onRowKey(
  event: KeyboardEvent,
  list: HTMLElement,
  selector: string,
  choose: () => void,
): void {
  const isChosen = event.key === "Enter" || event.key === " ";
  const rows = Array.from(list.querySelectorAll<HTMLElement>(selector));
  const at = rows.indexOf(event.currentTarget as HTMLElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (to === undefined && !isChosen) return;
  event.preventDefault();
  event.stopPropagation();
  if (isChosen) choose();
  const next = to === undefined ? undefined : rows[to];
  if (next === undefined) return;
  for (const row of rows) row.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

/** Calls back with an element's size when it is first laid out and when it changes; returns a function to stop. */
export function onResize(
  element: Element,
  callback: (width: number, height: number, pixels: number) => void,
): () => void {
  const observer = new ResizeObserver(([entry]) => {
    const { width, height } = entry!.contentRect;
    callback(width, height, globalThis.devicePixelRatio || 1);
  });
  observer.observe(element);
  return () => observer.disconnect();
}

/** Calls back when the theme of the page changes; returns a function to stop. */
export function onTheme(callback: () => void): () => void {
  const observer = new MutationObserver(callback);
  for (const element of [document.body, document.documentElement])
    observer.observe(element, { attributeFilter: ["class", "data-jp-theme-light", "theme", "style"] });
  const scheme = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
  scheme?.addEventListener?.("change", callback);
  return () => {
    observer.disconnect();
    scheme?.removeEventListener?.("change", callback);
  };
}

/**
 * Scrolls a child into view, without scrolling anything else on the page.
 * @param covered the height at the top that something else covers.
 */
export function reveal(scroller: HTMLElement, child: HTMLElement, covered = 0): void {
  const outer = scroller.getBoundingClientRect();
  const inner = child.getBoundingClientRect();
  const margin = Math.min(40, (outer.height - covered) / 4);
  const top = outer.top + covered + margin;
  if (inner.top < top) scroller.scrollTop -= top - inner.top;
  // Of one that is too high, the beginning.
  else if (inner.bottom > outer.bottom - margin)
    scroller.scrollTop += Math.min(inner.bottom - outer.bottom + margin, inner.top - top);
}

/**
 * Places what lies over the panes, such as a tip, so that all of it is inside of `root`; at a position in `root`.
 */
export function placeOver(root: DOMRect, tip: HTMLElement, left: number, top: number): void {
  tip.style.left = `${Math.max(4, Math.min(root.width - tip.offsetWidth - 6, left))}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

/** A button with text or other content. */
export function button(
  content: Child | readonly Child[],
  onclick: (event: MouseEvent) => void,
  attributes: Attributes = {},
): HTMLButtonElement {
  const parts = Array.isArray(content) ? content : [content];
  return h("button.jv-button", { type: "button", ...attributes, onclick }, ...parts);
}

/** The button that expands and collapses a group's row. */
export function foldButton(
  isOpen: boolean,
  what: string,
  id: string,
  fold: (event: Event) => void,
): HTMLButtonElement {
  return button(isOpen ? "▾" : "▸", fold, {
    class: "jv-fold jv-dim",
    tabindex: -1,
    "aria-expanded": String(isOpen),
    "aria-label": what,
    "data-testid": id,
  });
}

/** What is chosen by a button: the value, what the button says, and its other attributes. */
export type Segment<T> = readonly [value: T, content: Child | readonly Child[], attributes: Attributes];

/** A choice among a few values as buttons side by side, of which one is pressed. */
export function segments<T extends string>(
  label: string,
  all: readonly Segment<T>[],
  chosen: T,
  choose: (value: T) => void,
): HTMLElement {
  const buttons = all.map(([value, content, attributes]) => {
    const own = button(
      content,
      () => {
        for (const each of buttons) each.ariaPressed = String(each === own);
        choose(value);
      },
      { class: "jv-button jv-choice jv-small", "aria-pressed": String(value === chosen), ...attributes },
    );
    return own;
  });
  return h("span.jv-choices", { role: "group", "aria-label": label }, ...buttons);
}

/**
 * A choice among values, each with its text. What is typed in it are no shortcuts, of the explorer or of the notebook.
 * @param choose is given the value that is chosen.
 */
export function choice<T extends string>(
  options: readonly (readonly [T, string])[],
  choose: (value: T) => void,
  attributes: Attributes = {},
): HTMLSelectElement & { value: T } {
  const select = h(
    "select.jv-field",
    {
      "data-lm-suppress-shortcuts": "true",
      ...attributes,
      onchange: () => choose(select.value as T),
      onkeydown: (event: KeyboardEvent) => event.stopPropagation(),
    },
    ...options.map(([value, text]) => h("option", { value }, text)),
  );
  return select as HTMLSelectElement & { value: T };
}

/** A table of a pane: the cells of its head, or their texts, and its bodies. */
export function table(
  heads: readonly (HTMLElement | string)[],
  bodies: readonly HTMLElement[],
  caption: Child = "",
): HTMLElement {
  const cells = heads.map((head) =>
    typeof head === "string" ? h("th.jv-plain", { scope: "col" }, head) : head,
  );
  const about = caption && h("caption.jv-dim", caption);
  return h("table.jv-table", about, h("thead", h("tr", ...cells)), ...bodies);
}

/** A pane: a section with a header. */
export function section(attributes: Attributes, head: readonly Child[], ...body: Child[]): HTMLElement {
  return h("section", attributes, h("div.jv-pane-head.jv-ruled.jv-fixed.jv-baseline", ...head), ...body);
}

/** Follows the pointer from pointerdown on an element until it is released, anywhere. */
export function drag(
  element: HTMLElement,
  press: PointerEvent,
  move: (event: PointerEvent) => void,
  end: (event: PointerEvent) => void = () => {},
): void {
  element.setPointerCapture(press.pointerId);
  press.preventDefault();
  const over = new AbortController();
  const up = (event: PointerEvent) => {
    over.abort();
    end(event);
  };
  const options = { signal: over.signal };
  element.addEventListener("pointermove", move, options);
  for (const name of ["pointerup", "pointercancel"] as const) element.addEventListener(name, up, options);
}
