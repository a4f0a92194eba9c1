/**
 * Has JupyterLab save explorers and steppers with the notebook that shows them, whose own setting for that is off at first.
 *
 * What is written is what its widget manager would write with the setting on, but of these alone, and of what they refer to or stand in.
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

/** What JupyterLab's manager has beside what all have. */
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

const known = new WeakSet<object>();

/** From now on a save of the notebook that shows this widget has it. */
export function keepState({ widget_manager }: WidgetModel): void {
  const manager = widget_manager as Partial<Manager> | undefined;
  if (!isOfNotebook(manager) || known.has(manager)) return;
  known.add(manager);
  manager.context.saveState.connect((_, state) => {
    if (state === "started") save(manager);
  });
}

function isOfNotebook(manager: Partial<Manager> | undefined): manager is Manager {
  const { saveState, model } = manager?.context ?? {};
  return Boolean(manager?.get_state_sync && saveState?.connect && model?.cells && model.setMetadata);
}

function save(manager: Manager): void {
  const { model } = manager.context;
  const before = model.getMetadata("widgets")?.[STATE];
  const now = manager.get_state_sync({ drop_defaults: true });
  const made = merged(now, before, shownIn(model.cells));
  if (made !== null) model.setMetadata("widgets", { [STATE]: made });
  else if (before) model.deleteMetadata("widgets");
}

/**
 * What a notebook is to have of its widgets: what it had, without those of ours that it shows no more, and those that it shows.
 *
 * @param now all widgets that there are.
 * @param before what the notebook had, which may be of others and by the setting.
 * @param shown the widgets that outputs show.
 */
export function merged(now: Saved, before: Saved | undefined, shown: readonly string[]): Saved | null {
  const all = { ...before?.state, ...now.state };
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

/** A widget and all that it refers to. */
function reached(all: Saved["state"], id: string): Set<string> {
  const found = new Set<string>();
  const visit = (id: string) => {
    if (found.has(id) || !all[id]) return;
    found.add(id);
    for (const [, other] of JSON.stringify(all[id].state).matchAll(/"IPY_MODEL_([^"]+)"/g)) visit(other!);
  };
  visit(id);
  return found;
}

function shownIn(cells: Iterable<Cell>): string[] {
  const outputs = [...cells].flatMap((cell) => cell.outputs?.toJSON() ?? []);
  return outputs.flatMap(({ data }) => (data?.[VIEW] as { model_id?: string } | undefined)?.model_id ?? []);
}
