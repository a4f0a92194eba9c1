/** A line of a program in jaxpr notation, split into tokens for colouring. */

export type TokenKind =
  | "variable"
  | "type"
  | "primitive"
  | "collective"
  | "axis"
  | "param"
  | "donated"
  | "literal"
  | "keyword"
  | "label"
  | "peek";

export interface Token {
  from: number;
  to: number;
  kind: TokenKind;
  /** The variable that it names. */
  variable?: number;
  /** Whether it binds the variable: as an input or an equation's output. */
  isBinder?: boolean;
  /** The tooltip. */
  title?: string;
  /** An additional class. */
  name?: string;
}

/** Longer params are shortened, so that the operands stay visible; the tooltip has them in full. */
const LONG_PARAMS = 28;

export class LineText {
  readonly tokens: Token[] = [];

  /** @param isPlain whether only the text is needed, without tokens. */
  constructor(
    private written = "",
    private readonly isPlain = false,
  ) {}

  /** The text on one line. */
  get text(): string {
    return this.written.replace(/[\n\r\u2028\u2029]/g, " ");
  }

  add(text: string, kind?: TokenKind, more: Partial<Token> = {}): void {
    const from = this.written.length;
    this.written += text;
    if (kind && !this.isPlain) this.tokens.push({ from, to: this.written.length, kind, ...more });
  }

  /** Params in brackets, as many as fit. The first is always included if it names axes. */
  params(params: readonly string[], isFull: boolean, hasAxis = false): void {
    if (params.length === 0) return;
    const all = params.join(" ");
    const isShort = isFull || all.length <= LONG_PARAMS;
    const text = isShort ? all : shortened(params, hasAxis ? 1 : 0);
    const more = isShort ? {} : { title: params.join("\n") };
    const axis = hasAxis ? params[0]! : "";
    this.add("[", "param", more);
    if (axis) this.add(axis, "axis", more);
    this.add(`${text.slice(axis.length)}]`, "param", more);
  }

  /** The token at a column. */
  at(column: number): Token | undefined {
    return this.tokens.find(({ from, to }) => from <= column && column < to);
  }
}

/** As many whole params as fit, and `…` for the rest. */
function shortened(params: readonly string[], always: number): string {
  let text = "";
  for (const [i, param] of params.entries()) {
    if (i >= always && text.length + param.length > LONG_PARAMS - 8) break;
    text += `${param} `;
  }
  return `${text}…`;
}
