// Python surface of the sampler: argument checks, then one call for all rows without the GIL (sample.h).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "kernels.h"
#include "sample.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace blockdraft {
namespace {

template <class T, size_t Dims>
using Array = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Ids = Array<int32_t, 1>;
// Rows may lie apart (padded logits); a row itself is dense.
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Bias = std::optional<nb::tuple>;
using Masks = std::vector<std::optional<Array<uint32_t, 1>>>;

void check(bool ok, const std::string& message) {
  if (!ok) throw nb::value_error(message.c_str());
}

void check_range(bool ok, const char* name, double value, const char* rule) {
  check(ok, std::string(name) + " is " + std::to_string(value) + "; it must be " + rule);
}

void check_rows(const char* name, size_t size, size_t rows) {
  check(size == rows, std::to_string(rows) + " rows of logits, but " + std::to_string(size) + " " + name);
}

void check_ids(const char* what, const int32_t* ids, int64_t count, int64_t vocab) {
  for (int64_t i = 0; i < count; ++i)
    check(ids[i] >= 0 && ids[i] < vocab, std::string(what) + " " + std::to_string(ids[i]) +
                                             " is outside a vocabulary of " + std::to_string(vocab));
}

SamplerParams make_params(double temperature, int32_t top_k, double top_p, double min_p, float repeat_penalty,
                          float presence_penalty, float frequency_penalty, uint64_t seed) {
  check_range(temperature >= 0 && std::isfinite(temperature), "temperature", temperature, "at least 0 and finite");
  check_range(top_k >= 0, "top_k", top_k, "0 (off) or positive");
  check_range(top_p > 0 && top_p <= 1, "top_p", top_p, "in (0, 1]");
  check_range(min_p >= 0 && min_p <= 1, "min_p", min_p, "in [0, 1]");
  check_range(repeat_penalty > 0 && std::isfinite(repeat_penalty), "repeat_penalty", repeat_penalty, "positive");
  check_range(std::isfinite(presence_penalty), "presence_penalty", presence_penalty, "a finite number");
  check_range(std::isfinite(frequency_penalty), "frequency_penalty", frequency_penalty, "a finite number");
  return {temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, seed};
}

void set_bias(SampleRow& row, const std::optional<Ids>& ids, const std::optional<Array<float, 1>>& values) {
  check(ids->shape(0) == values->shape(0), std::to_string(ids->shape(0)) + " bias ids, but " +
                                               std::to_string(values->shape(0)) + " bias values");
  row.bias_ids = ids->data();
  row.bias_values = values->data();
  row.num_bias = static_cast<int64_t>(ids->shape(0));
  check_ids("bias id", row.bias_ids, row.num_bias, row.vocab);
}

void set_mask(SampleRow& row, const Array<uint32_t, 1>& mask) {
  const auto words = static_cast<size_t>((row.vocab + 31) / 32);
  check(mask.shape(0) == words, "a vocabulary of " + std::to_string(row.vocab) + " needs a mask of " +
                                    std::to_string(words) + " words, not " + std::to_string(mask.shape(0)));
  row.allowed_mask = mask.data();
}

std::vector<int32_t> sample_rows(const Logits& logits, const std::vector<const SamplerParams*>& params,
                                 const std::vector<uint32_t>& choices, const std::vector<int64_t>& positions,
                                 const std::vector<Ids>& penalty_tokens, const std::vector<Bias>& biases,
                                 const std::string& isa, const std::optional<Masks>& masks) {
  const size_t num_rows = logits.shape(0);
  const auto vocab = static_cast<int64_t>(logits.shape(1));
  check(vocab >= 1 && vocab <= kMaxVocab, "a vocabulary of " + std::to_string(vocab) + " is not in [1, " +
                                              std::to_string(kMaxVocab) + "]");
  check(vocab == 1 || logits.stride(1) == 1, "logits of a row lie " + std::to_string(logits.stride(1)) +
                                                " floats apart; they must lie 1 apart");
  check_rows("params", params.size(), num_rows);
  check_rows("choices", choices.size(), num_rows);
  check_rows("positions", positions.size(), num_rows);
  check_rows("penalty_tokens", penalty_tokens.size(), num_rows);
  check_rows("biases", biases.size(), num_rows);
  if (masks) check_rows("masks", masks->size(), num_rows);
  const Kernels& kernels = find_kernels(isa.c_str());

  std::vector<SampleRow> rows(num_rows);
  // Keeps the arrays of the bias tuples alive.
  std::vector<std::optional<Ids>> bias_ids(num_rows);
  std::vector<std::optional<Array<float, 1>>> bias_values(num_rows);
  for (size_t r = 0; r < num_rows; ++r) {
    SampleRow& row = rows[r];
    row = {logits.data() + static_cast<int64_t>(r) * logits.stride(0), vocab, params[r], choices[r], positions[r],
           penalty_tokens[r].data(), static_cast<int64_t>(penalty_tokens[r].shape(0)), nullptr, nullptr, 0, nullptr};
    check_ids("penalty token", row.penalty_tokens, row.num_penalty_tokens, vocab);
    if (biases[r]) {
      check(biases[r]->size() == 2, "a bias is a pair of ids and values, not " + std::to_string(biases[r]->size()) +
                                        " things");
      bias_ids[r] = nb::cast<Ids>((*biases[r])[0]);
      bias_values[r] = nb::cast<Array<float, 1>>((*biases[r])[1]);
      set_bias(row, bias_ids[r], bias_values[r]);
    }
    if (masks && (*masks)[r]) set_mask(row, *(*masks)[r]);
  }

  std::vector<int32_t> tokens(num_rows);
  const nb::gil_scoped_release release;
  SampleScratch scratch;
  for (size_t r = 0; r < num_rows; ++r) tokens[r] = sample(rows[r], kernels.scan, scratch);
  return tokens;
}

}  // namespace

void bind_sample(nb::module_& m) {
  nb::class_<SamplerParams>(m, "SamplerParams", "What the native sampler needs of a request's parameters.")
      .def("__init__",
           [](SamplerParams* self, double temperature, int32_t top_k, double top_p, double min_p, float repeat_penalty,
              float presence_penalty, float frequency_penalty, uint64_t seed) {
             new (self) SamplerParams(make_params(temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty,
                                                  frequency_penalty, seed));
           },
           "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repeat_penalty"_a, "presence_penalty"_a,
           "frequency_penalty"_a, "seed"_a)
      .def_ro("temperature", &SamplerParams::temperature)
      .def_ro("top_k", &SamplerParams::top_k)
      .def_ro("top_p", &SamplerParams::top_p)
      .def_ro("min_p", &SamplerParams::min_p)
      .def_ro("repeat_penalty", &SamplerParams::repeat_penalty)
      .def_ro("presence_penalty", &SamplerParams::presence_penalty)
      .def_ro("frequency_penalty", &SamplerParams::frequency_penalty)
      .def_ro("seed", &SamplerParams::seed);
  m.def("sample", &sample_rows, "logits"_a, "params"_a, "choices"_a, "positions"_a, "penalty_tokens"_a, "biases"_a,
        "isa"_a, "masks"_a = nb::none(), "Picks one token per row of logits.");
  m.def("gumbel", &gumbel, "seed"_a, "choice"_a, "position"_a, "token_id"_a,
        "The Gumbel noise that sampling adds to the score of one token.");
}

}  // namespace blockdraft
