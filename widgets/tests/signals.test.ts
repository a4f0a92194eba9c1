import { expect, test, vi } from "vitest";
import { batch, effect, on, onChange, Signal, tracked } from "../src/base/signals";

test("an effect runs again when what it has read is set to another value", () => {
  const [a, b, isB] = [new Signal(1), new Signal(10), new Signal(false)];
  const seen: number[] = [];
  const stop = effect(() => seen.push(isB.value ? b.value : a.value));
  b.value = 11; // not read
  a.value = 1; // the same
  a.value = 2;
  isB.value = true;
  a.value = 3; // not read any more
  b.value = 12;
  stop();
  b.value = 13;
  expect(seen).toEqual([1, 2, 11, 12]);
});

test("in a batch, effects run once at the end, in the order in which they were created", () => {
  const [a, b] = [new Signal(1), new Signal(1)];
  const seen: string[] = [];
  effect(() => seen.push(`first ${b.value}`));
  effect(() => seen.push(`second ${a.value + b.value}`));
  seen.length = 0;
  batch(() => {
    a.value = 2;
    b.value = 2;
    effect(() => seen.push("new"));
    expect(seen).toEqual([]);
  });
  expect(seen).toEqual(["first 2", "second 4", "new"]);
});

test("an effect may set signals, and what it does in a batch does not concern it", () => {
  const [a, b] = [new Signal(1), new Signal(1)];
  const act = vi.fn((now: number) => {
    b.value += now;
  });
  effect(on(() => a.value, act));
  b.value = 5;
  a.value = 2;
  expect([act.mock.calls.length, b.value]).toEqual([2, 7]);
});

test("if an effect fails, the others still run, and then the error is thrown", () => {
  const a = new Signal(1);
  const seen: number[] = [];
  const fail = () => {
    if (a.value === 2) throw new Error("no");
  };
  effect(fail);
  effect(() => seen.push(a.value));
  const set = () => {
    a.value = 2;
  };
  expect(set).toThrow("no");
  expect(seen).toEqual([1, 2]);
});

test("an effect that fails at first is stopped, since nobody can stop it", () => {
  const a = new Signal(1);
  const act = vi.fn(() => {
    throw new Error(`no ${a.value}`);
  });
  expect(() => effect(act)).toThrow("no 1");
  a.value = 2;
  expect(act).toHaveBeenCalledOnce();
});

test("if what a batch does fails, effects of what it has set still run", () => {
  const a = new Signal(1);
  const seen: number[] = [];
  effect(() => seen.push(a.value));
  expect(() =>
    batch(() => {
      a.value = 2;
      throw new Error("no");
    }),
  ).toThrow("no");
  a.value = 3;
  expect(seen).toEqual([1, 2, 3]);
});

test("effects in a circle are an error", () => {
  const a = new Signal(0);
  expect(() =>
    effect(() => {
      a.value += 1;
    }),
  ).toThrow("effects set what they read");
});

test("a source is told when somebody reads it, and when nobody does any more", () => {
  const told: boolean[] = [];
  const [a, n] = [new Signal(1, (isRead) => told.push(isRead)), new Signal(0)];
  const stops = [effect(() => void [a.value, n.value]), effect(() => void a.value)];
  n.value = 1;
  expect(told).toEqual([true]);
  for (const stop of stops) stop();
  expect(told).toEqual([true, false]);
});

test("fields of an object can be signals", () => {
  const what = { n: 1, other: 1 };
  tracked(what, "n");
  const act = vi.fn();
  onChange(() => what.n, act);
  what.other = 2;
  expect(act).not.toHaveBeenCalled();
  what.n = 2;
  expect(act).toHaveBeenCalledExactlyOnceWith(2);
});
