// Counts of one answer while it is written. Knows no page and no clock of its own.
//
// Each round of the target gives one token of its own, so that their number tells tau: tokens over
// rounds. The first token belongs to the prompt. The server's own figures, at the end, are exact.

export class Tally {
  #first = null; // {ms, tokens} of the first piece
  #lastMs = 0;
  tokens = 0;
  drafted = 0;

  /** Count a piece of an answer that came at a time in ms. */
  add({ tokens, isDrafted, ms }) {
    this.#first ??= { ms, tokens };
    this.#lastMs = ms;
    this.tokens += tokens;
    if (isDrafted) this.drafted += tokens;
  }

  /** Tokens a second after the first; null before there is a second piece. */
  get rate() {
    const ms = this.#lastMs - (this.#first?.ms ?? 0);
    return ms > 0 ? (1e3 * (this.tokens - this.#first.tokens)) / ms : null;
  }

  /** Tokens a round; null before there is a round. */
  get tau() {
    const rounds = this.tokens - this.drafted - 1;
    return rounds > 0 ? (this.tokens - 1) / rounds : null;
  }

  /** The share of the tokens that were drafts. */
  get share() {
    return this.tokens ? this.drafted / this.tokens : 0;
  }
}
