// The Python surface of the native core. Checks shapes, releases the GIL, holds no logic of its own.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "measure.h"
#include "plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace blockdraft {

void bind_lookup(nb::module_& m);
void bind_sample(nb::module_& m);

namespace {

template <class T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = std::optional<Array1<float>>;

std::vector<float> to_vector(const Vector& array) {
  return array ? std::vector<float>(array->data(), array->data() + array->size()) : std::vector<float>();
}

void need_length(const char* name, size_t got, size_t wanted) {
  if (got != wanted) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(got) + " entries, not " + std::to_string(wanted));
  }
}

void run_plan(Plan& plan, Pool& pool, Array1<int32_t> token_ids, Array1<int32_t> positions, Array1<int32_t> parents,
              Array1<int32_t> row_starts, Array1<int32_t> base_lengths, Array2<uint64_t> full_pages,
              Array2<uint64_t> window_pages, Array1<int32_t> logit_rows) {
  const size_t rows = token_ids.size(), sequences = base_lengths.size();
  need_length("positions", positions.size(), rows);
  need_length("parents", parents.size(), rows);
  need_length("row_starts", row_starts.size(), sequences + 1);
  need_length("full_pages", full_pages.shape(0), sequences);
  need_length("window_pages", window_pages.shape(0), sequences);
  const auto i64 = [](size_t n) { return static_cast<int64_t>(n); };
  const Batch batch{i64(rows), i64(sequences), i64(logit_rows.size()), token_ids.data(), positions.data(), parents.data(),
                    row_starts.data(), base_lengths.data(), logit_rows.data(), full_pages.data(), window_pages.data(),
                    i64(full_pages.shape(1)), i64(window_pages.shape(1))};
  nb::gil_scoped_release release;
  plan.run(pool, batch);
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> view(Plan& plan, int buffer) {
  const size_t shape[2] = {static_cast<size_t>(plan.max_rows()), static_cast<size_t>(plan.cols(buffer))};
  const int64_t strides[2] = {plan.stride(buffer), 1};
  return {plan.data(buffer), 2, shape, nb::find(&plan), strides};
}

void bind_plan(nb::module_& m) {
  nb::class_<Pool>(m, "Pool").def(nb::init<int>(), "num_threads"_a).def_prop_ro("num_threads", &Pool::num_threads);
  nb::class_<Plan>(m, "Plan")
      .def(
          "__init__",
          [](Plan* plan, int64_t max_rows, const std::optional<std::string>& isa) {
            new (plan) Plan(max_rows, isa ? isa->c_str() : nullptr);
          },
          "max_rows"_a, "isa"_a.none())
      .def_prop_ro("isa", [](const Plan& plan) { return plan.kernels().name; })
      .def_prop_rw("side_by_side", &Plan::side_by_side, &Plan::set_side_by_side)
      .def("buffer", &Plan::buffer, "cols"_a)
      .def("rope", &Plan::rope, "inverse_frequencies"_a, "factor"_a, "interleaved"_a)
      .def(
          "embed",
          [](Plan& plan, std::shared_ptr<Matrix> table, int out, float scale, int32_t mask_token, const Vector& mask) {
            plan.embed(std::move(table), out, scale, mask_token, to_vector(mask));
          },
          "table"_a, "out"_a, "scale"_a, "mask_token"_a = -1, "mask"_a.none() = nb::none())
      .def(
          "project",
          [](Plan& plan, int x, std::vector<std::shared_ptr<Matrix>> weights, std::vector<int> outs,
             std::vector<Vector> biases, const Vector& norm, float eps, int up, const std::string& gate, bool accumulate) {
            need_length("outs", outs.size(), weights.size());
            need_length("biases", biases.size(), weights.size());
            if (gate != "silu" && gate != "gelu_tanh") throw std::invalid_argument("unknown gate activation " + gate);
            ProjectSpec spec;
            spec.x = x, spec.up = up, spec.norm = to_vector(norm), spec.eps = eps;
            spec.gate = gate == "silu" ? Gate::Silu : Gate::GeluTanh;
            for (size_t i = 0; i < weights.size(); ++i) {
              spec.products.push_back({weights[i], outs[i], to_vector(biases[i]), accumulate});
            }
            plan.project(std::move(spec));
          },
          "x"_a, "weights"_a, "outs"_a, "biases"_a, "norm"_a.none(), "eps"_a, "up"_a, "gate"_a, "accumulate"_a)
      .def(
          "attend",
          [](Plan& plan, int q, int k, int v, int out, int layer, bool windowed_pages, int num_heads, int num_kv_heads,
             int head_dim, float scale, float softcap, int rope, int window, bool causal, const Vector& q_norm,
             const Vector& k_norm, float norm_eps) {
            plan.attend({q, k, v, out, layer, windowed_pages, num_heads, num_kv_heads, head_dim, scale, softcap, rope,
                         window, causal, to_vector(q_norm), to_vector(k_norm), norm_eps});
          },
          "q"_a, "k"_a, "v"_a, "out"_a, "layer"_a, "windowed_pages"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a,
          "scale"_a, "softcap"_a, "rope"_a, "window"_a, "causal"_a, "q_norm"_a.none(), "k_norm"_a.none(), "norm_eps"_a)
      .def(
          "norm_add", [](Plan& plan, int y, const Vector& weight, float eps, int h) { plan.norm_add(y, to_vector(weight), eps, h); },
          "y"_a, "weight"_a, "eps"_a, "h"_a)
      .def(
          "store",
          [](Plan& plan, int k, int v, int layer, bool windowed_pages, int num_heads, int num_kv_heads, int head_dim, int rope,
             int window, const Vector& k_norm, float norm_eps) {
            plan.store({-1, k, v, -1, layer, windowed_pages, num_heads, num_kv_heads, head_dim, 1.0f, 0.0f, rope, window, true,
                        {}, to_vector(k_norm), norm_eps});
          },
          "k"_a, "v"_a, "layer"_a, "windowed_pages"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "rope"_a, "window"_a,
          "k_norm"_a.none(), "norm_eps"_a)
      .def(
          "norm", [](Plan& plan, int x, const Vector& weight, float eps, int out) { plan.norm(x, to_vector(weight), eps, out); },
          "x"_a, "weight"_a, "eps"_a, "out"_a)
      .def(
          "convolve",
          [](Plan& plan, int x, int kernels, int out, const Vector& base, int taps, int side, int64_t group_size,
             bool accumulate) {
            plan.convolve({x, kernels, out, to_vector(base), taps, side, group_size, accumulate});
          },
          "x"_a, "kernels"_a, "out"_a, "base"_a, "taps"_a, "side"_a, "group_size"_a, "accumulate"_a)
      .def(
          "rank",
          [](Plan& plan, int logits, int ids, int values, int probs, int top_k, const std::optional<Array1<int32_t>>& tokens) {
            RankSpec spec{logits, ids, values, probs, top_k, {}};
            if (tokens) spec.tokens.assign(tokens->data(), tokens->data() + tokens->size());
            plan.rank(std::move(spec));
          },
          "logits"_a, "ids"_a, "values"_a, "probs"_a, "top_k"_a, "tokens"_a.none() = nb::none())
      .def(
          "transitions",
          [](Plan& plan, int gates, int ids, int values, int scores, std::shared_ptr<Matrix> before, std::shared_ptr<Matrix> after,
             int top_k) {
            plan.transitions({gates, ids, values, scores, std::move(before), std::move(after), top_k});
          },
          "gates"_a, "ids"_a, "values"_a, "scores"_a, "before"_a, "after"_a, "top_k"_a)
      .def("copy", &Plan::copy, "source"_a, "target"_a, "column"_a)
      .def("select", &Plan::select, "source"_a, "target"_a)
      .def("scale_cap", &Plan::scale_cap, "x"_a, "scale"_a, "softcap"_a)
      .def("run", &run_plan, "pool"_a, "token_ids"_a, "positions"_a, "parents"_a, "row_starts"_a, "base_lengths"_a,
           "full_pages"_a, "window_pages"_a, "logit_rows"_a)
      .def("view", &view, "buffer"_a);
}

void bind_matrix(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix")
      .def(nb::init<int, int64_t, int64_t>(), "ggml_type"_a, "rows"_a, "cols"_a)
      .def(
          "pack",
          [](Matrix& matrix, int64_t row_start, Array1<uint8_t> data) {
            nb::gil_scoped_release release;
            matrix.pack(row_start, data.data(), data.size());
          },
          "row_start"_a, "data"_a)
      .def(
          "dequantize",
          [](const Matrix& matrix, int64_t row_start, int64_t count) {
            if (row_start < 0 || count < 0 || count > matrix.rows() || row_start > matrix.rows() - count) {
              throw std::invalid_argument(std::to_string(count) + " rows from row " + std::to_string(row_start) +
                                          " are not in a matrix of " + std::to_string(matrix.rows()));
            }
            auto* out = new float[static_cast<size_t>(count * matrix.cols())];
            nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
            {
              nb::gil_scoped_release release;
              matrix.dequantize(row_start, count, out);
            }
            return nb::ndarray<nb::numpy, float, nb::ndim<2>>(
                out, {static_cast<size_t>(count), static_cast<size_t>(matrix.cols())}, owner);
          },
          "row_start"_a, "count"_a)
      .def_prop_ro("rows", &Matrix::rows)
      .def_prop_ro("cols", &Matrix::cols)
      .def_prop_ro("ggml_type", [](const Matrix& matrix) { return static_cast<int>(matrix.format().type); })
      .def_prop_ro("nbytes", &Matrix::nbytes);
}

}  // namespace
}  // namespace blockdraft

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // at interpreter exit, of objects that modules still hold
  using namespace blockdraft;
  bind_matrix(m);
  bind_plan(m);
  bind_lookup(m);
  bind_sample(m);
  m.def("isa_names", [] {
    std::vector<std::string> names;
    for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
    return names;
  });
  m.def(
      "move_rows",
      [](Array1<uint64_t> pages, std::tuple<int, int, int> shape, int64_t base, Array1<int32_t> rows) {
        const auto [num_layers, num_kv_heads, head_dim] = shape;
        nb::gil_scoped_release release;
        move_rows(pages.data(), static_cast<int64_t>(pages.size()), num_layers, num_kv_heads, head_dim, base, rows.data(),
                  static_cast<int64_t>(rows.size()));
      },
      "pages"_a, "shape"_a, "base"_a, "rows"_a);
  m.def("measure_read_bandwidth", &measure_read_bandwidth, "threads"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("measure_int8_peak", &measure_int8_peak, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
}
