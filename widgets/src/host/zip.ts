/** Data that Python gzipped. */

/** Whether a block has the gzip header. */
export function isZipped(block: DataView): boolean {
  return block.byteLength > 2 && block.getUint16(0) === 0x1f8b;
}

/** Decompresses a block. */
export function unzipped(block: DataView | Uint8Array<ArrayBuffer>): Promise<ArrayBuffer> {
  const { body } = new Response(block as DataView<ArrayBuffer>);
  return new Response(body!.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** Decompresses a block to text. */
export async function textOf(block: DataView | Uint8Array<ArrayBuffer>): Promise<string> {
  return new TextDecoder().decode(await unzipped(block));
}

/** The module with the gzipped source. */
export async function moduleOf(block: DataView | Uint8Array<ArrayBuffer>): Promise<unknown> {
  const url = URL.createObjectURL(new Blob([await unzipped(block)], { type: "text/javascript" }));
  try {
    return await import(/* @vite-ignore */ url);
  } finally {
    URL.revokeObjectURL(url);
  }
}
