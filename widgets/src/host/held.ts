/** Other widgets of a notebook, such as the one without a view that holds the code (`jaxviz/page/bundle.py`), and whether the kernel is alive. */

import type { Kernel, WidgetModel } from "./model";

export const MAIN = "explorer";

/** The widget that holds the code, where the host has it. */
async function holderOf(model: WidgetModel) {
  const id = String(model.get("_code") ?? "").replace("IPY_MODEL_", "");
  return id ? model.widget_manager?.get_model?.(id) : undefined;
}

/** Whether it is known that no kernel is behind a widget: hosts know that of the one that holds the code, which is of the same kernel. */
export async function isGone(model: WidgetModel): Promise<boolean> {
  const kernel = model.widget_manager?.kernel;
  if (kernel === null || kernel?.status === "dead" || model.comm_live === false) return true;
  try {
    return (await holderOf(model))?.comm_live === false;
  } catch {
    return false;
  }
}

/** What interrupts the kernel, or runs the code that stops what it does beside the user's cells; null where the host lets no page do that. */
export function interruptOf({ widget_manager }: WidgetModel, code = ""): (() => Promise<unknown>) | null {
  const kernel = widget_manager?.kernel;
  if (code === "") return typeof kernel?.interrupt === "function" ? () => kernel.interrupt!() : null;
  return typeof kernel?.requestExecute === "function" ? () => runBeside(kernel, code) : null;
}

/** Runs code in a subshell of its own, where the kernel has those: in the main shell it would wait for the cell that runs there. */
async function runBeside(kernel: Kernel, code: string): Promise<unknown> {
  const request = { code, silent: true, store_history: false };
  if (!kernel.supportsSubshells) return kernel.requestExecute!(request).done;
  const { content } = await kernel.requestCreateSubshell!({}).done;
  // A message goes to the subshell that is set while it is made.
  const before = kernel.subshellId;
  kernel.subshellId = content.subshell_id;
  const running = kernel.requestExecute!(request);
  kernel.subshellId = before;
  await running.done;
  return kernel.requestDeleteSubshell!(content).done;
}

/** The gzipped source of the main module or of a part; throws where the host has no such widget, or that has no such part. */
export async function held(model: WidgetModel, name: string): Promise<Uint8Array<ArrayBuffer>> {
  const code = await holderOf(model);
  const parts = code?.get("parts") as Record<string, string> | undefined;
  const text = name === MAIN ? code?.get("code") : parts?.[name];
  if (!text) throw new Error(`no widget holds ${name}`);
  return Uint8Array.from(atob(String(text)), (c) => c.charCodeAt(0));
}
