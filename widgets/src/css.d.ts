declare module "*.css" {
  /** The stylesheet's text. */
  const text: string;
  export default text;
}
