/** State as signals: an effect runs again after something that it has read is set to another value. */

interface Effect {
  /** Effects that are due at once run in the order in which they were created. */
  readonly order: number;
  readonly action: () => void;
  /** What it read when it last ran. */
  sources: Set<Signal<unknown>>;
}

/** The effect that is running, within how many batches, and those to run at the end. */
let running: Effect | null = null;
let depth = 0;
const due = new Set<Effect>();
let created = 0;

/** More effects than this in a batch are a circle. */
const MOST = 10_000;

/** A value, and the effects that have read it. */
export class Signal<T> {
  private readonly readers = new Set<Effect>();

  /** @param onRead told when the first effect has read it, and when none does any more. */
  constructor(
    private current: T,
    private readonly onRead: (isRead: boolean) => void = () => {},
  ) {}

  get value(): T {
    if (running !== null && !running.sources.has(this as Signal<unknown>)) {
      running.sources.add(this as Signal<unknown>);
      this.readers.add(running);
      if (this.readers.size === 1) this.onRead(true);
    }
    return this.current;
  }

  set value(next: T) {
    if (Object.is(next, this.current)) return;
    this.current = next;
    batch(() => {
      for (const reader of this.readers) due.add(reader);
    });
  }

  leave(reader: Effect): void {
    if (this.readers.delete(reader) && this.readers.size === 0) this.onRead(false);
  }
}

/** Makes fields of an object signals, which are read and set as before. */
export function tracked(target: object, ...names: readonly string[]): void {
  for (const name of names) {
    const signal = new Signal((target as Record<string, unknown>)[name]);
    const get = () => signal.value;
    const set = (next: unknown) => {
      signal.value = next;
    };
    Object.defineProperty(target, name, { get, set });
  }
}

/**
 * Runs an action now, or at the end of the current batch, and again when what it reads changes; returns a function to stop. If it fails now,
 * nobody gets that function, and it is stopped.
 */
export function effect(action: () => void): () => void {
  const self: Effect = { order: created++, action, sources: new Set() };
  const stop = () => {
    due.delete(self);
    for (const source of self.sources) source.leave(self);
    self.sources.clear();
  };
  try {
    batch(() => due.add(self));
  } catch (error) {
    stop();
    throw error;
  }
  return stop;
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
  const outer = running;
  running = null;
  depth += 1;
  try {
    return action();
  } finally {
    try {
      if (depth === 1) flush();
    } finally {
      depth -= 1;
      running = outer;
    }
  }
}

/** Runs all effects that are due, also if one fails; the first error is thrown at the end. */
function flush(): void {
  const errors: unknown[] = [];
  let runs = 0;
  for (let next = first(); next !== undefined; next = first()) {
    runs += 1;
    if (runs > MOST) {
      due.clear();
      throw new Error("effects set what they read");
    }
    try {
      run(next);
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
}

function first(): Effect | undefined {
  let found: Effect | undefined;
  for (const each of due) if (found === undefined || each.order < found.order) found = each;
  return found;
}

function run(self: Effect): void {
  due.delete(self);
  const before = self.sources;
  self.sources = new Set();
  running = self;
  try {
    self.action();
  } finally {
    running = null;
    for (const source of before) if (!self.sources.has(source)) source.leave(self);
  }
}
