/** Formats numbers for people. */

/** `1.5 KiB`, `12 B`. */
export function formatBytes(n: number): string {
  if (n < 1024) return `${n} B`;
  let size = n;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    size /= 1024;
    if (size < 1024) return `${size.toFixed(1)} ${unit}`;
  }
  return `${(size / 1024).toFixed(1)} TiB`;
}

/** `1.0 MiB · 128.0 KiB a device`, or only the first part if the second is negative. */
export function formatParts(whole: number, perDevice: number): string {
  const total = formatBytes(whole);
  return perDevice < 0 ? total : `${total} · ${formatBytes(perDevice)} a device`;
}

/** `12,345`. */
export function formatCount(n: number): string {
  return n.toLocaleString("en-US");
}

/** `1 value`, `2 values`. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${formatCount(n)} ${n === 1 ? one : many}`;
}

/** `12 × f32[3]`, or for one, `f32[3]`. */
export function formatRepeated(n: number, what: string): string {
  return n > 1 ? `${formatCount(n)} × ${what}` : what;
}

/** `12.3 kFLOP`, `4 FLOP`. */
export function formatFlops(n: number): string {
  if (n < 1000) return `${n} FLOP`;
  let size = n;
  for (const unit of ["kFLOP", "MFLOP", "GFLOP", "TFLOP"]) {
    size /= 1000;
    if (size < 1000) return `${size.toFixed(1)} ${unit}`;
  }
  return `${(size / 1000).toFixed(1)} PFLOP`;
}

/** A number with two digits, or more before the point: `0.083`, `17`, `1,234`. */
export const formatShort = (n: number): string =>
  n >= 100 ? formatCount(Math.round(n)) : `${Number(n.toPrecision(2))}`;

/** `1.3 ms`, `12 s`. */
export function formatSeconds(seconds: number): string {
  if (seconds >= 1) return `${formatShort(seconds)} s`;
  return seconds >= 1e-3 ? `${formatShort(seconds * 1e3)} ms` : `${formatShort(seconds * 1e6)} µs`;
}

/** `46 %`, `under 1 %`. */
export function percent(share: number): string {
  return share > 0 && share < 1 ? "under 1 %" : `${Math.round(share)} %`;
}
