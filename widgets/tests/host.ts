/** A widget model as provided by hosts of anywidget, and panes as the explorer shows them. */

import { atOnce } from "../src/base/slices";
import { following, type Pane } from "../src/ui/pane";

type Listener = (content: never, buffers: never) => void;

export function host(values: Record<string, unknown>) {
  const listeners = new Map<string, Set<Listener>>();
  return {
    values,
    sent: [] as unknown[],
    get: (name: string) => values[name],
    set(name: string, value: unknown) {
      values[name] = value;
      this.tell(`change:${name}`);
    },
    tell(event: string, content: unknown = {}, buffers: DataView[] = []) {
      for (const listener of listeners.get(event) ?? []) listener(content as never, buffers as never);
    },
    save_changes() {},
    send(content: unknown) {
      this.sent.push(content);
    },
    on: (event: string, f: Listener) => listeners.set(event, (listeners.get(event) ?? new Set()).add(f)),
    off: (event: string, f: Listener) => listeners.get(event)?.delete(f),
    count: () => [...listeners.values()].reduce((sum, set) => sum + set.size, 0),
  };
}

/** A signal of JupyterLab. */
export function signal<T>() {
  const slots = new Set<(sender: unknown, content: T) => void>();
  return {
    slots,
    connect: (slot: (sender: unknown, content: T) => void) => slots.add(slot),
    disconnect: (slot: (sender: unknown, content: T) => void) => slots.delete(slot),
    emit(content: T) {
      for (const slot of slots) slot(null, content);
    },
  };
}

/** A gzipped block, as sent by Python. */
export async function zipped(block: DataView<ArrayBuffer> | string): Promise<DataView<ArrayBuffer>> {
  const { body } = new Response(block);
  return new DataView(await new Response(body!.pipeThrough(new CompressionStream("gzip"))).arrayBuffer());
}

/** A pane that follows the state until it is destroyed. */
export function followed<P extends Pane>(pane: P): P {
  const stops: (() => void)[] = [];
  atOnce(following(pane, stops));
  const destroy = pane.destroy?.bind(pane);
  pane.destroy = () => {
    for (const stop of stops) stop();
    destroy?.();
  };
  return pane;
}
