/** Access to the widget that carries the code (`jaxviz/page/bundle.py`), and whether the kernel is alive. */

import type { Kernel, WidgetModel } from "./model";

export const MAIN = "explorer";

/** The event that ipywidgets sends when a widget loses or regains its kernel. */
const LIVE = "comm_live_update";

/** The widget that carries the code, if the host provides it. */
async function holderOf(model: WidgetModel) {
  const id = String(model.get("_code") ?? "").replace("IPY_MODEL_", "");
  return id ? model.widget_manager?.get_model?.(id) : undefined;
}

/** Whether the kernel is known to be gone. Hosts may know this only of the widget that carries the code, which has the same kernel. */
export async function isGone(model: WidgetModel): Promise<boolean> {
  const kernel = model.widget_manager?.kernel;
  if (kernel === null || kernel?.status === "dead" || model.comm_live === false) return true;
  try {
    return (await holderOf(model))?.comm_live === false;
  } catch {
    return false;
  }
}

/** After each of these the Python side of a widget no longer exists. */
const LOSES_WIDGETS = ["restarting", "autorestarting", "terminating", "dead"];

/**
 * Calls `callback` when the result of `isGone` may have changed; its argument is whether the widget is lost for good. Returns a function that stops it.
 *
 * ipywidgets sends an event to widgets when the kernel is restarted, but not when it is shut down, dies, or is restarted by the server. These come from
 * JupyterLab's connection to the kernel.
 */
export function watchKernel(model: WidgetModel, callback: (isLost: boolean) => void): () => void {
  const onLive = () => callback(false);
  const onStatus = (_: unknown, status: string) => {
    if (LOSES_WIDGETS.includes(status)) callback(true);
  };
  const onEnd = () => callback(true);
  const { statusChanged, disposed } = model.widget_manager?.kernel ?? {};
  model.on(LIVE, onLive);
  statusChanged?.connect(onStatus);
  disposed?.connect(onEnd);
  return () => {
    model.off(LIVE, onLive);
    statusChanged?.disconnect(onStatus);
    disposed?.disconnect(onEnd);
  };
}

/** A function that interrupts the kernel, or that runs `code` to stop background work; null if the host does not allow that. */
export function interruptOf({ widget_manager }: WidgetModel, code = ""): (() => Promise<unknown>) | null {
  const kernel = widget_manager?.kernel;
  if (code === "") return typeof kernel?.interrupt === "function" ? () => kernel.interrupt!() : null;
  return typeof kernel?.requestExecute === "function" ? () => runBeside(kernel, code) : null;
}

/** Runs code in a new subshell if the kernel supports those: in the main shell it would wait for the running cell. */
async function runBeside(kernel: Kernel, code: string): Promise<unknown> {
  const request = { code, silent: true, store_history: false };
  if (!kernel.supportsSubshells) return kernel.requestExecute!(request).done;
  const { content } = await kernel.requestCreateSubshell!({}).done;
  // A message is sent to the subshell that is set when it is created.
  const before = kernel.subshellId;
  kernel.subshellId = content.subshell_id;
  const running = kernel.requestExecute!(request);
  kernel.subshellId = before;
  await running.done;
  return kernel.requestDeleteSubshell!(content).done;
}

/** The gzipped source of the main module or of a part; throws if the widget or the part is missing. */
export async function held(model: WidgetModel, name: string): Promise<Uint8Array<ArrayBuffer>> {
  const code = await holderOf(model);
  const parts = code?.get("parts") as Record<string, string> | undefined;
  const text = name === MAIN ? code?.get("code") : parts?.[name];
  if (!text) throw new Error(`no widget holds ${name}`);
  return Uint8Array.from(atob(String(text)), (c) => c.charCodeAt(0));
}
