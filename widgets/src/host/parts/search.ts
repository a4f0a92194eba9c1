/** What the search field finds. */

export { find, suggested } from "../../model/find";
export { wordsOf } from "../../model/question";
