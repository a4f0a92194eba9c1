/** State as signals: an effect runs again after something that it has read is set to another value. */

import { batch as inBatch, effect as run, signal, untracked } from "@preact/signals-core";

export { signal };

/** Within how many batches this is, and the effects that begin at the end of the outermost. */
let depth = 0;
const begun = new Set<() => void>();

/** Runs an action now, or at the end of the current batch, and again when what it reads changes; returns a function to stop. */
export function effect(action: () => void): () => void {
  let stop: (() => void) | undefined;
  const begin = () => {
    stop = run(() => {
      action(); // what it returns is no clean-up
    });
  };
  if (depth > 0) begun.add(begin);
  else begin();
  return () => {
    begun.delete(begin);
    stop?.();
  };
}

/** Makes fields of an object signals, which are read and set as before. */
export function tracked(target: object, ...names: readonly string[]): void {
  for (const name of names) {
    const field = signal((target as Record<string, unknown>)[name]);
    const get = () => field.value;
    const set = (next: unknown) => {
      field.value = next;
    };
    Object.defineProperty(target, name, { get, set });
  }
}

/** An action for an effect that depends on what `read` reads, and not on what `act` does. */
export const on =
  <T>(read: () => T, act: (found: T) => void): (() => void) =>
  () => {
    const found = read();
    batch(() => act(found));
  };

/** Calls back when what `read` reads has changed; returns a function to stop. */
export function onChange<T>(read: () => T, act: (found: T) => void): () => void {
  let isFirst = true;
  return effect(
    on(read, (found) => {
      if (!isFirst) act(found);
      isFirst = false;
    }),
  );
}

/** Sets several signals at once: effects run at the end. If an effect calls this, what is read here does not concern it. */
export function batch<T>(action: () => T): T {
  const inside = () => {
    depth += 1;
    try {
      return action();
    } finally {
      depth -= 1;
      if (depth === 0) start();
    }
  };
  return untracked(() => inBatch(inside));
}

function start(): void {
  for (const begin of begun) {
    begun.delete(begin);
    begin();
  }
}
