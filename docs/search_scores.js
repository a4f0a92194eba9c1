// How the site's search ranks what it finds: a how-to answers a question in fewer words than a notebook, and both come
// before pages that mention the words, such as the changelog. The other numbers are Sphinx's own.
var Scorer = {
  score: ([page, , , , score, , kind]) => {
    const isTitle = kind === "title";
    if (page.startsWith("howto/")) return score + (isTitle ? 20 : 8);
    if (page.startsWith("reference/")) return score - (isTitle ? 8 : 0); // the name of a function stays first
    if (page.startsWith("tutorials/")) return score + (isTitle ? 8 : 2);
    return ["changelog", "contributing", "design"].includes(page) ? score - 10 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
