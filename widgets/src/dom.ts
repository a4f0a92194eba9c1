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

/** Brings a child of a scrolling element into sight, without moving anything else on the page. */
export function reveal(scroller: HTMLElement, child: HTMLElement): void {
  const outer = scroller.getBoundingClientRect();
  const inner = child.getBoundingClientRect();
  const margin = Math.min(40, outer.height / 4);
  if (inner.top < outer.top + margin) scroller.scrollTop -= outer.top + margin - inner.top;
  else if (inner.bottom > outer.bottom - margin) scroller.scrollTop += inner.bottom - outer.bottom + margin;
}
