// The weights of the site's search. Those of Sphinx are repeated here, since this object replaces them. A page that says
// how to fix a problem gets half the weight of a title more than others.
var Scorer = {
  score: ([page, _title, _anchor, _description, score]) =>
    page.startsWith("fix/") || page === "slow" ? score + 8 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
