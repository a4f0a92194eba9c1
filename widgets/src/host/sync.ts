/** The only caller of the widget model's get and set. */

import type { Changes } from "../model/changes";
import type { State } from "../state/state";
import type { Holder } from "./held";
import { type Work, workOf } from "./work";

/** The part of an anywidget model that is used. */
export interface WidgetModel extends Holder {
  set(name: string, value: unknown): void;
  save_changes(): void;
}

export const payloadOf = (model: WidgetModel): DataView | null => blockOf(model.get("payload"));

/** What came later of a large program; null where the payload is all, or while there is none. */
export const laterOf = (model: WidgetModel): DataView | null => blockOf(model.get("rest"));

/** The view of the version before, and what differs; null where there is none. */
export const beforeOf = (model: WidgetModel): DataView | null => blockOf(model.get("before"));

const blocks = new WeakMap<object, DataView>();

/** The bytes of a trait, in whatever form a host has them, and the same object for the same bytes; null for none. */
export function blockOf(value: unknown): DataView | null {
  if (typeof value !== "object" || value === null) return null;
  const before = blocks.get(value);
  if (before) return before;
  let block: DataView;
  // What comes from another frame is no instance of this frame's classes.
  if (ArrayBuffer.isView(value)) block = new DataView(value.buffer, value.byteOffset, value.byteLength);
  else if (Object.prototype.toString.call(value) === "[object ArrayBuffer]")
    block = new DataView(value as ArrayBuffer);
  else return null;
  if (block.byteLength === 0) return null;
  blocks.set(value, block);
  return block;
}

export function changesOf(model: WidgetModel): Changes | null {
  const text = String(model.get("changes") ?? "");
  return text === "" ? null : (JSON.parse(text) as Changes);
}

export function heightOf(model: WidgetModel): number {
  const height = model.get("height");
  return typeof height === "number" && height > 0 ? height : 620;
}

/** Calls back when Python sends another view. */
export function onPayload(model: WidgetModel, callback: () => void): () => void {
  for (const name of ["payload", "rest", "failure"]) model.on(`change:${name}`, callback);
  return () => {
    for (const name of ["payload", "rest", "failure"]) model.off(`change:${name}`, callback);
  };
}

/** What went wrong in Python before there was anything to show, or empty. */
export function failureOf(model: WidgetModel): string {
  return String(model.get("failure") ?? "");
}

/** Milliseconds until the programs are late, which take long at times. */
const LONG = 20_000;

/** The view, which Python makes when it is first asked. */
export const viewOf = (model: WidgetModel): Work =>
  workOf(model, "fill", ["payload", "failure"], { patience: LONG });

/** What Python left out of the view of a large program, so that the rest is there sooner; it comes by itself. */
export const restOf = (model: WidgetModel): Work =>
  workOf(model, "rest", ["rest", "payload"], { patience: LONG });

export const whatIfOf = (model: WidgetModel): Work => workOf(model, "what if", ["what_if"]);
export const compiledOf = (model: WidgetModel): Work =>
  workOf(model, "compile", ["compiled"], { isPython: false });

/** Keeps the selected equation, as `stage:number`, the stages in each pane, and the filter the same on both sides. */
export function syncState(model: WidgetModel, state: State): () => void {
  let busy = false;
  const put = (values: Record<string, string | boolean>) => {
    const changed = Object.entries(values).filter(([name, value]) => model.get(name) !== value);
    if (changed.length === 0) return;
    busy = true;
    for (const [name, value] of changed) model.set(name, value);
    model.save_changes();
    busy = false;
  };
  const keys = (stages: readonly number[]) => stages.map((i) => state.stageKeys[i] ?? "").join("+");
  const stages = (name: string) => numbersOf(state.stageKeys, String(model.get(name) ?? ""));
  const unsubscribe = state.subscribe((change) => {
    if (change === "shown" && state.other !== null) put({ compared: state.compared });
    if (change === "shown") put({ stage: keys(state.shown.left), beside: keys(state.shown.right) });
    if (change === "filter") put({ filter: state.filter });
    if (change === "selection") put({ selected: state.row >= 0 ? state.model.name(state.row) : "" });
  });
  const onSelected = () => {
    const row = state.model.rowNamed(String(model.get("selected") ?? ""));
    if (busy || row === state.row) return;
    if (row < 0) state.clear();
    else state.goTo(row);
  };
  const onStages = () => {
    const left = stages("stage");
    if (!busy && left.length > 0) state.show({ left, right: stages("beside") });
  };
  const onFilter = () => {
    if (!busy) state.filterBy(String(model.get("filter") ?? ""));
  };
  const onCompared = () => {
    if (!busy) state.compare(model.get("compared") === true);
  };
  const listeners: [string, () => void][] = [
    ["change:selected", onSelected],
    ["change:stage", onStages],
    ["change:beside", onStages],
    ["change:filter", onFilter],
    ["change:compared", onCompared],
  ];
  // Which stages are shown is told to Python together with whether they are compared, which is not known yet.
  const isCompared = model.get("compared") === true;
  onStages();
  onFilter();
  state.compare(isCompared);
  onSelected();
  for (const [event, listener] of listeners) model.on(event, listener);
  return () => {
    unsubscribe();
    for (const [event, listener] of listeners) model.off(event, listener);
  };
}

/** `forward+linear` as numbers of stages. */
function numbersOf(stages: readonly string[], keys: string): number[] {
  return keys
    .split("+")
    .map((key) => stages.indexOf(key))
    .filter((i) => i >= 0);
}
