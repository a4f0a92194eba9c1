declare module "*.css" {
  /** The sheet as text. */
  const text: string;
  export default text;
}
