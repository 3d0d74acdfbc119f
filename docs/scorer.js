// The weights of the site's search. Those of Sphinx are repeated here, since this object replaces them. A page that says
// how to fix a problem gets half the weight of a title more than others, and a guide a quarter. A heading that contains all
// words of a search gets half, too.
var Scorer = {
  score: ([page, _title, _anchor, _description, score, _file, kind]) =>
    score
    + (page.startsWith("fix/") || page === "slow" ? 8 : page.startsWith("how-to/") ? 4 : 0)
    + (kind === "title" ? 8 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
