// Figures of one answer as a line, and its acceptance by position as bars.

import { make, makeSvg } from "./dom.js";

const BAR = { width: 7, gap: 2, height: 22 };

const ENDS = { length: "cut at the limit", stopped: "stopped", failed: "failed" };

export const rounded = (value, digits) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const percent = (share) => `${Math.round(100 * share)} %`;

export class Figures {
  element = make("footer", "figures");

  /** Show what is known while the answer is written. */
  showTally(tally) {
    this.#show(
      [
        ["tokens", rounded(tally.tokens, 0)],
        tally.rate === null ? null : ["tokens/s", rounded(tally.rate, 1)],
        tally.drafted && tally.tau ? ["tau", rounded(tally.tau, 2)] : null,
        tally.drafted ? ["from drafts", percent(tally.share)] : null,
      ],
      [],
    );
  }

  /** Show what the server measured. */
  showTimings(timings, { reason, seed, share }) {
    const { tau, draft_n: drafted, draft_n_accepted: accepted } = timings;
    this.#show(
      [
        ["tokens", rounded(timings.predicted_n, 0)],
        ["tokens/s", rounded(timings.predicted_per_second, 1)],
        ["to the first", `${rounded(timings.ttft_ms / 1e3, 2)} s`],
        tau === undefined ? null : ["tau", rounded(tau, 2)],
        drafted ? [`of ${rounded(drafted, 0)} drafts accepted`, percent(accepted / drafted)] : null,
        share ? ["from drafts", percent(share)] : null,
        seed === undefined ? null : [`seed ${seed}`],
        ENDS[reason] ? [ENDS[reason]] : null,
      ],
      timings.accepted_by_position ?? [],
    );
  }

  /** Show why an answer ended that the server did not end. */
  showEnd(reason) {
    this.element.append(figure(ENDS[reason]));
  }

  #show(pairs, shares) {
    const items = pairs.filter((pair) => pair).map(([name, value]) => figure(name, value));
    if (shares.length) items.push(barsOf(shares));
    this.element.replaceChildren(...items);
  }
}

function figure(name, value = "") {
  const element = make("span", "figure");
  if (value) element.append(make("b", "", value), " ");
  element.append(name);
  if (name === "tau") element.title = "tokens that each pass of the target gives, on the average";
  return element;
}

/** A bar for each position of a block: how often the drafts up to there were all accepted. */
function barsOf(shares) {
  const step = BAR.width + BAR.gap;
  const width = shares.length * step - BAR.gap;
  const told = shares.map((share, index) => `${index + 1}: ${percent(share)}`).join(", ");
  const svg = makeSvg("svg", {
    class: "bars",
    role: "img",
    width,
    height: BAR.height,
    viewBox: `0 0 ${width} ${BAR.height}`,
    preserveAspectRatio: "none",
    "aria-label": `accepted by position: ${told}`,
  });
  shares.forEach((share, index) => {
    const height = Math.max(1, share * BAR.height);
    const place = { x: index * step, width: BAR.width };
    const bar = makeSvg("rect", { ...place, y: BAR.height - height, height, class: "filled" });
    const title = makeSvg("title", {});
    title.textContent = `draft ${index + 1}: accepted in ${percent(share)}`;
    const all = makeSvg("rect", { ...place, y: 0, height: BAR.height, class: "all" });
    all.append(title);
    svg.append(all, bar);
  });
  const element = make("span", "figure");
  element.append(svg, " by position");
  return element;
}
