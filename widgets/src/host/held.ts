/** What the explorer and the stepper ask of a notebook: other widgets of it, such as the one without a view that holds the explorer's code
 * (`jaxviz/page/bundle.py`), and whether the kernel is still there. */

import type { Asked } from "./ask";

interface Held {
  get(name: string): unknown;
  /** Whether a kernel is behind it, where the host knows. */
  comm_live?: boolean;
}

/** The part of an anywidget model that is needed for that. */
export interface Holder extends Asked {
  get(name: string): unknown;
  widget_manager?: {
    /** JupyterLab's has it; null where there is none any more. */
    kernel?: { status?: string; interrupt?(): Promise<void> } | null;
    get_model?(id: string): Promise<Held | undefined>;
  };
}

export const MAIN = "explorer";

/** The model of the widget that a trait names, where the host has one. */
export async function holderOf(model: Holder, trait = "_code"): Promise<Held | undefined> {
  const id = String(model.get(trait) ?? "").replace("IPY_MODEL_", "");
  return id ? model.widget_manager?.get_model?.(id) : undefined;
}

/** Whether it is known that no kernel is behind a widget: hosts know that of one of the same kernel, which the trait names. */
export async function isGone(model: Holder, trait = "_code"): Promise<boolean> {
  const kernel = model.widget_manager?.kernel;
  if (kernel === null || kernel?.status === "dead") return true;
  try {
    return (await holderOf(model, trait))?.comm_live === false;
  } catch {
    return false;
  }
}

/** The gzipped source of the main module or of a part; throws where the host has no such widget, or that has no such part. */
export async function held(model: Holder, name: string): Promise<Uint8Array<ArrayBuffer>> {
  const code = await holderOf(model);
  const parts = code?.get("parts") as Record<string, string> | undefined;
  const text = name === MAIN ? code?.get("code") : parts?.[name];
  if (!text) throw new Error(`no widget holds ${name}`);
  return Uint8Array.from(atob(String(text)), (c) => c.charCodeAt(0));
}
