/** Blocks that Python gzipped. */

/** Whether a block starts as gzip does. */
export function isZipped(block: DataView): boolean {
  return block.byteLength > 2 && block.getUint16(0) === 0x1f8b;
}

/** The bytes of a block as they were before. */
export function unzipped(block: DataView | Uint8Array<ArrayBuffer>): Promise<ArrayBuffer> {
  const { body } = new Response(block as DataView<ArrayBuffer>);
  return new Response(body!.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** The source that was gzipped. */
export async function textOf(block: DataView | Uint8Array<ArrayBuffer>): Promise<string> {
  return new TextDecoder().decode(await unzipped(block));
}

/** The module that some gzipped source is. */
export async function moduleOf(block: DataView | Uint8Array<ArrayBuffer>): Promise<unknown> {
  const url = URL.createObjectURL(new Blob([await unzipped(block)], { type: "text/javascript" }));
  try {
    return await import(/* @vite-ignore */ url);
  } finally {
    URL.revokeObjectURL(url);
  }
}
