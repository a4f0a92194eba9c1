/** Elements from code. Text from programs goes through text nodes only. */

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | ((event: never) => void) | undefined>;

/** An element: `h("button", { class: "x", onclick: f }, "text")`. An attribute that is false or undefined is left out. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else if (value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.filter(
      (child): child is Node | string => child !== null && child !== undefined && child !== false,
    ),
  );
  return element;
}

/** An element of a drawing: `svg("path", { d: "M0 0H9" })`. */
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

/** The keys of a list of rows, of which only one takes part in tabbing: arrows move, Enter and space choose. */
export function onRowKey(
  event: KeyboardEvent,
  list: HTMLElement,
  selector: string,
  choose: () => void,
): void {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key] ?? 0;
  if (step === 0 && event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  event.stopPropagation();
  if (step === 0) {
    choose();
    return;
  }
  const rows = Array.from(list.querySelectorAll<HTMLElement>(selector));
  const next = rows[rows.indexOf(event.currentTarget as HTMLElement) + step];
  if (next === undefined) return;
  for (const row of rows) row.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

/** Calls back with the size of an element when it is first laid out and when that changes; gives back what stops it. */
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

/** Brings a child of a scrolling element into sight, without moving anything else on the page. */
export function reveal(scroller: HTMLElement, child: HTMLElement): void {
  const outer = scroller.getBoundingClientRect();
  const inner = child.getBoundingClientRect();
  const margin = Math.min(40, outer.height / 4);
  if (inner.top < outer.top + margin) scroller.scrollTop -= outer.top + margin - inner.top;
  else if (inner.bottom > outer.bottom - margin) scroller.scrollTop += inner.bottom - outer.bottom + margin;
}
