/**
 * Makes JupyterLab save explorers, steppers and live plots with their notebook; its own setting for widget state is off by default.
 *
 * It writes what the widget manager would write with the setting on, but only for our widgets and those that they refer to or are contained
 * in, and for what zooms charts. With the setting on, JupyterLab writes every widget with a live kernel and drops the rest, so widgets saved before are restored.
 */

import type { WidgetModel } from "./model";

const STATE = "application/vnd.jupyter.widget-state+json";
const VIEW = "application/vnd.jupyter.widget-view+json";

interface Saved {
  state: Record<string, { state: Record<string, unknown> }>;
}

interface Cell {
  outputs?: { toJSON(): { data?: Record<string, unknown> }[] };
}

/** What only JupyterLab's widget manager has. */
interface Manager {
  get_state_sync(options: { drop_defaults: boolean }): Saved;
  context: {
    saveState: { connect(callback: (context: unknown, state: string) => void): void };
    model: {
      cells: Iterable<Cell>;
      getMetadata(name: string): Record<string, Saved> | undefined;
      setMetadata(name: string, value: Record<string, Saved>): void;
      deleteMetadata(name: string): void;
    };
  };
}

/** The widget managers that save ours; of the page, since each live plot has a copy of this module. */
const page = globalThis as { [key: symbol]: WeakSet<object> | undefined };
const KNOWN = Symbol.for("jaxviz saves");
page[KNOWN] ??= new WeakSet();
const known = page[KNOWN];

/** Includes this widget in every later save of its notebook. */
export function keepState({ widget_manager }: WidgetModel): void {
  const manager = widget_manager as Partial<Manager> | undefined;
  if (!isOfNotebook(manager) || known.has(manager)) return;
  known.add(manager);
  const { saveState, model } = manager.context;
  let saved = model.getMetadata("widgets")?.[STATE]?.state;
  saveState.connect((_, state) => {
    if (state !== "started") return;
    const before = model.getMetadata("widgets")?.[STATE];
    const now = manager.get_state_sync({ drop_defaults: true });
    const shown = [
      ...shownIn(model.cells),
      ...attending(model.cells, { ...saved, ...before?.state, ...now.state }),
    ];
    const made = merged(now, before, shown, saved);
    saved = made?.state;
    if (made !== null) model.setMetadata("widgets", { [STATE]: made });
    else if (before) model.deleteMetadata("widgets");
  });
}

function isOfNotebook(manager: Partial<Manager> | undefined): manager is Manager {
  const { saveState, model } = manager?.context ?? {};
  return Boolean(manager?.get_state_sync && saveState?.connect && model?.cells && model.setMetadata);
}

/**
 * The widget state to save: the state so far, without our widgets that are no longer displayed, plus those that are.
 * @param now all widgets with a live kernel.
 * @param before the notebook's current state, which may include other widgets.
 * @param shown the widgets that outputs display.
 * @param earlier the notebook's state when it was opened or last saved.
 */
export function merged(
  now: Saved,
  before: Saved | undefined,
  shown: readonly string[],
  earlier: Saved["state"] = {},
): Saved | null {
  const all = { ...earlier, ...before?.state, ...now.state };
  const isOurs = (id: string) => "_shows" in (all[id]?.state ?? {});
  const withOurs = shown.map((id) => reached(all, id)).filter((ids) => [...ids].some(isOurs));
  const kept = new Set(withOurs.flatMap((ids) => [...ids]));
  const gone = new Set(
    Object.keys(before?.state ?? {})
      .filter((id) => isOurs(id) && !kept.has(id))
      .flatMap((id) => [...reached(all, id)]),
  );
  const others = Object.keys(before?.state ?? {}).filter((id) => !gone.has(id));
  const state = Object.fromEntries([...new Set([...others, ...kept])].map((id) => [id, all[id]!]));
  return Object.keys(state).length > 0 ? { ...now, state } : null;
}

/** A widget and all widgets that it refers to or displays in its outputs. */
function reached(all: Saved["state"], id: string): Set<string> {
  const found = new Set<string>();
  const visit = (id: string) => {
    if (found.has(id) || !all[id]) return;
    found.add(id);
    for (const [, other] of JSON.stringify(all[id].state).matchAll(/"(?:IPY_MODEL_|model_id":")([^"]+)"/g))
      visit(other!);
  };
  visit(id);
  return found;
}

/** What zooms the charts in outputs, if there are any: a widget that no output displays. */
export function attending(cells: Iterable<Cell>, all: Saved["state"]): string[] {
  const outputs = [...cells].flatMap((cell) => cell.outputs?.toJSON() ?? []);
  const hasCharts = outputs.some(({ data }) =>
    JSON.stringify(data?.["text/html"] ?? "").includes("data-zoom="),
  );
  const ids = Object.keys(all).filter((id) => all[id]!.state["_shows"] === "charts");
  return hasCharts ? ids.slice(-1) : [];
}

function shownIn(cells: Iterable<Cell>): string[] {
  const outputs = [...cells].flatMap((cell) => cell.outputs?.toJSON() ?? []);
  return outputs.flatMap(({ data }) => (data?.[VIEW] as { model_id?: string } | undefined)?.model_id ?? []);
}
