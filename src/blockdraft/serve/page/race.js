// The same prompt twice, drafted and plain, side by side.
//
// One after the other, so that neither slows the other, drafted first, so that no drafter has seen
// the plain answer. Both have one seed, and so must be the same text. Speeds are the server's.

import { Answer } from "./answer.js";
import { make, makeButton } from "./dom.js";
import { rounded } from "./figures.js";

const LANES = [
  ["drafted", "With drafts"],
  ["plain", "Without"],
];

export class Race {
  #place;
  #verdict = make("p", "verdict");
  #lanes = [];

  /** Races in an element. */
  constructor(place) {
    this.#place = place;
  }

  get answers() {
    return this.#lanes.map((lane) => lane.answer);
  }

  /** Ask both ways; gives the outcome of the last that ran. */
  async run(text, { system, fields, drafted, signal }) {
    this.#lanes = LANES.map(([name, heading]) => new Lane(name, heading));
    this.#verdict.replaceChildren();
    const lanes = make("div", "lanes");
    lanes.append(...this.#lanes.map((lane) => lane.answer.element));
    this.#place.replaceChildren(this.#verdict, lanes);

    const seed = fields.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
    const messages = [...system, { role: "user", content: text }];
    const ways = [drafted, { type: "none" }];
    for (const [index, { answer }] of this.#lanes.entries()) {
      const asked = { ...fields, seed, messages, speculative: ways[index] };
      const outcome = await answer.write(asked, signal);
      if (outcome !== "done") return outcome;
    }
    this.#judge();
    return "done";
  }

  #judge() {
    const [drafted, plain] = this.answers;
    const speedUp = drafted.rate / plain.rate;
    const isSame = drafted.text === plain.text && drafted.reason === plain.reason;
    const verdict = isSame
      ? make("span", "same", "identical texts")
      : make("span", "error", "the texts differ");
    const figure = make("b", "", Number.isFinite(speedUp) ? `${rounded(speedUp, 2)}×` : "–");
    const replay = makeButton("Replay at once", () => this.#replay(replay));
    const told = Number.isFinite(speedUp) ? " the plain speed, " : " ";
    this.#verdict.replaceChildren(figure, told, verdict, " ", replay);
  }

  async #replay(button) {
    button.disabled = true;
    await Promise.all(this.answers.map((answer) => answer.replay()));
    button.disabled = false;
  }
}

/** One of the two answers, with its speed in its heading. */
class Lane {
  constructor(name, heading) {
    const speed = make("span", "speed");
    this.answer = new Answer(heading, () => {
      const { rate } = this.answer;
      speed.textContent = rate === null ? "" : `${rounded(rate, 1)} tokens/s`;
    });
    this.answer.heading.append(" ", speed);
    this.answer.element.dataset.lane = name;
  }
}
