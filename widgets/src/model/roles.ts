/** The roles of equations, and the stages that run. */

/** The keys of these stages. */
export const PASSES: readonly string[] = ["forward", "backward"];

/** The letter for a role where its name does not fit; colour alone is not enough. */
export const ROLE_LETTERS: Readonly<Record<string, string>> = {
  primal: "",
  tangent: "T",
  residual: "R",
  cotangent: "C",
  accumulation: "+",
  recomputation: "↻",
  zero: "0",
  dummy: "∅",
};
